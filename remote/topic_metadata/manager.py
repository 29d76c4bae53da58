"""TopicBasedRemoteLogMetadataManager: changes are appended to `__remote_log_metadata`, and read back by all brokers.

    change --> record --append--> metadata partition --MetadataPartitionReader--> caches --> look-ups

A change is complete when this broker's own reader has applied it: until then a look-up might not see it. If the record is
refused by the state diagrams, because another broker was faster, the change fails.

Source: TopicBasedRemoteLogMetadataManager of Kafka 4.3.1. Differs: it stops the broker if the topic cannot be created within
remote.log.metadata.initialization.retry.max.timeout.ms; here that is an error in the log, and the attempts continue.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Final

from protocol.remote.records import RemoteLogSegmentState
from remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from remote.metadata_cache import RemoteLogMetadataCache
from remote.metadata_manager import RemoteLogMetadataManager
from remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from remote.topic_metadata import committed_offsets
from remote.topic_metadata.partitioner import metadata_partition
from remote.topic_metadata.reader import MetadataPartitionReader
from remote.topic_metadata.records import Change, to_value, user_partition_of
from remote.topic_metadata.settings import TopicMetadataSettings
from remote.topic_metadata.snapshots import Snapshots
from remote.topic_metadata.subscriber import Subscriber, UserPartition
from remote.topic_metadata.topic import TOPIC, MetadataTopic, MetadataTopicUnusable
from runtime import Pool, Runtime
from storage.checkpoints import CorruptCheckpoint
from storage.files import Files

_LOG: Final = getLogger(__name__)

#: The longest pause between attempts to open the topic; they begin with the configured interval.
_MAX_OPENING_PAUSE_S: Final = 10.0
_JITTER: Final = 0.2
#: How often is checked which snapshots are due.
_SAVE_CHECK_S: Final = 30.0
#: The longest time that the stop of a broker waits for the last snapshots.
_LAST_SAVE_S: Final = 15.0


class TopicBasedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        topic: MetadataTopic,
        log_directory: Callable[[TopicIdPartition], Path | None] = lambda _: None,
        files: Files | None = None,
    ) -> None:
        """`log_directory`: the folder of a partition's log, for its snapshot; None: there is none, or it is offline."""
        self._runtime = runtime
        self._files = files or Files()
        self._snapshots = Snapshots(runtime, self._files, log_directory)
        self._topic = topic
        self._settings: TopicMetadataSettings | None = None
        self._user_partitions: dict[TopicIdPartition, UserPartition] = {}
        self._readers: dict[int, MetadataPartitionReader] = {}
        #: Assigned, but their snapshots are not read yet. In the order of assignment.
        self._pending: dict[UserPartition, None] = {}
        self._has_pending = asyncio.Event()
        self._first_offsets: dict[int, int] = {}
        self._services: list[asyncio.Task[None]] = []
        self._is_open = False
        self._is_closed = False
        #: Why the topic is not open.
        self._problem = "the broker has not started yet"

    # -- life

    def configure(self, configs: Mapping[str, object]) -> None:
        """Raises ValueError."""
        self._settings = TopicMetadataSettings.from_configs(configs)

    def on_broker_ready(self) -> None:
        """Create the topic, or open the existing one, and begin to read."""
        assert not self._services
        for run, name in ((self._load, "loading"), (self._save, "snapshots")):
            self._services.append(self._runtime.supervise(run, name=f"{TOPIC}-{name}"))

    async def close(self) -> None:
        """Stop reading, and write what the snapshots lack; changes that wait fail."""
        self._is_closed = True
        for service in self._services:
            service.cancel()
        if self._services:
            await asyncio.wait(self._services)
        await asyncio.gather(*(reader.stop() for reader in self._readers.values()))
        try:
            async with asyncio.timeout(_LAST_SAVE_S):
                await self._save_once(is_last=True)
        except (TimeoutError, RemoteStorageError) as error:
            _LOG.info("not all remote log metadata is saved; it is read again: %s", error)
        for user_partition in self._user_partitions.values():
            if (reader := self._readers.get(self._number_of(user_partition.partition))) is not None:
                reader.unsubscribe(user_partition)
        self._user_partitions.clear()
        await self._topic.close()

    async def _open(self) -> None:
        """Until it succeeds. Each kind of failure is reported once as an error; a transient one after a while only."""
        settings = self._configured
        reported_at = self._runtime.monotonic() + settings.initialization_timeout_ms / 1000
        pause_s, reported = settings.initialization_interval_ms / 1000, ""
        while not self._is_open:
            try:
                await self._topic.open(settings.topic)
                self._is_open = True
            except RemoteStorageError as error:
                self._problem = str(error)
                is_final = isinstance(error, MetadataTopicUnusable)
                if reported != self._problem and (is_final or self._runtime.monotonic() >= reported_at):
                    reported = self._problem
                    _LOG.error("the remote tier is not available: %s", error)
                await asyncio.sleep(pause_s * (1 + _JITTER * (2 * self._runtime.random.random() - 1)))
                pause_s = min(pause_s * 2, _MAX_OPENING_PAUSE_S)

    # -- snapshots

    async def _load(self) -> None:
        """Open the topic; then, for each partition that is assigned, read its snapshot and begin to read the topic."""
        if not self._is_open:
            self._first_offsets = await self._runtime.run_blocking(self._read_offsets, pool=Pool.LOGS)
            await self._open()
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            batch = list(self._pending)
            await self._snapshots.load(batch, self._topic.topic_id)
            for user_partition in batch:
                # It may have been removed meanwhile.
                if user_partition in self._pending:
                    del self._pending[user_partition]
                    self._reader_of(user_partition.partition).subscribe(user_partition)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_CHECK_S * (1 + _JITTER * (2 * self._runtime.random.random() - 1)))
            if self._is_open:
                await self._save_once()

    async def _save_once(self, *, is_last: bool = False) -> None:
        if not self._is_open:
            return
        user_partitions = [each for each in self._user_partitions.values() if each not in self._pending]
        await self._snapshots.save(
            user_partitions,
            position=self._position,
            metadata_topic_id=self._topic.topic_id,
            is_last=is_last,
        )
        offsets: dict[int, int] = {}
        for each in user_partitions:
            number = self._number_of(each.partition)
            if (offset := self._snapshots.next_offset(each)) is not None:
                offsets[number] = min(offset, offsets.get(number, offset))
        if offsets != self._first_offsets:
            self._first_offsets = offsets
            await self._runtime.run_blocking(self._write_offsets, offsets, pool=Pool.UPKEEP)

    def _position(self, user_partition: UserPartition) -> tuple[int, int] | None:
        number = self._number_of(user_partition.partition)
        reader = self._readers.get(number)
        if reader is None or not user_partition.is_ready or not user_partition.is_at_tail:
            return None
        return number, reader.applied_offset(user_partition)

    def _read_offsets(self) -> dict[int, int]:
        try:
            return committed_offsets.read(self._configured.log_dir, self._files)
        except (OSError, CorruptCheckpoint) as error:
            _LOG.info("%s is not used: %s", committed_offsets.FILE_NAME, error)
            return {}

    def _write_offsets(self, offsets: Mapping[int, int]) -> None:
        try:
            committed_offsets.write(self._configured.log_dir, offsets, self._files)
        except OSError as error:
            _LOG.info("%s is not written: %s", committed_offsets.FILE_NAME, error)

    # -- changes

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """As the interface. Raises RetriableRemoteStorageError: the record may be stored, and may be stored again."""
        assert metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED, metadata
        await self._change(metadata, self._ready(metadata.partition))

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """As the interface. Raises IllegalStateTransition; RetriableRemoteStorageError as above."""
        assert update.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED, update
        user_partition = self._ready(update.segment_id.partition)
        try:
            user_partition.cache.check(update)
        except RemoteResourceNotFound:
            if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                return
            raise
        await self._change(update, user_partition)

    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """As the interface. Raises IllegalStateTransition; RetriableRemoteStorageError as above."""
        self._check_open()
        await self._change(metadata, self._user_partitions.get(metadata.partition))

    async def _change(self, change: Change, user_partition: UserPartition | None) -> None:
        """Append the record, and wait until `user_partition` has it."""
        partition = user_partition_of(change)
        wait_ms = self._configured.consume_wait_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                offset = await self._topic.append(self._number_of(partition), to_value(change))
                if user_partition is not None:
                    await self._reader_of(partition).until_applied(user_partition, offset)
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"{partition}: a change was not written to {TOPIC} and read back within {wait_ms} ms"
            ) from None
        if user_partition is not None and (error := user_partition.refusal(offset)) is not None:
            raise error

    # -- look-ups

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """As the interface."""
        return self._cache(partition).segment(epoch=epoch, offset=offset)

    def next_segment_with_transaction_index(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """As the interface."""
        return self._cache(partition).next_segment_with_transaction_index(epoch=epoch, offset=offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, *, epoch: int) -> int | None:
        """As the interface."""
        return self._cache(partition).end_offset_for_epoch(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, *, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """As the interface. Cost: 4 us for each copy."""
        return list(self._cache(partition).segments(epoch))

    def copies(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """As the interface: the cache itself."""
        return self._cache(partition)

    def remote_log_size(self, partition: TopicIdPartition, *, epoch: int) -> int:
        """As the interface."""
        return self._cache(partition).size_bytes(epoch)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """As the interface; False also while everything is read again, after the topic has lost records."""
        found = self._user_partitions.get(partition)
        return found is not None and found.is_ready

    # -- assignments

    def on_partition_leadership_changes(
        self, *, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Read the metadata of those that are not assigned yet."""
        assert not self._is_closed
        for partition in (*leaders, *followers):
            if partition not in self._user_partitions:
                added = self._user_partitions[partition] = UserPartition(partition)
                self._pending[added] = None
                self._has_pending.set()

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Forget the partitions."""
        for partition in partitions:
            if (removed := self._user_partitions.pop(partition, None)) is None:
                continue
            self._snapshots.forget(removed)
            if removed in self._pending:
                del self._pending[removed]
            else:
                self._unsubscribe(self._number_of(partition), removed)

    def _unsubscribe(self, number: int, subscriber: Subscriber) -> None:
        reader = self._readers[number]
        reader.unsubscribe(subscriber)
        if not reader:
            del self._readers[number]
            self._runtime.create_task(reader.stop(), name=f"{TOPIC}-{number}-stop")

    # -- the parts

    @property
    def _configured(self) -> TopicMetadataSettings:
        assert self._settings is not None, "configure comes first"
        return self._settings

    def _number_of(self, partition: TopicIdPartition) -> int:
        return metadata_partition(partition, partition_count=self._configured.topic.partition_count)

    def _reader_of(self, partition: TopicIdPartition) -> MetadataPartitionReader:
        number = self._number_of(partition)
        reader = self._readers.get(number)
        if reader is None:
            first_offset = self._first_offsets.get(number, 0)
            reader = MetadataPartitionReader(self._runtime, self._topic, number, first_offset=first_offset)
            self._readers[number] = reader
        return reader

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        return self._ready(partition).cache

    def _ready(self, partition: TopicIdPartition) -> UserPartition:
        """Raises RemoteStorageError if it is not assigned, RetriableRemoteStorageError until it is ready."""
        found = self._user_partitions.get(partition)
        if found is None:
            raise RemoteStorageError(f"the remote log metadata of {partition} is not assigned to this broker")
        self._check_open()
        if not found.is_ready:
            raise RetriableRemoteStorageError(f"the remote log metadata of {partition} is being read")
        return found

    def _check_open(self) -> None:
        if self._is_closed:
            raise RetriableRemoteStorageError(f"{TOPIC} is closed: the broker stops")
        if not self._is_open:
            raise RetriableRemoteStorageError(f"{TOPIC} is not open yet: {self._problem}")
