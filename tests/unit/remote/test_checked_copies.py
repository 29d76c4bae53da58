"""A damaged segment is not copied, and what is damaged in the store is found (KIP-405)."""

import asyncio
import errno

import pytest
from one_leader_support import FINISHED, OneLeader

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.checked_copies import CheckedCopies, check_batches, check_stored, problem_of
from ottla.remote.errors import DamagedSegment
from ottla.remote.storage_manager import IndexType, LogSegmentData
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.testing import read
from ottla.runtime.simulated import Simulation
from ottla.storage.files import Files
from ottla.storage.index import TimeIndex
from tests.harness.bombs import MANY, understated_batch
from tests.unit.remote.remote_support import copy_of
from tests.unit.storage.storage_support import batch

STARTED = State.COPY_SEGMENT_STARTED


def segment(*sizes):
    """Batches of one record each from offset 0 on."""
    data = b""
    for offset, size in enumerate(sizes):
        one = batch(value=b"x" * size)
        one[:8] = offset.to_bytes(8)
        data += one
    return data


SMALL = segment(100, 100, 100)
SIZE = len(SMALL) // 3


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def damage_of(data, *, size=None):
    """The message about the segment, whose metadata has `size`; None: it is sound."""
    copy = copy_of(1, 0, 3)
    object.__setattr__(copy, "segment_size_bytes", len(data) if size is None else size)
    try:
        check_batches(copy, lambda count, at: data[at : at + count], of="f.log")
    except DamagedSegment as error:
        return str(error)
    return None


def test_sound_segments():
    assert damage_of(SMALL) is None
    assert damage_of(segment(100, 3_000_000, 2_000_000)) is None  # larger than a piece
    assert damage_of(b"") is None


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (flipped(SMALL, 70), 0),
        (flipped(SMALL, SIZE + 70), 1),
        (flipped(SMALL, 2 * SIZE - 1), 1),
        (flipped(SMALL, 2 * SIZE + 16), 2),  # the magic
        (flipped(SMALL, 2 * SIZE + 8), 2),  # the length
        (flipped(SMALL, 2 * SIZE + 11), 2),
        (flipped(SMALL, 2 * SIZE + 6), 2),  # the base offset
        (SMALL[:-1], 2),
        (SMALL[: 2 * SIZE + 20], 2),
        (SMALL[:SIZE] + SMALL[:SIZE], 1),  # offsets that do not grow
        (segment(100, 3_000_000)[:-9], 1),
        (b"\0" * 500, 0),
    ],
)
def test_damage_is_found_with_its_offset(data, offset):
    assert f"f.log is damaged from offset {offset} on" in damage_of(data)


def test_a_file_that_ends_early():
    assert "ends at" in damage_of(SMALL, size=len(SMALL) + 100)


def test_the_stores_bytes_are_checked(tmp_path):
    store = LocalDirectory()
    store.configure({"dir": str(tmp_path / "tier")})
    store.create()
    (tmp_path / "f").write_bytes(SMALL)
    copy = copy_of(1, 0, 3)
    object.__setattr__(copy, "segment_size_bytes", len(SMALL))
    some = tmp_path / "f"
    data = LogSegmentData(
        log_segment=some, offset_index=some, time_index=some, transaction_index=None, producer_snapshot=some,
        leader_epoch_index=b"",
    )  # fmt: skip
    checked = CheckedCopies(store, Files())
    checked.copy_log_segment_data(copy, data)
    check_stored(checked, copy)
    assert problem_of(store, copy) is None
    (path,) = (tmp_path / "tier").rglob("*.log")
    path.write_bytes(flipped(SMALL, SIZE + 70))
    assert "from offset 1 on" in problem_of(store, copy)
    path.unlink()
    assert "No such file" in problem_of(store, copy)
    some.write_bytes(flipped(SMALL, 70))
    with pytest.raises(DamagedSegment, match="from offset 0 on"):
        checked.copy_log_segment_data(copy, data)
    assert not list((tmp_path / "tier").rglob("*.log"))


