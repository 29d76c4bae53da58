"""The tables of a workload's result, one for each phase: the figures of its loads, of its events and of the servers.

Pure: values in, figures and samples out.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.bench.aggregation.loads import Load, loads_of
from ottla.bench.figures import (
    COUNT,
    GIGABYTE,
    MEGABYTES,
    MEGABYTES_A_SECOND,
    MICROSECONDS,
    MILLISECONDS,
    PERCENT,
    RECORDS_A_SECOND,
    SECONDS,
    SECONDS_A_GIGABYTE,
    Figure,
    Goal,
    Sample,
    Table,
    Unit,
)
from ottla.bench.generators.rows import Role
from ottla.bench.turns import TURNS_FIGURES
from ottla.bench.workloads.model import Phase, Start, Workload

#: Metric -> title, in the order of rows.
_PERCENTILES: Final = {"p50_s": "p50", "p90_s": "p90", "p99_s": "p99", "p999_s": "p99.9", "max_s": "max"}
_DELIVERY: Final = {
    "acknowledged": "records acknowledged",
    "to_read": "records to be read",
    "lost": "records lost",
    "duplicates": "records read twice",
    "out_of_order": "records out of order",
    "corrupt": "records corrupt",
}
_FAULTS: Final = {"lost", "duplicates", "out_of_order", "corrupt"}
_SERVERS: Final = (
    Figure(metric="cpu_s_per_gb", title="CPU of all brokers", unit=SECONDS_A_GIGABYTE),
    Figure(metric="cpu_s_per_record", title="CPU of all brokers for each record", unit=MICROSECONDS),
    Figure(metric="private_bytes", title="largest broker: resident, page cache aside", unit=MEGABYTES),
    Figure(metric="resident_bytes", title="largest broker: resident, page cache included", unit=MEGABYTES),
    Figure(metric="written_bytes", title="all brokers: written to disks", unit=MEGABYTES),
    Figure(metric="read_bytes", title="all brokers: read from disks", unit=MEGABYTES),
    Figure(metric="received_bytes", title="all brokers: received", unit=MEGABYTES),
    Figure(metric="sent_bytes", title="all brokers: sent", unit=MEGABYTES),
    Figure(metric="store_cpu_s_per_gb", title="CPU of the object store", unit=SECONDS_A_GIGABYTE),
    Figure(metric="tiered_bytes", title="in the remote tier at the end", unit=MEGABYTES),
)
_PROCESSORS: Final = Unit(name="processors")
#: The faults that may not be in any phase.
_NEVER: Final = ("lost", "corrupt")
_NONE: Final = Goal(at_most=0, is_absolute=True)
_CLIENTS: Final = (
    Figure(metric="client_cpu_s_per_gb", title="CPU of all clients", unit=SECONDS_A_GIGABYTE),
    # Near one for each task, or near what the brokers leave of the machine, a rate may be the clients' limit.
    Figure(metric="client_processors", title="processors that all clients keep busy", unit=_PROCESSORS),
)


def faults_of(workload: Workload) -> Collection[str]:
    """Return the metrics that have to be zero in all phases.

    Brokers recognise what idempotent producers send again; others, and Spark's sink, may write a record
    twice, or too late.
    """
    producers = [each for phase in workload.phases for each in phase.producers]
    is_idempotent = all(
        each.acks in ("all", "-1") and each.client.get("enable.idempotence", "true") == "true"
        for each in producers
    )
    has_jobs = any(phase.jobs for phase in workload.phases)
    return _FAULTS if is_idempotent and not has_jobs else _NEVER


def table_of(phase: Phase, samples: Mapping[str, list[Sample]], *, never: Collection[str] = _NEVER) -> Table:
    """Return the table of a phase: target -> a sample for each run. Figures that no run has are left out.

    `never` has the metrics that have to be zero, as `faults_of` returns them.
    """
    found = {metric for each in samples.values() for sample in each for metric in sample}
    return Table(
        name=phase.name,
        title=phase.name,
        note=", ".join(_words(phase)),
        figures=[figure for figure in figures_of(phase, never=never) if figure.metric in found],
        samples=dict(samples),
    )


def comparable(phase: Phase, samples: Sequence[Sample], *, is_whole: Sequence[bool]) -> list[Sample]:
    """Return the samples of a phase that can be compared, one for each run.

    Runs in which the phase was stopped, or failed, have only the faults: their times and sums are no whole
    phase's. If there is no other run, all samples stay as they are.
    """
    if not any(is_whole):
        return list(samples)
    faults = {figure.metric for figure in figures_of(phase) if figure.is_fault}
    return [
        sample if whole else {metric: value for metric, value in sample.items() if metric in faults}
        for sample, whole in zip(samples, is_whole, strict=True)
    ]


def headlines_of(phase: Phase) -> list[tuple[str, str]]:
    """Return the rows of short tables: p99 where a load has a rate, otherwise throughput; and the events' times."""
    metrics = [
        f"{load.key}_{'p99_s' if _has_rate(phase, load) else 'bytes_per_s'}"
        for load in loads_of(phase)
        if load.role is not Role.CONNECTIONS
    ]
    metrics += [event_metric(event.name) for event in phase.events if event.until is not None]
    return [(phase.name, metric) for metric in [*metrics, "lost"]]


