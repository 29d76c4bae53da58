"""Rows of a small workload, aggregated by Spark: percentiles equal those of all latencies,
and what is lost is counted.
"""

import json
import math
import random
from dataclasses import replace

import pytest

from ottla.bench.aggregation.delivery import delivered
from ottla.bench.aggregation.files import SECONDS, labelled, read_rows, write_rows
from ottla.bench.aggregation.loads import LABELS, READINGS, label_rows, reading_rows
from ottla.bench.aggregation.outside import SAMPLE_SCHEMA, SAMPLES
from ottla.bench.aggregation.summary import EVENTS, Circumstances, summarise
from ottla.bench.generators.histograms import PERCENTILES, new_histogram
from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.report import from_json
from ottla.bench.workloads.model import (
    Action,
    ClusterNeeds,
    Condition,
    Consumers,
    Event,
    Phase,
    Producers,
    Start,
    TopicSpec,
    Workload,
)
from tests.harness.bench_result import ENVIRONMENT

WORKLOAD = Workload(
    name="small",
    title="A small workload",
    about="What do the rows of few clients become?",
    cluster=ClusterNeeds(),
    topics=[TopicSpec(name="t")],
    phases=[
        Phase(
            name="load",
            seconds=4,
            producers=[Producers(topic="t", count=2, rate=1000.0)],
            consumers=[Consumers(topic="t"), Consumers(topic="t", rack="a")],
            events=[Event(at_s=1.0, action=Action.WAIT, name="In sync", topic="t", until=Condition.IN_SYNC)],
        ),
        Phase(name="again", consumers=[Consumers(topic="t", count=2, start=Start.BEGINNING)]),
    ],
)
CIRCUMSTANCES = Circumstances(
    environment=ENVIRONMENT,
    targets={"ottla": "Ottla 0.1", "kafka": "Apache Kafka 4.3.1"},
    command="ottla bench run small",
    runs=2,
    duration_s=10.0,
    racks={"ottla": {1: "a", 2: "b"}, "kafka": {1: "a", 2: "b"}},
)


def second(client, number, latencies_us, *, errors=0):
    histogram = new_histogram()
    for latency_us in latencies_us:
        histogram.record_value(latency_us)
    return Row(
        kind=Kind.SECOND,
        client=client,
        role=Role(client.split("-")[0]),
        topic="t",
        second=number,
        records=len(latencies_us),
        payload_bytes=100 * len(latencies_us),
        errors=errors,
        latency=histogram.encode() if latencies_us else None,
    )


def stream(client, of, records, *, partition=0, faults=(0, 0, 0)):
    return Row(
        kind=Kind.STREAM,
        client=client,
        role=Role(client.split("-")[0]),
        topic="t",
        partition=partition,
        stream=of,
        first_sequence=0,
        next_sequence=records,
        distinct_records=records,
        duplicates=faults[0],
        out_of_order=faults[1],
        corrupt=faults[2],
    )


def client(name, *, begin_s=100.0, end_s=104.0, cpu_s=0.5, late_us=()):
    role = Role(name.split("-")[0])
    late = second(name, 0, late_us).latency if late_us else None
    return Row(
        kind=Kind.CLIENT, client=name, role=role, begin_s=begin_s, end_s=end_s, cpu_s=cpu_s, latency=late
    )


def percentile(values, percent):
    """The smallest value that so many percent are not above."""
    ordered = sorted(values)
    return ordered[max(1, int(percent * len(ordered) / 100 + 0.5)) - 1]


def latencies_of(seed):
    rng = random.Random(seed)
    return [round(rng.lognormvariate(7, 1.5)) + 1 for _ in range(rng.randrange(50, 400))]


@pytest.fixture(scope="module")
def measured():
    """(target, run, client, second) -> latencies in microseconds; nothing is acknowledged in second 2."""
    return {
        (target, run, f"producer-0-{number}", at): latencies_of(f"{target} {run} {number} {at}")
        for target in ("ottla", "kafka")
        for run in range(2)
        for number in range(2)
        for at in (0, 1, 3)
    }


