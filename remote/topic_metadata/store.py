"""The metadata caches of this broker's partitions, fed with the records of `__remote_log_metadata` in their order.

A record may ask for what the diagrams of `remote.segment_metadata` do not have: a copy that its leader finishes after the next
leader has begun to delete it, or a record that was written twice. It is refused: logged, and ignored, by every broker in the
same way, since all read the same records in the same order.

Source: RemotePartitionMetadataStore and ConsumerTask of Kafka 4.3.1.
"""

from collections.abc import Collection, Mapping
from logging import getLogger
from types import MappingProxyType
from typing import Final, assert_never

from protocol.remote.records import RemotePartitionDeleteState
from remote.errors import RemoteStorageError
from remote.metadata_cache import RemoteLogMetadataCache
from remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
    is_partition_transition,
)
from remote.topic_metadata.records import Change

_LOG: Final = getLogger(__name__)


class RemotePartitionMetadataStore:
    """The caches of assigned partitions, and the progress of partitions' deletions. Belongs to the event loop."""

    def __init__(self) -> None:
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._deletions: dict[TopicIdPartition, RemotePartitionDeleteState] = {}

    def assign(self, partition: TopicIdPartition, cache: RemoteLogMetadataCache) -> None:
        """Keep `cache` up to date from now on: an empty one, or one from a snapshot."""
        assert partition not in self._caches, partition
        self._caches[partition] = cache

    def unassign(self, partition: TopicIdPartition) -> None:
        """Forget the partition's copies."""
        self._caches.pop(partition, None)

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The partition's copies. Raises RemoteStorageError if it is not assigned."""
        found = self._caches.get(partition)
        if found is None:
            raise RemoteStorageError(f"the remote log metadata of {partition} is not assigned to this broker")
        return found

    @property
    def partitions(self) -> Collection[TopicIdPartition]:
        """The assigned partitions."""
        return self._caches.keys()

    @property
    def deletions(self) -> Mapping[TopicIdPartition, RemotePartitionDeleteState]:
        """Partitions whose copies are being deleted, with the topic."""
        return MappingProxyType(self._deletions)

    def apply(self, change: Change, *, offset: int) -> None:
        """A record of the topic, at `offset` of its partition. Records of unassigned partitions are ignored."""
        try:
            match change:
                case RemoteLogSegmentMetadata():
                    if (cache := self._caches.get(change.partition)) is not None:
                        cache.add(change)
                case RemoteLogSegmentMetadataUpdate():
                    if (cache := self._caches.get(change.segment_id.partition)) is not None:
                        cache.update(change)
                case RemotePartitionDeleteMetadata():
                    self._delete(change)
                case _:
                    assert_never(change)
        except RemoteStorageError as error:
            _LOG.warning("offset %d of __remote_log_metadata is ignored: %s", offset, error)

    def _delete(self, change: RemotePartitionDeleteMetadata) -> None:
        old = self._deletions.get(change.partition)
        if not is_partition_transition(old, change.state):
            was = "not being deleted" if old is None else old.name
            raise RemoteStorageError(f"{change.partition} is {was}: {change.state.name} is refused")
        if change.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            del self._deletions[change.partition]
            self._caches.pop(change.partition, None)
        else:
            self._deletions[change.partition] = change.state
