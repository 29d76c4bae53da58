"""Committed offsets: fetches, deletions, and expiration."""

from uuid import UUID

import pytest

from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group_metadata import group_from_value
from ottla.broker.groups.offsets import (
    CommittedOffset,
    OffsetAt,
    OffsetStore,
    offset_from_value,
    offset_key,
)
from ottla.broker.groups.shard import Shard
from ottla.protocol.coordinator.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from ottla.protocol.coordinator.record_codec import GroupRecord, encode
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.steps import at_once
from ottla.protocol.types import ZERO_UUID
from tests.unit.broker.groups.coordinator_support import KnownTopics, offset_value

E = ErrorCode
_ID, _OTHER_ID = UUID(int=1), UUID(int=2)
_RETENTION_MS = 1_000
#: Subscription v1 to topic "t".
_SUBSCRIBED_TO_T = bytes.fromhex("0001 00000001 0001 74") + b"\xff\xff\xff\xff"


def shard_with(*records: GroupRecord) -> Shard:
    shard = Shard(GroupConfig(offsets_retention_ms=_RETENTION_MS, offset_metadata_max_bytes=3), KnownTopics())
    replay(shard, records)
    return shard


def replay(shard: Shard, records) -> None:
    for record in records:
        if isinstance(record.value, GroupMetadataValue):
            group = record.key.group
            shard.groups[group] = group_from_value(group, record.value, shard._config)
            continue
        shard.replay(record)


def expire(shard: Shard, *, now_ms) -> list[GroupRecord]:
    groups = shard.groups.values()
    return [record for group in groups for record in shard.expire(group, now_ms=now_ms, limit=100)]


def commit(shard: Shard, *rows, group="g", now_ms=0, version=10, generation=-1, **fields) -> list[ErrorCode]:
    """Rows are (topic, partition, offset) or with metadata; replayed at once."""
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        topics=[
            OffsetCommitRequestTopic(
                topic_id=_ID,
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=5,
                        committed_metadata=metadata[0] if metadata else None,
                    )
                ],
            )
            for topic, partition, offset, *metadata in rows
        ],
        **fields,
    )
    try:
        commits, response, _ = shard.commit_offsets(request, version=version, now_ms=now_ms)
    except KafkaError as error:
        return [error.code]
    if commits:
        shard.replay_commits(commits, first_offset=0, now_ms=now_ms)
    return [ErrorCode(row.error_code) for topic in response.topics for row in topic.partitions]


def fetch(shard: Shard, *asked, group="g", topic_id=ZERO_UUID, require_stable=False) -> list[tuple]:
    topics = None
    if asked:
        topics = [
            OffsetFetchRequestTopics(topic_id=topic_id, name=topic, partition_indexes=[partition])
            for topic, partition in asked
        ]
    response = at_once(
        shard.fetch_offsets(
            OffsetFetchRequestGroup(group_id=group, topics=topics), require_stable=require_stable
        )
    )
    return [
        (topic.name, row.partition_index, row.committed_offset, row.metadata, ErrorCode(row.error_code))
        for topic in response.topics
        for row in topic.partitions
    ]


def tombstones(records: list[GroupRecord]) -> list[tuple | str]:
    assert all(record.value is None for record in records)
    return [
        key.group if isinstance(key, GroupMetadataKey) else (key.topic, key.partition) for key, _ in records
    ]


def group_of_consumers(members: int, *, subscription=_SUBSCRIBED_TO_T, since_ms=0) -> GroupRecord:
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range" if members else None,
        leader="m0" if members else None,
        current_state_timestamp=since_ms,
        members=[
            MemberMetadata(member_id=f"m{number}", session_timeout=10_000, subscription=subscription)
            for number in range(members)
        ],
    )
    return GroupRecord(GroupMetadataKey(group="g"), value)


@pytest.mark.parametrize(
    ("retention_ms", "expires_at_ms"),
    [(-1, None), (-2, 3), (0, 5), (2**63 - 1, 2**63 - 1), (-(2**63), 5 - 2**63)],
)
def test_a_retention_of_its_own_is_one_that_a_record_can_hold(retention_ms, expires_at_ms):
    shard = shard_with()
    assert commit(shard, ("t", 0, 7), now_ms=5, version=4, retention_time_ms=retention_ms) == [E.none]
    offset = shard.offsets.get(OffsetAt("g", "t", 0))
    assert offset.expire_timestamp_ms == expires_at_ms
    encode(GroupRecord(offset_key(OffsetAt("g", "t", 0)), offset_value(offset)))