@pytest.fixture(scope="module")
def folder(spark, measured, tmp_path_factory):
    """A result folder as a run leaves it."""
    folder = tmp_path_factory.mktemp("result")
    events, samples = [], []
    for target in ("kafka", "ottla"):
        for run in range(2):
            of = {at: latencies for (*key, at), latencies in measured.items() if key[:2] == [target, run]}
            rows = [
                second(name, at, latencies, errors=int(at == 3))
                for (its_target, its_run, name, at), latencies in measured.items()
                if (its_target, its_run) == (target, run)
            ]
            # One of both was once as late as half a second.
            rows += [
                client("producer-0-0", late_us=[100] * 97),
                client("producer-0-1", late_us=[500_000] * 3),
            ]
            rows += [client(f"consumer-{group}-0") for group in range(2)]
            rows += [stream(f"producer-0-{number}", f"s{run}-{number}", 1000) for number in range(2)]
            # The first group misses 7 records of Kafka in run 1; the second one sees everything, some of it twice.
            missed = 7 if (target, run) == ("kafka", 1) else 0
            rows += [
                stream("consumer-0-0", f"s{run}-0", 1000 - missed),
                stream("consumer-0-0", f"s{run}-1", 1000),
            ]
            rows += [
                stream("consumer-1-0", f"s{run}-{number}", 1000, faults=(3, 2, 1)) for number in range(2)
            ]
            for broker, received in ((1, 750), (2, 250)):
                rows.append(
                    Row(
                        kind=Kind.BROKER,
                        client="consumer-1-0",
                        role=Role.CONSUMER,
                        broker=broker,
                        received_bytes=received,
                        sent_bytes=1,
                    )
                )
            rows += [
                Row(
                    kind=Kind.ERROR,
                    client=f"producer-0-{number}",
                    role=Role.PRODUCER,
                    text="timed out",
                    errors=3,
                )
                for number in range(2)
                if target == "kafka"
            ]
            write_rows(rows, folder, target=target, run=run, phase="load")
            again = [second("consumer-0-0", 0, of[0][:10]), second("consumer-0-1", 1, of[1][:10])]
            again += [client("consumer-0-0", end_s=101.5), client("consumer-0-1", end_s=102.0)]
            again += [stream("consumer-0-0", f"s{run}-0", 1000), stream("consumer-0-1", f"s{run}-1", 1000)]
            write_rows(again, folder, target=target, run=run, phase="again")
            events += [
                {"target": target, "run": run, "phase": "load", "name": "In sync", "action": "wait"}
                | {"at_s": 1.0, "until": "in_sync", "took_s": 1.5 + run}
            ]
            for at in range(4):
                for node in (1, 2):
                    usage = (0.25 * node, 9000, 1000 * node + at, 5, 7, 11, 13, None)
                    samples.append((target, run, "load", f"broker-{node}", at, *usage))
                samples.append(
                    (target, run, "load", "controller-101", at, 0.5, 10**6, 10**6, 1, 1, 1, 1, None)
                )
                # The size of the store is not known of its last second.
                tiered_bytes = 100 * at if at < 3 else None
                samples.append(
                    (target, run, "load", "store", at, 0.125, 10**6, 10**6, *[None] * 4, tiered_bytes)
                )
    (folder / EVENTS).write_text(json.dumps(events))
    spark.createDataFrame(samples, SAMPLE_SCHEMA).write.parquet(str(folder / SAMPLES))
    return folder


@pytest.fixture(scope="module")
def report(spark, folder):
    return summarise(spark, folder, workload=WORKLOAD, circumstances=CIRCUMSTANCES)


@pytest.fixture(scope="module")
def seconds(spark, report, folder):
    rows = spark.read.parquet(str(folder / SECONDS)).collect()
    return {(row.target, row.run, row.phase, row.role, row.second): row for row in rows}


def test_the_percentiles_of_a_second_are_those_of_all_its_latencies(measured, seconds):
    for target in ("kafka", "ottla"):
        for at in (0, 1, 3):
            merged = [it for number in range(2) for it in measured[target, 1, f"producer-0-{number}", at]]
            row = seconds[target, 1, "load", "producer", at]
            assert (row.records, row.payload_bytes, row.errors) == (
                len(merged),
                100 * len(merged),
                2 * (at == 3),
            )
            for name, percent in PERCENTILES.items():
                assert row[name] * 1e6 == pytest.approx(percentile(merged, percent), rel=2e-3), (name, at)


def test_a_second_in_which_nothing_happens_is_a_row_of_zeros(seconds):
    row = seconds["kafka", 0, "load", "producer", 2]
    assert (row.records, row.payload_bytes, row.errors) == (0, 0, 0)
    assert [row[name] for name in PERCENTILES] == [None] * len(PERCENTILES)
    assert [
        at for target, run, phase, _, at in sorted(seconds) if (target, run, phase) == ("kafka", 0, "load")
    ] == [*range(4)]


def samples_of(report, phase):
    [section] = report.sections
    return next(table.samples for table in section.tables if table.name == phase)


