"""Events of replicas: the rule and the function that they name are those that have decided."""

import pytest

from ottla.stories import catalog
from ottla.stories.partition.replica_stage import ReplicaStage
from ottla.stories.partition.tiered_stage import TieredStage
from ottla.stories.recording import record

_PROVOKED = pytest.mark.logs("Fetch from broker", "has failed, the next attempt", "below the high watermark")


def steps(stage, text):
    return record(f"# KIP-101\n\n{text.strip()}\n----\n", stage)


def events(step):
    """Return (line, KIP, function) of each event of a step."""
    return [(event.line, event.kip, event.function.rpartition(".")[2]) for event in step.events]


def test_a_leader_that_restarts_in_its_epoch_does_not_begin_it_again():
    played = steps(
        ReplicaStage(), "replicas A\nA leads e0\nA writes m1\nA dies\nA comes back\nA restarts\nA leads e1"
    )
    led = [any(line.startswith("A leads") for line, *_ in events(step)) for step in played]
    assert led == [False, True, False, False, False, False, True]


def test_a_fetch_that_is_answered_without_records_names_kip_392():
    text = """
replicas A B C
A leads e0
A writes m1
B catches up
B dies
C catches up
B comes back
B fetches
B fetches
A writes m2
B fetches
C fetches
"""
    played = steps(ReplicaStage(), text)
    first, waits, *_, stale = played[-5:]
    assert ("B <- no records, HW 1", "KIP-392", "_is_enough") in events(first)
    assert "KIP-392" not in [kip for _, kip, _ in events(waits)]
    assert ("B <- no records, HW 2", "KIP-392", "is_high_watermark_stale") in events(stale)


def test_a_follower_that_begins_after_what_is_tiered_names_kip_1023():
    text = """
replicas A B
fetch {start}
B dies
A leads e0 isr A
A writes m0 m1 m2
A rolls
A writes m3
A rolls
A writes m4
A copies
A keeps 3 on
B comes back
B catches up
"""
    for start, found in (
        ("last-tiered-offset", [("B begins at 4, after what is tiered", "KIP-1023", "bootstrap_offset")]),
        ("local-log-start", []),
    ):
        played = steps(TieredStage(), text.format(start=start))
        assert [row for row in events(played[-1]) if row[1] == "KIP-1023"] == found


@pytest.mark.parametrize(("name", "line", "kip", "function"), [
    ("log_start_of_a_new_leader",     "A: log start offset 2",                "KIP-107", "delete_records"),
    ("log_start_of_a_new_leader",     "B: log start offset 2",                "KIP-405", "seed_leader"),
    ("unclean_election",              "A: log start offset 4",                "KIP-107", "append"),
    ("unclean_election",              "B: copy 2 is DELETE_SEGMENT_STARTED",  "KIP-405", "lost_copies"),
    ("leader_returns",                "A: copy 1 is DELETE_SEGMENT_STARTED",  "KIP-405", "_continue"),
    ("all_copies_expired",            "A: log start offset 2",                "KIP-405", "expire"),
])  # fmt: skip
@_PROVOKED
def test_log_starts_and_deletions_have_the_rule_of_their_cause(name, line, kip, function):
    story = catalog.story(f"tiering/{name}")
    found = [row for step in record(story.text, story.new_stage()) for row in events(step)]
    assert (line, kip, function) in found
