"""Offset metadata manager: OffsetCommit, OffsetFetch and OffsetDelete of groups, and the expiry of their offsets.

Requests in, records and responses out; the `OffsetStore` changes when the records are replayed. Whether a group permits
a request is the group's decision (`ClassicGroup.check_offset_commit` and others).

Source: OffsetMetadataManager of Kafka 4.3.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, Protocol
from uuid import UUID

from ottla.broker.groups.actions import Action
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.offset_commits import OffsetCommits, TopicCommit
from ottla.broker.groups.offsets import CommittedOffset, OffsetAt, OffsetStore, offset_key
from ottla.broker.groups.rebalance import restart_session_timer
from ottla.protocol.coordinator.record_codec import GroupRecord
from ottla.protocol.errors import ErrorCode, GroupIdNotFound, IllegalGeneration
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.steps import Step
from ottla.protocol.types import ZERO_UUID

#: The largest timestamp of a record. Kafka's sum overflows: there an offset to be kept indefinitely expires at once.
_NEVER_MS: Final = 2**63 - 1

#: Partitions and topics that are read in one step: a millisecond.
_FETCHED_OF_STEP: Final = 500

_FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND: Final = 9


class Topic(Protocol):
    """A topic of the cluster, as its offsets refer to it."""

    @property
    def topic_id(self) -> UUID:
        """The topic's id (KIP-516)."""


class Topics(Protocol):
    """The topics of the cluster, as far as this broker's metadata goes."""

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, or None."""

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of this id, or None."""


