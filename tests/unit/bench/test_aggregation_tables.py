"""The tables of a workload's result: loads, reads, figures with goals, samples, bytes by rack."""

import math
from dataclasses import replace

import pytest

from ottla.bench.aggregation.loads import loads_of, readings_of
from ottla.bench.aggregation.racks import cross_rack_shares
from ottla.bench.aggregation.tables import (
    comparable,
    faults_of,
    figures_of,
    headlines_of,
    load_sample,
    phase_sample,
    table_of,
)
from ottla.bench.figures import Verdict
from ottla.bench.generators.rows import Role
from ottla.bench.workloads.model import (
    Action,
    ClusterNeeds,
    Condition,
    Consumers,
    Event,
    IdleConnections,
    Job,
    Phase,
    PhaseGoal,
    Producers,
    SparkJob,
    Start,
    TopicSpec,
    Workload,
)

PHASE = Phase(
    name="load",
    producers=[Producers(topic="t", rate=1000.0), Producers(topic="t", count=3)],
    consumers=[Consumers(topic="t", rack="b")],
    connections=IdleConnections(count=10),
    events=[
        Event(
            at_s=1, action=Action.KILL, name="Leader killed", leader_of="t", topic="t", until=Condition.LED
        ),
        Event(at_s=2, action=Action.START, name="started", broker=1),
    ],
    goals=[PhaseGoal(figure="producer_1_p99_s", at_most=0.6)],
)
MERGED = {
    "records": 4000,
    "payload_bytes": 2_000_000,
    "errors": 1,
    "took_s": 4.0,
    "last_second": 3,
    "client_cpu_s": 0.5,
    "late_s": 0.001,
    **dict.fromkeys(("p50_s", "p90_s", "p99_s", "p999_s", "max_s"), 0.01),
}


def workload(*phases, topics=("t",), **configs):
    return Workload(
        name="w",
        title="",
        about="",
        cluster=ClusterNeeds(),
        topics=[TopicSpec(name=name, configs=configs) for name in topics],
        phases=phases,
    )


def test_loads_of_a_role_are_numbered_if_there_are_several():
    assert [(load.clients, load.label, load.key) for load in loads_of(PHASE)] == [
        ("producer-0", "producer 1", "producer_1"),
        ("producer-1", "producer 2", "producer_2"),
        ("consumer-0", "consumer", "consumer"),
        ("connections-0", "connections", "connections"),
    ]


WRITE = Phase(name="write", producers=[Producers(topic="t")])


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (Consumers(topic="t", start=Start.BEGINNING), [("consumer-0", None)]),
        (Consumers(topic="t", start=Start.OFFSET), [("consumer-0", None)]),
        (Consumers(topic="t", start=Start.OFFSET, offset=1), []),
        # At the tail of a later phase there is nothing of this one.
        (Consumers(topic="t", start=Start.END), []),
        (Consumers(topic="other", start=Start.BEGINNING), []),
        (
            Consumers(topic="t", start=Start.BEGINNING, count=2, is_each_all=True),
            [("consumer-0", "consumer-0-0"), ("consumer-0", "consumer-0-1")],
        ),
        (SparkJob(job=Job.CONNECTOR_READ, topic="t"), [("job-0", None)]),
        # It may be in the active segment.
        (SparkJob(job=Job.TIER_READ, topic="t"), []),
        (SparkJob(job=Job.CONNECTOR_WRITE, topic="t"), []),
    ],
)
def test_what_a_later_phase_has_to_read(reads, expected):
    is_job = isinstance(reads, SparkJob)
    later = Phase(name="read", consumers=[] if is_job else [reads], jobs=[reads] if is_job else [])
    found = readings_of(workload(WRITE, later))
    assert [(it.readers, it.reader) for it in found] == expected
    assert all((it.phase, it.stream_phase, it.producers) == ("read", "write", "producer-0") for it in found)