def test_the_percentiles_of_a_phase_are_those_of_all_its_latencies(measured, report):
    for target in ("kafka", "ottla"):
        for run in range(2):
            merged = [
                it for key, latencies in measured.items() if key[:2] == (target, run) for it in latencies
            ]
            sample = samples_of(report, "load")[target][run]
            assert sample["producer_records_per_s"] == len(merged) / 4
            assert sample["producer_bytes_per_s"] == 100 * len(merged) / 4
            assert sample["producer_errors"] == 2
            for name, percent in PERCENTILES.items():
                found = sample[f"producer_{name}"] * 1e6
                assert found == pytest.approx(percentile(merged, percent), rel=2e-3), name


def test_how_late_records_were_sent_is_a_figure_of_producers_and_no_latency(report):
    for samples in samples_of(report, "load").values():
        for sample in samples:
            assert sample["producer_late_s"] == pytest.approx(0.5, rel=2e-3)
            assert sample["producer_max_s"] != pytest.approx(0.5, rel=2e-3)
            assert "consumer_1_late_s" not in sample


def test_the_rate_of_readers_ends_with_the_last_of_them(report):
    sample = samples_of(report, "again")["ottla"][0]
    assert (sample["consumer_took_s"], sample["consumer_records_per_s"]) == (2.0, 10.0)


def test_loss_and_faults_are_counted_in_the_phase_of_the_reader(report):
    load, again = samples_of(report, "load"), samples_of(report, "again")
    assert [[run["lost"] for run in load[target]] for target in ("kafka", "ottla")] == [[0, 7], [0, 0]]
    assert {run["to_read"] for runs in load.values() for run in runs} == {4000}
    assert [run["acknowledged"] for run in load["kafka"]] == [2000, 2000]
    assert [load["ottla"][0][name] for name in ("duplicates", "out_of_order", "corrupt")] == [6, 4, 2]
    assert [[run["lost"] for run in again[target]] for target in ("kafka", "ottla")] == [[0, 0], [0, 0]]
    assert "acknowledged" not in again["kafka"][0]


def test_events_servers_and_racks_are_figures_of_their_phase(measured, report):
    sample = samples_of(report, "load")["kafka"][1]
    records = sum(len(latencies) for key, latencies in measured.items() if key[:2] == ("kafka", 1))
    assert sample["event_in_sync_s"] == 2.5
    assert sample["consumer_2_cross_rack"] == 0.25
    assert "consumer_1_cross_rack" not in sample
    assert sample["cpu_s_per_record"] == pytest.approx(4 * 0.75 / records)
    assert sample["client_cpu_s_per_gb"] == pytest.approx(2.0 / (records * 100 / 1e9))
    names = ("private_bytes", "resident_bytes", "read_bytes", "written_bytes", "received_bytes", "sent_bytes")
    assert [sample[name] for name in names] == [2003, 9000, 40, 56, 88, 104]
    assert sample["tiered_bytes"] == 200
    assert sample["store_cpu_s_per_gb"] == pytest.approx(0.5 / (records * 100 / 1e9))


def test_the_result_has_its_circumstances_and_is_read_back(report, folder):
    read = from_json((folder / "summary.json").read_text())
    assert list(read.targets) == ["kafka", "ottla"]
    assert (read.program, read.title, read.command) == ("small", "A small workload", "ottla bench run small")
    assert read.headlines == [
        ("load", "producer_p99_s"),
        ("load", "event_in_sync_s"),
        ("load", "lost"),
        ("again", "consumer_bytes_per_s"),
        ("again", "lost"),
    ]
    assert read.errors == ["kafka, run 1, load, producer-0-0: timed out (12 records)"]
    assert read.sections[0].tables[0].samples == report.sections[0].tables[0].samples


def test_a_phase_that_was_stopped_has_no_loss_and_figures_only_if_no_other_run_has(spark, folder):
    def kafka(*runs):
        stopped = [("kafka", run, "load") for run in runs]
        circumstances = replace(CIRCUMSTANCES, stopped=stopped, is_partial=True)
        report = summarise(spark, folder, workload=WORKLOAD, circumstances=circumstances)
        assert report.is_partial
        return samples_of(report, "load")["kafka"]

    one = kafka(1)
    assert ["lost" in run for run in one] == [True, False]
    assert ["producer_p99_s" in run for run in one] == [True, False]
    assert one[1]["producer_errors"] == 2
    both = kafka(0, 1)
    assert ["lost" in run for run in both] == [False, False]
    assert all(run["producer_p99_s"] > 0 for run in both)


