"""Followers with little local data, and elections that prefer others (KIP-1023, draft KIP-1303): gains and costs.

    python -m ottla.bench.tier_elections [--disk DIR] [--seconds S] ...

Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
Kafka has KIP-1023 only: after a fail-over its figures are those without the preference.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.bench.figures import (
    COUNT,
    MEGABYTES,
    MEGABYTES_A_SECOND,
    MILLISECONDS,
    SECONDS,
    TIMES,
    Figure,
    Goal,
)
from ottla.bench.measures import Measure, Program
from ottla.bench.program import main
from ottla.bench.replication_loads import at_rate
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.settings import DISK
from ottla.bench.targets.tiering_clusters import TIER_PROPERTIES, TIERED_CLUSTERS
from ottla.bench.tier_elections_loads import fail_over, fail_over_on_minio, measure_larger, rejoin

#: The bound on the fixed costs of a rejoin, which vary from run to run.
_CONSTANT: Final = Goal(at_most=1.5, is_absolute=True)
_MEMORY_BYTES: Final = 150e6


def _rejoin_figures() -> tuple[Figure, ...]:
    figures = []
    for name, title in (("small", "D/16"), ("middle", "D/4"), ("large", "D")):
        figures += [
            Figure(metric=f"{name}_plain_s", title=f"{title}: without", unit=SECONDS),
            Figure(metric=f"{name}_s", title=f"{title}: with KIP-1023", unit=SECONDS),
            Figure(metric=f"{name}_plain_bytes", title=f"{title}: bytes moved, without", unit=MEGABYTES),
            Figure(metric=f"{name}_bytes", title=f"{title}: bytes moved, with", unit=MEGABYTES),
            Figure(metric=f"{name}_speed_up", title=f"{title}: without / with", unit=TIMES),
        ]
    return (*figures, Figure(metric="growth", title="D / D/16, with", unit=TIMES, goal=_CONSTANT))


_FAIL_OVER: Final = tuple(
    Figure(metric=f"{name}_{metric}", title=f"{title}, {words}", unit=unit)
    for metric, title, unit in (
        ("p50_s", "p50 of a Fetch", MILLISECONDS),
        ("p99_s", "p99", MILLISECONDS),
        ("max_s", "longest", MILLISECONDS),
        ("bytes_per_s", "catch-up", MEGABYTES_A_SECOND),
        ("remote_reads", "Fetches from the remote tier", COUNT),
    )
    for name, words in (("plain", "without"), ("local", "with KIP-1303"))
)

MEASURES: Final[tuple[Measure[Cluster], ...]] = (
    Measure(
        name="rejoin",
        title="A wiped broker rejoins the ISR of a tiered partition whose records are all local on the leader",
        note="Stopped, wiped, started: from when it has created the replica until it is in the ISR. D is "
        "16 GB with `--seconds` of 1 or more, and not measured of Kafka; D/16 is measured in each run, the "
        "others once.",
        figures=_rejoin_figures(),
        run=rejoin,
        prepare=measure_larger,
        restarts_nodes=True,
    ),
    Measure(
        name="fail-over",
        title="A consumer of the whole log after a fail-over, the remote tier is a directory",
        note="One of two followers was wiped and has rejoined by KIP-1023; it is the first after the "
        "leader in the assignment. The leader stops; a consumer reads from the log start, one Fetch of 1 "
        "MiB at a time. Without KIP-1303 the wiped follower leads, and with it the other one.",
        figures=_FAIL_OVER,
        run=fail_over,
        restarts_nodes=True,
    ),
    Measure(
        name="fail-over-minio",
        title="The same, the remote tier is MinIO",
        note="With brokers of its own and a MinIO server on this machine. Kafka has no such store.",
        figures=_FAIL_OVER,
        run=fail_over_on_minio,
        restarts_nodes=True,
    ),
)


def warm_up_round(cluster: Cluster, scale: float) -> Mapping[str, float]:
    """Append small batches, and return the CPU of each."""
    return {"at-rate": at_rate(cluster, scale)["cpu_s_per_request"]}


PROGRAM: Final[Program[Cluster]] = Program(
    name="tier_elections",
    description=(__doc__ or "").split("\n")[0],
    subjects=TIERED_CLUSTERS,
    measures=MEASURES,
    warm_up_round=warm_up_round,
    seconds=1.0,
    settings=("default",),
    places=(DISK,),
    properties=TIER_PROPERTIES,
    memory_goal_bytes=_MEMORY_BYTES,
    headlines=(
        ("rejoin", "large_speed_up"),
        ("rejoin", "growth"),
        ("fail-over-minio", "plain_p99_s"),
        ("fail-over-minio", "local_p99_s"),
    ),
)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the program with the options of the command line."""
    main(arguments, PROGRAM)


if __name__ == "__main__":
    run()
