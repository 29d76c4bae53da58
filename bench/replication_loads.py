"""Loads on topics of three replicas: in bulk, and consumers of a follower."""

import time
from typing import Final

from ottla.bench.figures import LoadFailed, Sample
from ottla.bench.generators import librdkafka
from ottla.bench.load_figures import bulk_sample
from ottla.bench.loads import CONSUMER_SETTINGS, new_topic
from ottla.bench.targets.clusters import Cluster

RECORD_BYTES: Final = 1024
#: The megabytes for scale 1, about a second.
_PRODUCE_MEGABYTES: Final = 150
#: The bytes that `bulk` writes at scale 1, on three replicas.
BULK_BYTES: Final = 3 * _PRODUCE_MEGABYTES * 1e6
_CONSUME_MEGABYTES: Final = 400
#: The least share that a follower serves of the bytes of its consumer; the leader sends only what refers it
#: there.
_MIN_SHARE_OF_FOLLOWER: Final = 0.95


def produce(cluster: Cluster, name: str, *, count: int) -> librdkafka.Producer:
    """Send records of `RECORD_BYTES` with librdkafka's defaults; return the producer, which is closed."""
    with librdkafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
        producer.produce(name, payload=b"x" * RECORD_BYTES, count=count)
    return producer


def bulk(cluster: Cluster, scale: float, *, partitions: int) -> Sample:
    """Produce by librdkafka with its defaults, acks=all."""
    count = int(_PRODUCE_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    with new_topic(cluster, f"bulk-{partitions}p", partitions=partitions) as topic:
        before, began = cluster.usage(), time.perf_counter()
        producer = produce(cluster, topic.name, count=count)
        took_s = time.perf_counter() - began
        cpu_s = cluster.usage().cpu_s - before.cpu_s
        topic.check(count)
    sample = bulk_sample(cpu_s=cpu_s, took_s=took_s, size_bytes=count * RECORD_BYTES)
    if (round_trips := producer.round_trips_s()) is not None:
        sample["p50_s"], sample["p99_s"] = round_trips
    return sample


def consume_from_follower(cluster: Cluster, scale: float) -> Sample:
    """Consume a whole partition from the page cache, by a consumer in the rack of a follower (KIP-392).

    Raises LoadFailed if it was not the follower that sent it.
    """
    count = int(_CONSUME_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    with new_topic(cluster, "consume", partitions=1) as topic:
        produce(cluster, topic.name, count=count)
        topic.check(count)
        leader = topic.client.leader(topic.name)
        follower = next(node for node in cluster.brokers if node.node_id != leader)
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "client.rack": follower.rack or "",
            **CONSUMER_SETTINGS,
        }
        with librdkafka.Consumer(settings) as consumer:
            before, began = cluster.usage(), time.perf_counter()
            got = consumer.consume(topic.name, partitions=range(1), count=count)
            took_s = time.perf_counter() - began
            cpu_s = cluster.usage().cpu_s - before.cpu_s
            share = consumer.share_received_from(follower.node_id)
    if share < _MIN_SHARE_OF_FOLLOWER:
        raise LoadFailed(f"{cluster.name}: only {share:.0%} of the bytes came from the follower")
    return bulk_sample(cpu_s=cpu_s, took_s=took_s, size_bytes=got * RECORD_BYTES)