def test_what_is_tiered_has_to_be_read_but_for_the_last_phase_that_wrote():
    tail = Phase(name="tail", producers=[Producers(topic="t"), Producers(topic="other")])
    other = Phase(name="other", producers=[Producers(topic="other")])
    read = Phase(name="read", jobs=[SparkJob(job=Job.TIER_READ, topic="t")])
    assert [it.stream_phase for it in readings_of(workload(WRITE, tail, other, read))] == ["write"]


def test_what_a_spark_job_writes_has_to_be_read_too():
    job = Phase(name="job", jobs=[SparkJob(job=Job.CONNECTOR_WRITE, topic="t")])
    read = Phase(name="read", consumers=[Consumers(topic="t", start=Start.BEGINNING)])
    assert [it.producers for it in readings_of(workload(WRITE, job, read))] == ["producer-0", "job-0"]


@pytest.mark.parametrize(
    ("configs", "is_kept"),
    [
        ({}, True),
        ({"retention.ms": "-1", "local.retention.ms": "1"}, True),
        ({"retention.ms": "1000"}, False),
        ({"retention.bytes": "1"}, False),
        ({"cleanup.policy": "compact,delete"}, False),
        ({"cleanup.policy": "delete"}, True),
    ],
)
def test_topics_that_lose_records_by_themselves_are_left_out(configs, is_kept):
    read = Phase(name="read", consumers=[Consumers(topic="t", start=Start.BEGINNING)])
    assert bool(readings_of(workload(WRITE, read, **configs))) is is_kept


def test_the_metrics_of_a_load():
    producer = loads_of(PHASE)[0]
    sample = load_sample(producer, MERGED)
    assert (sample["producer_1_records_per_s"], sample["producer_1_bytes_per_s"]) == (1000.0, 500_000.0)
    assert (sample["producer_1_p99_s"], sample["producer_1_errors"]) == (0.01, 1)
    assert sample["producer_1_late_s"] == 0.001
    # Its clients were stopped before they could report their times.
    stopped = load_sample(producer, MERGED | {"took_s": None, "last_second": 1})
    assert stopped["producer_1_records_per_s"] == 2000.0
    nothing = dict.fromkeys(MERGED, None) | {"records": 0, "payload_bytes": 0, "errors": 0, "p99_s": math.nan}
    assert load_sample(producer, nothing) == {"producer_1_errors": 0}


def test_connections_have_a_number_and_errors():
    load = loads_of(PHASE)[3]
    assert load.role is Role.CONNECTIONS
    assert load_sample(load, MERGED) == {"connections_opened": 4000, "connections_errors": 1}


@pytest.mark.parametrize(
    ("producers", "expected"),
    [
        ([Producers(topic="t", rate=10.0)], {"cpu_s_per_record": 2e-3 / 8}),
        ([Producers(topic="t", rate=10.0), Producers(topic="t")], {"cpu_s_per_gb": 500.0}),
        ([], {"cpu_s_per_gb": 500.0}),
    ],
)
def test_the_cpu_of_brokers_is_for_each_record_where_the_rate_is_fixed(producers, expected):
    phase = Phase(name="p", producers=producers)
    loads = {"a": MERGED, "b": MERGED | {"took_s": 2.0}}
    sample = phase_sample(phase, loads=loads, servers={"cpu_s": 2.0, "private_bytes": 7})
    clients = {"client_cpu_s_per_gb": 250.0, "client_processors": 0.25}
    assert sample == pytest.approx(expected | clients | {"private_bytes": 7})


def test_connections_are_no_records():
    idle = MERGED | {"records": 2000, "payload_bytes": 0}
    sample = phase_sample(
        Phase(name="p", producers=[Producers(topic="t", rate=10.0)]),
        loads={"producer": MERGED, "connections": idle},
        servers={"cpu_s": 2.0},
    )
    assert sample["cpu_s_per_record"] == 2.0 / 4000


