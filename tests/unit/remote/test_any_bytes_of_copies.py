"""The modules of the remote tier raise their documented errors only, whatever bytes a client, a bucket or a
disk has."""

from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from remote_support import PARTITION, copy_of, to

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.remote.record_codec import UnknownRemoteLogMetadata
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.remote.records import RemotePartitionDeleteState as DeleteState
from ottla.remote.errors import RemoteStorageError
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.producer_replay import replay_segment
from ottla.remote.segment_metadata import RemotePartitionDeleteMetadata
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.records import from_value, to_value
from ottla.remote.topic_metadata.subscriber import UserPartition
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.producer_state import ProducerStateManager

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
