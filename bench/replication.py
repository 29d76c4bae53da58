"""Replication, side by side with Apache Kafka: three brokers, three replicas, acks=all, min.insync.replicas=2.

    python -m bench.replication [--quick] [--runs N] [--only NAME]... [--data-dir FOLDER]

Prints tables and writes them, with every sample, to bench/results/<date>-replication.{md,json}.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from bench.cluster_bench import Measure, main, say
from bench.cluster_report import (
    MEGABYTES_A_SECOND,
    MICROSECONDS,
    MILLISECONDS,
    REQUESTS_A_SECOND,
    SECONDS,
    SECONDS_A_GIGABYTE,
    Figure,
)
from bench.clusters import Cluster
from bench.replication_failover import producer_gap
from bench.replication_followers import catch_up, high_watermark_lag
from bench.replication_loads import at_rate, bulk, consume_from_follower, one_at_a_time

_THROUGHPUT: Final = 1.2
_CPU: Final = 0.5
_P99: Final = 0.7
#: Kafka's are 9 s and 2 s. With these, a fail-over depends less on when the last heartbeat was, and takes less time.
_SETTINGS: Final = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_FAIL_OVERS: Final = 2
_MOST_WARM_UPS: Final = 15
_STEADY_ROUNDS: Final = 2
_STEADY: Final = 0.95

_CPU_PER_GB: Final = Figure(
    metric="cpu_s_per_gb", title="CPU of all brokers", unit=SECONDS_A_GIGABYTE, at_most=_CPU
)
_CPU_PER_REQUEST: Final = Figure(
    metric="cpu_s_per_request", title="CPU of all brokers, per request", unit=MICROSECONDS
)
_P50_MS: Final = Figure(metric="p50_s", title="p50", unit=MILLISECONDS)
_P99_MS: Final = Figure(metric="p99_s", title="p99", unit=MILLISECONDS, at_most=_P99)


def _bulk(partitions: int) -> Measure:
    words = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return Measure(
        name=f"produce-{partitions}p",
        title=f"librdkafka produce, 1 KB, {words}",
        note="300 MB with the client's defaults (batches up to 1 MB); p50 and p99 of its requests' round trips.",
        figures=(
            Figure(metric="bytes_per_s", title="throughput", unit=MEGABYTES_A_SECOND, at_least=_THROUGHPUT),
            _CPU_PER_GB,
            _P50_MS,
            _P99_MS,
        ),
        run=partial(bulk, partitions=partitions),
    )


_MEASURES: Final = (
    _bulk(1),
    _bulk(6),
    Measure(
        name="one-at-a-time",
        title="One request at a time, 1 KB",
        note="A batch, answered, then the next one.",
        figures=(
            Figure(metric="requests_per_s", title="throughput", unit=REQUESTS_A_SECOND, at_least=_THROUGHPUT),
            _CPU_PER_REQUEST,
            _P50_MS,
            _P99_MS,
        ),
        run=one_at_a_time,
    ),
    Measure(
        name="at-rate",
        title="1,000 requests a second, 1 KB",
        note="A batch every millisecond, by the clock; from when it was due until it is acknowledged.",
        figures=(_CPU_PER_REQUEST, _P50_MS, _P99_MS),
        run=at_rate,
    ),
    Measure(
        name="consume-follower",
        title="librdkafka consume from a follower, 1 KB, 1 partition",
        note="600 MB from the page cache, by a consumer in the follower's rack (KIP-392).",
        figures=(
            Figure(metric="bytes_per_s", title="throughput", unit=MEGABYTES_A_SECOND, at_least=1.0),
            _CPU_PER_GB,
        ),
        run=consume_from_follower,
    ),
    Measure(
        name="high-watermark-lag",
        title="High watermark on a follower",
        note="From a record's acknowledgement until a consumer that waits at a follower has it.",
        figures=(
            _P50_MS,
            Figure(metric="p99_s", title="p99", unit=MILLISECONDS, at_most=1.0),
        ),
        run=high_watermark_lag,
    ),
    Measure(
        name="catch-up",
        title="A follower that was away catches up",
        note="600 MB in 6 partitions were written while it was stopped; from its first fetched byte until it is in all ISRs.",
        figures=(
            Figure(metric="bytes_per_s", title="catch-up rate", unit=MEGABYTES_A_SECOND, at_least=1.0),
            Figure(metric="start_s", title="start until the first byte", unit=SECONDS),
            Figure(metric="total_s", title="start until in all ISRs", unit=SECONDS, at_most=1.0),
        ),
        run=catch_up,
        restarts_nodes=True,
    ),
    Measure(
        name="fail-over",
        title="A partition's leader is killed",
        note="SIGKILL under a producer (librdkafka's defaults, acks=all) that sends every 2 ms: the longest time without an "
        "acknowledgement.",
        figures=(
            Figure(metric="gap_s", title="gap", unit=SECONDS, at_most=1.0),
            Figure(metric="kill_to_ack_s", title="from the kill to the next acknowledgement", unit=SECONDS),
        ),
        run=producer_gap,
        times=_FAIL_OVERS,
        restarts_nodes=True,
    ),
)


def _warm_up(cluster: Cluster, scale: float) -> None:
    """Until the CPU of writing in bulk has not fallen for two rounds: a cold JVM takes five times as much.

    Each way of writing warms its own, so a round has all of them.
    """
    costs: list[float] = []
    while len(costs) < _MOST_WARM_UPS and not _is_steady(costs):
        bulks = [bulk(cluster, 1.0, partitions=partitions) for partitions in (6, 1)]
        one_at_a_time(cluster, 1.0)
        at_rate(cluster, 1.0)
        costs.append(sum(sample["cpu_s_per_gb"] for sample in bulks) / len(bulks))
        say(f"{cluster.name}: warming up, {costs[-1]:.1f} s/GB")


def _is_steady(costs: Sequence[float]) -> bool:
    return len(costs) > _STEADY_ROUNDS and min(costs[-_STEADY_ROUNDS:]) > _STEADY * min(
        costs[:-_STEADY_ROUNDS]
    )


def run(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    main(
        arguments,
        program="replication",
        description=(__doc__ or "").split("\n")[0],
        measures=_MEASURES,
        settings=_SETTINGS,
        warm_up=_warm_up,
    )


if __name__ == "__main__":
    run()
