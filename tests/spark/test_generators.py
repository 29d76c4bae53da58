"""The clients of a phase in Spark tasks, against an Ottla broker: exact counts, nothing lost, nothing twice."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.generators.phase import RunningPhase
from bench.generators.rows import Kind, Role
from bench.workloads.model import Consumers, Phase, Producers, RecordSize
from tests.harness.ottla import OttlaServer


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    server = OttlaServer(tmp_path_factory.mktemp("ottla")).start()
    yield server.bootstrap
    server.stop()


@pytest.fixture
def topic(bootstrap, request):
    name = request.node.name.replace("[", "-").replace("]", "")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    return name


def of(rows, kind, role):
    return [row for row in rows if row.kind is kind and row.role is role]


def total(rows, field):
    return sum(getattr(row, field) or 0 for row in rows)


def test_what_a_producer_sends_a_consumer_at_the_tail_verifies(spark, bootstrap, topic):
    phase = Phase(
        name="load",
        producers=[
            Producers(topic="t", rate=2000, records=5000, size=RecordSize(mean=200, least=200, most=200))
        ],
        consumers=[Consumers(topic="t")],
    )
    running = RunningPhase.start(spark, phase, bootstrap, {"t": topic}, stream_prefix=topic, slots=2)
    rows = running.wait()
    for role in (Role.PRODUCER, Role.CONSUMER):
        seconds = of(rows, Kind.SECOND, role)
        assert (total(seconds, "records"), total(seconds, "payload_bytes"), total(seconds, "errors")) == (
            5000,
            1_000_000,
            0,
        )
        assert {0, 1} <= {row.second for row in seconds} <= {0, 1, 2, 3}
        streams = sorted(of(rows, Kind.STREAM, role), key=lambda row: row.partition)
        assert [
            (row.partition, row.first_sequence, row.next_sequence, row.distinct_records) for row in streams
        ] == [
            (0, 0, 1667, 1667),
            (1, 0, 1667, 1667),
            (2, 0, 1666, 1666),
        ]
    assert running.is_over
    assert running.progress().records == 5000
