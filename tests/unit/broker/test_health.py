"""`ottla cluster status`: which state of a cluster is healthy, and what is said of others."""

import click
import pytest

from ottla.broker.cli.admin.status_command import status_lines
from ottla.broker.cli.admin.topic_rows import state_of
from ottla.broker.reports.health import (
    Cluster,
    GroupLag,
    Level,
    PartitionTally,
    facts_of,
    level_of,
    reasons_of,
    sentence_of,
    status_row,
)
from ottla.protocol.messages.describe_quorum import PartitionDataResponse, ReplicaState
from ottla.protocol.messages.metadata import MetadataResponsePartition
from ottla.protocol.types import TopicPartition

NOW_MS = 1_000_000


def quorum(*ages_ms, leader=101):
    """Controllers 101, 102, ..., of which 101 leads; their ages are those of the time when each was caught up."""
    voters = [
        ReplicaState(replica_id=101 + at, log_end_offset=7, last_caught_up_timestamp=NOW_MS - age_ms)
        for at, age_ms in enumerate(ages_ms)
    ]
    return PartitionDataResponse(leader_id=leader, leader_epoch=5, current_voters=voters)


def partitions(**rows):
    """Partitions of topics, by name: leader, ISR; each has replicas 1, 2 and 3, and min.insync.replicas=2."""
    tally = PartitionTally()
    for name, (leader, isr, offline) in rows.items():
        row = MetadataResponsePartition(leader_id=leader, replica_nodes=[1, 2, 3], isr_nodes=list(isr))
        tally.add(
            TopicPartition(name, 0), state_of(row, min_isr=2), replicas=row.replica_nodes, offline=offline
        )
    return tally


REFUSED = "producers with acks=all are refused there"
ALL, NONE = (1, 2, 3), ()


def cluster(**named):
    given = {
        "cluster_id": "c",
        "alive": ALL,
        "quorum": quorum(0, 10, 20),
        "partitions": partitions(a=(1, ALL, NONE), b=(2, ALL, NONE)),
    }
    return Cluster(**{**given, **named})


@pytest.mark.parametrize(("named", "level", "texts"), [
    ({}, Level.HEALTHY, []),
    # A voter of a version that reports no times is caught up as far as is known.
    ({"quorum": PartitionDataResponse(leader_id=1, current_voters=[ReplicaState(replica_id=1)])}, Level.HEALTHY, []),
    ({"quorum": None}, Level.HEALTHY, []),
    ({"quorum": quorum(0, 20_000, 0)}, Level.DEGRADED, [
        "controller 102 has not caught up with the metadata log for 20 s",
        "the quorum of 3 voters cannot lose another one",
    ]),
    ({"quorum": quorum(0, 20_000, 0, 0, 0)}, Level.DEGRADED, [
        "controller 102 has not caught up with the metadata log for 20 s",
    ]),
    ({"quorum": quorum(leader=-1)}, Level.UNAVAILABLE, [
        "no controller is active: nothing can be changed, and no leader of a partition elected",
    ]),
    ({"partitions": partitions(a=(-1, NONE, ALL), b=(1, ALL, NONE)), "alive": ALL}, Level.UNAVAILABLE, [
        "1 partition without a leader (a-0): nothing is read or written there",
        "broker 1 is alive with 1 offline replica: a log directory has failed",
        "broker 2 is alive with 1 offline replica: a log directory has failed",
        "broker 3 is alive with 1 offline replica: a log directory has failed",
    ]),
    ({"partitions": partitions(a=(1, (1,), NONE), b=(1, (1, 2), NONE))}, Level.UNAVAILABLE, [
        f"1 partition with fewer replicas in sync than min.insync.replicas (a-0): {REFUSED}",
        "1 partition with followers that are not in sync (b-0)",
    ]),
    ({"alive": (1, 2), "fenced": (3,)}, Level.DEGRADED, [
        "broker 3 is fenced: it sends no heartbeats, or has not started yet",
    ]),
    ({"alive": (1, 2)}, Level.DEGRADED, ["broker 3 is not alive, and has 2 replicas"]),
    ({"unanswered": ["the groups are not known (x)"]}, Level.DEGRADED, ["the groups are not known (x)"]),
    ({"groups": [GroupLag(group="g", lag=10, members_count=1)]}, Level.HEALTHY, []),
    ({"groups": [GroupLag(group="g", lag=10, members_count=1)], "max_lag": 9}, Level.DEGRADED, [
        "the group g with 1 member lags by 10, more than 9",
    ]),
])  # fmt: skip
def test_what_is_wrong_with_a_cluster(named, level, texts):
    reasons = reasons_of(cluster(**named))
    assert [each.text for each in reasons] == texts
    assert level_of(reasons) is level


def test_a_reason_names_three_partitions():
    broken = {f"t{number}": (-1, NONE, NONE) for number in range(5)}
    [reason] = reasons_of(cluster(partitions=partitions(**broken)))
    assert reason.text.startswith("5 partitions without a leader (t0-0, t1-0, t2-0, ...): ")


def test_the_sentence_of_a_healthy_cluster():
    assert sentence_of(cluster(), []) == (
        "Healthy: 3 brokers are alive, controller 101 is active with 3 voters, "
        "and 2 partitions have all replicas in sync."
    )


def test_the_numbers():
    found = cluster(
        groups=[GroupLag(group="g", lag=10, members_count=1), GroupLag(group="h", lag=20, members_count=0)],
        not_copied={TopicPartition("a", 0): 7, TopicPartition("b", 0): None},
    )
    assert facts_of(found) == {
        "cluster": "c",
        "controllers": "101 is active, epoch 5, voters 101, 102, 103",
        "brokers": "3 alive: 1, 2, 3",
        "partitions": "2 in 2 topics",
        "groups": "2, the largest lag is 20 (h)",
        "tier": "2 tiered partitions, 7 records are not copied yet",
    }
    row = status_row(found)
    assert (row["level"], row["controller"], row["not_copied"]) == ("healthy", 101, 7)


@pytest.mark.parametrize(("named", "colour", "head"), [
    ({}, "green", "Healthy: 3 brokers are alive, "),
    ({"alive": (1, 2)}, "yellow", "Degraded: broker 3 is not alive, and has 2 replicas."),
    ({"alive": (1,)}, "yellow", "Degraded, for 2 reasons:"),
    ({"quorum": quorum(leader=-1)}, "red", "Unavailable: no controller is active"),
])  # fmt: skip
def test_the_sentence_has_the_colour_of_its_level(named, colour, head):
    line, *more = status_lines(cluster(**named))
    assert click.unstyle(line).startswith(head)
    assert line == click.style(click.unstyle(line), fg=colour)
    assert [each for each in more if "\x1b" in each] == []
