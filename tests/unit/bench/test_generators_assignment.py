"""The clients of a phase, and the tasks in which they run."""

import pytest

from ottla.bench.generators.assignment import Cluster, connections_plans, plans_of, spread
from ottla.bench.workloads.model import Consumers, Phase, Producers, Start

TOPICS = {"t": "t-1"}
CLUSTER = Cluster(
    bootstrap="127.0.0.1:1",
    partitions={"t-1": 5},
    ends={"t-1": {partition: 10 * partition for partition in range(5)}},
)


def plans(phase, stream_prefix="run"):
    return plans_of(phase, cluster=CLUSTER, topics=TOPICS, stream_prefix=stream_prefix)


def test_producers_share_rate_and_records():
    phase = Phase(name="p", producers=[Producers(topic="t", count=4, rate=100.0, records=10)], seconds=3)
    found = plans(phase)
    assert [plan.name for plan in found] == [f"producer-0-{one}" for one in range(4)]
    assert [plan.records for plan in found] == [3, 3, 2, 2]
    assert sum(plan.rate for plan in found) == 100
    # Together they are one producer of the whole rate.
    assert [plan.first_due_s for plan in found] == [0, 0.01, 0.02, 0.03]
    assert {(plan.topic, plan.partitions, plan.seconds) for plan in found} == {("t-1", 5, 3)}


@pytest.mark.parametrize(
    ("acks", "idempotence"), [("all", "true"), ("-1", "true"), ("1", "false"), ("0", "false")]
)
def test_a_producer_is_idempotent_as_kafkas_own(acks, idempotence):
    (plan,) = plans(Phase(name="p", producers=[Producers(topic="t", acks=acks)]))
    assert plan.settings["enable.idempotence"] == idempotence


def test_streams_are_never_the_same():
    phases = [Phase(name=name, producers=[Producers(topic="t", count=3)] * 2) for name in "ab"]
    streams = [plan.stream for phase in phases for run in ("run-1", "run-2") for plan in plans(phase, run)]
    assert len(set(streams)) == 2 * 2 * 6


@pytest.mark.parametrize(
    ("start", "is_each_all", "offsets"),
    [
        (Start.END, False, [{0: 0, 2: 20, 4: 40}, {1: 10, 3: 30}]),
        (Start.BEGINNING, False, [{0: -2, 2: -2, 4: -2}, {1: -2, 3: -2}]),
        (Start.OFFSET, True, [dict.fromkeys(range(5), 7)] * 2),
    ],
)
def test_consumers_read_all_partitions_once_or_each(start, is_each_all, offsets):
    consumers = Consumers(topic="t", count=2, start=start, offset=7, is_each_all=is_each_all)
    assert [plan.offsets for plan in plans(Phase(name="p", consumers=[consumers]))] == offsets


def test_a_task_has_some_of_all():
    phase = Phase(
        name="p", producers=[Producers(topic="t", count=3)], consumers=[Consumers(topic="t", count=3)]
    )
    tasks = spread(plans(phase), slots=2)
    assert [[plan.name for plan in task.plans] for task in tasks] == [
        ["producer-0-0", "producer-0-2", "consumer-0-1"],
        ["producer-0-1", "consumer-0-0", "consumer-0-2"],
    ]
    assert len(spread(plans(phase), slots=100)) == 6
    assert spread([], slots=2) == []


@pytest.mark.parametrize(
    ("slots", "tasks"),
    [
        (1, [["producer-0-0", "consumer-0-0", "consumer-1-0"]]),
        (2, [["consumer-1-0"], ["producer-0-0", "consumer-0-0"]]),
        (8, [["consumer-1-0"], ["producer-0-0"], ["consumer-0-0"]]),
    ],
)
def test_paced_clients_share_no_task_with_those_as_fast_as_possible(slots, tasks):
    """A catch-up in the same Python would hold its lock, and records beside it would be late without any
    broker's fault.
    """
    phase = Phase(
        name="tail and catch-up",
        seconds=5,
        producers=[Producers(topic="t", rate=1000.0)],
        consumers=[Consumers(topic="t"), Consumers(topic="t", start=Start.BEGINNING)],
    )
    assert [[plan.name for plan in task.plans] for task in spread(plans(phase), slots=slots)] == tasks


def test_connections_go_to_all_brokers_from_all_tasks():
    found = connections_plans(7, addresses=[("a", 1), ("b", 2), ("c", 3)], request=b"", tasks=2)
    addresses = [address for plan in found for address in plan.addresses]
    assert sorted(addresses) == [("a", 1)] * 3 + [("b", 2)] * 2 + [("c", 3)] * 2
    assert [len(plan.addresses) for plan in found] == [4, 3]
    assert len(connections_plans(1, addresses=[("a", 1)], request=b"", tasks=2)) == 1
