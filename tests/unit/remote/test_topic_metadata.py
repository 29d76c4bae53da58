"""Records of `__remote_log_metadata`, its partitions, and snapshots of caches."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_support import PARTITION, copy_of, to

from protocol.errors import MalformedMessage
from protocol.remote.record_codec import decode, encode
from protocol.remote.records import RemoteLogSegmentState as State
from protocol.remote.records import RemotePartitionDeleteState as DeleteState
from protocol.remote.records import SegmentLeaderEpochEntry
from protocol.types import TopicPartition
from remote.metadata_cache import RemoteLogMetadataCache
from remote.segment_metadata import RemotePartitionDeleteMetadata, TopicIdPartition
from remote.topic_metadata import snapshot
from remote.topic_metadata.partitioner import metadata_partition
from remote.topic_metadata.records import from_value, to_snapshot_record, to_value
from remote.topic_metadata.snapshot import CorruptSnapshot, Snapshot
from storage.files import Files


def deletion(state):
    return RemotePartitionDeleteMetadata(partition=PARTITION, state=state, broker_id=1, event_timestamp_ms=5)


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"),
    [  # computed by Kafka 4.3.1's RemoteLogMetadataTopicPartitioner
        ("cd613e30-d8f1-6adf-91b7-584a2265b1f5", 97, 0),
        ("7ed4d57b-1e2f-eb89-414c-343c1027c4d1", 97, 19),
        ("612e7696-a6ce-cc1b-78e5-10617311d8a3", 26, 29),
        ("e4b06ce6-0741-c7a8-7ce4-2c8218072e8c", 49, 26),
        ("c4647159-c324-c985-9b81-0e766ec9d286", 0, 5),
        ("b8b6d8fe-442e-3d43-7204-e52db2221a58", 29, 10),
    ],
)
def test_the_metadata_partition_is_kafkas(topic_id, partition, expected):
    user = TopicIdPartition(UUID(topic_id), TopicPartition("any", partition))
    assert metadata_partition(user, partition_count=50) == expected


@pytest.mark.parametrize(
    "change",
    [
        copy_of(1, 0, 30, (0, 0), (2, 10), custom_metadata=b"key", is_transaction_index_empty=True),
        to(1, State.COPY_SEGMENT_FINISHED, custom_metadata=b""),
        to(1, State.DELETE_SEGMENT_STARTED),
        deletion(DeleteState.DELETE_PARTITION_MARKED),
    ],
)
def test_a_change_survives_the_topic(change):
    assert from_value(to_value(change)) == change


@pytest.mark.parametrize(
    "value",
    [
        encode(to_snapshot_record(copy_of(1, 0, 10))),
        to_value(to(1, State.COPY_SEGMENT_FINISHED))[:-3] + b"\x09\x00",  # state 9
        b"",
        None,
    ],
)
def test_a_record_that_means_nothing_is_malformed(value):
    with pytest.raises(MalformedMessage):
        from_value(value)


@pytest.mark.parametrize(
    ("start", "last", "epochs"),
    [
        (5, 4, [(0, 5)]),
        (-1, 4, [(0, 0)]),
        (0, 2**63 - 1, [(0, 0)]),
        (0, 9, []),
        (0, 9, [(0, 0), (1, 10)]),
        (0, 9, [(0, 5), (1, 0)]),
        (0, 9, [(0, 0), (0, 5)]),
    ],
)
def test_a_copy_with_impossible_offsets_is_malformed(start, last, epochs):
    record = decode(to_value(copy_of(1, 0, 10)))
    record.start_offset, record.end_offset = start, last
    record.segment_leader_epochs = [
        SegmentLeaderEpochEntry(leader_epoch=epoch, offset=at) for epoch, at in epochs
    ]
    with pytest.raises(MalformedMessage):
        from_value(encode(record))


def snapshot_of(seed):
    random = Random(seed)
    cache = RemoteLogMetadataCache(PARTITION)
    for number in range(random.randrange(1, 20)):
        start = random.randrange(50)
        cache.add(
            copy_of(
                number + 1,
                start,
                start + random.randrange(1, 20),
                custom_metadata=random.choice([None, b"k"]),
            )
        )
        for state in (
            State.COPY_SEGMENT_FINISHED,
            State.DELETE_SEGMENT_STARTED,
            State.DELETE_SEGMENT_FINISHED,
        ):
            if random.random() < 0.3:
                break
            cache.update(to(number + 1, state, custom_metadata=b"c"))
    return Snapshot(cache=cache, metadata_partition=7, next_offset=4711)


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_restores_the_cache(seed, tmp_path):
    written = snapshot_of(seed)
    snapshot.write(tmp_path, PARTITION, written, Files())
    found = snapshot.read(tmp_path, PARTITION, Files())
    assert (found.metadata_partition, found.next_offset) == (7, 4711)
    assert list(found.cache.segments()) == list(written.cache.segments())
    assert found.cache.epoch_ends == written.cache.epoch_ends
    assert found.cache.finished_bytes == written.cache.finished_bytes
    assert [found.cache.segment(epoch=0, offset=each) for each in range(70)] == [
        written.cache.segment(epoch=0, offset=each) for each in range(70)
    ]


def test_no_snapshot(tmp_path):
    assert snapshot.read(tmp_path, PARTITION, Files()) is None


@given(st.data())
def test_a_damaged_snapshot_is_refused(data):
    whole = snapshot.to_bytes(PARTITION, snapshot_of(3))
    damaged = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        snapshot.from_bytes(PARTITION, bytes(damaged))
    with pytest.raises(CorruptSnapshot):
        snapshot.from_bytes(PARTITION, whole[:at])


def test_the_snapshot_of_another_topic_is_refused():
    other = TopicIdPartition(UUID(int=8), PARTITION.topic_partition)
    with pytest.raises(CorruptSnapshot, match="topic id"):
        snapshot.from_bytes(other, snapshot.to_bytes(PARTITION, snapshot_of(1)))
