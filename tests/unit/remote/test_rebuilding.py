"""Metadata of copies, made from their objects; and what cannot be used (KIP-405)."""

from dataclasses import replace
from struct import pack
from uuid import UUID

import pytest

from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.remote import rebuilding
from ottla.remote.errors import RemoteResourceNotFound
from ottla.remote.rebuilding import (
    NotRebuilt,
    finished,
    is_lost_finish,
    metadata_of,
    without_duplicates,
)
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.stores.object_storage import key_of
from ottla.remote.stores.stored_segments import StoredSegments
from ottla.storage import leader_epoch_cache
from ottla.storage.leader_epoch_cache import EpochEntry

PARTITION = TopicIdPartition(UUID(int=7), TopicPartition("t", 0))
START, RECORDS, BATCHES = 100, 4, 5


def copy_of(number, start, end, *epochs):
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=10,
        leader_epochs=tuple(EpochEntry(*each) for each in epochs) or (EpochEntry(0, start),),
    )


@pytest.fixture
def manager(tmp_path):
    made = LocalDirectory()
    made.configure({"dir": str(tmp_path)})
    made.create()
    return made


class Objects:
    """The objects of a copy of five batches of four records: offsets [100, 120), timestamps 1000 to 5000."""

    def __init__(self) -> None:
        batches = [
            build_batch(
                simple_records(
                    [(None, b"v" * 50)] * RECORDS, timestamp=1000 * (at + 1), base_offset=START + at * RECORDS
                ),
                base_offset=START + at * RECORDS,
                leader_epoch=3,
            )
            for at in range(BATCHES)
        ]
        self.positions = [sum(map(len, batches[:at])) for at in range(BATCHES)]
        epochs = [EpochEntry(1, 0), EpochEntry(2, 90), EpochEntry(3, 108)]
        self.parts: dict[IndexType | None, bytes] = {
            None: b"".join(batches),
            # The third batch, whose last record is 111, and as an index has it: the largest offset and where it begins.
            IndexType.OFFSET: pack(">ii", 11, self.positions[2]),
            IndexType.TIMESTAMP: pack(">qi", 3000, 11),
            IndexType.PRODUCER_SNAPSHOT: b"",
            IndexType.LEADER_EPOCH: leader_epoch_cache.encode(epochs),
        }

    def rebuilt(self, manager):
        copy = copy_of(1, START, START + 1)
        for index_type, data in self.parts.items():
            path = manager.store._root / key_of(copy, index_type)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        [segment] = StoredSegments.of(manager.store.list()).segments.values()
        return metadata_of(segment, manager.store, broker_id=5, now_ms=77)


def test_a_copy(manager):
    found = Objects().rebuilt(manager)
    assert (found.start_offset, found.end_offset) == (100, 120)
    assert found.leader_epochs == (EpochEntry(2, 100), EpochEntry(3, 108))
    assert (found.max_timestamp_ms, found.broker_id, found.event_timestamp_ms) == (5000, 5, 77)
    assert found.segment_size_bytes == len(Objects().parts[None])
    assert found.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    assert found.is_transaction_index_empty
    done = found.updated(finished(found, now_ms=78))
    assert done.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.mark.parametrize("index", [b"", b"\0" * 16], ids=["empty", "zeros"])
def test_a_segment_without_entries_in_its_index_is_read_from_its_start(manager, index):
    objects = Objects()
    objects.parts[IndexType.OFFSET] = index
    assert objects.rebuilt(manager).end_offset == 120


def test_only_the_end_of_a_segment_is_read(manager):
    """Damage before the last entry of the index is not noticed: `verify` does not read records either."""
    objects = Objects()
    log = bytearray(objects.parts[None])
    log[objects.positions[1] + 30] ^= 1
    objects.parts[None] = bytes(log)
    assert objects.rebuilt(manager).end_offset == 120


def test_an_index_is_never_as_large_as_a_store_may_say(manager, monkeypatch):
    """All of it would be read."""
    monkeypatch.setattr(rebuilding, "MAX_INDEX_BYTES", 7)
    with pytest.raises(NotRebuilt, match="its index has 8 bytes, 7 are possible"):
        Objects().rebuilt(manager)


