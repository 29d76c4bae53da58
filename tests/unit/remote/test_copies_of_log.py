"""The offset up to which a copy agrees with a log, after unclean elections: tables. The log ends at 100."""

import pytest
from remote_support import copy_of

from ottla.remote.reading.copies_of_log import agreed_end
from ottla.storage.leader_epoch_cache import EpochEntry


@pytest.mark.parametrize(
    ("lineage", "copy", "offset", "end"),
    [
        # one epoch
        (((0, 0),), (0, 50, (0, 0)), 10, 50),
        # the copy goes on with records of epoch 0 that epoch 1's leader did not have
        (((0, 0), (1, 40)), (0, 50, (0, 0)), 10, 40),
        # the same epochs at the same offsets
        (((0, 0), (1, 40), (3, 70)), (20, 90, (0, 20), (1, 40), (3, 70)), 30, 90),
        (((0, 0), (1, 40), (3, 70)), (20, 60, (0, 20), (1, 40)), 50, 60),
        # the copy has an epoch that the log does not have
        (((0, 0), (2, 40)), (20, 60, (0, 20), (1, 40)), 30, 40),
        # epoch 1 begins elsewhere: two leaders of one epoch do not exist, but epoch 0 ended earlier in this log
        (((0, 0), (1, 35)), (20, 60, (0, 20), (1, 40)), 30, 35),
        # the log's first epochs are removed with its records
        (((1, 45), (2, 60)), (20, 80, (0, 20), (1, 40), (2, 60)), 50, 80),
        # an epoch without records
        (((0, 0), (2, 40)), (20, 60, (0, 20), (1, 40), (2, 40)), 30, 60),
    ],
)  # fmt: skip
def test_a_copy_is_read_as_far_as_its_epochs_are_those_of_the_log(lineage, copy, offset, end):
    start, copy_end, *epochs = copy
    found = agreed_end(
        copy_of(1, start, copy_end, *epochs),
        [EpochEntry(*each) for each in lineage],
        offset=offset,
        log_end_offset=100,
    )
    assert found == end
