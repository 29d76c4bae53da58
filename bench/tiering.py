"""Tiered storage, side by side with Apache Kafka: the test cases of KIP-405, scaled to this machine.

    python -m ottla.bench.tiering [--settings default,tuned] [--places disk,tmpfs] [--disk DIR] [--tmpfs DIR] ...

Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ottla.bench.figures import (
    COUNT,
    MEGABYTES,
    MEGABYTES_A_SECOND,
    MICROSECONDS,
    MILLISECONDS,
    SECONDS,
    SECONDS_A_GIGABYTE,
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
from ottla.bench.tiering_loads import catch_up_from_minio, catch_up_from_remote, paced_produce
from ottla.bench.tiering_rejoin import prepare, rejoin

_KIB, _MIB = 1 << 10, 1 << 20
_NO_SLOWER_THAN_UNTIERED: Final = Goal(at_most=1.1, is_absolute=True)
_OF_A_PLAIN_CLIENT: Final = Goal(at_least=0.8, is_absolute=True)
_HUNDRED_TIMES: Final = Goal(at_least=100, is_absolute=True)
#: The bound on the fixed costs of a rejoin, which vary from run to run.
_CONSTANT: Final = Goal(at_most=1.5, is_absolute=True)
_CPU: Final = "CPU of all brokers"
#: The goal for memory: 80 MB, as of an untiered broker, and 64 MiB of chunks that consumers read from the
#: remote tier.
_MEMORY_BYTES: Final = 150e6


def _paced(
    name: str, *, per_s: int, batch_bytes: int, size: str, segment_bytes: int, segment: str
) -> Measure[Cluster]:
    return Measure(
        name=name,
        title=f"1: {per_s:,} requests/s of {size}",
        note=f"By the clock, to a partition with and without tiering in turn, segments of {segment}, copied "
        "as they are closed; from when a request was due until it is acknowledged.",
        figures=(
            Figure(metric="p50_s", title="p50 with tiering", unit=MILLISECONDS),
            Figure(metric="plain_p50_s", title="p50 without", unit=MILLISECONDS),
            Figure(metric="p99_s", title="p99 with tiering", unit=MILLISECONDS),
            Figure(metric="plain_p99_s", title="p99 without", unit=MILLISECONDS),
            Figure(metric="p99_ratio", title="p99 with / without", unit=TIMES, goal=_NO_SLOWER_THAN_UNTIERED),
            Figure(metric="cpu_s_per_request", title=f"{_CPU} for each request, with", unit=MICROSECONDS),
            Figure(metric="plain_cpu_s_per_request", title="the same, without", unit=MICROSECONDS),
            Figure(metric="copied", title="segments copied meanwhile", unit=COUNT),
        ),
        run=partial(paced_produce, per_s=per_s, batch_bytes=batch_bytes, segment_bytes=segment_bytes),
    )


_UPLOAD: Final = (
    Figure(metric="upload_bytes_per_s", title="upload", unit=MEGABYTES_A_SECOND),
    Figure(metric="upload_cpu_s_per_gb", title=f"upload: {_CPU}", unit=SECONDS_A_GIGABYTE),
    Figure(metric="plain_put_bytes_per_s", title="a plain client's put", unit=MEGABYTES_A_SECOND),
    Figure(metric="upload_share", title="upload / put", unit=TIMES, goal=_OF_A_PLAIN_CLIENT),
)
_RATE: Final = Figure(metric="bytes_per_s", title="catch-up", unit=MEGABYTES_A_SECOND)
_CATCH_UP: Final = (
    Figure(metric="cpu_s_per_gb", title=f"catch-up: {_CPU}", unit=SECONDS_A_GIGABYTE),
    Figure(metric="consumer_cpu_s_per_gb", title="catch-up: CPU of the consumer", unit=SECONDS_A_GIGABYTE),
    Figure(metric="store_cpu_s_per_gb", title="catch-up: CPU of the store", unit=SECONDS_A_GIGABYTE),
    Figure(metric="plain_get_bytes_per_s", title="a plain client's get", unit=MEGABYTES_A_SECOND),
    Figure(
        metric="local_bytes_per_s", title="the same consumer, from local segments", unit=MEGABYTES_A_SECOND
    ),
    Figure(metric="share", title="catch-up / the slower of both", unit=TIMES, goal=_OF_A_PLAIN_CLIENT),
    Figure(metric="both_bytes_per_s", title="both at once, without a remote read", unit=MEGABYTES_A_SECOND),
    Figure(metric="share_of_both", title="catch-up / both at once", unit=TIMES),
    Figure(metric="first_s", title="until the first record", unit=SECONDS),
    Figure(metric="local_first_s", title="the same, from local segments", unit=SECONDS),
)

MEASURES: Final[tuple[Measure[Cluster], ...]] = (
    _paced("at-rate", per_s=1000, batch_bytes=_KIB, size="1 KB", segment_bytes=_MIB, segment="1 MB"),
    _paced(
        "bulk-rate", per_s=400, batch_bytes=64 * _KIB, size="64 KB", segment_bytes=8 * _MIB, segment="8 MB"
    ),
    Measure(
        name="catch-up",
        title="2: a consumer catches up, from a directory",
        note="A backlog of closed segments is copied as soon as tiering is switched on, then removed "
        "locally, then read by librdkafka from offset 0. Rates from the first record on. The plain client "
        "copies and flushes, or reads, the same files one after the other; a store cannot deliver more "
        "than that, nor a consumer take more than from local segments. Both at once: the plain client "
        "reads the store while the consumer reads local segments, the most that the processors of this "
        "machine allow.",
        figures=(*_UPLOAD, replace(_RATE, goal=Goal(at_least=1.0)), *_CATCH_UP),
        run=catch_up_from_remote,
    ),
    Measure(
        name="catch-up-minio",
        title="2: a consumer catches up, from MinIO",
        note="The same with one broker and a MinIO server on this machine; boto3 is the plain client. "
        "Kafka has no such store.",
        figures=(*_UPLOAD, _RATE, *_CATCH_UP),
        run=catch_up_from_minio,
    ),
    Measure(
        name="rejoin",
        title="3: a wiped broker rejoins the ISR",
        note="Stopped, wiped, started: from when it has created the replica until it is in the ISR. All "
        "but a tail below 1 MB of three partitions is tiered; others have no remote tier, and are copied "
        "in full, the larger one once.",
        figures=(
            Figure(metric="data_bytes", title="data, D", unit=MEGABYTES),
            Figure(metric="small_s", title="D/16 tiered", unit=SECONDS),
            Figure(metric="middle_s", title="D/4 tiered", unit=SECONDS),
            Figure(metric="large_s", title="D tiered", unit=SECONDS, goal=Goal(at_most=1.0)),
            Figure(metric="growth", title="D tiered / D/16 tiered", unit=TIMES, goal=_CONSTANT),
            Figure(metric="full_s", title="D/16 not tiered", unit=SECONDS),
            Figure(metric="huge_s", title="D not tiered", unit=SECONDS),
            Figure(metric="speed_up", title="D not tiered / D tiered", unit=TIMES, goal=_HUNDRED_TIMES),
            Figure(metric="moved_bytes", title="bytes moved, D tiered", unit=MEGABYTES),
            Figure(
                metric="fewer_bytes",
                title="bytes moved: not tiered / tiered",
                unit=TIMES,
                goal=_HUNDRED_TIMES,
            ),
        ),
        run=rejoin,
        prepare=prepare,
        restarts_nodes=True,
    ),
)


def warm_up_round(cluster: Cluster, scale: float) -> Mapping[str, float]:
    """Copy to the remote tier and read back, and append small batches; return the CPU of each."""
    there_and_back = catch_up_from_remote(cluster, scale)
    return {
        "catch-up": there_and_back["cpu_s_per_gb"],
        "upload": there_and_back["upload_cpu_s_per_gb"],
        "at-rate": at_rate(cluster, scale)["cpu_s_per_request"],
    }


PROGRAM: Final[Program[Cluster]] = Program(
    name="tiering",
    description=(__doc__ or "").split("\n")[0],
    subjects=TIERED_CLUSTERS,
    measures=MEASURES,
    warm_up_round=warm_up_round,
    seconds=2.0,
    settings=("default",),
    places=(DISK,),
    properties=TIER_PROPERTIES,
    memory_goal_bytes=_MEMORY_BYTES,
    headlines=(
        ("at-rate", "p99_ratio"),
        ("bulk-rate", "p99_ratio"),
        ("bulk-rate", "p99_s"),
        ("catch-up", "bytes_per_s"),
        ("catch-up", "upload_share"),
        ("catch-up-minio", "share"),
        ("catch-up-minio", "upload_share"),
        ("rejoin", "large_s"),
        ("rejoin", "growth"),
        ("rejoin", "speed_up"),
    ),
)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the program with the options of the command line."""
    main(arguments, PROGRAM)


if __name__ == "__main__":
    run()
