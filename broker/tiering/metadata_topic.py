"""The broker's own client of `__remote_log_metadata`: appends to its leaders and reads from them, this broker included.

    append, read --> leader of the partition, from the metadata image --> lane --> Produce, Fetch, ListOffsets
    in a lane:   submit, submit, submit --> [request] --> responses --> submit ... --> [request]

A lane has one request at a time, which has all that was asked for while the one before was under way: so 50 partitions
are read with one connection and one Fetch at a time, and concurrent appends to a partition become one batch. A leader
has three lanes, since requests on a connection wait for each other: appends, which wait for replicas; long polls, which
wait for records; and everything that is answered at once.

It is a client like any other, over the inter-broker listener or `remote.log.metadata.manager.listener.name`:
so it works against Kafka's brokers, too. An append is repeated until it is acknowledged or
`DELIVERY_TIMEOUT_S` is over; a record may be appended twice, which the state diagrams of copies allow. A
failed read is the reader's to repeat.

Source: ProducerManager, ConsumerTask and TopicBasedRemoteLogMetadataManager (`createTopic`) of Kafka 4.3.1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from ottla.broker.membership.controller_channel import ControllerChannel
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.network.client import Address, ClientSettings, NodeClient
from ottla.broker.tiering import metadata_topic_messages as messages
from ottla.config.log_config import LogConfig
from ottla.metadata.image import PartitionImage, TopicImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.schema import Request
from ottla.protocol.special_timestamps import EARLIEST, LATEST
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.topic_metadata.settings import TopicSettings
from ottla.remote.topic_metadata.topic import (
    TOPIC,
    MetadataOffsetOutOfRange,
    MetadataRecords,
    MetadataTopicUnusable,
    Position,
)
from ottla.runtime import Runtime
from ottla.runtime.jitter import jittered

_LOG: Final = getLogger(__name__)

#: Kafka's delivery.timeout.ms and request.timeout.ms of a producer.
DELIVERY_TIMEOUT_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 30.0
_CREATE_TIMEOUT_MS: Final = 30_000
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 1.0
#: The versions of Fetch with topic ids (KIP-516).
_FETCH_VERSIONS: Final = range(13, 19)

Asked = TypeVar("Asked")
Found = TypeVar("Found")


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class Entry(Generic[Asked, Found]):
    """A read or an append that a leader is asked for, and the future of its result."""

    partition: int
    asked: Asked
    done: "asyncio.Future[Found]"


class Lane(Generic[Asked, Found]):
    """Sends the requests of one kind to a leader, one at a time, each with all entries that have come in meanwhile.

    At most as many entries wait as there are readers and changes, since each waits for its result before the
    next one.
    """

    def __init__(
        self,
        runtime: Runtime,
        send: Callable[[Sequence[Entry[Asked, Found]]], Awaitable[None]],
        *,
        name: str,
        max_entries: int = 500,
    ) -> None:
        """Create the lane. `send` sets the result or the exception of each entry; an entry without either fails."""
        self._runtime = runtime
        self._send = send
        self._name = name
        self._max_entries = max_entries
        self._waiting: list[Entry[Asked, Found]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, partition: int, asked: Asked) -> Found:
        """Add an entry to the next request, and wait for its result. Raises the exception that `send` sets."""
        done: asyncio.Future[Found] = self._runtime.loop.create_future()
        self._waiting.append(Entry(partition=partition, asked=asked, done=done))
        if self._task is None or self._task.done():
            self._task = self._runtime.create_task(self._run(), name=self._name)
        return await done

    async def _run(self) -> None:
        while self._waiting:
            # A reader that got a response in this turn may ask again first: its next poll waits behind no other one.
            await asyncio.sleep(0)
            entries = self._waiting[: self._max_entries]
            del self._waiting[: self._max_entries]
            entries = [each for each in entries if not each.done.done()]  # its caller may have been cancelled
            if not entries:
                continue
            failure: Exception = RetriableRemoteStorageError(f"{self._name}: not in the leader's response")
            try:
                await self._send(entries)
            except asyncio.CancelledError:
                failure = RetriableRemoteStorageError(f"{self._name}: this broker stops")
                entries += self._waiting
                self._waiting = []
                raise
            except Exception as error:  # noqa: BLE001 (those who wait for it get it)
                failure = error
            finally:
                for each in entries:
                    if not each.done.done():
                        each.done.set_exception(failure)


class BrokerMetadataTopic:
    """A broker's client of `__remote_log_metadata`: appends to the leaders of its partitions, and reads from them.

    Implements `MetadataTopic`.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        node_id: int,
        metadata: MetadataCache,
        controller: ControllerChannel,
        topic_config: Callable[[str], LogConfig],
        listener_name: Callable[[], str],
        connections: ClientSettings | None = None,
    ) -> None:
        self._runtime = runtime
        self._metadata = metadata
        self._controller = controller
        self._topic_config = topic_config
        self._listener_name = listener_name
        self._node_id = node_id
        self._name = f"__remote_log_metadata_client_{node_id}"
        self._appending, self._polling, self._asking = (
            NodeClient(runtime, client_id=f"{self._name}_{kind}", settings=connections)
            for kind in ("producer", "consumer", "reader")
        )
        #: Leader -> its lane of appends. Leaders are few, and lanes without requests are small: none is
        #: removed.
        self._appends: dict[int, Lane[bytes, int]] = {}
        #: Leader and `max_wait_ms` -> its lane of fetches.
        self._fetches: dict[tuple[int, int], Lane[Position, memoryview]] = {}
        self._is_closed = False

    @property
    def topic_id(self) -> UUID:
        """The id of the topic. Raises RetriableRemoteStorageError while the topic does not exist."""
        return self._topic().topic_id

    async def open(self, settings: TopicSettings) -> None:
        """Create the topic unless it exists, and check it.

        Raises MetadataTopicUnusable, RetriableRemoteStorageError.
        """
        if self._metadata.topic(TOPIC) is None:
            await self._create(settings)
        count = len(self._topic().partitions)
        if count != settings.partition_count:
            raise MetadataTopicUnusable(
                f"{TOPIC} has {count} partitions, but rlmm.config.remote.log.metadata.topic.num.partitions is "
                f"{settings.partition_count}: set it to the number that the topic was created with on all brokers, "
                f"{count} unless partitions were added to it since"
            )
        if self._topic_config(TOPIC).is_compacted:
            raise MetadataTopicUnusable(
                f"{TOPIC} has cleanup.policy=compact, which would remove its records, as they have no keys: "
                "set it to delete"
            )

    async def append(self, partition: int, value: bytes) -> int:
        """Append a record without a key at the partition's leader; returns its offset.

        Retries until DELIVERY_TIMEOUT_S. After RetriableRemoteStorageError the record may be there, too.
        """
        deadline = self._runtime.monotonic() + DELIVERY_TIMEOUT_S
        failures = 0
        while True:
            try:
                leader = self._leader(partition)
                lane = self._appends.get(leader)
                if lane is None:
                    lane = Lane(
                        self._runtime,
                        partial(self._send_appends, leader),
                        name=f"{self._name}_append_{leader}",
                    )
                    self._appends[leader] = lane
                return await lane.submit(partition, value)
            except RetriableRemoteStorageError as error:
                pause_s = min(_FIRST_BACKOFF_S * 2 ** min(failures, 10), _MAX_BACKOFF_S)
                pause_s = jittered(pause_s, self._runtime.random)
                failures += 1
                if self._is_closed or self._runtime.monotonic() + pause_s >= deadline:
                    raise
                _LOG.info("a record is not yet appended, attempt %d: %s", failures, error)
            await asyncio.sleep(pause_s)

    async def read(self, partition: int, position: Position, *, max_wait_ms: int) -> MetadataRecords:
        """Read records from a position on, below the high watermark; waits up to `max_wait_ms` for the first one.

        Raises RetriableRemoteStorageError, MetadataDiverged, MetadataOffsetOutOfRange.
        """
        leader = self._leader(partition)
        lane = self._fetches.get((leader, max_wait_ms))
        if lane is None:
            lane = Lane(
                self._runtime,
                partial(self._send_fetch, leader, max_wait_ms),
                name=f"{self._name}_fetch_{leader}_{max_wait_ms}",
            )
            self._fetches[leader, max_wait_ms] = lane
        try:
            view = await lane.submit(partition, position)
        except messages.OffsetOutOfRange:
            raise await self._out_of_range(partition, position.offset) from None
        return messages.records_from(view, partition, position)

    async def end_offset(self, partition: int) -> int:
        """Return the high watermark of the partition. Raises RetriableRemoteStorageError."""
        return await self._offset(partition, LATEST)

    async def end_of_epoch(self, partition: int, *, epoch: int) -> tuple[int, int] | None:
        """Return the leader's largest epoch up to `epoch`, and its end offset (KIP-101); None: it has none."""
        request = messages.epoch_request(
            partition,
            leader_epoch=self._partition(partition).leader_epoch,
            epoch=epoch,
            node_id=self._node_id,
        )
        response = await self._request(
            self._asking, self._leader(partition), ApiKey.OFFSET_FOR_LEADER_EPOCH, request, REQUEST_TIMEOUT_S
        )
        return messages.end_of_epoch(response, partition)

    async def close(self) -> None:
        """Close the connections; calls that wait raise RetriableRemoteStorageError."""
        self._is_closed = True
        for client in (self._appending, self._polling, self._asking):
            await client.close()

    # -- creation

    async def _create(self, settings: TopicSettings) -> None:
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=settings.partition_count,
            replication_factor=settings.replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in settings.configs.items()],
        )
        try:
            response = await self._controller.request(
                ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=_CREATE_TIMEOUT_MS)
            )
        except KafkaError as error:
            raise RetriableRemoteStorageError(f"{TOPIC} was not created: {error}") from error
        for row in response.topics:
            if row.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                reason = row.error_message or ErrorCode(row.error_code).name.upper()
                raise RetriableRemoteStorageError(f"{TOPIC} was not created: {reason}")

    # -- requests

    async def _send_appends(self, leader: int, entries: Sequence[Entry[bytes, int]]) -> None:
        by_partition: dict[int, list[Entry[bytes, int]]] = {}
        for each in entries:
            by_partition.setdefault(each.partition, []).append(each)
        values = {partition: [each.asked for each in group] for partition, group in by_partition.items()}
        request = messages.produce_request(self.topic_id, values, timeout_ms=int(REQUEST_TIMEOUT_S * 1000))
        timeout_s = REQUEST_TIMEOUT_S * 1.5  # the leader's own time-out comes first
        response = await self._request(self._appending, leader, ApiKey.PRODUCE, request, timeout_s)
        for partition, found in messages.base_offsets(response).items():
            for at, each in enumerate(by_partition.get(partition, ())):
                if isinstance(found, Exception):
                    _fail(each, found)
                elif not each.done.done():
                    each.done.set_result(found + at)

    async def _send_fetch(
        self, leader: int, max_wait_ms: int, entries: Sequence[Entry[Position, memoryview]]
    ) -> None:
        client = self._polling if max_wait_ms else self._asking
        rows = {each.partition: each for each in entries}
        reads = {each.partition: each.asked for each in rows.values()}
        request = messages.fetch_request(
            self.topic_id,
            reads,
            leader_epochs={partition: self._partition(partition).leader_epoch for partition in rows},
            max_wait_ms=max_wait_ms,
        )
        timeout_s = REQUEST_TIMEOUT_S + max_wait_ms / 1000
        response = await self._request(client, leader, ApiKey.FETCH, request, timeout_s)
        for partition, found in messages.fetched(response, reads).items():
            if (entry := rows.get(partition)) is None or entry.done.done():
                continue
            if isinstance(found, Exception):
                _fail(entry, found)
            else:
                entry.done.set_result(found)

    async def _offset(self, partition: int, timestamp: int) -> int:
        request = messages.offsets_request(
            partition, leader_epoch=self._partition(partition).leader_epoch, timestamp=timestamp
        )
        leader = self._leader(partition)
        response = await self._request(self._asking, leader, ApiKey.LIST_OFFSETS, request, REQUEST_TIMEOUT_S)
        return messages.offset_of(response, partition)

    async def _out_of_range(self, partition: int, offset: int) -> Exception:
        start, end = await self._offset(partition, EARLIEST), await self._offset(partition, LATEST)
        if start <= offset <= end:
            return RetriableRemoteStorageError(f"{TOPIC}-{partition} has offset {offset} by now")
        return MetadataOffsetOutOfRange(
            partition=partition, offset=offset, start_offset=start, end_offset=end
        )

    async def _request(
        self, client: NodeClient, leader: int, api_key: ApiKey, request: Request, timeout_s: float
    ) -> Any:  # noqa: ANN401 the API's response
        """Send a request to a broker. Raises RetriableRemoteStorageError."""
        versions = _FETCH_VERSIONS if api_key is ApiKey.FETCH else None
        try:
            return await client.request(
                self._address(leader), api_key, request, timeout_s=timeout_s, versions=versions
            )
        except (OSError, TimeoutError, KafkaError) as error:
            raise RetriableRemoteStorageError(f"{TOPIC} at broker {leader}: {error}") from error

    # -- the image

    def _topic(self) -> TopicImage:
        topic = self._metadata.topic(TOPIC)
        if topic is None:
            raise RetriableRemoteStorageError(f"{TOPIC} does not exist, as far as this broker knows")
        return topic

    def _partition(self, partition: int) -> PartitionImage:
        found = self._metadata.partition(TopicPartition(TOPIC, partition))
        if found is None:
            raise RetriableRemoteStorageError(f"{TOPIC}-{partition} does not exist")
        return found

    def _leader(self, partition: int) -> int:
        leader = self._partition(partition).leader
        if leader is None:
            raise RetriableRemoteStorageError(f"{TOPIC}-{partition} has no leader")
        return leader

    def _address(self, leader: int) -> Address:
        listener_name = self._listener_name()
        endpoint = self._metadata.endpoint(leader, listener_name)
        if endpoint is None:
            raise RetriableRemoteStorageError(f"broker {leader} has no listener {listener_name}")
        return endpoint.host, endpoint.port


def _fail(entry: Entry[Any, Any], error: Exception) -> None:
    if not entry.done.done():
        entry.done.set_exception(error)
