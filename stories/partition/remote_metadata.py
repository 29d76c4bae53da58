"""Metadata managers in memory, for brokers and logs that share a remote tier.

`InMemoryMetadataManager` keeps what a broker has read of one list of changes: as the one over
`__remote_log_metadata`, without a topic. `Metadata` is one for all brokers: every partition is assigned, and
a test decides what it pretends not to know.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ottla.remote.errors import MetadataNotReady, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.remote.topic_metadata.records import Change, user_partition_of


@dataclass
class RemoteMetadataLog:
    """Everything that brokers have written about copies, in order."""

    changes: list[Change] = field(default_factory=list)


class InMemoryMetadataManager(RemoteLogMetadataManager):
    """One broker's view of a RemoteMetadataLog."""

    def __init__(self, log: RemoteMetadataLog) -> None:
        self._log = log
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._read_count = 0
        self._is_reading = True
        #: None: changes are stored; else each attempt raises it.
        self.failure: RemoteStorageError | None = None
        #: The next change is stored, and its acknowledgement is lost.
        self.loses_acknowledgement = False

    @property
    def is_reading(self) -> bool:
        """Whether it reads what is written; while it does not, its partitions are not ready."""
        return self._is_reading

    @is_reading.setter
    def is_reading(self, is_reading: bool) -> None:
        self._is_reading = is_reading
        self.read()

    def read(self) -> None:
        """Read up to the end, unless it is not reading."""
        while self._is_reading and self._read_count < len(self._log.changes):
            self._apply(self._log.changes[self._read_count])
            self._read_count += 1

    def _apply(self, change: Change) -> None:
        cache = self._caches.get(user_partition_of(change))
        if cache is None:
            return
        with suppress(RemoteStorageError):  # refused, as by all brokers
            match change:
                case RemoteLogSegmentMetadata():
                    cache.add(change)
                case RemoteLogSegmentMetadataUpdate():
                    cache.update(change)
                case RemotePartitionDeleteMetadata():
                    pass

    def configure(self, configs: Mapping[str, object]) -> None:
        """Implement the method of RemoteLogMetadataManager."""

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Implement the method of RemoteLogMetadataManager."""
        self._append(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Implement the method of RemoteLogMetadataManager."""
        self.copies(update.segment_id.partition).check(update)
        self._append(update)

    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Implement the method of RemoteLogMetadataManager."""
        self._append(metadata)

    def _append(self, change: Change) -> None:
        if self.failure is not None:
            raise self.failure
        self._log.changes.append(change)
        self.read()
        if self.loses_acknowledgement:
            self.loses_acknowledgement = False
            raise RetriableRemoteStorageError("the acknowledgement is lost")

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Implement the method of RemoteLogMetadataManager."""
        return self.copies(partition).segment(epoch=epoch, offset=offset)

    def next_segment_with_transaction_index(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Implement the method of RemoteLogMetadataManager."""
        return self.copies(partition).next_segment_with_transaction_index(epoch=epoch, offset=offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, *, epoch: int) -> int | None:
        """Implement the method of RemoteLogMetadataManager."""
        return self.copies(partition).end_offset_for_epoch(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, *, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Implement the method of RemoteLogMetadataManager."""
        return list(self.copies(partition).segments(epoch))

    def copies(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Implement the method of RemoteLogMetadataManager."""
        self.read()
        if partition not in self._caches:
            raise RemoteStorageError(f"{partition} is not assigned to this broker")
        return self._caches[partition]

    def remote_log_size(self, partition: TopicIdPartition, *, epoch: int) -> int:
        """Implement the method of RemoteLogMetadataManager."""
        return self.copies(partition).size_bytes(epoch)

    def on_partition_leadership_changes(
        self, *, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Implement the method of RemoteLogMetadataManager."""
        for partition in [*leaders, *followers]:
            if partition not in self._caches:
                self._caches[partition] = RemoteLogMetadataCache(partition)
                for change in self._log.changes[: self._read_count]:
                    if user_partition_of(change) == partition:
                        self._apply(change)
        self.read()

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Implement the method of RemoteLogMetadataManager."""
        for partition in partitions:
            self._caches.pop(partition, None)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Implement the method of RemoteLogMetadataManager."""
        self.read()
        return partition in self._caches and self._read_count == len(self._log.changes)

    async def close(self) -> None:
        """Implement the method of RemoteLogMetadataManager."""


class Metadata(InMemoryMetadataManager):
    """The metadata of all partitions, as every broker has it that has read the topic to its end."""

    def __init__(self) -> None:
        super().__init__(RemoteMetadataLog())
        #: Nothing is read yet: look-ups fail.
        self.is_late = False
        #: As of a new leader: what its predecessor wrote last is not read yet.
        self.is_catching_up = False

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The copies of a partition, whatever is pretended; a test may change them."""
        self.on_partition_leadership_changes(leaders=[partition], followers=[])
        return super().copies(partition)

    def copies(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Implement the method of RemoteLogMetadataManager."""
        if self.is_late:
            raise MetadataNotReady("the metadata is still being read")
        return self.cache(partition)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Implement the method of RemoteLogMetadataManager."""
        return not (self.is_late or self.is_catching_up)