def load_sample(load: Load, merged: Mapping[str, float | None]) -> Sample:
    """Return the metrics of one load in one run, from a row of `seconds.per_phase`."""
    if load.role is Role.CONNECTIONS:
        return _present({f"{load.key}_opened": merged["records"], f"{load.key}_errors": merged["errors"]})
    took_s = merged["took_s"]
    if took_s is None and merged["last_second"] is not None:
        # Its clients have not reported their times.
        took_s = merged["last_second"] + 1
    rates = {
        f"{name}_per_s": _ratio(merged[column], took_s)
        for name, column in (("bytes", "payload_bytes"), ("records", "records"))
    }
    others = {name: merged[name] for name in (*_PERCENTILES, "late_s", "errors", "took_s")}
    return _present({f"{load.key}_{name}": value for name, value in (rates | others).items()})


def phase_sample(
    phase: Phase, *, loads: Mapping[str, Mapping[str, float | None]], servers: Mapping[str, float | None]
) -> Sample:
    """Return the metrics of the servers and of all clients together, from the sums of `outside.per_phase`."""
    # What idle connections count are connections.
    others = [load for label, load in loads.items() if label != Role.CONNECTIONS.value]
    totals = {name: sum(load[name] or 0.0 for load in others) for name in ("payload_bytes", "records")}
    client_cpu_s = sum(load["client_cpu_s"] or 0.0 for load in loads.values())
    took_s = max((load["took_s"] or 0.0 for load in loads.values()), default=0.0)
    gigabytes = totals["payload_bytes"] / GIGABYTE
    cpu_s, store_cpu_s = servers.get("cpu_s"), servers.get("store_cpu_s")
    is_by_record = bool(phase.producers) and all(producers.rate for producers in phase.producers)
    return _present(
        {
            "cpu_s_per_gb": None if is_by_record else _ratio(cpu_s, gigabytes),
            "cpu_s_per_record": _ratio(cpu_s, totals["records"]) if is_by_record else None,
            "store_cpu_s_per_gb": _ratio(store_cpu_s, gigabytes),
            "client_cpu_s_per_gb": _ratio(client_cpu_s, gigabytes),
            # Of Spark's jobs it is not known.
            "client_processors": _ratio(client_cpu_s, took_s) if client_cpu_s else None,
            **{name: value for name, value in servers.items() if name not in ("cpu_s", "store_cpu_s")},
        }
    )


def event_metric(name: str) -> str:
    """Return the metric of an event's time.

    >>> event_metric("Broker 2: in sync again")
    'event_broker_2_in_sync_again_s'
    """
    return f"event_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}_s"


def figures_of(phase: Phase, *, never: Collection[str] = _NEVER) -> list[Figure]:
    """Return all figures that a phase may have, in the order of rows, with its goals, and those of `never`."""
    bounds = {
        each.figure: Goal(at_least=each.at_least, at_most=each.at_most, is_absolute=each.is_absolute)
        for each in phase.goals
        if (each.at_least is None) != (each.at_most is None)
    }
    of_turns = {figure.metric: figure.goal for figure in TURNS_FIGURES}
    known = of_turns | dict.fromkeys(never, _NONE) | bounds
    return [replace(figure, goal=known.get(figure.metric)) for figure in _figures(phase)]


