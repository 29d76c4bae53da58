"""The metadata quorum, side by side with Apache Kafka: fail-over, and topics of many partitions.

    python -m ottla.bench.quorum [--settings default,tuned] [--places disk,tmpfs] [--disk DIR] [--tmpfs DIR] ...

Prints tables and writes them, with every sample, to bench/results/. bench/PROGRAMS.md says how to read them.
"""

import itertools
import time
from collections.abc import Mapping
from typing import Final

from ottla.bench.figures import COUNT, SECONDS, Figure, LoadFailed, Sample
from ottla.bench.harness import Measure, Program
from ottla.bench.program import main
from ottla.bench.targets.clusters import CLUSTERS, Cluster
from ottla.bench.targets.settings import TMPFS
from ottla.bench.targets.wire import RequestFailed

_FAIL_OVERS: Final = 3
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02
_PARTITIONS: Final = 1_000
#: The time until deleted files are gone (`log.segment.delete.delay.ms`), and the page cache with them.
_DELETE_S: Final = 2.0

_numbers = itertools.count(1)


def _fail_over(cluster: Cluster, scale: float) -> Sample:
    """Kill the quorum's leader (SIGKILL), then send CreateTopics until one succeeds; start the controller again."""
    with cluster.client() as client:
        leader = client.quorum().leader_id
        cluster.kill_node(leader)
        killed_at = time.perf_counter()
        attempts = 0
        while True:
            attempts += 1
            try:
                client.ask_for_topic(f"fail-over-{next(_numbers)}", partitions=1, replication_factor=1)
                break
            except RequestFailed as error:
                if time.perf_counter() > killed_at + _PATIENCE_S:
                    raise LoadFailed(f"{cluster.name}: no topic {_PATIENCE_S} s after the kill") from error
                time.sleep(_PAUSE_S)
        took_s = time.perf_counter() - killed_at
        if client.quorum().leader_id == leader:
            raise LoadFailed(f"{cluster.name}: {leader} is dead and leads")
        cluster.spawn(leader)
        cluster.wait_until_answering(leader)
        committed = client.quorum().high_watermark
        deadline = time.monotonic() + _PATIENCE_S
        while min(voter.log_end_offset for voter in client.quorum().current_voters) < committed:
            if time.monotonic() > deadline:
                raise LoadFailed(f"{cluster.name}: controller {leader} does not catch up")
            time.sleep(_PAUSE_S)
    return {"fail_over_s": took_s, "attempts": attempts}


def _create_partitions(cluster: Cluster, scale: float) -> Sample:
    """Create one topic; measure until the response, until all brokers know it in full, and until all leaders serve."""
    count = int(_PARTITIONS * scale)
    name = f"many-{next(_numbers)}"
    with cluster.client() as client:
        before, began = cluster.usage(), time.perf_counter()
        client.ask_for_topic(name, partitions=count)
        answered_s = time.perf_counter() - began
        for node_id in cluster.broker_ports:
            client.wait_for_isr(name, partitions=count, size=3, asking=node_id)
        known_s = time.perf_counter() - began
        client.wait_until_served(name)
        served_s = time.perf_counter() - began
        cpu_s = cluster.usage().cpu_s - before.cpu_s
        client.delete_topic(name)
    time.sleep(_DELETE_S)
    return {"answered_s": answered_s, "known_s": known_s, "served_s": served_s, "cpu_s": cpu_s}


MEASURES: Final[tuple[Measure[Cluster], ...]] = (
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
        run=_create_partitions,
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
        run=_fail_over,
        times=_FAIL_OVERS,
        restarts_nodes=True,
    ),
)


def _warm_up_round(cluster: Cluster, scale: float) -> Mapping[str, float]:
    return {"create-partitions": _create_partitions(cluster, scale)["cpu_s"]}


PROGRAM: Final[Program[Cluster]] = Program(
    name="quorum",
    description=(__doc__ or "").split("\n")[0],
    subjects=CLUSTERS,
    measures=MEASURES,
    warm_up_round=_warm_up_round,
    # Scale 1 is a topic of 1,000 partitions.
    seconds=1.0,
    settings=("default",),
    places=(TMPFS,),
    properties={},
    headlines=(
        ("create-partitions", "served_s"),
        ("fail-over", "fail_over_s"),
    ),
)


if __name__ == "__main__":
    main(None, PROGRAM)
