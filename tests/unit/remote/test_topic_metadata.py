"""Records of `__remote_log_metadata`, its partitions, and snapshots of caches."""

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_support import PARTITION, copy_of, to

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.remote.record_codec import decode, encode
from ottla.protocol.remote.records import RemoteLogSegmentMetadataSnapshotRecord, SegmentLeaderEpochEntry
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.remote.records import RemotePartitionDeleteState as DeleteState
from ottla.protocol.types import TopicPartition
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemotePartitionDeleteMetadata, TopicIdPartition
from ottla.remote.topic_metadata import snapshot, subscriptions
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.records import from_value, to_value
from ottla.remote.topic_metadata.snapshot import CorruptSnapshot
from ottla.remote.topic_metadata.subscriber import UserPartition
from ottla.remote.topic_metadata.topic import Position
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.files import Files


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
        encode(RemoteLogSegmentMetadataSnapshotRecord(start_offset=0, end_offset=9)),
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
        (5, 9, [(0, 4), (1, 7)]),
        (0, 9, [(-1, 0)]),
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


def test_a_copy_of_negative_size_is_malformed():
    """Its size would be subtracted from that of the partition's copies, and retention would keep too many."""
    record = decode(to_value(copy_of(1, 0, 10)))
    record.segment_size_in_bytes = -1
    with pytest.raises(MalformedMessage, match="-1 bytes"):
        from_value(encode(record))


@pytest.mark.parametrize(
    ("name", "topic_id", "number"),
    [
        ("../../x", UUID(int=7), 0),
        ("..", UUID(int=7), 0),
        ("a/b", UUID(int=7), 0),
        ("", UUID(int=7), 0),
        ("a\0b", UUID(int=7), 0),
        ("a" * 250, UUID(int=7), 0),
        ("t", UUID(int=0), 0),
        ("t", UUID(int=7), -1),
    ],
)
@pytest.mark.parametrize("kind", ["copy", "update", "deletion"])
def test_a_partition_that_cannot_exist_is_malformed(kind, name, topic_id, number):
    """Stores make names of objects from it: `../../x` would be a file outside of the tier."""
    partition = TopicIdPartition(topic_id, TopicPartition(name, number))
    segment_id = RemoteLogSegmentId(partition, UUID(int=1))
    change = {
        "copy": replace(copy_of(1, 0, 10), segment_id=segment_id),
        "update": replace(to(1, State.COPY_SEGMENT_FINISHED), segment_id=segment_id),
        "deletion": replace(deletion(DeleteState.DELETE_PARTITION_MARKED), partition=partition),
    }[kind]
    with pytest.raises(MalformedMessage):
        from_value(to_value(change))


def cache_with_history(seed):
    random = Random(seed)
    cache = RemoteLogMetadataCache(PARTITION)
    for number in range(random.randrange(1, 20)):
        start = random.randrange(50)
        middle, end = start + random.randrange(1, 10), start + random.randrange(10, 20)
        epochs = random.choice([(), ((0, start), (1, middle)), ((2, start),)])
        custom_metadata = random.choice([None, b"k", b"", b"key"])
        cache.add(copy_of(number + 1, start, end, *epochs, custom_metadata=custom_metadata))
        for state in (
            State.COPY_SEGMENT_FINISHED,
            State.DELETE_SEGMENT_STARTED,
            State.DELETE_SEGMENT_FINISHED,
        ):
            if random.random() < 0.3:
                break
            cache.update(to(number + 1, state, custom_metadata=custom_metadata))
    return cache


def everything(cache):
    """All that the cache answers."""
    epochs = range(4)
    return (
        list(cache.segments()),
        [list(cache.referenced(epoch)) for epoch in epochs],
        list(cache.unreferenced()),
        [(cache.end_offset_for_epoch(epoch), cache.size_bytes(epoch)) for epoch in epochs],
        [cache.removed_until(epoch) for epoch in epochs],
        [cache.segment(epoch=epoch, offset=each) for epoch in epochs for each in range(70)],
        cache.finished_bytes,
        len(cache),
    )


METADATA_TOPIC = UUID(int=3)
FILE = "snapshot"


def subscriber_of(cache=None, *, partition=PARTITION, number=7):
    found = UserPartition(partition, metadata_partition=number)
    if cache is not None:
        found.cache = cache
    return found


