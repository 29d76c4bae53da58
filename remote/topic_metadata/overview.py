"""Overview of a metadata partition: the user partitions that may have copies, and the progress of their deletion.

It follows all user partitions of a metadata partition, also those that this broker does not host, and keeps
their ids only. A partition is in it from the first record of a copy on until DELETE_PARTITION_FINISHED, also
if all its copies are deleted: a partition with copies is never missing, and a superfluous one costs one
look-up. A copy that is recorded between DELETE_PARTITION_STARTED and DELETE_PARTITION_FINISHED, by a leader
that did not know of the deletion yet, keeps the partition: the remover may have decided without it. One that
is recorded later brings it back.

The broker that leads the metadata partition has it, and removes the copies of deleted topics.
Source: KIP-405, "Remote partition removers"; Kafka 4.3.1 has none.
"""

from array import array
from collections.abc import Mapping
from logging import getLogger
from types import MappingProxyType
from typing import Final
from uuid import UUID

from ottla.protocol.remote.records import RemotePartitionDeleteState
from ottla.protocol.types import ZERO_UUID
from ottla.remote.column_codec import ColumnReader, ColumnWriter
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
    is_partition_transition,
)
from ottla.remote.topic_metadata.records import Change
from ottla.remote.topic_metadata.subscriber import Subscriber

_LOG: Final = getLogger(__name__)

_ID_BYTES: Final = 16
#: The state, in the file only, of a partition whose deletion has not begun.
_NOT_DELETED: Final = -1
#: Added, in the file only, to the state of a partition with a copy that was begun during its deletion.
_BEGUN: Final = 64


class CopiesOverview(Subscriber):
    """The user partitions of a metadata partition that may have copies, and the progress of their deletion."""

    file_name = "remote_copies_overview"

    def __init__(self, metadata_partition: int) -> None:
        super().__init__(metadata_partition=metadata_partition)
        self._partitions: dict[TopicIdPartition, RemotePartitionDeleteState | None] = {}
        #: Partitions in state DELETE_PARTITION_STARTED of which a copy was begun since.
        self._begun: set[TopicIdPartition] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def topic_id(self) -> UUID:
        """The zero UUID: the snapshot is of no topic in particular."""
        return ZERO_UUID

    @property
    def partitions(self) -> Mapping[TopicIdPartition, RemotePartitionDeleteState | None]:
        """The user partitions that may have copies, with the state of their deletion; None if it has not
        begun.
        """
        return MappingProxyType(self._partitions)

    def clear(self) -> None:
        """Forget all partitions, and their deletions."""
        self._partitions.clear()
        self._begun.clear()
        self.unsaved_count += 1

    def apply(self, change: Change, *, offset: int) -> None:
        """Apply a record: a copy's partition, or the progress of a deletion."""
        if isinstance(change, RemoteLogSegmentMetadata):
            if change.partition not in self._partitions:
                self._partitions[change.partition] = None
                self.unsaved_count += 1
            elif self._partitions[change.partition] is RemotePartitionDeleteState.DELETE_PARTITION_STARTED:
                self._begun.add(change.partition)
                self.unsaved_count += 1
        elif isinstance(change, RemotePartitionDeleteMetadata):
            self._on_deletion(change, offset)

    def _on_deletion(self, change: RemotePartitionDeleteMetadata, offset: int) -> None:
        old = self._partitions.get(change.partition)
        if not is_partition_transition(old, change.state):
            # Two removers, of the former and the present leader, may write the same steps.
            _LOG.debug(
                "offset %d: %s of %s is ignored, it is %s", offset, change.state.name, change.partition, old
            )
        elif change.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            if change.partition in self._begun:
                self._begun.discard(change.partition)
                self._partitions[change.partition] = None
            else:
                del self._partitions[change.partition]
            self.unsaved_count += 1
        else:
            self._partitions[change.partition] = change.state
            self.unsaved_count += 1

    def to_bytes(self) -> bytes:
        """Return the encoded partitions and states, for a snapshot. Cost: 1 us for each partition."""
        writer = ColumnWriter()
        names = [each.topic_partition.topic.encode() for each in self._partitions]
        writer.put(b"".join(each.topic_id.bytes for each in self._partitions))
        writer.put(array("i", (each.topic_partition.partition for each in self._partitions)))
        states = self._partitions.items()
        writer.put(
            array(
                "b",
                (
                    _NOT_DELETED if state is None else state + _BEGUN * (each in self._begun)
                    for each, state in states
                ),
            )
        )
        writer.put(array("i", map(len, names)))
        writer.put(b"".join(names))
        return writer.finished()

    def restore(self, data: memoryview) -> None:
        """Replace the partitions by those of a snapshot. Raises ValueError, and keeps the state."""
        reader = ColumnReader(data)
        ids = bytes(reader.bytes())
        count, odd = divmod(len(ids), _ID_BYTES)
        numbers, states = reader.integers("i", count), reader.integers("b", count)
        sizes, names = reader.integers("i", count), bytes(reader.bytes())
        reader.finish()
        if odd or sum(sizes) != len(names):
            raise ValueError(f"ids of {len(ids)} bytes, names of {len(names)} bytes")
        partitions: dict[TopicIdPartition, RemotePartitionDeleteState | None] = {}
        begun = set()
        at = 0
        for index, (number, state, size) in enumerate(zip(numbers, states, sizes, strict=True)):
            topic_id = UUID(bytes=ids[index * _ID_BYTES : (index + 1) * _ID_BYTES])
            partition = TopicIdPartition.checked(topic_id, names[at : at + size].decode(), number)
            at += size
            partitions[partition] = (
                None if state == _NOT_DELETED else RemotePartitionDeleteState(state % _BEGUN)
            )
            if state >= _BEGUN:
                begun.add(partition)
        self._partitions, self._begun = partitions, begun