def test_a_run_without_any_row_is_a_result_without_figures(spark, tmp_path):
    report = summarise(spark, tmp_path, workload=WORKLOAD, circumstances=CIRCUMSTANCES)
    assert [table.rows() for table in report.sections[0].tables] == [[], []]
    assert spark.read.parquet(str(tmp_path / SECONDS)).count() == 0


# Loss: one target for each case


def phase(name, *consumers, producers=()):
    return Phase(name=name, producers=[Producers(topic=it) for it in producers], consumers=consumers)


CASES = Workload(
    name="cases",
    title="",
    about="",
    cluster=ClusterNeeds(),
    topics=[
        TopicSpec(name="t"),
        TopicSpec(name="old", configs={"retention.ms": "1000"}),
        TopicSpec(name="keys", configs={"cleanup.policy": "compact"}),
    ],
    phases=[
        phase("write", Consumers(topic="t", is_each_all=True, count=2), producers=["t"]),
        phase("write again", Consumers(topic="t"), producers=["t"]),
        phase("read", Consumers(topic="t", count=2, start=Start.BEGINNING)),
        phase("read from 5", Consumers(topic="t", start=Start.OFFSET, offset=5)),
        phase(
            "others",
            Consumers(topic="old", start=Start.BEGINNING),
            Consumers(topic="keys", start=Start.BEGINNING),
            producers=["old", "keys"],
        ),
    ],
)  # fmt: skip
WRITTEN = {"write": [stream("producer-0-0", "one", 10)], "write again": [stream("producer-0-0", "two", 20)]}
CLIENTS = {
    "write": ["producer-0-0", "consumer-0-0", "consumer-0-1"],
    "write again": ["producer-0-0", "consumer-0-0"],
    "read": ["consumer-0-0", "consumer-0-1"],
    "read from 5": ["consumer-0-0"],
    "others": ["producer-0-0", "producer-1-0", "consumer-0-0", "consumer-1-0"],
}
LOSS = {
    # case: phase -> streams that were seen, phase -> (to read, lost)
    "each reader has everything": (
        {"write": [stream(f"consumer-0-{number}", "one", 10) for number in range(2)]},
        {"write": (20, 0)},
    ),
    "one of two readers misses some": (
        {"write": [stream("consumer-0-0", "one", 10), stream("consumer-0-1", "one", 6)]},
        {"write": (20, 4)},
    ),
    "one of two readers misses all, the other one saw more than was acknowledged": (
        {"write": [stream("consumer-0-0", "one", 12)]},
        {"write": (20, 10)},
    ),
    "a reader at the tail need not see what was written before": (
        {"write again": [stream("consumer-0-0", "two", 19)]},
        {"write again": (20, 1)},
    ),
    "readers from the beginning see everything, each of them a part": (
        {"read": [stream("consumer-0-0", "one", 10), stream("consumer-0-1", "two", 20)]},
        {"read": (30, 0)},
    ),
    "a part of a stream each": (
        {"read": [stream("consumer-0-0", "one", 4), stream("consumer-0-1", "one", 5)]},
        {"read": (30, 21)},
    ),
    "what was read from an offset is not judged": (
        {"read from 5": [stream("consumer-0-0", "one", 5)]},
        {"read from 5": None},
    ),
    "nor what retention or compaction deletes": (
        {"others": [stream("producer-0-0", "three", 10), stream("producer-1-0", "four", 10)]},
        {"others": None},
    ),
}


@pytest.fixture(scope="module")
def deliveries(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loss")
    rows = []
    for case, (seen, _) in LOSS.items():
        for name in dict.fromkeys(["write", "write again", *seen]):
            clients = [client(each) for each in CLIENTS[name]] if name in seen else []
            rows.append((case, name, [*clients, *WRITTEN.get(name, []), *seen.get(name, [])]))
    for case, name, each in rows:
        write_rows(each, folder, target=case, run=0, phase=name)
    found = labelled(read_rows(spark, folder), spark.createDataFrame(label_rows(CASES), LABELS))
    readings = spark.createDataFrame(reading_rows(CASES), READINGS)
    return {(row.target, row.phase): row for row in delivered(found, readings).collect()}


@pytest.mark.parametrize("case", LOSS)
def test_a_record_is_lost_if_a_reader_of_the_whole_stream_has_not_seen_it(deliveries, case):
    for name, expected in LOSS[case][1].items():
        row = deliveries[case, name]
        assert (row.to_read, row.lost) == (expected or (None, None))


def test_phases_without_readers_have_no_loss(deliveries):
    assert deliveries["a part of a stream each", "write"].lost is None
    assert deliveries["a part of a stream each", "write"].acknowledged == 10
    assert not math.isnan(deliveries["a part of a stream each", "read"].lost)
