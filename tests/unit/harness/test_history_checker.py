"""The checker of histories finds what it has names for, each in the smallest history that shows it."""

from dataclasses import replace

import pytest

from tests.harness.history import History, Poll, Send, Transaction
from tests.harness.history_checker import check


def sent(values, at, *, is_ok=True, client="p"):
    """One batch of one-letter values."""
    return Send(
        client=client,
        topic="t",
        partition=0,
        values=[value.encode() for value in values],
        acks=-1,
        is_ok=is_ok,
        base_offset=at,
    )


def read(found, client="c"):
    """A poll of "0a 1b": value a at offset 0, b at 1."""
    rows = [(int(row[:-1]), row[-1:].encode()) for row in found.split()]
    return Poll(client=client, topic="t", partition=0, found=rows, broker_id=1, high_watermark=9, time_s=0)


@pytest.mark.parametrize(("sends", "polls", "final", "errors"), [
    # acknowledged                   polls                          at the end  what is wrong
    ([sent("ab", 0), sent("c", 2)],  [read("0a 1b"), read("2c")],   "0a 1b 2c", set()),
    ([sent("a", 0), sent("b", None, is_ok=None)], [],               "0a",       set()),
    ([sent("a", 0), sent("b", None, is_ok=None)], [],               "0a 1b",    set()),
    ([sent("ac", 0), sent("b", 1, client="q")], [],                 "0a 1b 2c", {"inconsistent-offsets"}),
    ([sent("a", 0), sent("b", 1), sent("c", 2)], [],                "0a 2c",    {"lost-write"}),
    ([sent("a", 0), sent("b", 1)],   [],                            "0a",       {"unseen"}),
    ([sent("a", 0)],                 [],                            "0a 1a",    {"duplicate", "inconsistent-offsets"}),
    ([sent("a", None), sent("b", None)], [],                        "0b 1a",    {"nonmonotonic-send"}),
    ([sent("ab", None)],             [],                            "0b 1a",    {"int-nonmonotonic-send"}),
    ([sent("a", 0)],                 [read("0b")],                  "0a",       {"inconsistent-offsets"}),
    ([],                             [read("0a 1b"), read("1b")],   "0a 1b",    {"nonmonotonic-poll"}),
    ([],                             [read("1b 0a")],               "0a 1b",    {"int-nonmonotonic-poll", "poll-skip"}),
    ([],                             [read("0a"), read("2c")],      "0a 1b 2c", {"poll-skip"}),
    ([],                             [read("0a 2c")],               "0a 1b 2c", {"int-poll-skip"}),
    ([sent("a", None, is_ok=False)], [],                            "0a",       {"G1a"}),
])  # fmt: skip
def test_history(sends, polls, final, errors):
    history = History(sends=sends, polls=polls)
    assert set(check(history, final=[read(final, client="reader")])) == errors


@pytest.mark.parametrize(("sends", "polls", "final", "errors"), [
    # The batch came again when its first copy had been deleted, and with it what was known of its producer.
    ([sent("a", 1)],                 [read("0a")],                  "1a",       set()),
    ([sent("a", 1)],                 [read("0a")],                  "2b",       set()),
    ([sent("a", 1)],                 [read("0a")],                  "0a 1a",    {"duplicate", "inconsistent-offsets"}),
    ([sent("a", 0)],                 [read("0a")],                  "1a",       {"inconsistent-offsets"}),
    ([sent("a", 1)],                 [read("1b")],                  "2c",       {"inconsistent-offsets"}),
])  # fmt: skip
def test_a_log_without_its_first_records(sends, polls, final, errors):
    history = History(sends=sends, polls=polls, trimmed={"t"})
    assert set(check(history, final=[read(final, client="reader")])) == errors


def test_a_log_without_any_record():
    history = History(sends=[sent("a", 1)], polls=[read("0a")], trimmed={"t"})
    assert check(history, final=[]) == {}


COMMITTED, ABORTED = (Transaction(is_committed=each, decided_s=5) for each in (True, False))


def of(transaction, values, at):
    return replace(sent(values, at), transaction=transaction)


@pytest.mark.parametrize(("sends", "found", "time_s", "errors"), [
    # a transaction that is decided at 5 s    read committed     what is wrong
    ([of(COMMITTED, "ab", 0)],                "0a 1b",     9,    set()),
    ([of(COMMITTED, "ab", 0)],                "0a 1b",     4,    {"precommitted-read"}),
    ([of(COMMITTED, "ab", 0), sent("c", 2)],  "2c",        9,    {"lost-write"}),
    ([of(ABORTED, "ab", 0), sent("c", 2)],    "2c",        9,    set()),
    ([of(ABORTED, "ab", 0), sent("c", 2)],    "0a 1b 2c",  9,    {"G1a"}),
])  # fmt: skip
def test_readers_of_committed_records(sends, found, time_s, errors):
    polls = [replace(read(found, client="reader"), is_read_committed=True, time_s=time_s)]
    assert set(check(History(sends=sends), final=polls)) == errors


def test_readers_of_all_records_get_aborted_ones():
    history = History(sends=[of(ABORTED, "a", 0)], polls=[read("0a")])
    assert check(history, final=[read("0a", client="reader")]) == {}
