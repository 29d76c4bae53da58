"""The clients of a phase in Spark tasks, against an Ottla broker: exact counts, nothing lost, nothing twice."""

import re
import time
from contextlib import suppress

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import PATIENCE_S, wait_until
from ottla.bench.figures import LoadFailed
from ottla.bench.generators import phase as phase_module
from ottla.bench.generators.histograms import merged, percentiles_s
from ottla.bench.generators.phase import RunningPhase
from ottla.bench.generators.rows import Kind, Role
from ottla.bench.workloads.model import (
    Action,
    Consumers,
    Event,
    IdleConnections,
    Phase,
    Producers,
    RecordSize,
    SizeLaw,
    Start,
)
from tests.harness.ottla import OttlaServer

SMALL = RecordSize(mean=200, least=200, most=200)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = OttlaServer(tmp_path_factory.mktemp("ottla")).start()
    yield server
    server.stop()


@pytest.fixture
def start(spark, server, request):
    """Start a phase on a topic of the test's own, which its phases call `t`."""
    topic = re.sub(r"\W+", "-", request.node.name).strip("-")
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(PATIENCE_S)
    running = []

    def start(phase, bootstrap=server.bootstrap, topics=None):
        phase = RunningPhase.start(
            spark, phase, bootstrap, topics or {"t": topic}, stream_prefix=topic, slots=2
        )
        running.append(phase)
        return phase

    yield start
    for phase in running:
        phase.stop()


def of(rows, kind, role):
    return [row for row in rows if row.kind is kind and row.role is role]


def counts(rows, role):
    """The numbers of records, bytes and errors."""
    seconds = of(rows, Kind.SECOND, role)
    return tuple(
        sum(getattr(row, field) for row in seconds) for field in ("records", "payload_bytes", "errors")
    )


def streams(rows, role):
    """(stream, partition) -> first and next sequence, distinct records."""
    return {
        (row.stream, row.partition): (row.first_sequence, row.next_sequence, row.distinct_records)
        for row in of(rows, Kind.STREAM, role)
    }


def anomalies(rows):
    """Duplicates, records out of order, corrupt ones."""
    read = of(rows, Kind.STREAM, Role.CONSUMER)
    return tuple(
        sum(getattr(row, field) or 0 for row in read) for field in ("duplicates", "out_of_order", "corrupt")
    )


def latencies(rows, role):
    return percentiles_s(merged(row.latency for row in of(rows, Kind.SECOND, role) if row.latency))


def test_what_a_producer_sends_a_consumer_at_the_tail_verifies(start):
    running = start(
        Phase(
            name="load",
            producers=[Producers(topic="t", rate=2000, records=5000, size=SMALL)],
            consumers=[Consumers(topic="t")],
        )
    )
    rows = running.wait()
    for role in (Role.PRODUCER, Role.CONSUMER):
        assert counts(rows, role) == (5000, 1_000_000, 0)
        assert sorted(streams(rows, role).values()) == [(0, 1666, 1666), (0, 1667, 1667), (0, 1667, 1667)]
        # 5,000 records at 2,000 a second; the last ones may be late on a busy machine.
        assert max(row.second for row in of(rows, Kind.SECOND, role)) >= 2
        assert 0 < latencies(rows, role)["p50_s"] < PATIENCE_S
        (client,) = of(rows, Kind.CLIENT, role)
        assert client.end_s - client.begin_s >= 1
        assert client.cpu_s > 0
        (broker,) = of(rows, Kind.BROKER, role)
        assert (broker.sent_bytes if role is Role.PRODUCER else broker.received_bytes) > 1_000_000
    assert streams(rows, Role.PRODUCER) == streams(rows, Role.CONSUMER)
    assert anomalies(rows) == (0, 0, 0)
    assert running.is_over
    assert running.progress().records == 5000


