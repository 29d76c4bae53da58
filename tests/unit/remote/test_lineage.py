"""Copies that are part of a log, and the offset up to which a log is copied: tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_support import copy_of

from ottla.remote.lineage import highest_remote_offset, is_within
from ottla.storage.leader_epoch_cache import EpochEntry


def epochs(*entries):
    return [EpochEntry(*each) for each in entries]


LINEAGE = epochs((0, 0), (2, 40), (5, 90))


@pytest.mark.parametrize(
    ("start", "end", "of_copy", "within"),
    [
        (0, 20, [(0, 0)], True),
        (20, 40, [(0, 20)], True),
        (20, 60, [(0, 20), (2, 40)], True),
        (20, 95, [(0, 20), (2, 40), (5, 90)], True),
        (40, 60, [(2, 40)], True),
        (20, 50, [(0, 20)], False),  # epoch 0 ends at 40 here: the other branch
        (20, 60, [(0, 20), (1, 30)], False),  # epoch 1 is not in the lineage
        (20, 60, [(0, 20), (2, 45)], False),  # epoch 2 begins elsewhere
        (20, 95, [(0, 20), (5, 90)], False),  # epoch 2 is missing
        (30, 60, [(2, 30)], False),  # epoch 2 begins at 40 here
        (90, 101, [(5, 90)], False),  # beyond the log's end
        (90, 100, [(5, 90)], True),
        (90, 99, [(6, 90)], False),
        (20, 60, [(0, 20), (1, 40), (2, 40)], True),  # an epoch without records
    ],
)
def test_which_copies_are_part_of_a_log(start, end, of_copy, within):
    assert is_within(copy_of(1, start, end, *of_copy), LINEAGE, log_end_offset=100) is within


@pytest.mark.parametrize(
    ("lineage", "of_copy", "within"),
    [
        ([(3, 45)], [(0, 30), (3, 40)], True),  # retention has cut the lineage within the copy
        ([(3, 45)], [(0, 30), (2, 40)], False),  # only epochs that the lineage has lost: nothing to compare
        ([(3, 45), (4, 50)], [(0, 30), (3, 40), (4, 50)], True),
        ([(3, 45), (4, 52)], [(0, 30), (3, 40), (4, 50)], False),
        ([], [(0, 30)], False),
    ],
)
def test_a_lineage_that_retention_has_cut(lineage, of_copy, within):
    assert is_within(copy_of(1, 30, 60, *of_copy), epochs(*lineage), log_end_offset=100) is within


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_a_piece_of_the_log_itself_is_always_within(lengths, data):
    entries, at = [], 0
    for number, length in enumerate(lengths):
        entries.append(EpochEntry(number * 2, at))
        at += length
    start = data.draw(st.integers(0, at - 1))
    end = data.draw(st.integers(start + 1, at))
    of_piece = [
        (entry.epoch, max(entry.start_offset, start))
        for entry, following in zip(entries, [*entries[1:], EpochEntry(99, at)], strict=True)
        if entry.start_offset < end and following.start_offset > start
    ]
    assert is_within(copy_of(1, start, end, *of_piece), entries, log_end_offset=at)


@pytest.mark.parametrize(
    ("copied", "expected"),
    [
        ({}, None),
        ({0: 30}, 30),
        ({0: 40}, 40),
        ({0: 60}, 40),  # epoch 0 went on in the branch that was given up
        ({0: 40, 2: 70}, 70),
        ({0: 40, 2: 90, 5: 95}, 95),
        ({5: 150}, 100),  # beyond this log's end: an unclean election has lost it
        ({1: 60}, None),
        ({0: 40, 1: 60}, 40),
        ({0: 40, 2: 35}, 40),  # epoch 2 began earlier on another branch; nothing of ours is copied
    ],
)
def test_up_to_where_a_log_is_copied(copied, expected):
    assert highest_remote_offset(LINEAGE, copied.get, log_end_offset=100) == expected