def _figures(phase: Phase) -> Iterator[Figure]:
    for load in loads_of(phase):
        yield from _load_figures(load)
    for event in phase.events:
        if event.until is not None:
            yield Figure(metric=event_metric(event.name), title=event.name, unit=SECONDS)
    for metric, title in _DELIVERY.items():
        yield Figure(metric=metric, title=title, unit=COUNT, is_fault=metric in _FAULTS)
    yield from _SERVERS
    for figure in TURNS_FIGURES:
        yield replace(figure, title=f"event loops: {figure.title}")
    yield from _CLIENTS


def _load_figures(load: Load) -> Iterator[Figure]:
    if load.role is Role.CONNECTIONS:
        yield Figure(metric=f"{load.key}_opened", title=f"{load.label} opened", unit=COUNT)
        yield Figure(
            metric=f"{load.key}_errors", title=f"{load.label} refused or lost", unit=COUNT, is_fault=True
        )
        return
    units = {"bytes_per_s": MEGABYTES_A_SECOND, "records_per_s": RECORDS_A_SECOND}
    for metric, unit in units.items():
        yield Figure(metric=f"{load.key}_{metric}", title=f"{load.label}: throughput", unit=unit)
    for metric, title in _PERCENTILES.items():
        yield Figure(metric=f"{load.key}_{metric}", title=f"{load.label}: {title}", unit=MILLISECONDS)
    if load.role is Role.PRODUCER:
        # Of a paced one: the generator's own part of the latencies.
        yield Figure(metric=f"{load.key}_late_s", title=f"{load.label}: sent late, p99", unit=MILLISECONDS)
    yield Figure(metric=f"{load.key}_took_s", title=f"{load.label}: time", unit=SECONDS)
    yield Figure(metric=f"{load.key}_errors", title=f"{load.label}: errors", unit=COUNT, is_fault=True)
    if load.role is Role.CONSUMER:
        yield Figure(
            metric=f"{load.key}_cross_rack", title=f"{load.label}: bytes from other racks", unit=PERCENT
        )


def _has_rate(phase: Phase, load: Load) -> bool:
    """Whether the load has a rate, so that its latency matters, not its throughput."""
    match load.role:
        case Role.PRODUCER:
            return phase.producers[load.group].rate is not None
        case Role.CONSUMER:
            is_at_tail = phase.consumers[load.group].start is Start.END
            return is_at_tail and any(producers.rate is not None for producers in phase.producers)
        case _:
            return False


def _words(phase: Phase) -> Iterator[str]:
    """Yield a description of each part of a phase."""
    for producers in phase.producers:
        rate = "as fast as possible" if producers.rate is None else f"{producers.rate:,.0f} records/s"
        yield (
            f"{producers.count} producer{'s' if producers.count > 1 else ''} to {producers.topic} ({rate}, "
            f"{producers.size.mean:,} B, acks={producers.acks}, compression {producers.compression})"
        )
    for consumers in phase.consumers:
        rack = f", rack {consumers.rack}" if consumers.rack else ""
        start = (
            f"offset {consumers.offset}"
            if consumers.start is Start.OFFSET
            else f"the {consumers.start.value}"
        )
        yield f"{consumers.count} consumer{'s' if consumers.count > 1 else ''} of {consumers.topic} from {start}{rack}"
    if phase.connections is not None:
        yield f"{phase.connections.count:,} idle connections"
    for job in phase.jobs:
        yield f"Spark job {job.job.value} on {job.topic}"
    for event in phase.events:
        yield f"after {event.at_s:g} s: {event.name}"


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _present(metrics: Mapping[str, float | None]) -> Sample:
    """Return the metrics that were measured; NaN is Spark's null of a batch of numbers."""
    return {
        name: float(value) for name, value in metrics.items() if value is not None and not math.isnan(value)
    }
