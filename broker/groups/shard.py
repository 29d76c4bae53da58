"""Group coordinator shard: groups and offsets of one partition of the offsets topic; requests in, records out.

A request itself changes only the members of groups. Offsets, and the existence of groups, change when the
request's records are replayed, after they were appended. Records that were in the log before are replayed into a
`LogState`; the shard starts with its offsets and groups.

Source: GroupCoordinatorShard of Kafka 4.3.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final
from uuid import UUID

from broker.groups.actions import Action
from broker.groups.config import GroupConfig
from broker.groups.group import ClassicGroup, GroupState
from broker.groups.offsets import (
    CommittedOffset,
    OffsetAt,
    OffsetStore,
    offset_from_value,
    offset_key,
    offset_value,
)
from broker.groups.rebalance import keep_session
from protocol.coordinator.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.coordinator.record_codec import GroupRecord
from protocol.errors import ErrorCode, GroupIdNotFound, IllegalGeneration, KafkaError
from protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from protocol.messages.list_groups import ListedGroup
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

logger = logging.getLogger(__name__)

#: The only group type here, by its name in ListGroups (KIP-848).
CLASSIC_GROUP_TYPE = "classic"

#: The largest timestamp of a record. Kafka's sum overflows: there an offset to be kept indefinitely expires at once.
_NEVER_MS: Final = 2**63 - 1

_FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND = 9
_FIRST_DESCRIBE_VERSION_WITH_GROUP_ID_NOT_FOUND = 6


class Shard:
    """The state of one partition of the offsets topic."""

    def __init__(self, config: GroupConfig, offsets: OffsetStore | None = None) -> None:
        self._config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetStore() if offsets is None else offsets

    def group(self, group_id: str) -> ClassicGroup:
        """The group, or GroupIdNotFound."""
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        return group

    def new_group(self, group_id: str, *, now_ms: int) -> ClassicGroup:
        """Create a group without members."""
        assert group_id not in self.groups, group_id
        group = ClassicGroup(group_id, self._config, state_timestamp_ms=now_ms)
        self.groups[group_id] = group
        return group

    # Replay

    def replay(
        self, record: GroupRecord, *, record_offset: int | None, producer_id: int | None, now_ms: int
    ) -> None:
        """Apply an appended record, an offset commit or a tombstone; a group applies its generations itself."""
        key, value = record
        if isinstance(key, GroupMetadataKey):
            assert value is None, value
            self.groups.pop(key.group, None)
            return
        assert isinstance(key, OffsetCommitKey), key
        at = OffsetAt(key.group, key.topic, key.partition)
        if value is None:
            self.offsets.remove(at)
            return
        assert isinstance(value, OffsetCommitValue), value
        if key.group not in self.groups:
            # A consumer with manual assignment: a group without members, only for its offsets.
            self.new_group(key.group, now_ms=now_ms)
        offset = offset_from_value(value, record_offset=record_offset)
        self.offsets.put(at, offset, producer_id=producer_id)

    # OffsetCommit

    def commit_offsets(
        self, request: OffsetCommitRequest, *, version: int, now_ms: int
    ) -> tuple[list[GroupRecord], OffsetCommitResponse, list[Action]]:
        """The records of a commit; its topics exist and have names. A commit restarts the member's session timer.

        Raises what `ClassicGroup.check_offset_commit` does, and for a group that does not exist
        GroupIdNotFound, or IllegalGeneration for clients that do not know that error.
        """
        group = self.groups.get(request.group_id)
        generation_id = request.generation_id_or_member_epoch
        actions: list[Action] = []
        if group is not None:
            group.check_offset_commit(request.member_id, request.group_instance_id, generation_id)
            if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
                actions.append(keep_session(group.members[request.member_id]))
        elif generation_id >= 0:
            if version >= _FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND:
                raise GroupIdNotFound(f"Group {request.group_id} not found.")
            raise IllegalGeneration(f"group {request.group_id} does not exist")
        retention_ms = request.retention_time_ms
        expire_timestamp_ms = None if retention_ms == -1 else min(now_ms + retention_ms, _NEVER_MS)
        records: list[GroupRecord] = []
        response = OffsetCommitResponse()
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                error = ErrorCode.none
                if len(asked.committed_metadata or "") > self._config.offset_metadata_max_bytes:
                    error = ErrorCode.offset_metadata_too_large
                else:
                    at = OffsetAt(request.group_id, topic.name, asked.partition_index)
                    offset = _committed(asked, topic.topic_id, expire_timestamp_ms, now_ms)
                    records.append(GroupRecord(offset_key(at), offset_value(offset)))
                rows.append(
                    OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error)
                )
            response.topics.append(
                OffsetCommitResponseTopic(topic_id=topic.topic_id, name=topic.name, partitions=rows)
            )
        return records, response, actions

    # OffsetFetch

    def fetch_offsets(
        self, asked: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Committed offsets of the requested partitions, or of all if `topics` is null."""
        offsets = self.offsets.of_group(asked.group_id)
        topics = asked.topics
        if topics is None:
            topics = [
                OffsetFetchRequestTopics(name=name, partition_indexes=list(offsets[name])) for name in offsets
            ]
        return OffsetFetchResponseGroup(
            group_id=asked.group_id,
            topics=[self._fetch_topic(asked.group_id, topic, require_stable) for topic in topics],
        )

    def _fetch_topic(
        self, group_id: str, topic: OffsetFetchRequestTopics, require_stable: bool
    ) -> OffsetFetchResponseTopics:
        offsets = self.offsets.of_group(group_id).get(topic.name, {})
        rows = []
        for partition in topic.partition_indexes:
            row = OffsetFetchResponsePartitions(partition_index=partition, committed_offset=-1)
            rows.append(row)
            if require_stable and self.offsets.is_pending(OffsetAt(group_id, topic.name, partition)):
                row.error_code = ErrorCode.unstable_offset_commit
                continue
            offset = offsets.get(partition)
            if offset is not None and offset.is_for(topic.topic_id):
                row.committed_offset = offset.offset
                row.committed_leader_epoch = -1 if offset.leader_epoch is None else offset.leader_epoch
                row.metadata = offset.metadata
        return OffsetFetchResponseTopics(topic_id=topic.topic_id, name=topic.name, partitions=rows)

    # OffsetDelete, DeleteGroups

    def delete_offsets(self, request: OffsetDeleteRequest) -> tuple[list[GroupRecord], OffsetDeleteResponse]:
        """Tombstones for offsets of topics without subscription (KIP-496). Raises GroupIdNotFound, NonEmptyGroup."""
        group = self.group(request.group_id)
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
                records += self._tombstones(request.group_id, topic)
        return records, response

    def _tombstones(self, group_id: str, topic: OffsetDeleteRequestTopic) -> list[GroupRecord]:
        asked = (OffsetAt(group_id, topic.name, row.partition_index) for row in topic.partitions)
        return [
            tombstone(at) for at in asked if self.offsets.get(at) is not None or self.offsets.is_pending(at)
        ]

    def delete_group(self, group_id: str) -> list[GroupRecord]:
        """Tombstones for a group and its offsets. Raises GroupIdNotFound, NonEmptyGroup."""
        self.group(group_id).check_delete()
        committed = [
            OffsetAt(group_id, topic, partition)
            for topic, partitions in self.offsets.of_group(group_id).items()
            for partition in partitions
        ]
        everything = dict.fromkeys(committed + self.offsets.pending_of(group_id))
        return [*map(tombstone, everything), GroupRecord(GroupMetadataKey(group=group_id), None)]

    # Expiry

    def expire(self, group: ClassicGroup, *, now_ms: int, limit: int) -> list[GroupRecord]:
        """Tombstones for the group's expired offsets, and for an empty group without other offsets.

        At most `limit` of them, the first ones.
        """
        records = [tombstone(at) for at in islice(self._expired_offsets(group, now_ms=now_ms), limit)]
        if len(records) < limit and group.state is GroupState.EMPTY:
            kept = sum(map(len, self.offsets.of_group(group.group_id).values())) - len(records)
            if kept == 0 and not self.offsets.has_pending(group.group_id):
                records.append(GroupRecord(GroupMetadataKey(group=group.group_id), None))
        return records

    def _expired_offsets(self, group: ClassicGroup, *, now_ms: int) -> Iterator[OffsetAt]:
        """Retention counts from the commit; in a group whose members have all left, from when it became empty.

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
        return self.offsets.expired(
            group.group_id,
            is_kept=group.is_subscribed_to,
            base_ms=lambda offset: offset.commit_timestamp_ms if empty_since_ms is None else empty_since_ms,
            retention_ms=self._config.offsets_retention_ms,
            now_ms=now_ms,
        )

    def forget_topics(
        self, group_id: str, topics: Iterable[tuple[UUID, str]], *, limit: int
    ) -> list[GroupRecord]:
        """Tombstones for the group's offsets of deleted topics (id, name); at most `limit`."""
        gone = (at for topic_id, name in topics for at in self.offsets.of_topic(group_id, name, topic_id))
        return [tombstone(at) for at in islice(dict.fromkeys(gone), limit)]

    # ListGroups, DescribeGroups

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """The groups in one of these states and of one of these types, in lower case; an empty filter accepts all."""
        if types and CLASSIC_GROUP_TYPE not in types:
            return []
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC_GROUP_TYPE,
            )
            for group in self.groups.values()
            if not states or group.state.value.lower() in states
        ]

    def describe(self, group_id: str, *, version: int) -> DescribedGroup:
        """A group and its members. A group that does not exist is Dead, with an error code from version 6 on."""
        try:
            group = self.group(group_id)
        except KafkaError as error:
            described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
            if version >= _FIRST_DESCRIBE_VERSION_WITH_GROUP_ID_NOT_FOUND:
                described.error_code, described.error_message = error.code, error.message
            return described
        # During a rebalance the subscriptions are not final: only those of stable groups are returned.
        is_stable = group.state is GroupState.STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.subscription(group.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )


def tombstone(at: OffsetAt) -> GroupRecord:
    """The record that deletes an offset."""
    return GroupRecord(offset_key(at), None)


def _committed(
    asked: OffsetCommitRequestPartition, topic_id: UUID, expire_timestamp_ms: int | None, now_ms: int
) -> CommittedOffset:
    return CommittedOffset(
        offset=asked.committed_offset,
        leader_epoch=None if asked.committed_leader_epoch == -1 else asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expire_timestamp_ms,
        topic_id=topic_id.int or None,
    )
