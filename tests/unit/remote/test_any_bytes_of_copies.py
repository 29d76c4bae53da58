"""Whatever bytes a client, a bucket or a disk has: the modules of the remote tier raise their documented errors only."""

from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from remote_support import PARTITION, copy_of, to

from protocol.errors import MalformedMessage
from protocol.records.builder import build_batch, simple_records
from protocol.remote.record_codec import UnknownRemoteLogMetadata
from protocol.remote.records import RemoteLogSegmentState as State
from protocol.remote.records import RemotePartitionDeleteState as DeleteState
from protocol.types import ZERO_UUID
from remote.copied_state import read_epochs, read_snapshot
from remote.errors import RemoteStorageError
from remote.metadata_cache import RemoteLogMetadataCache
from remote.producer_replay import replay_segment
from remote.rebuilding import NotRebuilt, metadata_of
from remote.segment_metadata import RemotePartitionDeleteMetadata
from remote.storage_manager import IndexType
from remote.stores.object_storage import StoredObject, parse_key
from remote.stores.stored_segments import StoredSegment
from remote.topic_metadata import snapshot
from remote.topic_metadata.overview import CopiesOverview
from remote.topic_metadata.records import from_value, to_value
from remote.topic_metadata.snapshot import CorruptSnapshot
from remote.topic_metadata.subscriber import UserPartition
from remote.topic_metadata.topic import Position
from storage.leader_epoch_cache import EpochEntry
from storage.producer_state import ProducerStateManager

METADATA_TOPIC = UUID(int=3)

CHANGES = [
    copy_of(1, 0, 30, (0, 0), (2, 10), custom_metadata=b"key"),
    to(1, State.COPY_SEGMENT_FINISHED, custom_metadata=b""),
    RemotePartitionDeleteMetadata(
        partition=PARTITION, state=DeleteState.DELETE_PARTITION_MARKED, broker_id=1, event_timestamp_ms=5
    ),
]


def mutated(valid: bytes):
    """Bytes that are nearly these: some are replaced, removed or inserted."""

    def mutate(edits):
        data = bytearray(valid)
        for at, removed, inserted in edits:
            at = at % (len(data) + 1)
            data[at : at + removed] = inserted
        return bytes(data)

    edit = st.tuples(st.integers(0, 2**16), st.integers(0, 4), st.binary(max_size=4))
    replaced = st.builds(
        lambda at, byte: (at, 1, bytes([byte])), st.integers(0, 2**16), st.sampled_from([0, 1, 127, 128, 255])
    )
    return st.lists(st.one_of(edit, replaced), max_size=4).map(mutate)


def any_of(*valid: bytes):
    return st.one_of(st.binary(max_size=200), *map(mutated, valid))


@given(any_of(*map(to_value, CHANGES)))
def test_a_record(value):
    cache, overview = UserPartition(PARTITION, metadata_partition=0), CopiesOverview(0)
    try:
        change = from_value(value)
    except (MalformedMessage, UnknownRemoteLogMetadata):
        return
    assert from_value(to_value(change)) == change
    overview.apply(change, offset=0)
    if getattr(change, "partition", None) == PARTITION:
        cache.apply(change, offset=0)
        list(cache.cache.segments())


def cache_with_everything():
    cache = RemoteLogMetadataCache(PARTITION)
    for number, epochs in enumerate([[(0, 0)], [(0, 10), (2, 12)], [(2, 20)], [(2, 25), (3, 28)]], 1):
        cache.add(copy_of(number, epochs[0][1], epochs[0][1] + 10, *epochs, custom_metadata=b"m"))
        if number != 4:
            cache.update(to(number, State.COPY_SEGMENT_FINISHED, custom_metadata=b"new"))
    cache.update(to(1, State.DELETE_SEGMENT_STARTED))
    cache.update(to(1, State.DELETE_SEGMENT_FINISHED))
    return cache


def read_all(cache):
    """Each question that is asked of a cache; and what changes it."""
    epochs = range(-1, 5)
    list(cache.unreferenced())
    list(cache.outside([EpochEntry(1, 0), EpochEntry(2, 15)]))
    for epoch in epochs:
        list(cache.segments(epoch))
        list(cache.referenced(epoch))
        cache.end_offset_for_epoch(epoch)
        cache.next_segment_with_transaction_index(epoch=epoch, offset=0)
        for offset in range(0, 40, 3):
            cache.segment(epoch=epoch, offset=offset)
            cache.covered_until(epoch=epoch, offset=offset)
    found = list(cache.segments())
    for copy in found:
        assert cache.with_id(copy.segment_id.id) is not None
        cache.is_referenced(copy)
    for copy in found:
        for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED):
            with suppress(RemoteStorageError):
                cache.update(replace(to(1, state), segment_id=copy.segment_id))
    cache.to_bytes()


