"""RemoteLogMetadataManager: the interface to the metadata of copies (KIP-405, "RemoteLogMetadataManager").

Changes are awaited: when one returns, it is stored, and a look-up on this broker sees it. Look-ups are answered from
memory, for the partitions that this broker leads or follows (`on_partition_leadership_changes`). Until `is_ready`,
their answers may be incomplete, or they raise MetadataNotReady: nothing may be deleted or truncated because of them.

Source: org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager of Kafka 4.3.1. Differs: sizes and look-ups
raise RemoteStorageError for a partition that is not assigned, as there, but none of them waits.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)


class RemoteLogMetadataManager(ABC):
    """Stores the metadata of copies, and answers look-ups for the partitions of this broker (KIP-405)."""

    @abstractmethod
    def configure(self, configs: Mapping[str, object]) -> None:
        """Configure the manager; called once, before all else.

        `configs` has the `rlmm.config.*` settings, `broker.id`, `cluster.id` and `log.dir`.
        """

    def on_broker_ready(self) -> None:  # noqa: B027 (most implementations have nothing to do)
        """Notify that the broker serves requests: a manager that is a client of its own cluster may begin."""

    @abstractmethod
    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Store a new copy, in state COPY_SEGMENT_STARTED."""

    @abstractmethod
    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Store a copy's new state. Raises RemoteResourceNotFound for an unknown copy.

        DELETE_SEGMENT_FINISHED of an unknown copy has no effect: it repeats one that was stored before.
        """

    @abstractmethod
    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Store the progress of a partition's deletion."""

    @abstractmethod
    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the finished copy that holds `offset` of leader epoch `epoch`; None: there is none."""

    @abstractmethod
    def next_segment_with_transaction_index(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the first finished copy of `epoch` with a transaction index that ends behind `offset` (KIP-1058)."""

    @abstractmethod
    def highest_offset_for_epoch(self, partition: TopicIdPartition, *, epoch: int) -> int | None:
        """Return the end, exclusive, of the offsets of leader epoch `epoch` that were copied; None: nothing was."""

    @abstractmethod
    def list_remote_log_segments(
        self, partition: TopicIdPartition, *, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Return all copies, of every state but DELETE_SEGMENT_FINISHED, by start offset; only those of
        `epoch` if given.
        """

    def copies(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Return all copies of the partition, as `list_remote_log_segments`, for readers: they change nothing.

        Expiration and tasks of followers read it in each interval. An implementation that has such a cache returns it;
        this default makes one: O(copies).
        """
        cache = RemoteLogMetadataCache(partition)
        for copy in self.list_remote_log_segments(partition):
            cache.restore(copy)
        return cache

    @abstractmethod
    def remote_log_size(self, partition: TopicIdPartition, *, epoch: int) -> int:
        """Return the size in bytes of the segments that have records of `epoch`."""

    @abstractmethod
    def on_partition_leadership_changes(
        self, *, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Notify that this broker leads and follows these partitions from now on."""

    @abstractmethod
    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Notify that this broker holds these partitions no more; look-ups of them raise RemoteStorageError."""

    @abstractmethod
    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata have been read up to their end.

        That is the end at the partition's assignment, or when this broker became its leader.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release all resources. No call follows."""