# KIP-320
def test_what_was_committed_is_fetched():
    shard = shard_with()
    assert commit(shard, ("t", 0, 7), ("t", 1, 8, "abc"), ("u", 0, 9)) == [E.none] * 3
    assert fetch(shard, ("t", 0), ("t", 1), ("t", 2), ("x", 0)) == [
        ("t", 0, 7, "", E.none),
        ("t", 1, 8, "abc", E.none),
        ("t", 2, -1, "", E.none),
        ("x", 0, -1, "", E.none),
    ]
    assert fetch(shard) == [("t", 0, 7, "", E.none), ("t", 1, 8, "abc", E.none), ("u", 0, 9, "", E.none)]
    assert fetch(shard, group="h") == []
    assert fetch(shard, ("t", 0), group="h") == [("t", 0, -1, "", E.none)]


def test_metadata_that_is_too_long_is_refused_for_its_partition_only():
    shard = shard_with()
    assert commit(shard, ("t", 0, 7, "abcd"), ("t", 1, 8)) == [E.offset_metadata_too_large, E.none]
    assert fetch(shard) == [("t", 1, 8, "", E.none)]


# KIP-516
def test_an_offset_of_a_deleted_topic_is_not_one_of_its_successor():
    shard = shard_with()
    commit(shard, ("t", 0, 7))
    assert fetch(shard, ("t", 0), topic_id=_ID)[0][2] == 7
    assert fetch(shard, ("t", 0), topic_id=_OTHER_ID)[0][2] == -1
    assert fetch(shard, ("t", 0))[0][2] == 7


@pytest.mark.parametrize(
    ("version", "generation", "answer"),
    [(8, -1, E.none), (8, 0, E.illegal_generation), (9, 0, E.group_id_not_found), (10, -1, E.none)],
)
def test_commits_to_a_group_that_does_not_exist(version, generation, answer):
    shard = shard_with()
    assert commit(shard, ("t", 0, 1), version=version, generation=generation) == [answer]
    assert ("g" in shard.groups) == (answer is E.none)


def test_a_commit_keeps_the_members_session():
    shard = shard_with(group_of_consumers(1))
    request = OffsetCommitRequest(group_id="g", member_id="m0", generation_id_or_member_epoch=3)
    _, _, actions = shard.commit_offsets(request, version=9, now_ms=0)
    assert [action.delay_ms for action in actions] == [10_000]


def test_a_retention_of_the_commits_own():
    shard = shard_with()
    commit(shard, ("t", 0, 1), ("t", 1, 1), retention_time_ms=50, version=4)
    assert tombstones(expire(shard, now_ms=49)) == []
    assert tombstones(expire(shard, now_ms=50)) == [("t", 0), ("t", 1), "g"]


def test_offsets_of_a_group_without_members_expire_after_their_commit():
    shard = shard_with()
    commit(shard, ("t", 0, 1), now_ms=0)
    commit(shard, ("t", 1, 1), now_ms=500)
    assert tombstones(expire(shard, now_ms=_RETENTION_MS - 1)) == []
    expired = expire(shard, now_ms=_RETENTION_MS)
    assert tombstones(expired) == [("t", 0)]
    replay(shard, expired)
    expired = expire(shard, now_ms=_RETENTION_MS + 500)
    assert tombstones(expired) == [("t", 1), "g"]
    replay(shard, expired)
    assert shard.groups == {}


# KIP-211
def test_offsets_of_a_group_whose_members_left_expire_after_that():
    shard = shard_with(group_of_consumers(0, since_ms=700))
    commit(shard, ("t", 0, 1), now_ms=0)
    assert tombstones(expire(shard, now_ms=_RETENTION_MS)) == []
    assert tombstones(expire(shard, now_ms=_RETENTION_MS + 700)) == [("t", 0), "g"]


@pytest.mark.parametrize(
    ("subscription", "expired"),
    [(_SUBSCRIBED_TO_T, [("u", 0)]), (b"not a subscription", [])],
)
def test_only_topics_without_subscribers_expire_under_members(subscription, expired):
    shard = shard_with(group_of_consumers(1, subscription=subscription))
    commit(shard, ("t", 0, 1), ("u", 0, 1), generation=3, member_id="m0")
    assert tombstones(expire(shard, now_ms=10 * _RETENTION_MS)) == expired


def test_an_empty_group_without_offsets_goes_at_once():
    assert tombstones(expire(shard_with(group_of_consumers(0)), now_ms=1)) == ["g"]
    assert tombstones(expire(shard_with(group_of_consumers(1)), now_ms=1)) == []


def delete(shard, *asked):
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
            )
            for topic, partition in asked
        ],
    )
    records, response = shard.delete_offsets(request)
    return tombstones(records), [E(row.error_code) for topic in response.topics for row in topic.partitions]


# KIP-496
def test_offsets_that_are_being_consumed_are_not_deleted():
    shard = shard_with(group_of_consumers(1))
    commit(shard, ("t", 0, 1), ("u", 0, 1), generation=3, member_id="m0")
    assert delete(shard, ("t", 0), ("u", 0), ("u", 1)) == (
        [("u", 0)],
        [E.group_subscribed_to_topic, E.none, E.none],
    )


