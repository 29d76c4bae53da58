"""The result of a workload: seconds.parquet and summary.json from the other files of its folder."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.bench.aggregation import outside
from ottla.bench.aggregation.delivery import delivered
from ottla.bench.aggregation.files import SUMMARY, labelled, read_rows, write_seconds
from ottla.bench.aggregation.loads import LABELS, READINGS, label_rows, loads_of, reading_rows
from ottla.bench.aggregation.racks import cross_rack_shares
from ottla.bench.aggregation.seconds import per_phase, per_second
from ottla.bench.aggregation.tables import (
    comparable,
    event_metric,
    faults_of,
    headlines_of,
    load_sample,
    phase_sample,
    table_of,
)
from ottla.bench.environment import Environment
from ottla.bench.figures import OTTLA, Sample, Table, baseline_first
from ottla.bench.generators.rows import Kind, Role
from ottla.bench.generators.shipping import ship_bench
from ottla.bench.report import Report, Section, as_json
from ottla.bench.turns import Turn, turns_sample
from ottla.bench.warm_up import WarmUp
from ottla.bench.workloads.model import Phase, Workload

EVENTS: Final = "events.json"
_MOST_ERRORS: Final = 20
#: (target, run, phase)
_Key = tuple[str, int, str]
_Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The circumstances of a result: environment, targets, settings, warm-up and command."""

    environment: Environment
    #: Name -> version in words.
    targets: Mapping[str, str]
    #: The exact command line.
    command: str
    runs: int
    duration_s: float
    is_partial: bool = False
    #: The settings, place and file system of clusters that the bench has started, as in
    #: `ottla.bench.report.Section`.
    settings: str = ""
    place: str = ""
    file_system: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    warm_ups: Mapping[str, WarmUp] = field(default_factory=dict)
    #: Target -> broker -> rack.
    racks: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    #: Phase -> turns of Ottla's event loops above the bound, where they were watched.
    turns: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    #: Phases that were stopped before their end: what their consumers have not read is not lost.
    stopped: Collection[_Key] = ()


def summarise(
    spark: SparkSession, folder: Path, *, workload: Workload, circumstances: Circumstances
) -> Report:
    """Aggregate the files of a result folder, and write seconds.parquet and summary.json into it."""
    ship_bench(spark.sparkContext)
    rows = labelled(read_rows(spark, folder), spark.createDataFrame(label_rows(workload), LABELS)).cache()
    seconds = per_second(rows).cache()
    try:
        write_seconds(seconds, folder)
        found = _Found(spark, folder, workload, circumstances, rows=rows, seconds=seconds)
        report = found.report()
    finally:
        seconds.unpersist()
        rows.unpersist()
    (folder / SUMMARY).write_text(as_json(report))
    return report


