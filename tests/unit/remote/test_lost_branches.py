"""Copies of a lost branch that are deleted: tables. Copies have 10 offsets."""

import pytest
from remote_support import PARTITION, copy_of, to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.lost_branches import MAX_EXAMINED, lost_copies
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.storage.leader_epoch_cache import EpochEntry

#: Epoch 1 went on alone from offset 40 on; epoch 2 begins there. Both had copied 0 to 40.
SHARED = ((1, 0, (0, 0)), (2, 10, (0, 10)), (3, 20, (0, 20)), (4, 30, (0, 30)))
LOST = ((5, 40, (1, 40)), (6, 50, (1, 50)))
NEW = ((7, 40, (2, 40)), (8, 50, (2, 50)))
LINEAGE = ((0, 0), (2, 40))


def lost(copies, lineage=LINEAGE, *, start=0, end=100, in_sync=True, expired_before=None):
    cache = RemoteLogMetadataCache(PARTITION)
    for number, offset, *epochs in copies:
        cache.add(copy_of(number, offset, offset + 10, *epochs))
        cache.update(to(number, State.COPY_SEGMENT_FINISHED))
    found = lost_copies(
        cache,
        [EpochEntry(*each) for each in lineage],
        log_start_offset=start,
        log_end_offset=end,
        is_fully_in_sync=in_sync,
        expired_before_ms=expired_before,
    )
    return [each.segment_id.id.int for each in found]


@pytest.mark.parametrize(
    ("copies", "lineage", "settings", "deleted"),
    [
        ((*SHARED, *LOST, *NEW), LINEAGE, {}, [5, 6]),
        ((*SHARED, *LOST, *NEW), LINEAGE, {"in_sync": False}, []),  # a replica may have it, and be elected
        # As far as the leader has copied these offsets.
        ((*SHARED, *LOST), LINEAGE, {}, []),
        ((*SHARED, *LOST, NEW[0]), LINEAGE, {}, [5]),
        ((*SHARED, *LOST, NEW[1]), LINEAGE, {}, []),  # a hole
        ((*SHARED, *LOST, *NEW), LINEAGE, {"end": 55}, [5]),  # above the high watermark nothing counts as copied
        ((*SHARED, *LOST, *NEW), LINEAGE, {"start": 45}, [5, 6]),
        ((LOST[1], NEW[1]), LINEAGE, {"start": 55}, [6]),
        # Retention deletes them, too: offset 10 is from time 100.
        ((*SHARED, *LOST), LINEAGE, {"expired_before": 401}, [5]),
        ((*SHARED, *LOST), LINEAGE, {"expired_before": 400}, []),
        ((*SHARED, *LOST), LINEAGE, {"expired_before": 401, "in_sync": False}, []),
        # Below the log start whatever the other replicas have.
        ((*LOST, *NEW), LINEAGE, {"start": 50, "in_sync": False}, [5]),
        (LOST, LINEAGE, {"start": 60, "in_sync": False}, [5, 6]),
        # The leader goes on within the copy of another leader, whose first records are its own.
        (((1, 30, (0, 30)), (2, 30, (0, 30), (2, 35))), ((0, 0), (2, 35)), {}, []),
        (((1, 30, (0, 30)), (2, 30, (0, 30), (2, 35))), ((0, 0), (2, 35)), {"start": 34}, []),
        (((1, 30, (0, 30)), (2, 30, (0, 30), (2, 35))), ((0, 34), (2, 35)), {"start": 34}, []),
        (((1, 30, (0, 30)), (2, 30, (0, 30), (2, 35))), ((2, 35),), {"start": 35}, [1]),
        # The same epoch went on in the lost branch.
        ((*SHARED, (5, 40, (0, 40)), NEW[0]), LINEAGE, {}, [5]),
        ((*SHARED, (5, 40, (0, 40), (1, 45)), NEW[0]), LINEAGE, {}, [5]),
        # The first leader is elected again: the branch of epoch 2 is lost, which is newer than what the
        # leader has there.
        ((*SHARED, *LOST, *NEW), ((0, 0), (1, 40), (3, 70)), {}, [7, 8]),
        ((*SHARED, LOST[0], *NEW), ((0, 0), (1, 40), (3, 50)), {}, [7]),
        # A newer leader has written them, of which this one has no record yet.
        ((*SHARED, *LOST, (7, 40, (3, 40)), (8, 50, (3, 50))), LINEAGE, {}, []),
        ((*SHARED, (9, 40, (3, 40)), *NEW), LINEAGE, {"start": 60}, []),
        # A leader whose log was empty; Kafka deletes all of these at once.
        ((*SHARED, *LOST), ((2, 0),), {}, []),
        ((*SHARED, *LOST, (7, 0, (2, 0)), (8, 10, (2, 10))), ((2, 0),), {}, [1, 2]),
        ((*SHARED, *LOST, (7, 0, (2, 0)), (8, 10, (2, 10))), ((2, 0),), {"in_sync": False}, []),
        # The lineage of the remote part is lost: epochs 0 and 1 may be the log's, too.
        ((*SHARED, *LOST, *NEW), ((2, 40),), {}, []),
        ((*SHARED, *LOST, *NEW), ((2, 40),), {"start": 39}, []),
        ((*LOST, *NEW), ((2, 40),), {"start": 40}, [5, 6]),
    ],
)  # fmt: skip
def test_which_copies_are_deleted(copies, lineage, settings, deleted):
    assert lost(copies, lineage, **settings) == deleted


def test_a_decision_examines_a_bounded_number_of_copies():
    """The next one goes on; without replicas in sync none is examined that may not be deleted."""
    branch = [(number, 10 * number, (1, 10 * number)) for number in range(2 * MAX_EXAMINED)]
    copies = [*branch, (5000, 0, (2, 0))]
    assert lost(copies, ((2, 0),), expired_before=10**6) == list(range(MAX_EXAMINED))
    assert lost(copies[MAX_EXAMINED:], ((2, 0),), expired_before=10**6) == list(
        range(MAX_EXAMINED, 2 * MAX_EXAMINED)
    )
    assert lost(copies, ((2, 0),), start=30, in_sync=False) == [0, 1, 2]
