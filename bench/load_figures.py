"""The figures of bulk loads and of requests, for one broker and for clusters."""

from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import (
    MEGABYTES_A_SECOND,
    MICROSECONDS,
    MILLISECONDS,
    REQUESTS_A_SECOND,
    SECONDS_A_GIGABYTE,
    Figure,
    Goal,
    Sample,
    Unit,
)

GIGABYTE: Final = 1e9
#: The metrics, among the figures below, of the brokers' processor time.
CPU_METRICS: Final = ("cpu_s_per_gb", "cpu_s_per_request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """The bounds of ratios Ottla / Kafka; None where there is no goal."""

    throughput: float | None = None
    cpu: float | None = None
    p99: float | None = None


def bulk_figures(goals: Goals, *, cpu: str = "broker CPU", cpu_goal: Goal | None = None) -> list[Figure]:
    """Return the figures of loads that are measured in bytes."""
    return [
        Figure(
            metric="bytes_per_s",
            title="throughput",
            unit=MEGABYTES_A_SECOND,
            goal=_at_least(goals.throughput),
        ),
        Figure(
            metric="cpu_s_per_gb", title=cpu, unit=SECONDS_A_GIGABYTE, goal=cpu_goal or _at_most(goals.cpu)
        ),
    ]


def request_figures(goals: Goals, *, cpu: str = "broker CPU for each request") -> list[Figure]:
    """Return the figures of loads that are measured in requests."""
    return [
        Figure(
            metric="requests_per_s",
            title="throughput",
            unit=REQUESTS_A_SECOND,
            goal=_at_least(goals.throughput),
        ),
        Figure(metric="cpu_s_per_request", title=cpu, unit=MICROSECONDS, goal=_at_most(goals.cpu)),
    ]


def latency_figures(p99: float | None, *, p50: Goal | None = None, unit: Unit = MILLISECONDS) -> list[Figure]:
    """Return the figures of the percentiles that are shown."""
    return [
        Figure(metric="p50_s", title="p50", unit=unit, goal=p50),
        Figure(metric="p99_s", title="p99", unit=unit, goal=_at_most(p99)),
    ]


def _at_least(bound: float | None) -> Goal | None:
    return None if bound is None else Goal(at_least=bound)


def _at_most(bound: float | None) -> Goal | None:
    return None if bound is None else Goal(at_most=bound)


def bulk_sample(*, cpu_s: float, took_s: float, size_bytes: int) -> Sample:
    """Return a sample of `bulk_figures`."""
    return {"bytes_per_s": size_bytes / took_s, "cpu_s_per_gb": cpu_s / (size_bytes / GIGABYTE)}


def partition_words(count: int) -> str:
    """Return the number of partitions in words, for titles."""
    return "1 partition" if count == 1 else f"{count} partitions"