class _Found:
    """The aggregated values of a result, which are few, by target, run and phase."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        workload: Workload,
        circumstances: Circumstances,
        *,
        rows: DataFrame,
        seconds: DataFrame,
    ) -> None:
        self._workload = workload
        self._circumstances = circumstances
        self._loads: dict[_Key, dict[str, _Values]] = {}
        for values in _collected(per_phase(seconds, rows).drop("latency")):
            self._loads.setdefault(_key(values), {})[values["role"]] = values
        complete = delivered(
            rows, spark.createDataFrame(reading_rows(workload), READINGS), stopped=circumstances.stopped
        )
        self._delivered = {_key(values): values for values in _collected(complete)}
        self._servers = {
            _key(values): values
            for values in _collected(outside.servers(outside.read_samples(spark, folder)))
        }
        self._shares = cross_rack_shares(workload, _received(rows), circumstances.racks)
        self._errors = _errors(rows)
        self._events: dict[_Key, Sample] = {}
        for event in _events(folder):
            if event["took_s"] is not None:
                self._events.setdefault(_key(event), {})[event_metric(event["name"])] = event["took_s"]

    def report(self) -> Report:
        """Return the report of the aggregated values."""
        its = self._circumstances
        tables = [self._table(phase) for phase in self._workload.phases]
        return Report(
            program=self._workload.name,
            environment=its.environment,
            runs=its.runs,
            seconds=None,
            duration_s=its.duration_s,
            headlines=_measured(
                tables, [each for phase in self._workload.phases for each in headlines_of(phase)]
            ),
            sections=[
                Section(
                    settings=its.settings,
                    place=its.place,
                    file_system=its.file_system,
                    properties=its.properties,
                    tables=tables,
                    warm_ups=dict(its.warm_ups),
                    turns=its.turns,
                )
            ],
            targets={name: its.targets[name] for name in baseline_first(its.targets)},
            title=self._workload.title,
            about=self._workload.about,
            command=its.command,
            is_partial=its.is_partial,
            errors=self._errors,
        )

    def _table(self, phase: Phase) -> Table:
        samples: dict[str, list[Sample]] = {}
        for target in baseline_first(self._circumstances.targets):
            found = {*self._loads, *self._events}  # a phase may have events only
            runs = sorted(run for name, run, of in found if (name, of) == (target, phase.name))
            keys = [(target, run, phase.name) for run in runs]
            if keys:
                samples[target] = comparable(
                    phase,
                    [self._sample(phase, key) for key in keys],
                    is_whole=[key not in self._circumstances.stopped for key in keys],
                )
        turns = self._circumstances.turns.get(phase.name)
        if turns is not None and OTTLA in samples:
            # Of a run of its own, which has no other figures.
            samples[OTTLA][0] |= turns_sample(turns)
        return table_of(phase, samples, never=faults_of(self._workload))

    def _sample(self, phase: Phase, key: _Key) -> Sample:
        merged = self._loads.get(key, {})
        sample: Sample = {}
        for load in loads_of(phase):
            if load.label in merged:
                sample |= load_sample(load, merged[load.label])
            share = self._shares.get((*key, load.clients))
            if share is not None:
                sample[f"{load.key}_cross_rack"] = share
        sample |= self._events.get(key, {})
        sample |= {
            name: float(value)
            for name, value in self._delivered.get(key, {}).items()
            if name not in _KEYS and value is not None
        }
        servers = {name: value for name, value in self._servers.get(key, {}).items() if name not in _KEYS}
        return sample | phase_sample(phase, loads=merged, servers=servers)


_KEYS: Final = ("target", "run", "phase")


def _key(values: Mapping[str, Any]) -> _Key:
    return values["target"], values["run"], values["phase"]


def _collected(frame: DataFrame) -> list[_Values]:
    return [row.asDict() for row in frame.collect()]


def _received(rows: DataFrame) -> dict[tuple[str, int, str, str, int], float]:
    consumed = rows.where((F.col("kind") == Kind.BROKER.value) & (F.col("role") == Role.CONSUMER.value))
    summed = consumed.groupBy(*_KEYS, "clients", "broker").agg(F.sum("received_bytes").alias("received"))
    return {
        (*_key(values), values["clients"], values["broker"]): values["received"] or 0.0
        for values in _collected(summed)
    }


def _errors(rows: DataFrame) -> list[str]:
    """Return the texts of errors, each once for a phase of a target.

    With each text are its first run and client, and the number of records that failed by it.
    """
    failed = rows.where(F.col("kind") == Kind.ERROR.value)
    counted = (
        failed.groupBy("target", "phase", "text")
        .agg(
            F.coalesce(F.sum("errors"), F.lit(0)).alias("records"),
            F.min(F.struct("run", "client")).alias("first"),
        )
        .orderBy(F.desc("records"), "target", "phase", "text")
    )
    return [
        f"{it['target']}, run {it['first']['run'] + 1}, {it['phase']}, {it['first']['client']}: {it['text']}"
        + (f" ({it['records']} records)" if it["records"] else "")
        for it in _collected(counted.limit(_MOST_ERRORS))
    ]


def _events(folder: Path) -> list[_Values]:
    path = folder / EVENTS
    events: list[_Values] = json.loads(path.read_text()) if path.exists() else []
    return events


def _measured(tables: list[Table], headlines: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headlines that have a row."""
    keys = {row.key for table in tables for row in table.rows()}
    return [key for key in headlines if key in keys]
