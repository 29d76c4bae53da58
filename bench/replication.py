"""Replication, side by side with Apache Kafka: three brokers, three replicas, acks=all, min.insync.replicas=2.

    python -m ottla.bench.replication [--settings default,tuned] [--places disk,tmpfs] [--disk DIR] [--tmpfs DIR] ...

Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from ottla.bench.figures import (
    MEGABYTES_A_SECOND,
    MILLISECONDS,
    SECONDS,
    Figure,
    Goal,
    Goals,
    Sample,
    bulk_figures,
    latency_figures,
    partition_words,
    request_figures,
)
from ottla.bench.harness import Measure, Program
from ottla.bench.loads import at_rate, one_at_a_time
from ottla.bench.program import main
from ottla.bench.replication_loads import (
    BULK_BYTES,
    CATCH_UP_BYTES,
    bulk,
    catch_up,
    consume_from_follower,
    high_watermark_lag,
    high_watermark_lag_at,
    lag_metric,
    producer_gap,
)
from ottla.bench.targets.clusters import CLUSTERS, Cluster
from ottla.bench.targets.floor import FloorCluster
from ottla.bench.targets.profiled import ProfiledCluster
from ottla.bench.targets.settings import PLACES

_CPU: Final = "CPU of all brokers"
_CPU_PER_REQUEST: Final = "CPU of all brokers for each request"
#: The timeout and interval of heartbeats; Kafka's are 9 s and 2 s. With these, a fail-over depends less on
#: when the last heartbeat was, and takes less time.
_PROPERTIES: Final = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_FAIL_OVERS: Final = 2
_LAG_RATES: Final = (100, 600, 900, 1000)
#: The goal of KIP-392: a consumer of a follower reads a record soon after it is acknowledged, whatever else
#: arrives.
_FRESH_S: Final = 0.001
_NO_SLOWER: Final = Goal(at_most=1.0)


def _bulk(partitions: int) -> Measure[Cluster]:
    return Measure(
        name=f"produce-{partitions}p",
        title=f"librdkafka produce, 1 KB, {partition_words(partitions)}",
        note="The client's defaults (batches up to 1 MB), acks=all; p50 and p99 of its requests' round trips.",
        figures=[*bulk_figures(Goals(throughput=1.3, cpu=0.55), cpu=_CPU), *latency_figures(0.7)],
        run=partial(bulk, partitions=partitions),
        written_bytes=BULK_BYTES,
        has_floor=True,
        is_profiled=partitions > 1,
    )


def _one_at_a_time(cluster: Cluster, scale: float) -> Sample:
    return one_at_a_time(cluster, duration_s=scale)


def _at_rate(cluster: Cluster, scale: float) -> Sample:
    return at_rate(cluster, per_s=1000, duration_s=scale)


MEASURES: Final[tuple[Measure[Cluster], ...]] = (
    _bulk(1),
    _bulk(6),
    Measure(
        name="one-at-a-time",
        title="one request at a time, 1 KB",
        note="A batch, answered, then the next one.",
        figures=[
            *request_figures(Goals(throughput=1.5, cpu=0.6), cpu=_CPU_PER_REQUEST),
            *latency_figures(0.6),
        ],
        run=_one_at_a_time,
        has_floor=True,
        is_profiled=True,
    ),
    Measure(
        name="at-rate",
        title="1,000 requests/s, 1 KB",
        note="A batch every millisecond, by the clock; from when it was due until it is acknowledged.",
        figures=[*request_figures(Goals(cpu=0.7), cpu=_CPU_PER_REQUEST)[1:], *latency_figures(0.6)],
        run=_at_rate,
        has_floor=True,
        is_profiled=True,
    ),
    Measure(
        name="consume-follower",
        title="librdkafka consume from a follower, 1 KB, 1 partition",
        note="From the page cache, by a consumer in the follower's rack (KIP-392).",
        figures=bulk_figures(Goals(throughput=1.0, cpu=0.55), cpu=_CPU),
        run=consume_from_follower,
    ),
    Measure(
        name="high-watermark-lag",
        title="high watermark on a follower: one record at a time",
        note="From a record's acknowledgement until a consumer that waits at a follower has it.",
        figures=latency_figures(1.0),
        run=high_watermark_lag,
    ),
    Measure(
        name="high-watermark-lag-at-rates",
        title="high watermark on a follower: steady rates",
        note="As above, while records are produced by the clock. Kafka's followers learn the high "
        "watermark with the next record, or after `replica.fetch.wait.max.ms`.",
        figures=[
            Figure(
                metric=lag_metric(per_s),
                title=f"p50 at {per_s:,} records/s",
                unit=MILLISECONDS,
                goal=Goal(at_most=_FRESH_S, is_absolute=True),
            )
            for per_s in _LAG_RATES
        ],
        run=partial(high_watermark_lag_at, rates=_LAG_RATES),
    ),
    Measure(
        name="catch-up",
        title="a restarted follower catches up",
        note="6 partitions were written to while it was stopped; from its first fetched byte until it is in all ISRs.",
        figures=(
            Figure(metric="bytes_per_s", title="rate", unit=MEGABYTES_A_SECOND, goal=Goal(at_least=1.0)),
            Figure(metric="start_s", title="start until the first byte", unit=SECONDS),
            Figure(metric="total_s", title="start until in all ISRs", unit=SECONDS, goal=_NO_SLOWER),
        ),
        run=catch_up,
        written_bytes=CATCH_UP_BYTES,
        restarts_nodes=True,
    ),
    Measure(
        name="fail-over",
        title="a partition's leader is killed",
        note="SIGKILL under a producer (librdkafka's defaults, acks=all) that sends every 2 ms: the "
        "longest time without an acknowledgement.",
        figures=(
            Figure(metric="gap_s", title="gap", unit=SECONDS, goal=_NO_SLOWER),
            Figure(metric="kill_to_ack_s", title="from the kill to the next acknowledgement", unit=SECONDS),
        ),
        run=producer_gap,
        times=_FAIL_OVERS,
        restarts_nodes=True,
    ),
)


def warm_up_round(cluster: Cluster, scale: float) -> Mapping[str, float]:
    """Run each way of writing, since each warms its own code; return the CPU of each."""
    bulks = {f"{count} partitions": bulk(cluster, scale, partitions=count) for count in (6, 1)}
    costs = {name: sample["cpu_s_per_gb"] for name, sample in bulks.items()}
    for name, load in {"one-at-a-time": _one_at_a_time, "at-rate": _at_rate}.items():
        costs[name] = load(cluster, scale)["cpu_s_per_request"]
    return costs


PROGRAM: Final[Program[Cluster]] = Program(
    name="replication",
    description=(__doc__ or "").split("\n")[0],
    subjects=CLUSTERS,
    measures=MEASURES,
    warm_up_round=warm_up_round,
    seconds=2.0,
    settings=("default",),
    places=PLACES,
    properties=_PROPERTIES,
    headlines=(
        ("produce-6p", "bytes_per_s"),
        ("produce-6p", "cpu_s_per_gb"),
        ("one-at-a-time", "requests_per_s"),
        ("one-at-a-time", "p99_s"),
        ("consume-follower", "bytes_per_s"),
        ("high-watermark-lag", "p50_s"),
        ("catch-up", "bytes_per_s"),
        ("fail-over", "gap_s"),
    ),
    floor=FloorCluster,
    profiled=ProfiledCluster,
)


if __name__ == "__main__":
    main(None, PROGRAM)
