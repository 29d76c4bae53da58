"""A client of a cluster for `ottla tier`: topics, offsets, and the records of `__remote_log_metadata`.

Requests go to the leaders; while a partition has none, or another one, they are repeated until `_PATIENCE_S` is over.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from ottla.broker.cli.bootstrap import ClusterError
from ottla.broker.cli.cluster_client import TIMEOUT_S, BrokerUnreachable, ClusterClient, Leader, Topic
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

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.5
#: With topic ids (KIP-516).
_FETCH_VERSIONS: Final = range(13, 19)


class TierClient(ClusterClient):
    """Reads and appends metadata of copies, beside what all clients ask a cluster for."""

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
                response = await self.request(
                    leader.address, request, FetchResponse, versions=_FETCH_VERSIONS
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
            response = await self.request(leader.address, request, ProduceResponse)
            return _only(messages.base_offsets(response), partition)

        await self._with_leader(partition, produce)

    async def _with_leader(self, partition: int, request: Callable[[UUID, Leader], Awaitable[T]]) -> T:
        """Repeat a request to the metadata partition's leader. Raises ClusterError."""
        deadline = self.runtime.monotonic() + _PATIENCE_S
        while True:
            try:
                return await request(*await self._leader_of(partition))
            except (
                messages.OffsetOutOfRange,
                RemoteStorageError,
                BrokerUnreachable,
                KafkaError,
            ) as error:
                is_final = not isinstance(error, RetriableRemoteStorageError | BrokerUnreachable)
                if is_final or self.runtime.monotonic() >= deadline:
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


def _only(rows: Mapping[int, T | Exception], partition: int) -> T:
    """The row of a partition; raises it if it is an exception."""
    row = rows.get(partition)
    if row is None:
        raise RetriableRemoteStorageError(f"{TOPIC}-{partition} is not in the leader's response")
    if isinstance(row, Exception):
        raise row
    return row
