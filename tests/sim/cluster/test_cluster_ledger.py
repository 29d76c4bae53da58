"""The judge's ledger of a leader that was elected uncleanly, whose log has gaps, and the replicas that it judges."""

import pytest
from cluster_ledger import Ledger, difference
from cluster_texts import Found


@pytest.mark.parametrize(
    ("first_epoch", "leader", "replica", "found"),
    [
        # epoch leader    replica   what is wrong
        (3, "abc",    "abc",    None),
        (3, "abc",    "ab",     "it ends at 2, committed is everything before 3"),
        (3, "abc",    "a-c",    "behind 1, committed is everything in between"),
        (3, "abc",    "abb",    "base_offset=2"),
        (3, "a-c",    "a-c",    None),
        (3, "a-c",    "abc",    None),  # a follower keeps what its leader has lost
        (3, "a-c",    "aac",    None),
        (3, "a-c",    "abb",    "base_offset=2"),
        (3, "a-c",    "--c",    "behind 0, committed is everything in between"),
        (3, "ab-",    "ab-",    None),  # a segment without records behind the gap
        (3, "ab-",    "abc",    None),
        (3, "ab-",    "a--",    "it ends at 1, committed is everything before 3"),
        (3, "ab--cb", "abccc-", "it ends at 5, committed is everything before 6"),
        (-1, "ab-",   "ab-",    "it ends at 2, committed is everything before 3"),  # no election loses anything
        (-1, "a-c",   "a-c",    "behind 1, committed is everything in between"),
    ],
)  # fmt: skip
def test_a_replica_may_have_what_is_in_a_gap_of_an_unclean_leader_or_not(first_epoch, leader, replica, found):
    ledger = Ledger(first_epoch=first_epoch)
    ledger.commit(Found(leader))
    differs = difference(ledger, Found(replica), 0, len(leader), is_compacted=False)
    assert (differs is None) is (found is None)
    assert found is None or found in str(differs)


@pytest.mark.parametrize(
    ("text", "uncommitted", "committed"),
    [
        ("abcC",   set(),  set()),
        ("a-C",    {1},    {0, 1}),  # the marker of a may be at 1, and a replica that has it decides about 0 by that
        ("aA-b",   {2},    {2}),
        ("a-aA",   {1},    {0, 1}),  # what is behind the gap is decided there
        ("a-aA-b", {1, 4}, {0, 1, 4}),
        ("ab",     set(),  set()),   # open, but no gap follows
    ],
)  # fmt: skip
def test_replicas_may_differ_in_a_gap_and_in_transactions_that_are_open_before_it(
    text, uncommitted, committed
):
    ledger = Ledger(first_epoch=0)
    ledger.commit(Found(text))
    assert ledger.differing(is_read_committed=False) == uncommitted
    assert ledger.differing(is_read_committed=True) == committed
