"""The judge's own model of transactions where it has not seen the beginning of a log."""

from types import SimpleNamespace
from typing import Any

import pytest
from cluster_ledger import Ledger
from cluster_texts import Found
from cluster_tiers import _is_decided

from ottla.storage.transaction_index import AbortedTransaction


def aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, 7)


@pytest.mark.parametrize(
    ("text", "known_from", "index", "is_right"),
    [
        # log       seen   index of [2, 4)      right
        ("abaA",    0, [aborted(0, 0, 3)],  False),  # b is open
        ("aaaA",    0, [aborted(0, 0, 3)],  True),
        ("aaaA",    0, [aborted(0, 1, 3)],  False),
        ("aaaA",    0, [],                  False),
        ("aaaA",    2, [aborted(0, 0, 3)],  True),   # began before the judge looked
        ("aaaA",    2, [aborted(0, 2, 3)],  True),   # as far as it knows
        ("aaaA",    2, [aborted(0, 3, 3)],  False),
        ("aaaA",    2, [],                  False),  # is missing, all the same
        ("aaaA",    2, [aborted(1, 0, 3)],  False),
        ("aAbB",    2, [aborted(1, 2, 3)],  True),
        ("aAaA",    1, [aborted(0, 2, 3)],  True),   # the marker before it shows where it began
        ("aAaA",    1, [aborted(0, 0, 3)],  False),
    ],
)  # fmt: skip
def test_a_transaction_that_began_before_the_ledger(text, known_from, index, is_right):
    ledger = Ledger()
    ledger.commit(Found(text, known_from))
    copy: Any = SimpleNamespace(start_offset=2, end_offset=4)
    assert _is_decided(ledger, copy, index, log_start_offset=0) is is_right


@pytest.mark.parametrize(
    ("index", "is_right"),
    [
        ([aborted(0, 0, 3)], True),
        ([aborted(0, 1, 3)], True),  # by a replica that was emptied, and has fetched from there
        ([], True),
        ([aborted(1, 1, 3)], False),
        ([aborted(0, 1, 2)], False),
    ],
)
def test_a_transaction_that_began_before_the_log_start(index, is_right):
    ledger = Ledger()
    ledger.commit(Found("aaaA", 0))
    copy: Any = SimpleNamespace(start_offset=2, end_offset=4)
    assert _is_decided(ledger, copy, index, log_start_offset=1) is is_right


def test_a_gap_may_have_ended_what_was_open():
    """Otherwise a transaction would stay open, and no copy behind it be decided."""
    ledger = Ledger()
    ledger.commit(Found("ab", 0))
    assert ledger.last_stable_offset() == 0
    ledger.commit(Found("abABbB", 4))
    assert ledger.last_stable_offset() == 6
    assert ledger.isolation.aborted == [AbortedTransaction(1, 4, 5, -1)]


def test_a_transaction_whose_records_are_deleted_holds_nothing_back():
    """A replica that was restarted since, and a new one, do not know it."""
    ledger = Ledger()
    ledger.commit(Found("aabc", 0))
    assert [ledger.last_stable_offset(start) for start in range(5)] == [0, 0, 2, 3, 4]