@given(any_of(cache_with_everything().to_bytes()))
def test_the_columns_of_a_cache(data):
    """Its CRC is right: a fault, or the owner of the disk, has written them."""
    user = UserPartition(PARTITION, metadata_partition=0)
    try:
        user.restore(memoryview(data))
    except ValueError:
        return
    read_all(user.cache)


def overview_with_everything():
    overview = CopiesOverview(0)
    for change in (*CHANGES, to(1, State.DELETE_SEGMENT_STARTED)):
        overview.apply(change, offset=0)
    return overview


@given(any_of(overview_with_everything().to_bytes()))
def test_the_columns_of_an_overview(data):
    overview = CopiesOverview(0)
    try:
        overview.restore(memoryview(data))
    except ValueError:
        return
    assert ZERO_UUID not in {each.topic_id for each in overview.partitions}
    for change in CHANGES:
        overview.apply(change, offset=0)
    overview.to_bytes()


@given(
    any_of(
        snapshot.encode(
            UserPartition(PARTITION, metadata_partition=0),
            metadata_topic_id=METADATA_TOPIC,
            position=Position(7, 2),
        )[1]
    )
)
def test_a_snapshot_file(data):
    user = UserPartition(PARTITION, metadata_partition=0)
    try:
        snapshot.restore(user, data, metadata_topic_id=METADATA_TOPIC)
    except CorruptSnapshot:
        return
    assert user.next_offset >= 0


KEY = "t-0-AAAAAAAAAAAAAAAAAAAABw/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAQ.log"


@given(st.one_of(st.text(max_size=120), mutated(KEY.encode()).map(lambda data: data.decode("latin-1"))))
def test_a_name_in_the_store(key):
    found = parse_key(key, 1)
    assert found is None or (found.key == key and ".." not in key.split("/"))


class Objects:
    """A store that has one kind of object with any bytes, for all copies."""

    def __init__(self, contents):
        self.contents = contents

    def fetch_index(self, metadata, index_type):
        return BytesIO(self.contents[index_type])

    def get(self, key, *, start=0, end=None):
        suffix = key.rpartition(".")[2]
        index_type = None if suffix == "log" else IndexType(suffix)
        return BytesIO(self.contents[index_type][start:end])


COPY = copy_of(1, 0, 3, (0, 0))
EPOCHS = b"0\n1\n0 0\n"


@given(any_of(EPOCHS, b"0\n2\n0 0\n1 2\n"))
def test_the_epochs_of_a_copy(data):
    with suppress(RemoteStorageError):
        read_epochs(Objects({IndexType.LEADER_EPOCH: data}), COPY)


@given(any_of(bytes.fromhex("0001") + bytes(8)))
def test_the_producers_of_a_copy(data):
    with suppress(RemoteStorageError):
        read_snapshot(Objects({IndexType.PRODUCER_SNAPSHOT: data}), COPY)


def log_of(count):
    return b"".join(
        build_batch(
            simple_records([(None, b"v%d" % number)], timestamp=1, base_offset=number),
            base_offset=number,
            leader_epoch=0,
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
        )
        for number in range(count)
    )


@given(any_of(log_of(3)))
def test_the_batches_of_a_copy(data):
    producers = ProducerStateManager(producer_id_expiration_ms=lambda: 2**62)
    producers.reset(0)
    with suppress(RemoteStorageError):
        replay_segment(BytesIO(data), producers, end_offset=3, name="a copy")


@given(any_of(log_of(3)), any_of(bytes(8)), any_of((1).to_bytes(8, "big") + bytes(4)), any_of(EPOCHS))
def test_metadata_that_is_rebuilt(log, index, times, epochs):
    contents = {
        None: log,
        IndexType.OFFSET: index,
        IndexType.TIMESTAMP: times,
        IndexType.LEADER_EPOCH: epochs,
        IndexType.PRODUCER_SNAPSHOT: b"",
    }
    segment = StoredSegment(segment_id=COPY.segment_id, start_offset=0)
    for kind, data in contents.items():
        segment.objects[kind] = StoredObject(COPY.segment_id, 0, kind, len(data))
    try:
        copy = metadata_of(segment, Objects(contents), broker_id=1, now_ms=0)
    except (NotRebuilt, RemoteStorageError):
        return
    assert from_value(to_value(copy)) == copy
