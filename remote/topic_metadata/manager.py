"""TopicBasedRemoteLogMetadataManager: changes are appended to `__remote_log_metadata`, and read back by all brokers.

    change --> record --append--> metadata partition --MetadataPartitionReader--> caches --> look-ups

A change is complete when this broker's own reader has applied it: until then a look-up might not see it. If
the record is refused by the state diagrams, because another broker was faster, the change fails.

Source: TopicBasedRemoteLogMetadataManager of Kafka 4.3.1. Differs: it stops the broker if the topic cannot be
created within remote.log.metadata.initialization.retry.max.timeout.ms; here that is an error in the log, and
the attempts continue.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Final

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.errors import (
    MetadataNotReady,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.records import Change, to_value, user_partition_of
from ottla.remote.topic_metadata.settings import TopicMetadataSettings
from ottla.remote.topic_metadata.subscriber import Subscriber, UserPartition
from ottla.remote.topic_metadata.subscriptions import Subscriptions
from ottla.remote.topic_metadata.topic import TOPIC, MetadataTopic, MetadataTopicUnusable
from ottla.runtime import Runtime
from ottla.runtime.jitter import jittered
from ottla.storage.files import Files

_LOG: Final = getLogger(__name__)

#: The longest pause between attempts to open the topic; they begin with the configured interval.
_MAX_OPENING_PAUSE_S: Final = 10.0


class TopicBasedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """A metadata manager that keeps the metadata of copies in the topic `__remote_log_metadata`.

    Belongs to the event loop.
    """

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
        self._topic = topic
        self._settings: TopicMetadataSettings | None = None
        self._user_partitions: dict[TopicIdPartition, UserPartition] = {}
        self._overviews: dict[int, CopiesOverview] = {}
        self._subscriptions = Subscriptions(
            runtime, topic, log_directory=log_directory, files=files or Files()
        )
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._is_closed = False
        #: The reason why the topic is not open.
        self._problem = "the broker has not started yet"

    # -- life

    def configure(self, configs: Mapping[str, object]) -> None:
        """Parse the `rlmm.config.*` settings. Raises ValueError."""
        self._settings = TopicMetadataSettings.from_configs(configs)

    def on_broker_ready(self) -> None:
        """Create the topic, or open the existing one, and begin to read."""
        assert self._opening is None
        self._opening = self._runtime.supervise(self._open, name=f"{TOPIC}-opening")

    async def close(self) -> None:
        """Stop reading, and write what the snapshots lack; changes that wait fail."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._subscriptions.stop()
        self._user_partitions.clear()
        self._overviews.clear()
        await self._topic.close()

    async def _open(self) -> None:
        """Open the topic, with attempts until it succeeds.

        Each kind of failure is reported once as an error; a transient one after a while only.
        """
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
                await asyncio.sleep(jittered(pause_s, self._runtime.random))
                pause_s = min(pause_s * 2, _MAX_OPENING_PAUSE_S)
        self._subscriptions.start(settings.log_dir)

    # -- changes

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Store a new copy, in state COPY_SEGMENT_STARTED.

        Raises RetriableRemoteStorageError: the record may be stored, and may be stored again.
        """
        assert metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED, metadata
        await self._change(metadata, self._ready(metadata.partition))

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Store a copy's new state. Raises RemoteResourceNotFound for an unknown copy, IllegalStateTransition.

        DELETE_SEGMENT_FINISHED of an unknown copy has no effect. Raises RetriableRemoteStorageError: the
        record may be stored, and may be stored again.
        """
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
        """Store the progress of a partition's deletion. Raises IllegalStateTransition.

        Raises RetriableRemoteStorageError: the record may be stored, and may be stored again.
        """
        self._check_open()
        user_partition = self._user_partitions.get(metadata.partition)
        overview = self._overviews.get(self._number_of(metadata.partition))
        await self._change(metadata, *(each for each in (user_partition, overview) if each is not None))

    async def _change(self, change: Change, *subscribers: Subscriber) -> None:
        """Append the record, and wait until the subscribers have it. Raises the refusal of the user partition."""
        partition = user_partition_of(change)
        wait_ms = self._configured.consume_wait_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                offset = await self._topic.append(self._number_of(partition), to_value(change))
                for each in subscribers:
                    await self._subscriptions.until_applied(each, offset)
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"{partition}: a change was not written to {TOPIC} and read back within {wait_ms} ms"
            ) from None
        for each in subscribers:
            if isinstance(each, UserPartition) and (error := each.refusal(offset)) is not None:
                raise error

    # -- look-ups

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the finished copy that holds `offset` of leader epoch `epoch`; None: there is none."""
        return self._cache(partition).segment(epoch=epoch, offset=offset)

    def next_segment_with_transaction_index(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the first finished copy of `epoch` with a transaction index that ends behind `offset` (KIP-1058)."""
        return self._cache(partition).next_segment_with_transaction_index(epoch=epoch, offset=offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, *, epoch: int) -> int | None:
        """Return the end, exclusive, of the offsets of leader epoch `epoch` that were copied; None: nothing was."""
        return self._cache(partition).end_offset_for_epoch(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, *, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Return all copies by start offset; only those of `epoch` if given. Cost: 4 us for each copy."""
        return list(self._cache(partition).segments(epoch))

    def copies(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Return the partition's cache itself, for readers: they change nothing."""
        return self._cache(partition)

    def remote_log_size(self, partition: TopicIdPartition, *, epoch: int) -> int:
        """Return the size in bytes of the segments that have records of `epoch`."""
        return self._cache(partition).size_bytes(epoch)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata have been read up to their end.

        False also while everything is read again, after the topic has lost records. And, on a new leader,
        until everything is read that its predecessors have stored: their copies would seem unfinished, and be
        deleted. Look-ups do not wait for that.
        """
        found = self._user_partitions.get(partition)
        return found is not None and found.is_ready and found.is_current

    # -- assignments

    def on_partition_leadership_changes(
        self, *, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Read the metadata of partitions that are not assigned yet; for leaders, up to the end as of now."""
        assert not self._is_closed
        for partition in leaders:
            if (known := self._user_partitions.get(partition)) is not None:
                self._subscriptions.refresh(known)
        for partition in (*leaders, *followers):
            if partition not in self._user_partitions:
                number = self._number_of(partition)
                added = self._user_partitions[partition] = UserPartition(partition, metadata_partition=number)
                self._subscriptions.add(added)

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Stop reading the metadata of these partitions, and forget it."""
        for partition in partitions:
            if (removed := self._user_partitions.pop(partition, None)) is not None:
                self._subscriptions.remove(removed)

    # -- all user partitions of a metadata partition

    def overview(self, metadata_partition: int) -> CopiesOverview | None:
        """Return the user partitions that may have copies; None until everything is read.

        The first call begins to read. The broker that leads the metadata partition calls it; the overview is
        kept up to date until `stop_overview`.
        """
        if self._is_closed:
            return None
        found = self._overviews.get(metadata_partition)
        if found is None:
            found = self._overviews[metadata_partition] = CopiesOverview(metadata_partition)
            self._subscriptions.add(found)
        return found if found.is_ready else None

    def metadata_partition_of(self, partition: TopicIdPartition) -> int:
        """Return the number of the metadata partition that has the records of a user partition.

        It depends on the configured number of partitions, which the topic was opened with: partitions that
        were added to the topic later have no records. Cost: 5 us.
        """
        return self._number_of(partition)

    def is_being_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether a remover has begun to delete all copies of an assigned partition."""
        found = self._user_partitions.get(partition)
        return found is not None and found.is_being_deleted

    def stop_overview(self, metadata_partition: int) -> None:
        """Stop the overview of a metadata partition that this broker does not lead any more."""
        if (removed := self._overviews.pop(metadata_partition, None)) is not None:
            self._subscriptions.remove(removed)

    # -- the parts

    @property
    def partition_count(self) -> int:
        """The number of partitions of the metadata topic, as configured."""
        return self._configured.topic.partition_count

    @property
    def _configured(self) -> TopicMetadataSettings:
        assert self._settings is not None, "configure comes first"
        return self._settings

    def _number_of(self, partition: TopicIdPartition) -> int:
        return metadata_partition(partition, partition_count=self.partition_count)

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        return self._ready(partition).cache

    def _ready(self, partition: TopicIdPartition) -> UserPartition:
        """Return an assigned partition whose metadata are read.

        Raises RemoteStorageError if it is not assigned, MetadataNotReady until it is ready.
        """
        found = self._user_partitions.get(partition)
        if found is None:
            raise RemoteStorageError(f"the remote log metadata of {partition} is not assigned to this broker")
        self._check_open()
        if not found.is_ready:
            raise MetadataNotReady(f"the remote log metadata of {partition} is being read")
        return found

    def _check_open(self) -> None:
        if self._is_closed:
            raise RetriableRemoteStorageError(f"{TOPIC} is closed: the broker stops")
        if not self._is_open:
            raise MetadataNotReady(f"{TOPIC} is not open yet: {self._problem}")