def test_an_object_that_is_deleted_meanwhile_does_not_end_the_rebuilding_of_others(manager, monkeypatch):
    """A broker's retention may delete objects at any time."""

    def gone(key, *, start=0, end=None):
        raise RemoteResourceNotFound(key)

    monkeypatch.setattr(manager.store, "get", gone)
    with pytest.raises(NotRebuilt, match="an object was deleted after it was listed"):
        Objects().rebuilt(manager)


@pytest.mark.parametrize("data", [b"", b"an aborted transaction"])
def test_a_transaction_index(manager, data):
    objects = Objects()
    objects.parts[IndexType.TRANSACTION] = data
    assert objects.rebuilt(manager).is_transaction_index_empty == (not data)


def without(index_type):
    return lambda parts: parts.pop(index_type)


def changed(index_type, data):
    return lambda parts: parts.update({index_type: data})


@pytest.mark.parametrize(("damage", "why"), [
    (without(None),                                           "lacks log"),
    (changed(IndexType.OFFSET, pack(">ii", 11, -1)),          "its index is damaged: it ends with position -1 of"),
    (without(IndexType.PRODUCER_SNAPSHOT),                    "lacks snapshot"),
    (lambda parts: parts.update({None: parts[None][:-1]}),    "ends within a batch at position"),
    (lambda parts: parts.update({None: parts[None][:-1] + b"?"}), "the CRC of a batch is wrong"),
    (lambda parts: parts.update({None: parts[None] + b"xx"}), "its log is damaged at position"),
    (changed(None, b""),                                      "its index is damaged: it ends with position"),
    (changed(IndexType.LEADER_EPOCH, b"0\n1\n"),              "its leader epochs are damaged"),
    (changed(IndexType.LEADER_EPOCH, b"0\n0\n"),              r"its leader epochs have none of \[100, 120\)"),
])  # fmt: skip
def test_what_cannot_be_used(manager, damage, why):
    objects = Objects()
    damage(objects.parts)
    with pytest.raises(NotRebuilt, match=why):
        objects.rebuilt(manager)


@pytest.mark.parametrize(("found", "known", "kept"), [
    ([(1, 0, 10), (2, 10, 20)],                     [],           [1, 2]),
    ([(1, 0, 10), (2, 0, 10)],                      [],           [1]),
    ([(1, 0, 10), (2, 0, 15)],                      [],           [2]),      # the longer one
    ([(1, 0, 10), (2, 5, 15)],                      [],           [1, 2]),   # each has records of its own
    ([(1, 0, 10)],                                  [(9, 0, 10)], []),
    ([(1, 0, 10)],                                  [(9, 0, 5)],  [1]),
    ([(1, 0, 10, (0, 0)), (2, 0, 10, (0, 0), (1, 5))], [],        [1, 2]),   # two branches
    ([(1, 0, 10, (0, 0), (1, 5))],                  [(9, 0, 20, (0, 0), (1, 5))], []),
])  # fmt: skip
def test_duplicates(found, known, kept):
    made = [copy_of(*each) for each in found]
    rebuilt, left_out = without_duplicates(made, [copy_of(*each) for each in known])
    assert sorted(copy.segment_id.id.int for copy in rebuilt) == kept
    assert len(rebuilt) + len(left_out) == len(made)


@pytest.mark.parametrize(("local_start", "known", "is_lost"), [
    (120, [],              True),
    (119, [],              False),  # the leader may copy it again
    (120, [(9, 100, 120)], False),  # or has done so
])  # fmt: skip
def test_a_copy_whose_end_is_not_in_the_metadata(manager, local_start, known, is_lost):
    objects = Objects()
    copy = objects.rebuilt(manager)
    [segment] = StoredSegments.of(manager.store.list()).segments.values()
    others = [
        replace(
            copy,
            segment_id=RemoteLogSegmentId(PARTITION, UUID(int=number)),
            start_offset=start,
            end_offset=end,
        )
        for number, start, end in known
    ]
    found = is_lost_finish(copy, segment, local_log_start_offset=local_start, others=others)
    assert found == is_lost
    assert not is_lost_finish(copy, None, local_log_start_offset=local_start, others=others)
    del segment.objects[IndexType.OFFSET]
    assert not is_lost_finish(copy, segment, local_log_start_offset=local_start, others=others)
