"""Followers: how long after its acknowledgement a record can be read there, and how fast one catches up."""

import select
import time
from pathlib import Path
from typing import Final

from bench.figures import LoadFailed, Sample, percentiles
from bench.replication_loads import RECORD_BYTES, check_count, produce, topic
from bench.targets.clusters import Cluster
from bench.targets.wire import WireClient, produce_message
from protocol.api_keys import ApiKey
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.produce import ProduceResponse

#: Until so many records, or so much time at scale 1; but some at least.
_LAG_RECORDS: Final = 600
_LAG_S: Final = 3.0
_MIN_LAG_RECORDS: Final = 10
_LAG_PAUSE_S: Final = 0.005
_FETCH_WAIT_MS: Final = 500
#: At scale 1.
_CATCH_UP_MEGABYTES: Final = 300
_CATCH_UP_PARTITIONS: Final = 6
_POLL_S: Final = 0.005
_PATIENCE_S: Final = 120


def high_watermark_lag(cluster: Cluster, scale: float) -> Sample:
    """Seconds from a record's acknowledgement until a consumer that waits at a follower has it."""
    took: list[float] = []
    with topic(cluster, "lag", partitions=1) as (client, name):
        leader = client.leader(name)
        follower = next(node for node in cluster.brokers if node.node_id != leader)
        end = time.monotonic() + _LAG_S * scale
        with WireClient(follower.port) as consumer:
            while len(took) < _MIN_LAG_RECORDS or (len(took) < _LAG_RECORDS and time.monotonic() < end):
                lag_s = _one_record(client.broker(leader), consumer, name, len(took), follower.rack or "")
                took.append(lag_s)
    return percentiles(took)


def _one_record(producer: WireClient, consumer: WireClient, name: str, offset: int, rack: str) -> float:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=1,
        topics=[FetchTopic(topic=name, partitions=[partition])],
        rack_id=rack,
    )
    consumer.send(ApiKey.FETCH, fetch)
    time.sleep(_LAG_PAUSE_S)
    producer.send(ApiKey.PRODUCE, produce_message(name, batch_bytes=RECORD_BYTES))
    acknowledged = received = 0.0
    while not acknowledged or not received:
        for ready in select.select([producer, consumer], (), ())[0]:
            now = time.perf_counter()
            if ready is producer:
                row = producer.receive(ApiKey.PRODUCE, ProduceResponse).responses[0].partition_responses[0]
                if row.error_code or row.base_offset != offset:
                    raise LoadFailed(f"{name} at offset {offset}: {row}")
                acknowledged = now
            else:
                found = consumer.receive(ApiKey.FETCH, FetchResponse).responses[0].partitions[0]
                if found.error_code:
                    raise LoadFailed(f"fetching {name} at offset {offset}: {found}")
                if found.records:
                    received = now
                else:
                    consumer.send(ApiKey.FETCH, fetch)
    return received - acknowledged


def catch_up(cluster: Cluster, scale: float) -> Sample:
    """Stop a broker, write on without it, start it: bytes a second from its first fetched byte until the ISR."""
    count = int(_CATCH_UP_MEGABYTES * 1e6 * scale) // RECORD_BYTES
    node = cluster.brokers[0]
    partitions = _CATCH_UP_PARTITIONS
    with topic(cluster, "catch-up", partitions=partitions) as (_, name):
        cluster.stop_node(node.node_id)
        with cluster.client() as others:
            others.wait_for_isr(name, partitions=partitions, size=2)
            produce(cluster, name, count=count)
            check_count(cluster, others, name, count)
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
    """When the topic's logs here begin to grow, give or take `_POLL_S`."""
    before = _size_bytes(data_dir, name)
    deadline = time.monotonic() + _PATIENCE_S
    while _size_bytes(data_dir, name) == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{data_dir} gets nothing of {name}")
        time.sleep(_POLL_S)
    return time.perf_counter()


def _size_bytes(data_dir: Path, name: str) -> int:
    return sum(path.stat().st_size for path in data_dir.glob(f"{name}-*/*.log"))