def test_what_an_earlier_phase_has_written_is_read_from_the_beginning(start):
    sizes = RecordSize(law=SizeLaw.UNIFORM, mean=600, least=100, most=1100)
    written = start(
        Phase(
            name="write",
            producers=[
                Producers(topic="t", count=2, records=20_000, size=sizes, compression="lz4"),
                Producers(topic="t", records=10_001, size=SMALL, acks="1"),
            ],
        )
    ).wait()
    assert counts(written, Role.PRODUCER)[0] == 30_001
    assert {row.client for row in of(written, Kind.STREAM, Role.PRODUCER)} == {
        "producer-0-0",
        "producer-0-1",
        "producer-1-0",
    }
    read = start(
        Phase(
            name="read",
            consumers=[
                Consumers(topic="t", count=2, start=Start.BEGINNING),
                Consumers(topic="t", start=Start.BEGINNING, is_each_all=True),
                Consumers(topic="t", start=Start.OFFSET, offset=100),
            ],
        )
    ).wait()
    by_group = {
        group: [row for row in read if row.client.startswith(f"consumer-{group}-")] for group in range(3)
    }
    for group in (0, 1):
        assert streams(by_group[group], Role.CONSUMER) == streams(written, Role.PRODUCER)
        assert counts(by_group[group], Role.CONSUMER) == counts(written, Role.PRODUCER)
    assert counts(by_group[2], Role.CONSUMER)[0] == 30_001 - 3 * 100
    assert anomalies(read) == (0, 0, 0)
    # They have waited for a reader, not for a broker.
    assert all(row.latency is None for row in of(read, Kind.SECOND, Role.CONSUMER))


def test_a_phase_that_is_stopped_yields_what_there_is(start):
    running = start(
        Phase(
            name="load",
            seconds=600,
            producers=[Producers(topic="t", rate=1000, size=SMALL)],
            consumers=[Consumers(topic="t")],
            connections=IdleConnections(count=5),
        )
    )
    wait_until(lambda: running.progress().records > 500)
    stopped = time.monotonic()
    running.stop()
    rows = running.wait()
    assert time.monotonic() - stopped < 300  # of the 600 s that it would go on
    sent = counts(rows, Role.PRODUCER)
    assert sent[0] > 500
    assert sum(row[2] for row in streams(rows, Role.PRODUCER).values()) == sent[0]
    assert 0 < counts(rows, Role.CONSUMER)[0] <= sent[0]
    assert len(of(rows, Kind.CLIENT, Role.PRODUCER)) == 1


def test_a_task_that_hangs_keeps_neither_the_phase_nor_its_slot(spark, server, start, monkeypatch):
    monkeypatch.setattr(phase_module, "_STOP_TIMEOUT_S", 2)
    running = start(
        Phase(name="load", seconds=600, producers=[Producers(topic="t", count=2, rate=1000, size=SMALL)])
    )
    wait_until(lambda: running.progress().records > 500)
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    # A daemon of PySpark for each of its environments, and behind it the Pythons of tasks:
    # these are connected to the broker.
    port = int(server.bootstrap.rpartition(":")[2])
    for worker in jvm.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended, or is a zombie
            if any(each.raddr and each.raddr.port == port for each in worker.net_connections()):
                worker.suspend()
    running.stop()
    with pytest.raises(LoadFailed, match="load: tasks have not ended 2 s after they should"):
        running.wait()
    again = start(Phase(name="again", producers=[Producers(topic="t", count=2, records=10, size=SMALL)]))
    assert counts(again.wait(), Role.PRODUCER)[0] == 10


def test_a_phase_does_not_end_before_its_events(start):
    running = start(
        Phase(
            name="load",
            producers=[Producers(topic="t", records=10, size=SMALL)],
            consumers=[Consumers(topic="t")],
            events=[Event(at_s=1, action=Action.WAIT, name="nothing")],
        )
    )
    wait_until(lambda: running.progress().records == 10)
    time.sleep(1)
    assert not running.is_over
    running.note_events_over()
    assert counts(running.wait(), Role.CONSUMER)[0] == 10


def test_idle_connections_are_opened_and_there_at_the_end(start):
    rows = start(Phase(name="idle", seconds=2, connections=IdleConnections(count=151))).wait()
    assert counts(rows, Role.CONNECTIONS) == (151, 0, 0)
    clients = of(rows, Kind.CLIENT, Role.CONNECTIONS)
    assert len(clients) == 2
    assert all(client.end_s - client.begin_s >= 1 for client in clients)


