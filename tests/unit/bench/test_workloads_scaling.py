"""Shorter workloads: all times and numbers by a factor; a warm-up does what the workload does, but to the
brokers' processes.
"""

import pytest

from ottla.bench.runs.parse import load, shipped
from ottla.bench.workloads.model import (
    Action,
    Condition,
    Consumers,
    Event,
    IdleConnections,
    Job,
    Phase,
    Producers,
    SparkJob,
    Start,
    TopicSpec,
    Workload,
)
from ottla.bench.workloads.scaling import scaled, warm_up_of

WAIT = Event(at_s=4.0, action=Action.WAIT, name="tiered", topic="t", until=Condition.TIERED)
KILL = Event(at_s=2.0, action=Action.KILL, name="kill", broker=1)
WORKLOAD = Workload(
    name="w",
    title="?",
    about="",
    topics=[TopicSpec(name="t")],
    phases=[
        Phase(
            name="write",
            seconds=20.0,
            connections=IdleConnections(count=5),
            producers=[Producers(topic="t", rate=10.0), Producers(topic="t", count=2, records=15)],
            consumers=[Consumers(topic="t")],
            events=[KILL, WAIT],
        ),
        Phase(name="job", jobs=[SparkJob(job=Job.CONNECTOR_WRITE, topic="t", options={"records": "1000"})]),
        Phase(name="read", consumers=[Consumers(topic="t", start=Start.BEGINNING)]),
    ],
)


def test_times_and_numbers_are_scaled_and_rates_are_not():
    write, job, read = scaled(WORKLOAD, 0.1).phases
    assert write.seconds == pytest.approx(2.0)
    assert [each.rate for each in write.producers] == [10.0, None]
    # A producer without records would be none.
    assert [each.records for each in write.producers] == [None, 2]
    assert [each.at_s for each in write.events] == pytest.approx([0.2, 0.4])
    assert job.jobs[0].options == {"records": "100"}
    assert read.consumers == WORKLOAD.phases[2].consumers


def test_a_round_of_the_warm_up_has_all_clients_and_jobs_and_leaves_brokers_alone():
    produce, settle, job, consume = warm_up_of(WORKLOAD).phases
    assert (produce.producers, produce.consumers) == (
        [Producers(topic="t", rate=10.0), Producers(topic="t", count=2, records=2)],
        [Consumers(topic="t")],
    )
    assert produce.connections == IdleConnections(count=5)
    assert job.jobs[0].options == {"records": "100"}
    assert [(each.action, each.at_s) for each in settle.events] == [(Action.WAIT, 0.0)]
    assert list(consume.consumers) == [Consumers(topic="t", start=Start.BEGINNING)]


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_a_round_of_a_shipped_workload_is_short(path):
    workload = load(path.stem)
    assert sum(phase.seconds or 0.0 for phase in workload.phases) <= 30
    assert sum(phase.seconds or 0.0 for phase in warm_up_of(workload).phases) <= 2
