"""Loads on topics of three replicas: in bulk, one at a time, at a steady rate; and consumers of a follower."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ottla.bench import paced
from ottla.bench.figures import LoadFailed, Sample, percentiles
from ottla.bench.generators import librdkafka
from ottla.bench.load_figures import bulk_sample
from ottla.bench.loads import CONSUMER_SETTINGS
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import Cluster
from ottla.bench.targets.wire import produce_frame

RECORD_BYTES: Final = 1024
#: The megabytes for scale 1, about a second.
_PRODUCE_MEGABYTES: Final = 150
#: The bytes that `bulk` writes at scale 1, on three replicas.
BULK_BYTES: Final = 3 * _PRODUCE_MEGABYTES * 1e6
_CONSUME_MEGABYTES: Final = 400
_RATE_PER_S: Final = 1000
#: The least share that a follower serves of the bytes of its consumer; the leader sends only what refers it
#: there.
_MIN_SHARE_OF_FOLLOWER: Final = 0.95

_numbers = itertools.count(1)


@contextmanager
def topic(cluster: Cluster, name: str, *, partitions: int) -> Iterator[tuple[ClusterClient, str]]:
    """Make a new topic of three replicas, deleted in the end, and connections to ask about it."""
    full_name = f"{name}-{next(_numbers)}"
    with cluster.client() as client:
        client.create_topic(full_name, partitions=partitions)
        yield client, full_name
    # A broker may have been restarted since: that client's connection to it is gone.
    with cluster.client() as client:
        client.delete_topic(full_name)


def check_count(cluster: Cluster, client: ClusterClient, name: str, count: int) -> None:
    """Raise LoadFailed unless so many records are committed."""
    found = client.record_count(name)
    if found != count:
        raise LoadFailed(f"{cluster.name}: {found} of {count} records are in {name}")


def produce(cluster: Cluster, name: str, *, count: int, acks: str = "all") -> librdkafka.Producer:
    """Send records of `RECORD_BYTES` with librdkafka's defaults; return the producer, which is closed."""
    with librdkafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks}) as producer:
        producer.produce(name, payload=b"x" * RECORD_BYTES, count=count)
    return producer


def bulk(cluster: Cluster, scale: float, *, partitions: int) -> Sample:
    """Produce by librdkafka with its defaults, acks=all."""
    count = int(_PRODUCE_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    with topic(cluster, f"bulk-{partitions}p", partitions=partitions) as (client, name):
        before, began = cluster.usage(), time.perf_counter()
        producer = produce(cluster, name, count=count)
        took_s = time.perf_counter() - began
        cpu_s = cluster.usage().cpu_s - before.cpu_s
        check_count(cluster, client, name, count)
    sample = bulk_sample(cpu_s=cpu_s, took_s=took_s, size_bytes=count * RECORD_BYTES)
    if (round_trips := producer.round_trips_s()) is not None:
        sample["p50_s"], sample["p99_s"] = round_trips
    return sample


def at_rate(cluster: Cluster, scale: float) -> Sample:
    """Measure a batch of 1 KB every millisecond, by the clock, whether or not earlier ones are answered."""
    with topic(cluster, "at-rate", partitions=1) as (client, name):
        frame = produce_frame(name, batch_bytes=RECORD_BYTES)
        port = cluster.broker_ports[client.leader(name)]
        before = cluster.usage()
        took = paced.at_rate(port, frame, per_s=_RATE_PER_S, duration_s=scale)
        cpu_s = cluster.usage().cpu_s - before.cpu_s
        check_count(cluster, client, name, len(took) + 1)
    return {"cpu_s_per_request": cpu_s / len(took)} | percentiles(took)


def one_at_a_time(cluster: Cluster, scale: float) -> Sample:
    """Measure a batch of 1 KB, answered, then the next one."""
    with topic(cluster, "one-at-a-time", partitions=1) as (client, name):
        frame = produce_frame(name, batch_bytes=RECORD_BYTES)
        port = cluster.broker_ports[client.leader(name)]
        before = cluster.usage()
        took = paced.one_at_a_time(port, frame, duration_s=scale)
        cpu_s = cluster.usage().cpu_s - before.cpu_s
        check_count(cluster, client, name, len(took) + 1)
    return {"requests_per_s": len(took) / sum(took), "cpu_s_per_request": cpu_s / len(took)} | percentiles(
        took
    )


def consume_from_follower(cluster: Cluster, scale: float) -> Sample:
    """Consume a whole partition from the page cache, by a consumer in the rack of a follower (KIP-392).

    Raises LoadFailed if it was not the follower that sent it.
    """
    count = int(_CONSUME_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    with topic(cluster, "consume", partitions=1) as (client, name):
        produce(cluster, name, count=count)
        check_count(cluster, client, name, count)
        leader = client.leader(name)
        follower = next(node for node in cluster.brokers if node.node_id != leader)
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "client.rack": follower.rack or "",
            **CONSUMER_SETTINGS,
        }
        with librdkafka.Consumer(settings) as consumer:
            before, began = cluster.usage(), time.perf_counter()
            got = consumer.consume(name, partitions=range(1), count=count)
            took_s = time.perf_counter() - began
            cpu_s = cluster.usage().cpu_s - before.cpu_s
            share = consumer.share_received_from(follower.node_id)
    if share < _MIN_SHARE_OF_FOLLOWER:
        raise LoadFailed(f"{cluster.name}: only {share:.0%} of the bytes came from the follower")
    return bulk_sample(cpu_s=cpu_s, took_s=took_s, size_bytes=got * RECORD_BYTES)
