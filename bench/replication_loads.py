"""Loads on topics of three replicas: producers in bulk, consumers of a follower, a leader that is killed.

Followers: how long a record that is acknowledged takes until it can be read there, and how fast one catches up.
"""

import select
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from ottla.bench.figures import LoadFailed, Sample, bulk_sample, percentiles
from ottla.bench.free_memory import held
from ottla.bench.generators import librdkafka
from ottla.bench.loads import CONSUMER_SETTINGS, check_count, new_topic
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import Cluster, Node
from ottla.bench.targets.wire import WireClient, produce_frame
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.produce import ProduceResponse

RECORD_BYTES: Final = 1024
#: The megabytes for scale 1, about a second.
_PRODUCE_MEGABYTES: Final = 150
#: The bytes that `bulk` writes at scale 1, on three replicas.
BULK_BYTES: Final = 3 * _PRODUCE_MEGABYTES * 1e6
_CONSUME_MEGABYTES: Final = 400
#: The least share that a follower serves of the bytes of its consumer; the leader sends only what refers it
#: there.
_MIN_SHARE_OF_FOLLOWER: Final = 0.95
#: The number of records, or the time at scale 1, that a measurement of the lag takes; but some records at
#: least.
_LAG_RECORDS: Final = 600
_LAG_S: Final = 3.0
_MIN_LAG_RECORDS: Final = 10
_LAG_PAUSE_S: Final = 0.005
#: The duration at each of the steady rates, at scale 1.
_LAG_AT_RATE_S: Final = 0.5
_FETCH_WAIT_MS: Final = 500
#: The megabytes at scale 1 that a follower catches up with.
_CATCH_UP_MEGABYTES: Final = 300
#: The bytes that `catch_up` writes at scale 1, on three replicas.
CATCH_UP_BYTES: Final = 3 * _CATCH_UP_MEGABYTES * 1e6
_CATCH_UP_PARTITIONS: Final = 6
#: The factor of the memory that the follower's records need.
_SPARE: Final = 1.25
_POLL_S: Final = 0.005
_PATIENCE_S: Final = 120
#: A producer through a fail-over: the time before the kill and after the next acknowledgement.
_BEFORE_S: Final = 1.0
_AFTER_S: Final = 1.0
_FAIL_OVER_PATIENCE_S: Final = 60.0
_RECORD_PAUSE_S: Final = 0.002


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


class _Consumer:
    """A connection to a follower that fetches a topic of one partition, one Fetch at a time."""

    def __init__(self, client: WireClient, follower: Node, topic_name: str) -> None:
        self.client = client
        self._follower = follower
        self._topic = topic_name
        #: The number of records that have been received.
        self.count = 0

    def ask(self) -> None:
        """Send a Fetch for the next records."""
        self.client.send(ApiKey.FETCH, self._request())

    def receive(self) -> int:
        """Return the number of records in the answer. Raises LoadFailed for an error."""
        row = self._row()
        if row.error_code:
            raise LoadFailed(f"{self._topic} at offset {self.count} of {self._follower.node_id}: {row}")
        received = len(row.records or b"") // RECORD_BYTES
        self.count += received
        return received

    def wait_until_served(self) -> None:
        """Wait until the follower serves the topic: brokers apply the metadata of a new one one after the other."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self.client.send(ApiKey.FETCH, self._request(max_wait_ms=0))
            row = self._row()
            if not row.error_code:
                return
            if time.monotonic() > deadline:
                raise LoadFailed(f"{self._topic} is not served by {self._follower.node_id}: {row}")
            time.sleep(_POLL_S)

    def _request(self, *, max_wait_ms: int = _FETCH_WAIT_MS) -> FetchRequest:
        partition = FetchPartition(partition=0, fetch_offset=self.count, partition_max_bytes=1 << 20)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            topics=[FetchTopic(topic=self._topic, partitions=[partition])],
            rack_id=self._follower.rack or "",
        )

    def _row(self) -> PartitionData:
        return self.client.receive(ApiKey.FETCH, FetchResponse).responses[0].partitions[0]


@contextmanager
def _leader_and_follower(cluster: Cluster, name: str) -> Iterator[tuple[WireClient, _Consumer, str]]:
    """Make a new topic: a connection to its leader, a consumer of a follower, and its name."""
    with new_topic(cluster, name, partitions=1) as topic:
        leader = topic.client.leader(topic.name)
        follower = next(node for node in cluster.brokers if node.node_id != leader)
        with WireClient(follower.port) as connection:
            consumer = _Consumer(connection, follower, topic.name)
            consumer.wait_until_served()
            yield topic.client.broker(leader), consumer, topic.name


def high_watermark_lag(cluster: Cluster, scale: float) -> Sample:
    """Measure the seconds from a record's acknowledgement to its receipt by a consumer at a follower."""
    took: list[float] = []
    with _leader_and_follower(cluster, "lag") as (producer, consumer, name):
        end = time.monotonic() + _LAG_S * scale
        while len(took) < _MIN_LAG_RECORDS or (len(took) < _LAG_RECORDS and time.monotonic() < end):
            frame = produce_frame(name, batch_bytes=RECORD_BYTES)
            consumer.ask()
            time.sleep(_LAG_PAUSE_S)
            took += _lags(producer, consumer, frame, count=1)
    return percentiles(took)


