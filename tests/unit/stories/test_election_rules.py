"""Events of elections: the rule and the function that they name are those that have decided."""

import pytest

from ottla.stories.elections.election_stage import ElectionStage
from ottla.stories.recording import record

_TIERED = "replicas 1 2 3 min-isr 1 tiered"
_ELIGIBLE = (
    "set leader.election.prefer.early.local.log.start.offset=false",
    "set leader.election.eligible.local.log.ms=600000",
)


def steps(*commands):
    text = "\n".join(commands)
    return record(f"# KIP-966\n\n{text}\n----\n", ElectionStage())


def events(*commands):
    """Return what the last command has led to: line, KIP and function of each event."""
    return [
        (event.line, event.kip, event.function.rpartition(".")[2]) for event in steps(*commands)[-1].events
    ]


def test_a_new_cluster_is_not_compared_with_the_former_one():
    assert events("replicas 1 2 3 min-isr 2", "1 is fenced", "replicas 1 2 min-isr 1") == []


@pytest.mark.parametrize(("command", "kip", "function"), [
    ("1 asks for isr 1 2",              "KIP-497", "alter_partition"),
    ("3 is fenced",                     "KIP-841", "partition_change"),
    ("3 shuts down",                    "KIP-841", "partition_change"),
    ("3 unregisters",                   "KIP-841", "partition_change"),
    ("3 registers, unclean shutdown",   "KIP-966", "partition_change"),
    ("3 loses its directory",           "KIP-858", "partition_change"),
    ("reassign to 1 2",                 "KIP-455", "partition_change"),
])  # fmt: skip
def test_only_alter_partition_is_a_proposal_of_the_leader(command, kip, function):
    assert events("replicas 1 2 3 min-isr 1", command) == [("the ISR is 1 2", kip, function)]


@pytest.mark.parametrize("command", ["1 asks for isr 1 2", "2 registers, unclean shutdown"])
def test_a_replica_leaves_the_elr_by_another_rule_than_it_enters_it(command):
    commands = ("replicas 1 2 3 min-isr 2", "1 asks for isr 1 2", "1 asks for isr 1")
    entered = steps(*commands)[-1].events[-1]
    left = steps(*commands, command)[-1].events[-1]
    assert (entered.line, left.line) == ("the ELR is 2", "the ELR is empty")
    assert "it enters the ELR" in entered.rule
    assert "leaves the ELR" in left.rule


def test_the_preference_is_named_only_where_it_decides():
    by_order = events(_TIERED, "1 reports 1@0 2@0 3@50000", "1 is fenced")
    assert by_order[0] == ("2 leads e1", "KIP-966", "elect")
    by_local_log = events(_TIERED, "1 reports 1@0 2@50000 3@0", "1 is fenced")
    assert by_local_log[0] == ("3 leads e1", "KIP-1303", "elect")


def test_the_two_forms_of_the_preference():
    early = steps(_TIERED, "1 reports 1@900000 2@0 3@0", "elect preferred")[-1].events[0]
    assert (early.line, "First form" in early.rule) == ("2 leads e1", True)
    eligible = steps(_TIERED, *_ELIGIBLE, "1 reports 1@900000:1m 2@0:60m 3@0:60m", "elect preferred")[
        -1
    ].events[0]
    assert (eligible.line, "May 2026" in eligible.rule) == ("2 leads e1", True)


def test_a_leader_that_stays_for_its_local_log_is_an_event_and_its_log_is_in_the_trace():
    played = steps(
        _TIERED, *_ELIGIBLE, "1 is fenced", "1 is unfenced",
        "2 asks for isr 2 3 1 local 1@900000:1m 2@100:60m:64 3@100:60m", "balance leaders", "9m pass",
        "balance leaders",
    )  # fmt: skip
    stays, waits, returns = played[-3:]
    assert [(event.line, event.kip) for event in stays.events] == [("2 stays the leader", "KIP-1303")]
    assert [(event.line, event.kip) for event in returns.events] == [("1 leads e2", "KIP-966")]
    assert stays.partition.local_logs["1"].oldest_age_ms == 60_000
    assert waits.partition.local_logs["1"].oldest_age_ms == 600_000
    assert stays.partition.local_logs["2"].size_bytes == 64
