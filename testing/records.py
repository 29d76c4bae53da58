"""The records of a topic for a test: appended by Produce, read by Fetch up to the end of the log."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import Transient, check
from ottla.protocol.messages import (
    fetch,
    produce,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record as StoredRecord
from ottla.protocol.records.record import records
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition
from ottla.remote.topic_metadata.partitioner import murmur2

_FETCH_BYTES: Final = 8 * 1024 * 1024
_FETCH_WAIT_MS: Final = 500
#: Versions with topics by name.
_FETCH_VERSIONS: Final = range(4, 13)
_PRODUCE_VERSIONS: Final = range(3, 13)


class Record(NamedTuple):
    """A record that was read: where it is, and what it holds; `timestamp_ms` is -1 where it has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def partition_of_key(key: str | bytes | None, count: int) -> int:
    """Return the partition that Kafka's producers choose for a key; 0 without one."""
    data = _bytes(key)
    return 0 if data is None else (murmur2(data) & 0x7FFFFFFF) % count


def new_batch(
    values: Sequence[str | bytes | None],
    *,
    key: str | bytes | None,
    headers: Mapping[str, str | bytes | None] | None,
    timestamp_ms: int,
) -> bytes:
    """Build a batch of records that differ in their values."""
    pairs = tuple((name, _bytes(value)) for name, value in (headers or {}).items())
    return build_batch(
        StoredRecord(offset, timestamp_ms, _bytes(key), _bytes(value), pairs)
        for offset, value in enumerate(values)
    )


async def appended(client: ClusterClient, partition: TopicPartition, batch: bytes) -> int:
    """Append a batch with acks=all, and return its base offset. Raises Transient, ClusterError."""
    row = produce.PartitionProduceData(index=partition.partition, records=batch)
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=client.timeout_ms,
        topic_data=[produce.TopicProduceData(name=partition.topic, partition_data=[row])],
    )
    leader = (await client.topic(partition.topic)).leader_of(partition.partition)
    response = await client.request(
        leader.address, request, produce.ProduceResponse, versions=_PRODUCE_VERSIONS
    )
    [topic] = response.responses
    [answer] = topic.partition_responses
    check(answer.error_code, str(partition), answer.error_message)
    return answer.base_offset


async def committed_records(client: ClusterClient, partitions: Sequence[TopicPartition]) -> list[Record]:
    """Read all committed records of partitions, in this order. Raises Transient, ClusterError."""
    ends = await client.offsets_now(partitions, LATEST)
    starts = await client.offsets_now(partitions, EARLIEST)
    found: list[Record] = []
    for each in partitions:
        found += await _read(client, each, starts[each] or 0, ends[each] or 0)
    return found


async def _read(client: ClusterClient, partition: TopicPartition, start: int, end: int) -> list[Record]:
    found: list[Record] = []
    offset = start
    while offset < end:
        data = await _fetch(client, partition, offset)
        next_offset = offset
        for header, batch in batches(data):
            next_offset = header.next_offset
            if header.is_control:
                continue
            found += (
                Record(*partition, each.offset, each.timestamp, each.key, each.value, each.headers)
                for each in records(batch)
                if offset <= each.offset < end
            )
        if next_offset == offset:
            raise Transient(f"{partition} has no records from offset {offset}, below its end {end}.")
        offset = next_offset
    return found


async def _fetch(client: ClusterClient, partition: TopicPartition, offset: int) -> memoryview:
    row = fetch.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
    )
    request = fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=_FETCH_BYTES,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic=partition.topic, partitions=[row])],
    )
    leader = (await client.topic(partition.topic)).leader_of(partition.partition)
    response = await client.request(leader.address, request, fetch.FetchResponse, versions=_FETCH_VERSIONS)
    check(response.error_code, str(partition))
    [topic] = response.responses
    [answer] = topic.partitions
    check(answer.error_code, str(partition))
    return memoryview(answer.records or b"")


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
