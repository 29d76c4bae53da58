"""The copy from which a follower reads leader epochs and producer state, and its parts that are read
(KIP-405)."""

from io import BytesIO
from random import Random

import pytest
from remote_support import copy_of

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.control import ControlRecordType, control_key
from ottla.remote.auxiliary_state import Found, Unconfirmed, choose
from ottla.remote.errors import RemoteStorageError
from ottla.remote.producer_replay import replay_segment
from ottla.storage import file_names, producer_snapshot
from ottla.storage.appending import AppendOrigin
from ottla.storage.producer_state import ProducerStateManager
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

ALIGNED = copy_of(1, 80, 100, (2, 80))
LATER = copy_of(2, 90, 120, (2, 90), (3, 110))
LATEST = copy_of(3, 95, 130, (2, 95), (4, 105))


@pytest.mark.parametrize(("copies", "leader_ends", "chosen"), [
    # The leader's local log starts at 100, and offset 99 is of epoch 2.
    ((),                     {},                  None),
    ((ALIGNED,),             {},                  Found(copy=ALIGNED, offset=100)),
    ((LATER, ALIGNED),       {},                  Found(copy=ALIGNED, offset=100)),
    ((LATER,),               {},                  Unconfirmed(epoch=3)),
    ((LATER,),               {3: 120},            Found(copy=LATER, offset=120)),
    ((LATER,),               {3: 500},            Found(copy=LATER, offset=120)),
    ((LATER,),               {3: 119},            None),   # the leader has other records at 119
    ((LATER,),               {3: None},           None),   # it has no records of epoch 3
    ((LATER, LATEST),        {3: None},           Unconfirmed(epoch=4)),
    ((LATER, LATEST),        {3: None, 4: 130},   Found(copy=LATEST, offset=130)),
    ((LATER, LATEST),        {3: None, 4: None},  None),
])  # fmt: skip
def test_a_copy_is_part_of_the_leaders_log_up_to_its_end(copies, leader_ends, chosen):
    assert choose(copies, end_offset=100, leader_ends=leader_ends) == chosen


# -- the producer state within a copy --------------------------------------------------------------------


class Stream(BytesIO):
    """A store's body, which arrives in pieces of any size."""

    def __init__(self, data: bytes, random: Random) -> None:
        super().__init__(data)
        self._random = random

    def read(self, size: int = -1, /) -> bytes:
        return super().read(min(size, self._random.choice((1, 7, 61, 1000))))


@pytest.fixture
def segment(tmp_path):
    """The bytes of a segment from offset 10 on, and the producer snapshot at the end of each batch."""
    log = open_log(tmp_path / "t-0", config=LogConfig())
    log.truncate_fully_and_start_at(10, now_ms=NOW_MS)
    snapshots = {10: producer_snapshot.encode({})}

    def append(data: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW_MS, origin=origin)
        snapshots[log.log_end_offset] = producer_snapshot.encode(log.producers.producers)

    producer = {"producer_id": 7, "producer_epoch": 0}
    transactional = {"producer_id": 8, "producer_epoch": 2, "is_transactional": True}
    append(batch(3))
    append(batch(2, base_sequence=0, **producer))
    append(batch(base_sequence=0, **transactional))
    append(batch(base_sequence=2, **producer))
    append(batch(2, base_sequence=1, **transactional))
    append(marker(producer_id=8, epoch=2, commit=False), AppendOrigin.COORDINATOR)
    append(batch(base_sequence=3, **transactional))
    append(batch(300))
    yield log.segments.active.path_of(file_names.LOG).read_bytes(), snapshots
    log.close()


def producers_from(snapshot: bytes, offset: int) -> ProducerStateManager:
    producers = ProducerStateManager(producer_id_expiration_ms=lambda: 2**62)
    producers.load(producer_snapshot.decode(snapshot), offset=offset, now_ms=NOW_MS)
    return producers


def test_the_state_at_each_batch_is_an_earlier_one_and_the_batches_since(segment):
    data, snapshots = segment
    assert len(set(snapshots.values())) > 5
    for start, snapshot in snapshots.items():
        for end, expected in snapshots.items():
            if end < start or end == 10:
                continue
            producers = producers_from(snapshot, start)
            replay_segment(Stream(data, Random(end)), producers, end_offset=end, name="copy")
            assert producer_snapshot.encode(producers.producers) == expected, (start, end)


def garbage(data: bytes) -> bytes:
    return b"x" * len(data)


def cut(data: bytes) -> bytes:
    return data[:700]


def damaged_marker(data: bytes) -> bytes:
    at = data.index(control_key(ControlRecordType.ABORT))
    return data[: at + 1] + b"\x07" + data[at + 2 :]


def twice(data: bytes) -> bytes:
    first = read_header(data).size_bytes
    return data[:first] + data


@pytest.mark.parametrize("damage", [garbage, cut, damaged_marker, twice])
def test_what_is_not_the_segment_is_refused(segment, damage):
    data, snapshots = segment
    damaged = damage(data)
    assert damaged != data
    with pytest.raises(RemoteStorageError):
        replay_segment(
            Stream(damaged, Random(1)),
            producers_from(snapshots[10], 10),
            end_offset=max(snapshots),
            name="copy",
        )


def test_an_offset_within_a_batch_is_refused(segment):
    data, snapshots = segment
    with pytest.raises(RemoteStorageError):
        replay_segment(Stream(data, Random(1)), producers_from(snapshots[10], 10), end_offset=12, name="copy")
