"""Calibration of the load generator: its rate, latency and cost without a broker, and beside Kafka's own tool.

null sink     a broker that drops what it gets: what is measured is the generator, the network and Spark
perf-test     kafka-producer-perf-test and the generator in turn, with the same settings, on one target
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import libversion
from pyspark.sql import SparkSession

from ottla.bench.components.fetch import KAFKA_VERSION
from ottla.bench.figures import (
    MEGABYTES_A_SECOND,
    MILLISECONDS,
    SECONDS_A_GIGABYTE,
    Figure,
    LoadFailed,
    Sample,
    Table,
    Unit,
)
from ottla.bench.generators import java_clients
from ottla.bench.generators.histograms import merged, percentiles_s
from ottla.bench.generators.null_sink import TOPIC, NullSink
from ottla.bench.generators.phase import RunningPhase
from ottla.bench.generators.rows import Kind, Role, Row
from ottla.bench.runs.topics import topics_of_run
from ottla.bench.targets.target import Target
from ottla.bench.workloads.model import ClusterNeeds, Phase, Producers, RecordSize, TopicSpec, Workload

GENERATOR: Final = "generator"
PERF_TEST: Final = "perf-test"
VERSIONS: Final[Mapping[str, str]] = {
    PERF_TEST: f"kafka-producer-perf-test {KAFKA_VERSION}",
    GENERATOR: f"librdkafka {libversion()[0]}",
}
HEADLINES: Final = (
    ("null_sink_one", "bytes_per_s"),
    ("null_sink_paced", "p50_s"),
    ("perf_test", "bytes_per_s"),
    ("perf_test_paced", "mean_s"),
)
#: The largest difference, as a share, with which the two figures agree.
AGREEMENT: Final = 0.1
_RECORD: Final = RecordSize(mean=1000, least=1000, most=1000)
_PACED_RATE: Final = 1000.0
#: The rate of the comparison, at which a broker is not busy.
_COMPARED_RATE: Final = 5000.0
#: The settings of equal name and meaning in both clients; their other defaults are not equal.
_SETTINGS: Final = {"acks": "all", "linger.ms": "5", "batch.size": "131072"}
#: The number of records until perf-test's JVM is warm.
_WARM_UP_RECORDS: Final = 200_000
#: A phase's records at this rate take about its seconds; brokers are slower or faster.
_EXPECTED_RATE: Final = 100_000
_PACED_WARM_UP_S: Final = 5
_GIGABYTE: Final = 1e9
_SECOND_US: Final = 1e6
_RECORDS_A_SECOND: Final = Unit(name="records/s", decimals=0)
_PERCENT: Final = Unit(name="% of a processor", factor=100, decimals=1)

_RATES: Final = (
    Figure(metric="bytes_per_s", title="rate", unit=MEGABYTES_A_SECOND),
    Figure(metric="records_per_s", title="records", unit=_RECORDS_A_SECOND),
)
_COST: Final = Figure(metric="cpu_s_per_gb", title="CPU of the generator", unit=SECONDS_A_GIGABYTE)
_MEAN: Final = Figure(metric="mean_s", title="latency, mean", unit=MILLISECONDS)
_LATENCIES: Final = (
    Figure(metric="p50_s", title="latency, p50", unit=MILLISECONDS),
    Figure(metric="p99_s", title="latency, p99", unit=MILLISECONDS),
)


@dataclass(slots=True, kw_only=True)
class Calibration:
    """The tables of a calibration; each `run_` method adds a sample to its tables."""

    spark: SparkSession
    slots: int
    #: The duration of each load.
    seconds: float
    say: Callable[[str], None]
    _tables: dict[str, Table] = field(init=False)

    def __post_init__(self) -> None:
        tables = (
            Table(
                name="null_sink_one",
                title="One producer, as fast as it can, into a null sink",
                note=f"Records of {_RECORD.mean} bytes, acks=all.",
                figures=[*_RATES, _COST],
            ),
            Table(
                name="null_sink_all",
                title=f"A producer in each of {self.slots} tasks, as fast as they can, into a null sink",
                note="As above. The sink needs a processor, too.",
                figures=[*_RATES, _COST],
            ),
            Table(
                name="null_sink_paced",
                title=f"{_PACED_RATE:,.0f} records a second into a null sink: the floor of latencies",
                note="linger.ms=0. From when a record was due until it was acknowledged.",
                figures=[
                    *_LATENCIES,
                    Figure(metric="cpu_share", title="CPU of the generator", unit=_PERCENT),
                ],
            ),
            Table(
                name="perf_test",
                title="Beside kafka-producer-perf-test, as fast as both can, on one target",
                note=f"Records of {_RECORD.mean} bytes, one partition, "
                f"{', '.join('='.join(each) for each in _SETTINGS.items())}; both have a queue of 32 MiB. "
                f"perf-test's first {_WARM_UP_RECORDS:,} records are not measured: its JVM is cold.",
                figures=[*_RATES, _MEAN, *_LATENCIES],
            ),
            Table(
                name="perf_test_paced",
                title=f"Beside kafka-producer-perf-test, {_COMPARED_RATE:,.0f} records a second, on one target",
                note=f"As above; perf-test's first {_PACED_WARM_UP_S} seconds are not measured. Its percentiles are "
                "whole milliseconds, and its latencies begin when a record is sent, not when it was due.",
                figures=[_RATES[1], _MEAN, *_LATENCIES],
            ),
        )
        self._tables = {table.name: table for table in tables}

    @property
    def tables(self) -> list[Table]:
        """The tables that have samples."""
        return [table for table in self._tables.values() if table.samples]

    def agreements(self) -> Iterator[str]:
        """Return a sentence about the rates, and one about the latencies at equal rates."""
        for table, metric, words in (
            ("perf_test", "bytes_per_s", "rates"),
            ("perf_test_paced", "mean_s", "mean latencies at equal rates"),
        ):
            for row in self._tables[table].rows():
                ratio = row.ratio_of(GENERATOR, PERF_TEST)
                if row.figure.metric == metric and ratio is not None:
                    agree = "agree" if abs(ratio - 1) <= AGREEMENT else "do not agree"
                    yield f"The {words} of generator and perf-test {agree} within {AGREEMENT:.0%}: {ratio:.2f}"

    def run_null_sink(self, sink: NullSink) -> None:
        """Run the generator against the sink: one producer, as many as tasks, and a paced one. Raises LoadFailed."""
        paced = Producers(topic=TOPIC, rate=_PACED_RATE, size=_RECORD, client={"linger.ms": "0"})
        for table, producers in (
            ("null_sink_one", Producers(topic=TOPIC, size=_RECORD)),
            ("null_sink_all", Producers(topic=TOPIC, count=self.slots, size=_RECORD)),
            ("null_sink_paced", paced),
        ):
            phase = Phase(name=table, producers=[producers], seconds=self.seconds)
            self._add(table, GENERATOR, self._run(phase, sink.bootstrap, {TOPIC: TOPIC}))

    def run_perf_test(self, target: Target, *, run: int) -> None:
        """Run perf-test and the generator in turn; the other one is first in the next run. Raises LoadFailed."""
        order = (PERF_TEST, GENERATOR) if run % 2 == 0 else (GENERATOR, PERF_TEST)
        for number, name in enumerate(order):
            workload = Workload(
                name="calibrate",
                title="",
                about="",
                cluster=ClusterNeeds(),
                topics=[TopicSpec(name=f"calibrate-{name}-{time.time_ns()}")],
                phases=(),
            )
            with topics_of_run(target, workload, number) as topics:
                (topic,) = topics.values()
                run_it = self._run_perf_test if name == PERF_TEST else self._run_generator
                self._add("perf_test", name, run_it(target, topic, None))
                self._add("perf_test_paced", name, run_it(target, topic, _COMPARED_RATE))

    def _count(self, rate: float | None) -> int:
        return int(self.seconds * (rate or _EXPECTED_RATE))

    def _run_perf_test(self, target: Target, topic: str, rate: float | None) -> Sample:
        try:
            done = java_clients.produce(
                target.bootstrap,
                topic,
                record_bytes=_RECORD.mean,
                count=self._count(rate),
                settings=_SETTINGS,
                warm_up_count=_WARM_UP_RECORDS if rate is None else int(_PACED_WARM_UP_S * rate),
                rate=rate,
            )
        except java_clients.ToolFailed as error:
            raise LoadFailed(f"kafka-producer-perf-test: {error}") from error
        return {
            "bytes_per_s": done.bytes_per_s,
            "records_per_s": done.bytes_per_s / _RECORD.mean,
            "mean_s": done.mean_s,
            "p50_s": done.p50_s,
            "p99_s": done.p99_s,
        }

    def _run_generator(self, target: Target, topic: str, rate: float | None) -> Sample:
        client = {name: value for name, value in _SETTINGS.items() if name != "acks"}
        producers = Producers(topic=topic, rate=rate, records=self._count(rate), size=_RECORD, client=client)
        return self._run(Phase(name="perf_test", producers=[producers]), target.bootstrap, {topic: topic})

    def _run(self, phase: Phase, bootstrap: str, topics: Mapping[str, str]) -> Sample:
        running = RunningPhase.start(
            self.spark,
            phase,
            bootstrap,
            topics,
            stream_prefix=f"calibrate-{time.time_ns()}",
            slots=self.slots,
        )
        try:
            return sample_of(running.wait())
        finally:
            running.stop()

    def _add(self, table: str, name: str, sample: Sample) -> None:
        self._tables[table].samples.setdefault(name, []).append(sample)
        rows = [row for row in self._tables[table].rows() if row.figure.metric in sample]
        figures = ", ".join(
            f"{row.figure.unit.shown(sample[row.figure.metric])} {row.figure.unit.name}" for row in rows
        )
        self.say(f"{table}  {name}  {figures}")


def sample_of(rows: Iterable[Row]) -> Sample:
    """Return the figures of the producers in these rows. Raises LoadFailed if not all records were acknowledged."""
    own = [row for row in rows if row.role is Role.PRODUCER]
    clients = [row for row in own if row.kind is Kind.CLIENT]
    seconds = [row for row in own if row.kind is Kind.SECOND]
    if errors := sum(row.errors or 0 for row in seconds):
        texts = {row.text for row in own if row.kind is Kind.ERROR and row.errors}
        raise LoadFailed(f"{errors} records failed: {', '.join(map(str, texts))}")
    took_s = max(row.end_s or 0.0 for row in clients) - min(row.begin_s or 0.0 for row in clients)
    payload_bytes = sum(row.payload_bytes or 0 for row in seconds)
    cpu_s = sum(row.cpu_s or 0.0 for row in clients)
    histogram = merged(row.latency for row in seconds if row.latency is not None)
    latencies = percentiles_s(histogram)
    return {
        "bytes_per_s": payload_bytes / took_s,
        "records_per_s": sum(row.records or 0 for row in seconds) / took_s,
        "cpu_s_per_gb": cpu_s * _GIGABYTE / payload_bytes,
        "cpu_share": cpu_s / took_s,
        "mean_s": histogram.get_mean_value() / _SECOND_US,
        **{name: value for name, value in latencies.items() if value is not None},
    }