def test_a_table_has_the_figures_that_were_measured_and_their_goals():
    samples = {
        "kafka": [{"producer_1_p99_s": 0.01, "lost": 0.0}],
        "ottla": [{"producer_1_p99_s": 0.007, "lost": 1.0, "event_leader_killed_s": 2.0}],
    }
    rows = {row.figure.metric: row for row in table_of(PHASE, samples).rows()}
    assert list(rows) == ["producer_1_p99_s", "event_leader_killed_s", "lost"]
    assert rows["producer_1_p99_s"].verdict is Verdict.MISSED
    assert rows["lost"].verdict is Verdict.MISSED
    assert rows["event_leader_killed_s"].verdict is None


def test_every_goal_is_of_a_figure():
    assert [figure.metric for figure in figures_of(PHASE) if figure.goal is not None] == [
        "producer_1_p99_s",
        "lost",
        "corrupt",
        "turns",
    ]
    metrics = [figure.metric for figure in figures_of(PHASE)]
    assert len(metrics) == len(set(metrics))


def test_a_fault_of_one_of_several_runs_is_a_fault():
    samples = {
        "ottla": [{"lost": 0.0, "producer_1_errors": 0.0}] * 4 + [{"lost": 2.0, "producer_1_errors": 1.0}]
    }
    rows = {row.figure.metric: row for row in table_of(PHASE, samples).rows()}
    assert rows["lost"].verdict is Verdict.MISSED
    assert {metric: row.median("ottla") for metric, row in rows.items()} == {
        "producer_1_errors": 1,
        "lost": 2,
    }


def test_a_phase_that_was_stopped_counts_by_its_faults_only():
    whole, part = {"producer_1_took_s": 4.0, "corrupt": 0.0}, {"producer_1_took_s": 0.5, "corrupt": 1.0}
    assert comparable(PHASE, [whole, part], is_whole=[True, False]) == [whole, {"corrupt": 1.0}]
    assert comparable(PHASE, [part], is_whole=[False]) == [part]


@pytest.mark.parametrize(
    ("phases", "are_duplicates_faults"),
    [
        ([Phase(name="p", producers=[Producers(topic="t"), Producers(topic="t", acks="-1")])], True),
        ([Phase(name="p", consumers=[Consumers(topic="t")])], True),
        ([Phase(name="p", producers=[Producers(topic="t"), Producers(topic="t", acks="1")])], False),
        ([Phase(name="p", producers=[Producers(topic="t", client={"enable.idempotence": "false"})])], False),
        ([Phase(name="p", jobs=[SparkJob(job=Job.CONNECTOR_WRITE, topic="t")])], False),
    ],
)
def test_what_idempotent_producers_send_is_read_once_and_in_order(phases, are_duplicates_faults):
    never = faults_of(workload(*phases))
    assert {"lost", "corrupt"} <= set(never)
    figures = {figure.metric: figure for figure in figures_of(phases[0], never=never)}
    for metric in ("duplicates", "out_of_order"):
        assert (figures[metric].goal is not None) is are_duplicates_faults


def test_headlines_are_latency_at_a_rate_and_otherwise_throughput():
    assert headlines_of(PHASE) == [
        ("load", metric)
        for metric in (
            "producer_1_p99_s",
            "producer_2_bytes_per_s",
            "consumer_p99_s",
            "event_leader_killed_s",
            "lost",
        )
    ]


def test_bytes_from_other_racks_are_a_share_of_all_bytes_of_consumers_with_a_rack():
    phase = replace(PHASE, consumers=[*PHASE.consumers, Consumers(topic="t")])
    received = {
        ("kafka", 0, "load", "consumer-0", 1): 300.0,
        ("kafka", 0, "load", "consumer-0", 2): 100.0,
        # Without a rack; of a broker without one; of a target whose racks are not known.
        ("kafka", 0, "load", "consumer-1", 1): 300.0,
        ("kafka", 0, "load", "consumer-0", 9): 300.0,
        ("other", 0, "load", "consumer-0", 1): 300.0,
        ("ottla", 0, "load", "consumer-0", 2): 0.0,
    }
    racks = {"kafka": {1: "a", 2: "b"}, "ottla": {2: "b"}}
    shares = cross_rack_shares(workload(phase), received, racks)
    assert shares == {("kafka", 0, "load", "consumer-0"): 0.75}