@pytest.mark.parametrize("claimed_ms", [60, 5000])
def test_a_copy_has_the_times_of_its_records(tmp_path, claimed_ms):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        now_ms = leader.broker.runtime.now_ms()
        sent = understated_batch(base_ms=now_ms, last_ms=now_ms + 5000, claimed_ms=now_ms + claimed_ms)
        leader.partition.as_leader().append_records(memoryview(sent), required_acks=1, now_ms=now_ms)
        leader.log.roll(now_ms)
        names = set(leader.broker.files.list(leader.log.directory))
        await asyncio.sleep(60)
        (copy,) = leader.tier.copies()
        assert (copy.state, copy.max_timestamp_ms) == (FINISHED, now_ms + 5000)
        index = read(leader.tier.store.fetch_index(copy, IndexType.TIMESTAMP))
        assert index == TimeIndex.ENTRY.pack(now_ms + 5000, MANY - 1)
        assert set(leader.broker.files.list(leader.log.directory)) == names, "nothing is left"

    with Simulation(seed=1) as simulation:
        simulation.run(story())


def damage(leader, base_offset):
    path = leader.log.directory / f"{base_offset:020}.log"
    files = leader.broker.files
    fd = files.open(path, write=True)
    data = files.read(path)
    files.pwrite(fd, flipped(data, len(data) - 2), 0)
    files.close(fd)
    return path


def errors(caplog):
    return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.logs("has failed, the next attempt")
def test_a_damaged_segment_is_not_copied_and_is_one_error_however_often_it_is_read(tmp_path, caplog):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.write_segment("a")
        await asyncio.sleep(10)
        leader.alter(remote_log_copy_disable="true")
        for value in "bcd":
            leader.write_segment(value)
        path = damage(leader, 1)
        leader.alter(remote_log_copy_disable="false")
        await asyncio.sleep(600)
        assert leader.copies() == [(0, 1, FINISHED), (1, 2, STARTED)]  # one record, not one of each attempt
        assert len(leader.tier.objects()) == 1
        (error,) = errors(caplog)
        assert str(path) in error
        assert "from offset 1 on" in error
        # The longest back-off is 30 s.
        assert 16 <= leader.own.metrics.topic("orders").remote_copy_errors <= 25
        leader.log.apply_retention(leader.broker.runtime.now_ms())
        assert leader.log.local_log_start_offset <= 1
        # DeleteRecords: what is behind is copied.
        leader.log.maybe_increment_log_start_offset(2)
        await asyncio.sleep(120)
        assert [start for start, _, state in leader.copies() if state is FINISHED][-2:] == [2, 3]
        assert len(errors(caplog)) == 1

    with Simulation(seed=1) as simulation:
        simulation.run(story())


class UnreliableReads:
    """Files of which the first `count` reads of segments fail, or return other bytes than the disk has."""

    def __init__(self, files, fault, *, count):
        self._files = files
        self._fault = fault
        self.left = count

    def __getattr__(self, name):
        return getattr(self._files, name)

    def pread(self, fd, size, position):
        data = self._files.pread(fd, size, position)
        if not self.left:
            return data
        self.left -= 1
        return self._fault(data)


def fails(data):
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.logs("has failed, the next attempt")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "fault", [fails, lambda data: flipped(data, 65), lambda data: b""], ids=["EIO", "other bytes", "no bytes"]
)
def test_a_segment_that_reads_well_again_is_copied_and_what_is_behind_it(tmp_path, caplog, fault, count):
    """There is one replica, so that nothing else ends the stop: no other leader has a sound segment."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        files = UnreliableReads(leader.broker.files, fault, count=count)
        leader.own.checked._files = files
        leader.write_segment("a")
        leader.write_segment("b")
        await asyncio.sleep(count * 36 + 1)
        assert files.left == 0
        assert leader.copies() == [(0, 1, FINISHED), (1, 2, FINISHED)]
        assert leader.tier.unknown_objects() == set()
        assert leader.own.metrics.topic("orders").remote_copy_errors == count
        assert len([each for each in caplog.records if "the next attempt is in" in each.getMessage()]) == 1

    with Simulation(seed=1) as simulation:
        simulation.run(story())
