"""The records of `__remote_log_metadata` for `ottla tier`: reads and appends at the leaders of its partitions."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.errors import ClusterError, Transient, Unknown
from ottla.broker.cluster_client.topics import Leader, Topic
from ottla.broker.tiering import metadata_topic_messages as messages
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.topic_metadata.topic import TOPIC, Position

T = TypeVar("T")

#: With topic ids (KIP-516).
_FETCH_VERSIONS: Final = range(13, 19)


async def metadata_range(client: ClusterClient, partition: int) -> tuple[int, int]:
    """Return the offsets [start, end) of a partition of the topic. Raises ClusterError."""
    name = TopicPartition(TOPIC, partition)

    async def attempt() -> tuple[int, int]:
        start = (await client.offsets_now([name], EARLIEST))[name]
        end = (await client.offsets_now([name], LATEST))[name]
        if start is None or end is None:
            raise ClusterError(f"{name}: its leader reports no offsets.")
        return start, end

    return await client.patiently(attempt)


async def metadata_records(
    client: ClusterClient,
    partition: int,
    *,
    start_offset: int,
    end_offset: int,
    on_offset: Callable[[int], None],
) -> AsyncIterator[bytes | KafkaError | None]:
    """Yield the values of [start_offset, end_offset) of a partition of the topic, or why one cannot be read.

    `on_offset` gets the number of records that have been read. Raises ClusterError.
    """
    position = Position(start_offset)
    while position.offset < end_offset:
        on_offset(position.offset - start_offset)
        # Bound now: the request may be repeated. Without an epoch: the command keeps nothing of before.
        reads = {partition: Position(position.offset)}

        async def fetch(topic_id: UUID, leader: Leader, reads: Mapping[int, Position] = reads) -> memoryview:
            request = messages.fetch_request(
                topic_id, reads, leader_epochs={partition: leader.epoch}, max_wait_ms=500
            )
            response = await client.request(leader.address, request, FetchResponse, versions=_FETCH_VERSIONS)
            return _only(messages.fetched(response, reads), partition)

        found = messages.records_from(await _with_leader(client, partition, fetch), partition, position)
        for record in found.records:
            if record.offset < end_offset:
                yield record.value
        position = found.next


async def append(client: ClusterClient, partition: int, values: Sequence[bytes]) -> None:
    """Append records to a partition of the topic; they may be there twice. Raises ClusterError."""

    async def produce(topic_id: UUID, leader: Leader) -> int:
        request = messages.produce_request(topic_id, {partition: values}, timeout_ms=client.timeout_ms)
        response = await client.request(leader.address, request, ProduceResponse)
        return _only(messages.base_offsets(response), partition)

    await _with_leader(client, partition, produce)


async def _with_leader(
    client: ClusterClient, partition: int, request: Callable[[UUID, Leader], Awaitable[T]]
) -> T:
    """Repeat a request to the partition's leader while another one may lead. Raises ClusterError."""

    async def attempt() -> T:
        topic = await _topic(client)
        try:
            return await request(topic.topic_id, topic.leader_of(partition))
        except (messages.OffsetOutOfRange, RemoteStorageError, KafkaError) as error:
            kind = Transient if isinstance(error, RetriableRemoteStorageError) else ClusterError
            raise kind(f"{TOPIC}-{partition} cannot be used: {error or type(error).__name__}.") from error

    return await client.patiently(attempt)


async def _topic(client: ClusterClient) -> Topic:
    try:
        return await client.topic(TOPIC)
    except Unknown:
        raise ClusterError(
            f"The topic {TOPIC} does not exist: no broker of this cluster has tiered storage (--tier)."
        ) from None


def partitions_of(topics: Mapping[str, Topic]) -> dict[TopicIdPartition, Leader | None]:
    """The partitions of topics, with their leaders."""
    return {
        TopicIdPartition(topic.topic_id, TopicPartition(name, index)): leader
        for name, topic in topics.items()
        for index, leader in topic.leaders.items()
    }


def _only(rows: Mapping[int, T | Exception], partition: int) -> T:
    """The row of a partition; raises it if it is an exception."""
    row = rows.get(partition)
    if row is None:
        raise RetriableRemoteStorageError(f"{TOPIC}-{partition} is not in the leader's response")
    if isinstance(row, Exception):
        raise row
    return row
