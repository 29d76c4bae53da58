"""The quorum at work: its leader is killed, and topics of many partitions are created."""

import itertools
import time
from typing import Final

from ottla.bench.figures import LoadFailed, Sample
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.wire import RequestFailed

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02
_PARTITIONS: Final = 1_000
#: The time until deleted files are gone (`log.segment.delete.delay.ms`), and the page cache with them.
_DELETE_S: Final = 2.0

_numbers = itertools.count(1)


def fail_over(cluster: Cluster, scale: float) -> Sample:
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


def create_partitions(cluster: Cluster, scale: float) -> Sample:
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