class OffsetManager:
    """Handles OffsetCommit, OffsetFetch and OffsetDelete of one shard's groups, and finds their expired offsets."""

    def __init__(self, config: GroupConfig, store: OffsetStore, topics: Topics) -> None:
        self._config = config
        self._store = store
        self._topics = topics

    # OffsetCommit

    def commit(
        self, group: ClassicGroup | None, request: OffsetCommitRequest, *, version: int, now_ms: int
    ) -> tuple[OffsetCommits, OffsetCommitResponse, list[Action]]:
        """Return the commits, the response and the actions of an OffsetCommit, whose topics exist and have names.

        A commit restarts the member's session timer.

        Raises what `ClassicGroup.check_offset_commit` does, and for a group that does not exist
        GroupIdNotFound, or IllegalGeneration for clients that do not know that error.
        """
        generation_id = request.generation_id_or_member_epoch
        actions: list[Action] = []
        if group is not None:
            group.check_offset_commit(
                request.member_id,
                request.group_instance_id,
                generation_id=None if generation_id < 0 else generation_id,
            )
            if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
                actions.append(restart_session_timer(group.members[request.member_id]))
        elif generation_id >= 0:
            if version >= _FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise GroupIdNotFound(f"Group {request.group_id} not found.")
            raise IllegalGeneration(f"group {request.group_id} does not exist")
        retention_ms = request.retention_time_ms
        expire_timestamp = -1 if retention_ms == -1 else min(now_ms + retention_ms, _NEVER_MS)
        max_bytes = self._config.offset_metadata_max_bytes
        commits: list[TopicCommit] = []
        response = OffsetCommitResponse()
        for topic in request.topics:
            asked = topic.partitions
            refused = {id(row) for row in asked if len(row.committed_metadata or "") > max_bytes}
            accepted = [row for row in asked if id(row) not in refused] if refused else asked
            if accepted:
                commits.append(TopicCommit(topic.name, topic.topic_id, accepted))
            rows = [
                OffsetCommitResponsePartition(
                    partition_index=row.partition_index,
                    error_code=ErrorCode.offset_metadata_too_large if id(row) in refused else ErrorCode.none,
                )
                for row in asked
            ]
            response.topics.append(
                OffsetCommitResponseTopic(topic_id=topic.topic_id, name=topic.name, partitions=rows)
            )
        committed = OffsetCommits(
            group_id=request.group_id,
            commit_timestamp_ms=now_ms,
            expire_timestamp_ms=expire_timestamp,
            topics=commits,
        )
        return committed, response, actions

    # OffsetFetch

    def fetch(
        self, asked: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> Generator[None, None, OffsetFetchResponseGroup]:
        """Return the committed offsets of the requested partitions, or of all if `topics` is null; reads in steps.

        Those of one step are of one moment. The offset of a topic that was deleted is none of a new topic with the
        same name, also where the request names no id. Kafka returns it up to v9 until its coordinator has deleted it.
        """
        response = OffsetFetchResponseGroup(group_id=asked.group_id)
        step = Step(_FETCHED_OF_STEP)
        for topic in self._committed(asked.group_id) if asked.topics is None else asked.topics:
            offsets = self._store.of_group(asked.group_id).get(topic.name, {})
            topic_id = topic.topic_id
            if topic_id == ZERO_UUID and (known := self._topics.topic(topic.name)) is not None:
                topic_id = known.topic_id
            row = OffsetFetchResponseTopics(topic_id=topic.topic_id, name=topic.name)
            response.topics.append(row)
            for partition in topic.partition_indexes:
                at = OffsetAt(asked.group_id, topic.name, partition)
                is_unstable = require_stable and self._store.is_pending(at)
                offset = None if is_unstable else offsets.get(partition)
                row.partitions.append(_fetched(partition, offset, topic_id, is_unstable=is_unstable))
                if step.is_full():
                    yield
            if step.is_full():
                yield
        return response

    def _committed(self, group_id: str) -> Iterator[OffsetFetchRequestTopics]:
        """Yield all partitions for which the group has offsets; topics that have none any more are omitted."""
        for name in list(self._store.of_group(group_id)):
            if indexes := list(self._store.of_group(group_id).get(name, ())):
                yield OffsetFetchRequestTopics(name=name, partition_indexes=indexes)

    # Tombstones: OffsetDelete, DeleteGroups, deleted topics, expiry

    def delete(
        self, group: ClassicGroup, request: OffsetDeleteRequest
    ) -> tuple[list[GroupRecord], OffsetDeleteResponse]:
        """Return tombstones for offsets of topics without subscription (KIP-496).

        Raises GroupIdNotFound, NonEmptyGroup.
        """
        group.check_offset_delete()
        records: list[GroupRecord] = []
        response = OffsetDeleteResponse()
        for topic in request.topics:
            is_subscribed = group.is_subscribed_to(topic.name)
            error = ErrorCode.group_subscribed_to_topic if is_subscribed else ErrorCode.none
            rows = [
                OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=error)
                for asked in topic.partitions
            ]
            response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=rows))
            if not is_subscribed:
                records += self._delete_topic(group.group_id, topic)
        return records, response

    def _delete_topic(self, group_id: str, topic: OffsetDeleteRequestTopic) -> list[GroupRecord]:
        asked = (OffsetAt(group_id, topic.name, row.partition_index) for row in topic.partitions)
        return [
            tombstone(at) for at in asked if self._store.get(at) is not None or self._store.is_pending(at)
        ]

    def delete_all(self, group_id: str) -> list[GroupRecord]:
        """Return tombstones for all offsets of a group, those of open transactions included."""
        committed = [
            OffsetAt(group_id, topic, partition)
            for topic, partitions in self._store.of_group(group_id).items()
            for partition in partitions
        ]
        return [tombstone(at) for at in dict.fromkeys(committed + self._store.pending_of(group_id))]

    def delete_topics(
        self, group_id: str, topics: Iterable[tuple[UUID, str]], *, limit: int
    ) -> list[GroupRecord]:
        """Return tombstones for at most `limit` of the group's offsets of deleted topics (id, name)."""
        found = (at for topic_id, name in topics for at in self._store.of_topic(group_id, name, topic_id))
        return [tombstone(at) for at in islice(dict.fromkeys(found), limit)]

    def expire(self, group: ClassicGroup, *, now_ms: int, limit: int) -> list[GroupRecord]:
        """Return tombstones for the group's expired offsets; at most `limit`, the first ones."""
        return [tombstone(at) for at in islice(self._expired(group, now_ms=now_ms), limit)]

    def has_offsets_besides(self, group_id: str, deleted: list[GroupRecord]) -> bool:
        """Whether the group keeps committed or pending offsets after these tombstones of committed ones."""
        kept = sum(map(len, self._store.of_group(group_id).values())) - len(deleted)
        assert kept >= 0, (group_id, kept)
        return kept > 0 or self._store.has_pending(group_id)

    def _expired(self, group: ClassicGroup, *, now_ms: int) -> Iterator[OffsetAt]:
        """Find the expired offsets of the group. Retention counts from the commit.

        In a group whose members have all left, it counts from the time when the group became empty.

        In a group with members only offsets of topics without subscription expire, which requires a stable consumer
        group: the subscriptions of others are unknown.
        """
        is_stable_consumer_group = (
            group.is_consumer_group
            and group.subscribed_topics is not None
            and group.state is GroupState.STABLE
        )
        is_empty = group.state is GroupState.EMPTY
        if group.protocol_type is not None and not is_empty and not is_stable_consumer_group:
            return iter(())
        empty_since_ms = group.state_timestamp_ms if group.protocol_type is not None and is_empty else None
        return self._store.expired(
            group.group_id,
            is_kept=group.is_subscribed_to,
            base_ms=lambda offset: offset.commit_timestamp_ms if empty_since_ms is None else empty_since_ms,
            retention_ms=self._config.offsets_retention_ms,
            now_ms=now_ms,
        )


def _fetched(
    partition: int, offset: CommittedOffset | None, topic_id: UUID, *, is_unstable: bool
) -> OffsetFetchResponsePartitions:
    """Return the response row of one partition: its committed offset, or none."""
    row = OffsetFetchResponsePartitions(partition_index=partition, committed_offset=-1)
    if is_unstable:
        row.error_code = ErrorCode.unstable_offset_commit
    elif offset is not None and offset.is_for(topic_id):
        row.committed_offset = offset.offset
        row.committed_leader_epoch = -1 if offset.leader_epoch is None else offset.leader_epoch
        row.metadata = offset.metadata
    return row


def tombstone(at: OffsetAt) -> GroupRecord:
    """The record that deletes an offset."""
    return GroupRecord(offset_key(at), None)
