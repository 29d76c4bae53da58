"""A client of a cluster for `ottla tier`: topics, offsets, and the records of `__remote_log_metadata`.

Requests go to the leaders; while a partition has none, or another one, they are repeated until `_PATIENCE_S` is over.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from ottla.broker.cli.bootstrap import TIMEOUT_S, ClusterError, metadata
from ottla.broker.network.client import Address, NodeClient
from ottla.broker.tiering import metadata_topic_messages as messages
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, UnsupportedVersion
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.topic_metadata.topic import TOPIC, Position
from ottla.runtime import Runtime

T = TypeVar("T")

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.5
#: With topic ids (KIP-516).
_FETCH_VERSIONS: Final = range(13, 19)


@dataclass(slots=True, frozen=True, kw_only=True)
class Leader:
    """The leader of a partition: its broker id, leader epoch and address."""

    node_id: int
    epoch: int
    address: Address


@dataclass(slots=True, frozen=True, kw_only=True)
class Topic:
    """A topic with its partitions; None for a partition without leader."""

    topic_id: UUID
    leaders: Mapping[int, Leader | None]


class ClusterClient:
    """Reads topics and offsets of a cluster, and reads and appends metadata of copies. Closed by `close`."""

    def __init__(self, runtime: Runtime, bootstrap: Sequence[Address]) -> None:
        self._runtime = runtime
        self._bootstrap = bootstrap
        self._client = NodeClient(runtime, client_id="ottla-tier")

    async def close(self) -> None:
        """Close the connections to all brokers."""
        await self._client.close()

    async def topics(self, names: Collection[str] | None = None) -> dict[str, Topic]:
        """Return all topics, or those of these names that exist. Raises ClusterError."""
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        _, response = await metadata(self._client, self._bootstrap, request)
        return _topics_of(response)

    async def offsets(
        self, partitions: Mapping[TopicPartition, Leader], timestamp: int
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's offset at a special timestamp (ListOffsets).

        None: there is no such offset, or the broker does not report it.

        Raises ClusterError.
        """
        by_address: dict[Address, dict[str, ListOffsetsTopic]] = {}
        for (name, index), leader in partitions.items():
            topics = by_address.setdefault(leader.address, {})
            topics.setdefault(name, ListOffsetsTopic(name=name)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=leader.epoch, timestamp=timestamp
                )
            )
        found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        for address, topics in by_address.items():
            request = ListOffsetsRequest(
                replica_id=-1, topics=list(topics.values()), timeout_ms=round(TIMEOUT_S * 1000)
            )
            try:
                response: ListOffsetsResponse = await self._client.request(
                    address, ApiKey.LIST_OFFSETS, request, timeout_s=TIMEOUT_S
                )
            except UnsupportedVersion:
                continue
            except (OSError, TimeoutError, KafkaError) as error:
                raise ClusterError(f"The offsets of partitions are not known: {error}.") from error
            for topic in response.topics:
                for row in topic.partitions:
                    is_known = row.error_code == ErrorCode.none and row.offset >= 0
                    found[TopicPartition(topic.name, row.partition_index)] = row.offset if is_known else None
        return found

    async def metadata_range(self, partition: int) -> tuple[int, int]:
        """Return the offsets [start, end) of a partition of `__remote_log_metadata`. Raises ClusterError."""
        name = TopicPartition(TOPIC, partition)
        _, leader = await self._leader_of(partition)
        start = (await self.offsets({name: leader}, EARLIEST))[name]
        end = (await self.offsets({name: leader}, LATEST))[name]
        if start is None or end is None:
            raise ClusterError(f"{name}: its leader, broker {leader.node_id}, reports no offsets.")
        return start, end

    async def metadata_records(
        self, partition: int, *, start_offset: int, end_offset: int, on_offset: Callable[[int], None]
    ) -> AsyncIterator[bytes | KafkaError | None]:
        """Yield the values of [start_offset, end_offset) of a partition of the topic, or why one cannot be read.

        `on_offset` gets the number of records that have been read. Raises ClusterError.
        """
        position = Position(start_offset)
        while position.offset < end_offset:
            on_offset(position.offset - start_offset)
            # Bound now: the request may be repeated. Without an epoch: the command keeps nothing of before.
            reads = {partition: Position(position.offset)}

            async def fetch(
                topic_id: UUID, leader: Leader, reads: Mapping[int, Position] = reads
            ) -> memoryview:
                request = messages.fetch_request(
                    topic_id, reads, leader_epochs={partition: leader.epoch}, max_wait_ms=500
                )
                response = await self._client.request(
                    leader.address, ApiKey.FETCH, request, timeout_s=TIMEOUT_S, versions=_FETCH_VERSIONS
                )
                return _only(messages.fetched(response, reads), partition)

            found = messages.records_from(await self._with_leader(partition, fetch), partition, position)
            for record in found.records:
                if record.offset < end_offset:
                    yield record.value
            position = found.next

    async def append(self, partition: int, values: Sequence[bytes]) -> None:
        """Append records to a partition of `__remote_log_metadata`; they may be there twice. Raises ClusterError."""

        async def produce(topic_id: UUID, leader: Leader) -> int:
            request = messages.produce_request(
                topic_id, {partition: values}, timeout_ms=round(TIMEOUT_S * 1000)
            )
            response = await self._client.request(
                leader.address, ApiKey.PRODUCE, request, timeout_s=TIMEOUT_S
            )
            return _only(messages.base_offsets(response), partition)

        await self._with_leader(partition, produce)

    async def _with_leader(self, partition: int, request: Callable[[UUID, Leader], Awaitable[T]]) -> T:
        """Repeat a request to the metadata partition's leader. Raises ClusterError."""
        deadline = self._runtime.monotonic() + _PATIENCE_S
        while True:
            try:
                return await request(*await self._leader_of(partition))
            except (
                messages.OffsetOutOfRange,
                RemoteStorageError,
                OSError,
                TimeoutError,
                KafkaError,
            ) as error:
                is_final = not isinstance(error, RetriableRemoteStorageError | OSError | TimeoutError)
                if is_final or self._runtime.monotonic() >= deadline:
                    raise ClusterError(
                        f"{TOPIC}-{partition} cannot be used: {error or type(error).__name__}."
                    ) from error
            await asyncio.sleep(_PAUSE_S)

    async def _leader_of(self, partition: int) -> tuple[UUID, Leader]:
        topic = (await self.topics([TOPIC])).get(TOPIC)
        if topic is None:
            raise ClusterError(
                f"The topic {TOPIC} does not exist: no broker of this cluster has tiered storage (--tier)."
            )
        leader = topic.leaders.get(partition)
        if leader is None:
            raise ClusterError(f"{TOPIC}-{partition} has no leader.")
        return topic.topic_id, leader


def partitions_of(topics: Mapping[str, Topic]) -> dict[TopicIdPartition, Leader | None]:
    """The partitions of topics, with their leaders."""
    return {
        TopicIdPartition(topic.topic_id, TopicPartition(name, index)): leader
        for name, topic in topics.items()
        for index, leader in topic.leaders.items()
    }


def _topics_of(response: MetadataResponse) -> dict[str, Topic]:
    addresses = {each.node_id: (each.host, each.port) for each in response.brokers}
    return {
        topic.name: Topic(
            topic_id=topic.topic_id,
            leaders={
                each.partition_index: Leader(
                    node_id=each.leader_id, epoch=each.leader_epoch, address=addresses[each.leader_id]
                )
                if each.leader_id in addresses
                else None
                for each in topic.partitions
            },
        )
        for topic in response.topics
        if topic.error_code == ErrorCode.none and topic.name is not None
    }


def _only(rows: Mapping[int, T | Exception], partition: int) -> T:
    """The row of a partition; raises it if it is an exception."""
    row = rows.get(partition)
    if row is None:
        raise RetriableRemoteStorageError(f"{TOPIC}-{partition} is not in the leader's response")
    if isinstance(row, Exception):
        raise row
    return row
