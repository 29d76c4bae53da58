"""A leader is killed under a producer: the longest time without an acknowledgement, and nothing that is lost."""

import time
from itertools import pairwise
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from ottla.bench.figures import LoadFailed, Sample
from ottla.bench.loads import new_topic
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import Cluster

_BEFORE_S: Final = 1.0
_AFTER_S: Final = 1.0
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.002


class _Acknowledgements:
    """The times at which records were acknowledged, and errors."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.errors: list[KafkaError] = []

    def on_delivery(self, error: KafkaError | None, _: Message) -> None:
        """Note librdkafka's delivery report of a record."""
        if error is not None:
            self.errors.append(error)
        self.at.append(time.perf_counter())


def producer_gap(cluster: Cluster, scale: float) -> Sample:
    """Measure the longest gap of a producer when the leader is killed (SIGKILL).

    Librdkafka, acks=all, a record every two milliseconds, with its own retries.

    Raises LoadFailed if a record was not delivered, or was and is not there.
    """
    acknowledged = _Acknowledgements()
    with new_topic(cluster, "failover", partitions=1) as topic:
        name = topic.name
        leader = topic.client.leader(name)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
        killed_at = _produce_through_a_kill(cluster, producer, acknowledged, name, leader)
        if acknowledged.errors:
            raise LoadFailed(f"{cluster.name}: {len(acknowledged.errors)} errors: {acknowledged.errors[0]}")
        with cluster.client() as others:
            _check_kept(cluster, others, name, len(acknowledged.at))
        cluster.spawn(leader)
        cluster.wait_until_answering(leader)
    with cluster.client() as everyone:
        while not everyone.is_complete():
            time.sleep(0.05)
    times = acknowledged.at
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return {"gap_s": max(gaps), "kill_to_ack_s": next(at for at in times if at > killed_at + 0.1) - killed_at}


def _produce_through_a_kill(
    cluster: Cluster, producer: Producer, acknowledged: _Acknowledgements, name: str, leader: int
) -> float:
    """Send until some time after the first acknowledgement from another leader; return the time of the kill."""
    began = time.perf_counter()
    killed_at = sent_at = 0.0
    while True:
        producer.produce(name, b"x" * 100, partition=0, on_delivery=acknowledged.on_delivery)
        producer.poll(_PAUSE_S)
        sent_at = time.perf_counter()
        if not killed_at:
            if sent_at - began > _BEFORE_S and acknowledged.at:
                cluster.kill_node(leader)
                killed_at = time.perf_counter()
        elif acknowledged.at[-1] > killed_at + _AFTER_S:
            break
        elif sent_at > killed_at + _PATIENCE_S:
            raise LoadFailed(f"{cluster.name}: nothing acknowledged for {_PATIENCE_S} s after the kill")
    if left := producer.flush(_PATIENCE_S):
        raise LoadFailed(f"{cluster.name}: {left} records were not delivered")
    return killed_at


def _check_kept(cluster: Cluster, client: ClusterClient, name: str, count: int) -> None:
    # Without idempotence a record whose answer died with the leader may be there twice.
    if (found := client.record_count(name)) < count:
        raise LoadFailed(f"{cluster.name}: only {found} of {count} acknowledged records are in {name}")