def high_watermark_lag_at(cluster: Cluster, scale: float, *, rates: Sequence[int]) -> Sample:
    """Measure the median of the same lag at steady rates (`lag_metric`)."""
    sample: Sample = {}
    for per_s in rates:
        with _leader_and_follower(cluster, f"lag-{per_s}") as (producer, consumer, name):
            frame = produce_frame(name, batch_bytes=RECORD_BYTES)
            consumer.ask()
            count = max(_MIN_LAG_RECORDS, int(per_s * _LAG_AT_RATE_S * scale))
            took = _lags(producer, consumer, frame, count=count, per_s=per_s)
        sample[lag_metric(per_s)] = statistics.median(took)
    return sample


def lag_metric(per_s: int) -> str:
    """Return the metric of a rate in a sample of `high_watermark_lag_at`."""
    return f"p50_at_{per_s}_s"


def _lags(
    producer: WireClient, consumer: _Consumer, frame: bytes, *, count: int, per_s: float = 1
) -> list[float]:
    """Produce `count` records by the clock, while the consumer waits for the first.

    Returns, for each record, the seconds from acknowledgement to receipt.
    """
    first_offset = consumer.count
    acknowledged: list[float] = []
    received: list[float] = []
    began = time.perf_counter()
    sent = 0
    while len(acknowledged) < count or len(received) < count:
        patience_s = began + sent / per_s - time.perf_counter() if sent < count else _PATIENCE_S
        if patience_s <= 0:
            producer.send_frame(frame)
            sent += 1
            continue
        ready = select.select([producer, consumer.client], (), (), patience_s)[0]
        if not ready and sent == count:
            raise LoadFailed(
                f"{len(acknowledged)} and {len(received)} of {count} records after {_PATIENCE_S} s"
            )
        now = time.perf_counter()
        if producer in ready:
            row = producer.receive(ApiKey.PRODUCE, ProduceResponse).responses[0].partition_responses[0]
            if row.error_code or row.base_offset != first_offset + len(acknowledged):
                raise LoadFailed(f"record {len(acknowledged)} after offset {first_offset}: {row}")
            acknowledged.append(now)
        if consumer.client in ready:
            received += [now] * consumer.receive()
            if len(received) < count:
                consumer.ask()
    return [got - written for got, written in zip(received, acknowledged, strict=True)]


def catch_up(cluster: Cluster, scale: float) -> Sample:
    """Stop a broker, write on without it, start it: bytes per second from its first fetched byte until the ISR."""
    count = int(_CATCH_UP_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    node = cluster.brokers[0]
    partitions = _CATCH_UP_PARTITIONS
    with new_topic(cluster, "catch-up", partitions=partitions) as topic:
        name = topic.name
        cluster.stop_node(node.node_id)
        with cluster.client() as others:
            others.wait_for_isr(name, partitions=partitions, size=2)
            produce(cluster, name, count=count)
            check_count(cluster, others, name, count)
            # A JVM takes seconds to start: memory that was used before is no longer there, on some machines.
            with held(count * RECORD_BYTES * _SPARE):
                began = time.perf_counter()
                cluster.spawn(node.node_id)
                first_at = _first_growth(node.data_dir, name)
            others.wait_for_isr(name, partitions=partitions, size=3)
            in_sync_at = time.perf_counter()
            cluster.wait_until_answering(node.node_id)
    return {
        "bytes_per_s": count * RECORD_BYTES / (in_sync_at - first_at),
        "start_s": first_at - began,
        "total_s": in_sync_at - began,
    }


def _first_growth(data_dir: Path, name: str) -> float:
    """Return the time at which the topic's logs here begin to grow, give or take `_POLL_S`."""
    before = _size_bytes(data_dir, name)
    deadline = time.monotonic() + _PATIENCE_S
    while _size_bytes(data_dir, name) == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{data_dir} gets nothing of {name}")
        time.sleep(_POLL_S)
    return time.perf_counter()


def _size_bytes(data_dir: Path, name: str) -> int:
    return sum(path.stat().st_size for path in data_dir.glob(f"{name}-*/*.log"))


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
        producer.poll(_RECORD_PAUSE_S)
        sent_at = time.perf_counter()
        if not killed_at:
            if sent_at - began > _BEFORE_S and acknowledged.at:
                cluster.kill_node(leader)
                killed_at = time.perf_counter()
        elif acknowledged.at[-1] > killed_at + _AFTER_S:
            break
        elif sent_at > killed_at + _FAIL_OVER_PATIENCE_S:
            raise LoadFailed(
                f"{cluster.name}: nothing acknowledged for {_FAIL_OVER_PATIENCE_S} s after the kill"
            )
    if left := producer.flush(_FAIL_OVER_PATIENCE_S):
        raise LoadFailed(f"{cluster.name}: {left} records were not delivered")
    return killed_at


def _check_kept(cluster: Cluster, client: ClusterClient, name: str, count: int) -> None:
    # Without idempotence a record whose answer died with the leader may be there twice.
    if (found := client.record_count(name)) < count:
        raise LoadFailed(f"{cluster.name}: only {found} of {count} acknowledged records are in {name}")
