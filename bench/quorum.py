"""The metadata quorum, side by side with Apache Kafka: fail-over, many partitions, replay of a large log.

    python -m bench.quorum [--quick] [--runs N] [--only NAME]... [--data-dir FOLDER]

Prints tables and writes them, with every sample, to bench/results/<date>-quorum.{md,json}.
"""

from collections.abc import Sequence
from typing import Final

from bench.cluster_bench import Measure, main
from bench.cluster_report import MEGABYTES, SECONDS, Figure, Unit
from bench.clusters import Cluster
from bench.quorum_failover import create_partitions, fail_over
from bench.quorum_replay import replay, start

_FAIL_OVERS: Final = 3

_MEASURES: Final = (
    Measure(
        name="replay",
        title="Replay of a metadata log with 100,000 partitions",
        note="1,000 topics, three replicas each, 200,000 changes of ISRs and leaders: from the file to an image, in a new process.",
        figures=(
            Figure(metric="replay_s", title="replay", unit=SECONDS),
            Figure(
                metric="image_bytes", title="memory of the image, after garbage collection", unit=MEGABYTES
            ),
        ),
        run=replay,
        needs_cluster=False,
    ),
    Measure(
        name="controller-start",
        title="A controller that starts with this log",
        note="The only voter of its quorum, until it answers CreateTopics as the active controller.",
        figures=(
            Figure(metric="start_s", title="start until it serves", unit=SECONDS),
            Figure(metric="cpu_s", title="CPU until then", unit=SECONDS),
            Figure(metric="private_bytes", title="resident a second later, page cache aside", unit=MEGABYTES),
        ),
        run=start,
        needs_cluster=False,
    ),
    Measure(
        name="create-partitions",
        title="A topic with 1,000 partitions of three replicas",
        note="All brokers know: each of them answers Metadata with the leaders and full ISRs of all partitions. "
        "All leaders serve: ListOffsets is answered for each of them.",
        figures=(
            Figure(metric="answered_s", title="CreateTopics answered", unit=SECONDS),
            Figure(metric="known_s", title="all brokers know", unit=SECONDS),
            Figure(metric="served_s", title="all leaders serve", unit=SECONDS),
            Figure(metric="cpu_s", title="CPU of all brokers", unit=SECONDS),
        ),
        run=create_partitions,
    ),
    Measure(
        name="fail-over",
        title="The leader of the quorum is killed",
        note="SIGKILL, default timeouts; until a CreateTopics at a broker succeeds. The controller is started again after each.",
        figures=(
            Figure(metric="fail_over_s", title="until the next CreateTopics", unit=SECONDS),
            Figure(metric="attempts", title="requests that it took", unit=Unit(name="count", decimals=0)),
        ),
        run=fail_over,
        times=_FAIL_OVERS,
        restarts_nodes=True,
    ),
)


def _warm_up(cluster: Cluster, scale: float) -> None:
    """A cold JVM takes a multiple of the CPU."""
    create_partitions(cluster, scale)


def run(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    main(
        arguments,
        program="quorum",
        description=(__doc__ or "").split("\n")[0],
        measures=_MEASURES,
        settings={},
        warm_up=_warm_up,
    )


if __name__ == "__main__":
    run()