def test_records_of_others_are_corrupt(start, server, request):
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for value in (b"", b"not ours", b"x" * 500, None):
        producer.produce(request.node.name, value, partition=1)
    producer.flush(PATIENCE_S)
    rows = start(
        Phase(
            name="both",
            producers=[Producers(topic="t", records=300, size=SMALL)],
            consumers=[Consumers(topic="t", start=Start.BEGINNING)],
        )
    ).wait()
    assert anomalies(rows) == (0, 0, 4)
    corrupt = [row for row in of(rows, Kind.STREAM, Role.CONSUMER) if row.corrupt]
    assert [(row.partition, row.stream) for row in corrupt] == [(1, None)]
    assert counts(rows, Role.CONSUMER)[0] == 304


def test_records_that_were_due_while_no_broker_was_there_have_waited_for_it(start, server):
    """An open loop: without it, nothing would have been sent meanwhile, and nothing would have been late."""
    rate = 200
    running = start(
        Phase(
            name="outage",
            producers=[Producers(topic="t", rate=rate, records=10 * rate, size=SMALL)],
            consumers=[Consumers(topic="t")],
            events=[Event(at_s=2, action=Action.KILL, name="outage")],
        )
    )
    wait_until(lambda: running.progress().records > 2 * rate)
    server.child.kill()
    began = time.monotonic()
    time.sleep(2)
    server.start()
    outage_s = time.monotonic() - began
    running.note_events_over()
    rows = running.wait()
    assert counts(rows, Role.PRODUCER)[::2] == (10 * rate, 0)
    assert counts(rows, Role.CONSUMER)[0] == 10 * rate
    assert streams(rows, Role.PRODUCER) == streams(rows, Role.CONSUMER)
    assert anomalies(rows) == (0, 0, 0)
    assert any(
        "refused" in row.text or "Disconnected" in row.text for row in of(rows, Kind.ERROR, Role.PRODUCER)
    )
    histogram = merged(row.latency for row in of(rows, Kind.SECOND, Role.PRODUCER) if row.latency)
    assert histogram.get_max_value() / 1e6 > 0.9 * outage_s
    # Of the records of a second, evenly spread over the outage, half wait for more than half of it.
    late = sum(
        item.count_added_in_this_iter_step
        for item in histogram.get_recorded_iterator()
        if item.value_iterated_to > outage_s * 5e5
    )
    assert late >= 0.8 * rate * outage_s / 2


@pytest.mark.parametrize(
    ("phase", "options", "words"),
    [
        (Phase(name="p", producers=[Producers(topic="t")]), {"bootstrap": "127.0.0.1:1"}, "127.0.0.1:1: no metadata"),
        (Phase(name="p", producers=[Producers(topic="x")]), {"topics": {"x": "unknown-1"}}, "has no topic unknown-1"),
        (
            Phase(name="p", producers=[Producers(topic="t", client={"linger.mss": "1"})]),
            {},
            'No such configuration property: "linger.mss"',
        ),
    ],
    ids=["unreachable", "unknown topic", "unknown setting"],
)  # fmt: skip
def test_a_phase_that_cannot_start_says_why(spark, server, start, phase, options, words):
    with pytest.raises(LoadFailed, match=words):
        start(phase, **options)


def test_an_offset_that_does_not_exist_is_a_failure_that_leaves_rows(start):
    start(Phase(name="write", producers=[Producers(topic="t", records=10, size=SMALL)])).wait()
    running = start(
        Phase(
            name="p",
            seconds=600,
            producers=[Producers(topic="t", rate=100, size=SMALL)],
            consumers=[Consumers(topic="t", start=Start.OFFSET, offset=1_000_000)],
        )
    )
    with pytest.raises(LoadFailed, match=r"consumer-0-0: .*-\d has no offset 1000000 any more"):
        running.wait()
    assert len(of(running.rows, Kind.CLIENT, Role.PRODUCER)) == 1