def test_groups_are_deleted_with_their_offsets_when_they_are_empty():
    shard = shard_with(group_of_consumers(0))
    commit(shard, ("t", 0, 1), ("u", 3, 1))
    records = shard.delete_group("g")
    assert tombstones(records) == [("t", 0), ("u", 3), "g"]
    replay(shard, records)
    assert fetch(shard) == []
    with pytest.raises(KafkaError) as refused:
        shard.delete_group("g")
    assert refused.value.code is E.group_id_not_found
    replay(shard, [group_of_consumers(1)])
    with pytest.raises(KafkaError) as refused:
        shard.delete_group("g")
    assert refused.value.code is E.non_empty_group


def test_a_deleted_topics_offsets_go_in_all_groups_but_not_its_namesakes():
    shard = shard_with()
    commit(shard, ("t", 0, 1), ("u", 0, 1), group="g")
    commit(shard, ("t", 5, 1), group="h")
    gone = [shard.delete_topics(group, [(_ID, "t")], limit=100) for group in ("g", "h", "none")]
    assert [tombstones(records) for records in gone] == [[("t", 0)], [("t", 5)], []]
    assert shard.delete_topics("g", [(_OTHER_ID, "t")], limit=100) == []
    assert tombstones(shard.delete_topics("g", [(_ID, "t"), (_ID, "u")], limit=1)) == [("t", 0)]


def at(offset: int, record_offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, commit_timestamp_ms=0, record_offset=record_offset)


def test_offsets_of_a_transaction_count_when_it_commits():
    store, key = OffsetStore(), OffsetAt("g", "t", 0)
    store.put(key, at(1, 10), producer_id=7)
    assert store.is_pending(key)
    assert store.has_pending("g")
    assert store.get(key) is None
    store.end_transaction(7, is_committed=True)
    assert not store.is_pending(key)
    assert store.get(key) == at(1, 10)
    store.put(key, at(2, 11), producer_id=7)
    store.end_transaction(7, is_committed=False)
    assert store.get(key) == at(1, 10)


def test_a_plain_commit_after_the_transactions_takes_precedence():
    store, key = OffsetStore(), OffsetAt("g", "t", 0)
    store.put(key, at(1, 10), producer_id=7)
    store.put(key, at(2, 11))
    store.end_transaction(7, is_committed=True)
    assert store.get(key) == at(2, 11)


# KIP-447
def test_unstable_offsets_are_returned_where_require_stable_is_set():
    shard = shard_with()
    commit(shard, ("t", 0, 1))
    store = shard.offsets
    store.put(OffsetAt("g", "t", 0), at(2, 11), producer_id=7)
    assert fetch(shard, ("t", 0), require_stable=True) == [("t", 0, -1, "", E.unstable_offset_commit)]
    assert fetch(shard, ("t", 0)) == [("t", 0, 1, "", E.none)]
    assert tombstones(expire(shard, now_ms=10 * _RETENTION_MS)) == []
    assert tombstones(shard.delete_group("g")) == [("t", 0), "g"]
    store.remove(OffsetAt("g", "t", 0))
    assert not store.has_pending("g")


def test_a_value_comes_back_as_it_was():
    offset = CommittedOffset(
        offset=1,
        leader_epoch=None,
        metadata="m",
        commit_timestamp_ms=3,
        expire_timestamp_ms=4,
        topic_id=_ID.int,
        record_offset=9,
    )
    assert offset_from_value(offset_value(offset), record_offset=9) == offset


# KIP-518, KIP-1043
def test_list_and_describe():
    shard = shard_with(group_of_consumers(1))
    commit(shard, ("t", 0, 1), group="simple")
    every = frozenset()

    def listed(states=every, types=every):
        return [
            (row.group_id, row.group_state, row.protocol_type) for row in shard.list_groups(states, types)
        ]

    assert listed() == [("g", "Stable", "consumer"), ("simple", "Empty", "")]
    assert listed(frozenset({"stable"})) == [("g", "Stable", "consumer")]
    assert listed(every, frozenset({"classic"})) == listed()
    assert listed(every, frozenset({"consumer"})) == []
    stable = shard.describe("g", version=6)
    assert (stable.group_state, stable.protocol_data, len(stable.members)) == ("Stable", "range", 1)
    assert stable.members[0].member_metadata == _SUBSCRIBED_TO_T
    assert shard.describe("simple", version=6).protocol_type == ""
    assert E(shard.describe("x", version=6).error_code) is E.group_id_not_found
    older = shard.describe("x", version=5)
    assert (older.group_state, E(older.error_code)) == ("Dead", E.none)
