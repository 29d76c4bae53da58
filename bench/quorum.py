"""The metadata quorum, side by side with Apache Kafka: fail-over, many partitions, replay of a large log.

    python -m ottla.bench.quorum [--settings default,tuned] [--places disk,tmpfs] [--disk DIR] [--tmpfs DIR] ...

Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.bench.figures import COUNT, MEGABYTES, SECONDS, Figure
from ottla.bench.measures import Measure, Program
from ottla.bench.program import main
from ottla.bench.quorum_failover import create_partitions, fail_over
from ottla.bench.quorum_replay import replay, start
from ottla.bench.targets.clusters import CLUSTERS, Cluster
from ottla.bench.targets.settings import TMPFS

_FAIL_OVERS: Final = 3

MEASURES: Final[tuple[Measure[Cluster], ...]] = (
    Measure(
        name="replay",
        title="Replay of a metadata log with 100,000 partitions",
        note="1,000 topics, three replicas each, 200,000 changes of ISRs and leaders: from the file to an "
        "image, in a new process.",
        figures=(
            Figure(metric="replay_s", title="replay", unit=SECONDS),
            Figure(
                metric="image_bytes", title="memory of the image, after garbage collection", unit=MEGABYTES
            ),
        ),
        run=replay,
        needs_subject=False,
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
        needs_subject=False,
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
        note="SIGKILL, default timeouts; until a CreateTopics at a broker succeeds. The controller is "
        "started again after each.",
        figures=(
            Figure(metric="fail_over_s", title="until the next CreateTopics", unit=SECONDS),
            Figure(metric="attempts", title="requests that it took", unit=COUNT),
        ),
        run=fail_over,
        times=_FAIL_OVERS,
        restarts_nodes=True,
    ),
)


def _warm_up_round(cluster: Cluster, scale: float) -> Mapping[str, float]:
    return {"create-partitions": create_partitions(cluster, scale)["cpu_s"]}


PROGRAM: Final[Program[Cluster]] = Program(
    name="quorum",
    description=(__doc__ or "").split("\n")[0],
    subjects=CLUSTERS,
    measures=MEASURES,
    warm_up_round=_warm_up_round,
    # Scale 1 is 100,000 partitions in a log, and 1,000 in a topic.
    seconds=1.0,
    settings=("default",),
    places=(TMPFS,),
    properties={},
    headlines=(
        ("create-partitions", "served_s"),
        ("fail-over", "fail_over_s"),
        ("controller-start", "start_s"),
        ("replay", "replay_s"),
    ),
)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the program with the options of the command line."""
    main(arguments, PROGRAM)


if __name__ == "__main__":
    run()
