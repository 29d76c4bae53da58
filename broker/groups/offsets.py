"""Offset store: committed offsets of groups, and pending ones of open transactions.

Source: OffsetMetadataManager.Offsets and OffsetAndMetadata of Kafka 4.3.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.types import ZERO_UUID


class CommittedOffset(NamedTuple):
    """A committed offset of a group.

    A tuple of numbers and strings only: a broker has millions of them, and the garbage collector does not track such
    tuples. As tracked objects, a million of them blocked the loop for 0.1 s in each collection.
    """

    offset: int
    commit_timestamp_ms: int
    leader_epoch: int | None = None
    #: The text that the client has stored with the offset.
    metadata: str = ""
    #: The time at which the offset expires; set by OffsetCommit v2-4 with a retention time of the client.
    expire_timestamp_ms: int | None = None
    #: The topic's id, `UUID.int`; None in records of brokers before 4.3.
    topic_id: int | None = None
    #: The offset of its record in the offsets topic.
    record_offset: int | None = None

    def is_for(self, topic_id: UUID) -> bool:
        """Whether the offset is of this topic, not of a deleted one with the same name; True if an id is unknown."""
        return self.topic_id is None or topic_id.int in (ZERO_UUID.int, self.topic_id)


class OffsetAt(NamedTuple):
    """The key of a committed offset: group and partition."""

    group_id: str
    topic: str
    partition: int


#: Topic -> partition -> offset.
Offsets = Mapping[str, Mapping[int, CommittedOffset]]


class OffsetStore:
    """Committed offsets by group, topic and partition. Invariant: only replayed records change it."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        #: Producer id -> the offsets that its open transaction has written. Invariant: none of these is empty.
        self._pending: dict[int, dict[OffsetAt, CommittedOffset]] = {}

    def of_group(self, group_id: str) -> Offsets:
        """Return all committed offsets of the group."""
        return self._by_group.get(group_id, {})

    def get(self, at: OffsetAt) -> CommittedOffset | None:
        """Return the committed offset, or None."""
        return self._by_group.get(at.group_id, {}).get(at.topic, {}).get(at.partition)

    def is_pending(self, at: OffsetAt) -> bool:
        """Whether an open transaction has written this offset: the committed offset may change with its outcome."""
        return any(at in written for written in self._pending.values())

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction has written any offset of the group."""
        return any(at.group_id == group_id for written in self._pending.values() for at in written)

    def pending_of(self, group_id: str) -> list[OffsetAt]:
        """The keys of the group's offsets that open transactions have written."""
        found = (at for written in self._pending.values() for at in written if at.group_id == group_id)
        return list(dict.fromkeys(found))

    def put(self, at: OffsetAt, offset: CommittedOffset, *, producer_id: int | None = None) -> None:
        """Replay an offset commit; with a producer id it belongs to that producer's open transaction."""
        if producer_id is not None:
            self._pending.setdefault(producer_id, {})[at] = offset
            return
        self._by_group.setdefault(at.group_id, {}).setdefault(at.topic, {})[at.partition] = offset

    def put_all(self, group_id: str, topic: str, offsets: Mapping[int, CommittedOffset]) -> None:
        """Replay commits of the group outside of transactions, by partition; at least one."""
        assert offsets, (group_id, topic)
        self._by_group.setdefault(group_id, {}).setdefault(topic, {}).update(offsets)

    def remove(self, at: OffsetAt) -> None:
        """Replay a tombstone; it removes the offset from open transactions, too."""
        topics = self._by_group.get(at.group_id, {})
        partitions = topics.get(at.topic, {})
        if partitions.pop(at.partition, None) is not None and not partitions:
            del topics[at.topic]
            if not topics:
                del self._by_group[at.group_id]
        for producer_id, written in list(self._pending.items()):
            if written.pop(at, None) is not None and not written:
                del self._pending[producer_id]

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """Replay the marker that ends a transaction.

        Of a plain commit and a transactional one, the later record in the log wins: the offset of the record decides,
        not the order of replay, since a transactional commit takes effect at the marker only.
        """
        written = self._pending.pop(producer_id, {})
        if not is_committed:
            return
        for at, offset in written.items():
            current = self.get(at)
            if current is None or (offset.record_offset or 0) > (current.record_offset or 0):
                self.put(at, offset)

    @property
    def group_ids(self) -> list[str]:
        """Every group with committed or pending offsets."""
        pending = (at.group_id for written in self._pending.values() for at in written)
        return list(dict.fromkeys([*self._by_group, *pending]))

    def each(self) -> Iterator[tuple[OffsetAt, CommittedOffset]]:
        """Iterate over every committed offset.

        A topic whose offsets change meanwhile is read as it was when the iterator reached it.
        """
        for group_id in list(self._by_group):
            for topic in list(self.of_group(group_id)):
                for partition, offset in list(self.of_group(group_id).get(topic, {}).items()):
                    yield OffsetAt(group_id, topic, partition), offset

    def of_topic(self, group_id: str, topic: str, topic_id: UUID) -> Iterator[OffsetAt]:
        """The keys of the group's offsets of a topic; not those of another topic with the same name."""
        for partition, offset in self.of_group(group_id).get(topic, {}).items():
            if offset.is_for(topic_id):
                yield OffsetAt(group_id, topic, partition)
        for written in self._pending.values():
            for at, offset in written.items():
                if at.group_id == group_id and at.topic == topic and offset.is_for(topic_id):
                    yield at

    def discard(self) -> Iterator[None]:
        """Remove everything, one group per step."""
        self._pending.clear()
        while self._by_group:
            self._by_group.popitem()
            yield

    def expired(
        self,
        group_id: str,
        *,
        is_kept: Callable[[str], bool],
        base_ms: Callable[[CommittedOffset], int],
        retention_ms: int,
        now_ms: int,
    ) -> Iterator[OffsetAt]:
        """The keys of the group's expired offsets.

        An offset expires `retention_ms` after `base_ms`, or at the commit's own expire timestamp; never if the topic
        `is_kept`, or while an open transaction has written the same offset.
        """
        for topic, partitions in self.of_group(group_id).items():
            if is_kept(topic):
                continue
            for partition, offset in partitions.items():
                own = offset.expire_timestamp_ms
                end_ms = base_ms(offset) + retention_ms if own is None else own
                at = OffsetAt(group_id, topic, partition)
                if now_ms >= end_ms and not self.is_pending(at):
                    yield at


def offset_from_value(value: OffsetCommitValue, *, record_offset: int | None) -> CommittedOffset:
    """The committed offset of a record value."""
    # In the order of the fields: their names take as long as the rest, and a commit may have thousands.
    return CommittedOffset(
        value.offset,
        value.commit_timestamp,
        None if value.leader_epoch == -1 else value.leader_epoch,
        value.metadata,
        None if value.expire_timestamp == -1 else value.expire_timestamp,
        value.topic_id.int or None,
        record_offset,
    )


def offset_key(at: OffsetAt) -> OffsetCommitKey:
    """The record key of a committed offset."""
    return OffsetCommitKey(group=at.group_id, topic=at.topic, partition=at.partition)