def encoded(cache, *, next_offset=4711):
    return snapshot.encode(
        subscriber_of(cache), metadata_topic_id=METADATA_TOPIC, position=Position(next_offset, 6)
    )


def restored(data, *, metadata_topic=METADATA_TOPIC, **fields):
    found = subscriber_of(**fields)
    header = snapshot.restore(found, data, metadata_topic_id=metadata_topic)
    assert (found.next_offset, found.last_epoch) == (header.next_offset, header.last_epoch)
    return header, found.cache


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_restores_the_cache(seed, tmp_path):
    """Later changes have the same effect on the restored cache."""
    written = cache_with_history(seed)
    header, data = encoded(written)
    snapshot.write(tmp_path / FILE, data, Files())
    found_header, found = restored(snapshot.read(tmp_path / FILE, Files()))
    assert found_header == header
    assert everything(found) == everything(written)
    for number in (50, 51):
        for cache in (found, written):
            cache.add(copy_of(number, 60, 70, (2, 60), (3, 65)))
            cache.update(to(number, State.COPY_SEGMENT_FINISHED, custom_metadata=b"new"))
    for each in list(written.segments()):
        for cache in (found, written):
            if each.state is not State.DELETE_SEGMENT_STARTED:
                cache.update(to(each.segment_id.id.int, State.DELETE_SEGMENT_STARTED))
    assert everything(found) == everything(written)


def test_the_header_of_a_snapshot_is_replaced(tmp_path):
    cache = cache_with_history(1)
    header, data = encoded(cache, next_offset=5)
    snapshot.write(tmp_path / FILE, data, Files())
    later = replace(header, next_offset=99, last_epoch=7)
    snapshot.write_header(tmp_path / FILE, later, Files())
    found_header, found = restored(snapshot.read(tmp_path / FILE, Files()))
    assert found_header == later
    assert everything(found) == everything(cache)


def test_no_snapshot(tmp_path):
    assert snapshot.read(tmp_path / FILE, Files()) is None
    with pytest.raises(FileNotFoundError):
        snapshot.write_header(tmp_path / FILE, encoded(cache_with_history(1))[0], Files())


@given(st.data())
def test_a_damaged_snapshot_is_refused(data):
    _, whole = encoded(cache_with_history(3))
    damaged = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        restored(bytes(damaged))
    with pytest.raises(CorruptSnapshot):
        restored(whole[:at])


@given(st.data())
def test_columns_that_lie_are_refused(data):
    """A program error would write such columns with a correct CRC."""
    columns = bytearray(cache_with_history(3).to_bytes())
    at = data.draw(st.integers(0, len(columns) - 1))
    columns[at:] = columns[at + data.draw(st.integers(1, 40)) :]
    with pytest.raises(ValueError, match=r"column|bytes|integers|argument"):
        RemoteLogMetadataCache.from_bytes(PARTITION, memoryview(bytes(columns)))


def test_a_sum_of_sizes_that_is_not_that_of_the_copies_is_refused():
    """Retention by size would delete too much by it, or nothing."""
    cache = cache_with_history(3)
    cache._finished_bytes += 1
    with pytest.raises(ValueError, match="finished copies"):
        RemoteLogMetadataCache.from_bytes(PARTITION, memoryview(cache.to_bytes()))


@pytest.mark.parametrize(
    "other",
    [
        {"partition": TopicIdPartition(UUID(int=8), PARTITION.topic_partition)},
        {"metadata_topic": UUID(int=4)},
        {"number": 8},
    ],
)
def test_a_snapshot_of_something_else_is_refused(other):
    with pytest.raises(CorruptSnapshot, match="of metadata topic"):
        restored(encoded(cache_with_history(1))[1], **other)


def test_committed_offsets_have_kafkas_format(tmp_path):
    assert subscriptions.read_committed_offsets(tmp_path, Files()) == {}
    subscriptions.write_committed_offsets(tmp_path, {11: 5, 3: 4711}, Files())
    assert (tmp_path / "_rlmm_committed_offsets").read_text() == "0\n2\n3 4711\n11 5\n"
    assert subscriptions.read_committed_offsets(tmp_path, Files()) == {3: 4711, 11: 5}
    (tmp_path / "_rlmm_committed_offsets").write_text("0\n1\n3 -4\n")
    with pytest.raises(CorruptCheckpoint):
        subscriptions.read_committed_offsets(tmp_path, Files())
