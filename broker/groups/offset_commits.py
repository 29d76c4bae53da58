"""The offsets of one OffsetCommit: rows of the request in, records and committed offsets out.

A commit may have thousands of rows, and is one turn of the event loop: what is checked must not change before it is
appended. So the rows of a topic share what their records and committed offsets have in common.

Source: OffsetMetadataManager.commitOffset and GroupCoordinatorRecordHelpers.newOffsetCommitRecord of Kafka 4.3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.coordinator.group_records import OffsetCommitValue
from ottla.protocol.coordinator.record_codec import offset_encoder
from ottla.protocol.messages.offset_commit import OffsetCommitRequestPartition


class TopicCommit(NamedTuple):
    """The rows of one topic that are committed, at least one."""

    name: str
    topic_id: UUID
    rows: Sequence[OffsetCommitRequestPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommits:
    """The offsets of one OffsetCommit request.

    Its length is the number of records, which have the order of the rows.
    """

    group_id: str
    commit_timestamp_ms: int
    #: The time at which the offsets expire; -1: when the group's retention ends.
    expire_timestamp_ms: int
    topics: Sequence[TopicCommit]

    def __len__(self) -> int:
        return sum(len(topic.rows) for topic in self.topics)

    def encoded(self) -> list[tuple[bytes, bytes]]:
        """Key and value of each record. Raises ValueError if one cannot be written. Cost: 0.4 us each."""
        pairs: list[tuple[bytes, bytes]] = []
        for name, topic_id, rows in self.topics:
            value = OffsetCommitValue(
                commit_timestamp=self.commit_timestamp_ms,
                expire_timestamp=self.expire_timestamp_ms,
                topic_id=topic_id,
            )
            encode = offset_encoder(self.group_id, name, value)
            pairs += [
                encode(
                    row.partition_index,
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata or "",
                )
                for row in rows
            ]
        return pairs

    def committed(self, first_offset: int) -> Iterator[tuple[str, dict[int, CommittedOffset]]]:
        """The committed offsets of each topic, once their records have the offsets from `first_offset` on."""
        timestamp_ms = self.commit_timestamp_ms
        expire_timestamp_ms = None if self.expire_timestamp_ms == -1 else self.expire_timestamp_ms
        for name, topic_id, rows in self.topics:
            topic_number = topic_id.int or None
            # In the order of the fields, as in `offset_from_value`.
            yield (
                name,
                {
                    row.partition_index: CommittedOffset(
                        row.committed_offset,
                        timestamp_ms,
                        None if row.committed_leader_epoch == -1 else row.committed_leader_epoch,
                        row.committed_metadata or "",
                        expire_timestamp_ms,
                        topic_number,
                        record_offset,
                    )
                    for record_offset, row in enumerate(rows, start=first_offset)
                },
            )
            first_offset += len(rows)
