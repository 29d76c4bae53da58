"""Subscribers: states that are kept up to date with the records of one metadata partition.

    from `next_offset` on --read beside the tail--> at the tail's position --at_tail--> read with the tail

`MetadataPartitionReader` moves a subscriber along this line; a subscriber only applies what it is given. There are two
kinds: a user partition's cache (`UserPartition`), and the overview of all user partitions (`CopiesOverview`).
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError
from ottla.remote.metadata_cache import IllegalStateTransition, RemoteLogMetadataCache
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.remote.topic_metadata.records import Change

#: The most refused changes that are kept for their writers, who fetch each as soon as its append is acknowledged.
_MAX_REFUSALS: Final = 64


class Subscriber(ABC):
    """A state that follows the records of one metadata partition; it only applies the records that it is given."""

    #: The file name of the subscriber's snapshot.
    file_name: ClassVar[str]

    def __init__(self, *, metadata_partition: int) -> None:
        self.metadata_partition = metadata_partition
        #: Records before this offset are applied. At the tail, records between it and the tail's position are, too.
        self.next_offset = 0
        #: The leader epoch of the record before `next_offset`; None: it is not known.
        self.last_epoch: int | None = None
        self.is_at_tail = False
        #: Everything before this offset was stored before the subscription or the last
        #: `MetadataPartitionReader.refresh`: None while it is not known.
        self.ready_at: int | None = None
        #: True once everything that was stored before the subscription is applied.
        self.is_ready = False
        #: True while everything before `ready_at` is applied.
        self.is_current = False
        #: The number of changes since the last snapshot.
        self.unsaved_count = 0
        #: The time at which the first of them was noticed, on the monotonic clock.
        self.unsaved_since: float | None = None

    @property
    @abstractmethod
    def topic_id(self) -> UUID:
        """The id of the topic that the subscriber's snapshot must be of."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the size of the state, in parts that one change changes."""

    def __bool__(self) -> bool:
        """Return True: it is a subscriber also if its state is empty."""
        return True

    @abstractmethod
    def apply(self, change: Change, *, offset: int) -> RemoteStorageError | None:
        """Apply a record; each one is applied once, in order.

        It never raises; returns the error because of which the record is ignored, if it is.
        """

    @abstractmethod
    def clear(self) -> None:
        """Begin with an empty state: the topic has lost records that were applied."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the encoded state, for a snapshot."""

    @abstractmethod
    def restore(self, data: memoryview) -> None:
        """Replace the state by that of a snapshot. Raises ValueError, and keeps the state."""

    def restart(self) -> None:
        """Clear the state, so that everything is read again."""
        self.clear()
        self.next_offset, self.last_epoch = 0, None
        self.is_at_tail = self.is_ready = self.is_current = False
        self.ready_at = None


class UserPartition(Subscriber):
    """The metadata cache of a partition that is assigned to this broker.

    A record may demand a transition that the diagrams of `ottla.remote.segment_metadata` do not have: a copy
    that its leader finishes after the next leader has begun to delete it. It is refused, and ignored, by
    every broker in the same way, since all read the same records in the same order.
    """

    file_name = "remote_log_snapshot"

    def __init__(self, partition: TopicIdPartition, *, metadata_partition: int) -> None:
        super().__init__(metadata_partition=metadata_partition)
        self.partition = partition
        self.cache = RemoteLogMetadataCache(partition)
        #: Whether a remover deletes all copies: the topic is deleted.
        self.is_being_deleted = False
        self._refusals: dict[int, RemoteStorageError] = {}

    @property
    def topic_id(self) -> UUID:
        """The id of the partition's topic."""
        return self.partition.topic_id

    def __len__(self) -> int:
        return len(self.cache)

    def to_bytes(self) -> bytes:
        """Return the encoded cache, for a snapshot."""
        return self.cache.to_bytes()

    def restore(self, data: memoryview) -> None:
        """Replace the cache by that of a snapshot. Raises ValueError, and keeps the cache."""
        self.cache = RemoteLogMetadataCache.from_bytes(self.partition, data)

    def clear(self) -> None:
        """Replace the cache by an empty one: the topic has lost records that were applied."""
        self.is_being_deleted = False
        self.cache = RemoteLogMetadataCache(self.partition)
        self.unsaved_count += 1

    def apply(self, change: Change, *, offset: int) -> RemoteStorageError | None:
        """Update the cache by a record; return the error because of which it is ignored, if it is."""
        self.unsaved_count += 1
        try:
            if isinstance(change, RemoteLogSegmentMetadata):
                self.cache.add(change)
                if self.is_being_deleted:
                    # Its leader must not begin to write. It is listed nevertheless: one that is Kafka's may do so.
                    raise IllegalStateTransition(
                        f"{self.partition} is being deleted: {change.segment_id} is refused"
                    )
            elif isinstance(change, RemotePartitionDeleteMetadata):
                self._on_deletion(change.state)
            else:
                self.cache.update(change)
        except RemoteResourceNotFound as error:
            # An append whose acknowledgement was lost is repeated; the copy is gone with the first record.
            if change.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                return self._refuse(error, offset)
        except RemoteStorageError as error:
            return self._refuse(error, offset)
        return None

    def _on_deletion(self, state: RemotePartitionDeleteState) -> None:
        if state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self.is_being_deleted = True
            return
        if len(self.cache):
            # A copy was begun while the remover wrote this record.
            raise IllegalStateTransition(
                f"{self.partition} has {len(self.cache)} copies: {state.name} is refused"
            )
        self.is_being_deleted = False
        self.cache = RemoteLogMetadataCache(self.partition)

    def _refuse(self, error: RemoteStorageError, offset: int) -> RemoteStorageError:
        if len(self._refusals) == _MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[offset] = error
        return error

    def refusal(self, offset: int) -> RemoteStorageError | None:
        """Return, once, the error because of which the record at `offset`, one of the latest, was ignored;
        None: it was not.
        """
        return self._refusals.pop(offset, None)
