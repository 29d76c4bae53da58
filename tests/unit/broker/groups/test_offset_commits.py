"""The offsets of one OffsetCommit: its records and its committed offsets are those of each row for itself."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.offset_commits import OffsetCommits, TopicCommit
from ottla.broker.groups.offsets import OffsetAt, OffsetStore, offset_from_value
from ottla.protocol.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.coordinator.record_codec import GroupRecord, encode, offset_encoder
from ottla.protocol.messages.offset_commit import OffsetCommitRequestPartition
from ottla.protocol.types import ZERO_UUID

_INT32, _INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_ROWS = st.builds(
    OffsetCommitRequestPartition,
    partition_index=_INT32,
    committed_offset=_INT64,
    committed_leader_epoch=st.just(-1) | _INT32,
    committed_metadata=st.none() | st.sampled_from(["", "m", "ä"]) | st.text(max_size=200),
)
_TOPICS = st.builds(
    TopicCommit,
    name=st.sampled_from("tu"),
    topic_id=st.sampled_from([ZERO_UUID, UUID(int=7), UUID(int=2**127)]),
    rows=st.lists(_ROWS, min_size=1, max_size=5),
)
_COMMITS = st.builds(
    OffsetCommits,
    group_id=st.text(max_size=5),
    commit_timestamp_ms=_INT64,
    expire_timestamp_ms=st.just(-1) | _INT64,
    topics=st.lists(_TOPICS, max_size=4),
)


def records_of(commits: OffsetCommits) -> list[tuple[OffsetCommitKey, OffsetCommitValue]]:
    """The records of a commit, one for each row."""
    return [
        (
            OffsetCommitKey(group=commits.group_id, topic=topic.name, partition=row.partition_index),
            OffsetCommitValue(
                offset=row.committed_offset,
                leader_epoch=row.committed_leader_epoch,
                metadata=row.committed_metadata or "",
                commit_timestamp=commits.commit_timestamp_ms,
                expire_timestamp=commits.expire_timestamp_ms,
                topic_id=topic.topic_id,
            ),
        )
        for topic in commits.topics
        for row in topic.rows
    ]


@given(_COMMITS)
def test_the_records_are_those_of_each_row(commits: OffsetCommits):
    records = [GroupRecord(key, value) for key, value in records_of(commits)]
    assert commits.encoded() == [encode(record) for record in records]
    assert len(commits) == len(records)


@given(_COMMITS, st.integers(0, 2**40))
def test_the_committed_offsets_are_those_of_the_records(commits: OffsetCommits, first_offset: int):
    store, expected = OffsetStore(), OffsetStore()
    for topic, offsets in commits.committed(first_offset):
        store.put_all(commits.group_id, topic, offsets)
    for record_offset, (key, value) in enumerate(records_of(commits), start=first_offset):
        at = OffsetAt(key.group, key.topic, key.partition)
        expected.put(at, offset_from_value(value, record_offset=record_offset))
    assert store.group_ids == expected.group_ids
    assert store.of_group(commits.group_id) == expected.of_group(commits.group_id)


@pytest.mark.parametrize("expire_timestamp", [-1, 5])
@pytest.mark.parametrize("row", [(2**31, 0, 0, ""), (0, 2**63, 0, ""), (0, 0, 0, "m" * 40_000)])
def test_what_does_not_fit_into_a_record_is_a_value_error(
    expire_timestamp: int, row: tuple[int, int, int, str]
):
    encoder = offset_encoder("g", "t", OffsetCommitValue(expire_timestamp=expire_timestamp))
    encoder(0, 0, 0, "")
    with pytest.raises(ValueError, match=r"cannot be written|bytes"):
        encoder(*row)
