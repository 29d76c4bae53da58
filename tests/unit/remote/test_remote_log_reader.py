"""Reads of the remote tier are the same as those of a log that has everything locally (KIP-405, KIP-1058, KIP-1075)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_support import NOW_MS, STEPS, TieredTwins, found_end, offsets_of, play, read_twin, values_of

from ottla.protocol.errors import OffsetOutOfRange
from ottla.remote.errors import RemoteStorageError
from ottla.remote.reading.chunk import CorruptCopy
from ottla.remote.reading.copy_reader import CopyReader
from ottla.remote.storage_manager import IndexType
from ottla.runtime.simulated import Simulation
from tests.harness.faulty_store import Fault, flipped, from_elsewhere, refuse, truncated


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


@pytest.fixture
def twins(simulation, tmp_path):
    twins = TieredTwins(tmp_path, simulation.runtime("broker"))
    simulation.run(twins.cache.start())
    yield twins
    twins.close()


def read(simulation, twins, offset, *, max_bytes=200, is_read_committed=False, **others):
    return simulation.run(
        twins.reader.read(
            twins.partition, offset, max_bytes=max_bytes, is_read_committed=is_read_committed, **others
        )
    )


def fill(twins, count=12):
    for number in range(count):
        twins.producer.append(timestamp=NOW_MS + number)
    twins.producer.roll()
    twins.producer.append()


def test_each_offset_is_found_in_its_copy(simulation, twins):
    fill(twins)
    twins.offload(12)
    assert twins.log.local_log_start_offset == 12
    for offset in range(12):
        chunk = read(simulation, twins, offset)
        found = chunk.read(offset, max_bytes=10**6, max_offset=10**6, min_one_message=True)
        local = twins.twin.reader.read(offset, max_bytes=10**6, max_offset=chunk.end_offset).records
        assert bytes(found.records) == bytes(local)[: len(found.records)]
        assert found.base_offset == offset
        assert len(found.records) <= 200 or chunk.end_offset == offset + 1


def test_a_read_does_not_fetch_more_than_it_was_asked_for(simulation, twins):
    fill(twins, 3)
    (copy, *_) = twins.offload(3)
    read(simulation, twins, 0, max_bytes=1)
    (call,) = [call for call in twins.store.calls if call.operation == "segment"]
    assert call.end - call.start < copy.segment_size_bytes / 2


def test_the_index_is_fetched_once(simulation, twins):
    fill(twins, 3)
    twins.offload(3)
    for offset in (0, 1, 2, 0):
        read(simulation, twins, offset)
    assert twins.store.count("index") == 1
    assert twins.store.count("timeindex") == twins.store.count("txnindex") == 0


def test_a_batch_larger_than_the_limit_is_read_whole(simulation, twins):
    """KIP-74: the first batch is returned even if it is larger than every limit."""
    twins.producer.append(value=b"y" * 300)
    twins.producer.append()
    twins.producer.roll()
    twins.offload(2)
    chunk = read(simulation, twins, 0, max_bytes=10)
    found = chunk.read(0, max_bytes=10, max_offset=2, min_one_message=True)
    assert values_of(found.records)[0][2] == b"y" * 300
    assert not chunk.read(0, max_bytes=10, max_offset=2, min_one_message=False).records


def longer(body):
    """The first batch claims to be 20 bytes longer than it is."""
    return body[:8] + (int.from_bytes(body[8:12]) + 20).to_bytes(4) + body[12:]


@pytest.mark.parametrize("has_index", [True, False])
def test_no_memory_is_taken_for_a_length_that_no_batch_can_have(simulation, twins, has_index):
    """A wrong length may reach to the end of the segment: it is refused before so much is requested."""
    twins.producer.append(value=b"y" * 100)
    twins.producer.append(value=b"z" * 100)
    twins.producer.roll()
    (copy,) = twins.offload(2)
    size = copy.segment_size_bytes // 2
    twins.store.faults.append(Fault("segment", longer, times=9))
    reads = CopyReader(twins.store, twins.cache.files, max_batch_bytes=size + 10)

    async def main():
        async with twins.cache.use(copy, IndexType.OFFSET) as path:
            return reads.read(
                copy, path if has_index else None, offset=0, end_offset=2, continuation=None, max_bytes=100
            )

    limit = size if has_index else size + 10
    with pytest.raises(CorruptCopy, match=f"has {size + 20} bytes, where at most {limit} are possible"):
        simulation.run(main())
    assert all(call.end - call.start <= size for call in twins.store.calls if call.operation == "segment")


@pytest.mark.parametrize(
    "effect",
    [refuse(503), refuse(403), refuse(404), truncated(30), truncated(0), flipped(70), flipped(3), flipped(16),
     from_elsewhere(b"<html>Service Unavailable</html>" * 100), lambda body: body + b"more", lambda body: body[61:]],
)  # fmt: skip
def test_what_is_not_the_segment_is_never_returned(simulation, twins, effect):
    fill(twins, 3)
    twins.offload(3)
    twins.store.faults.append(Fault("segment", effect))
    with pytest.raises(RemoteStorageError):
        read(simulation, twins, 1)
    assert twins.metrics.topic("orders").remote_fetch_errors == 1
    assert len(read(simulation, twins, 1))


def test_the_sound_batches_before_a_damaged_one_are_returned(simulation, twins, tmp_path):
    """Then the error: at the damaged batch, and no sooner."""
    for _ in range(4):
        twins.producer.append(value=b"x" * 10)
    twins.producer.roll()
    assert len(twins.offload(4)) == 1
    (path,) = tmp_path.rglob("kafka-tiered-storage/*/*.log")
    body = bytearray(path.read_bytes())
    body[3 * (len(body) // 4) - 1] ^= 1
    path.write_bytes(body)
    chunk = read(simulation, twins, 0, max_bytes=10**6)
    assert (len(chunk), chunk.start_offset, chunk.end_offset) == (2, 0, 2)
    found = chunk.read(0, max_bytes=10**6, max_offset=4, min_one_message=True)
    assert [offset for offset, *_ in values_of(found.records)] == [0, 1]
    assert len(read(simulation, twins, 1, max_bytes=10**6)) == 1
    for _ in range(2):  # with the index and without
        with pytest.raises(RemoteStorageError, match="has a wrong checksum"):
            read(simulation, twins, 2, max_bytes=10**6)


def test_another_range_of_the_same_segment_is_noticed(simulation, twins):
    """A store that ignores the range sends the beginning of the segment: whole, valid batches, but not these."""
    twins.producer.logs[0].update_config(twins.log.config)
    for _ in range(3):
        twins.producer.append()
    twins.producer.roll()
    twins.offload(3)
    begin = read(simulation, twins, 0, max_bytes=10**6)
    body = bytes(begin.read(0, max_bytes=10**6, max_offset=3, min_one_message=True).records)
    size = len(body) // 3
    twins.store.faults.append(Fault("segment", lambda found: body[: len(found)]))
    with pytest.raises(RemoteStorageError):
        read(simulation, twins, 2, max_bytes=size)


def test_a_damaged_index_is_fetched_again_and_then_not_used(simulation, twins):
    fill(twins, 3)
    twins.offload(3)
    twins.store.faults.append(Fault("index", lambda body: body[:4] + body[8:12] + body[8:], times=9))
    twins.store.faults[-1].effect = lambda body: b"".join(
        body[at : at + 4] + (int.from_bytes(body[at + 4 : at + 8]) - 1).to_bytes(4)
        for at in range(0, len(body), 8)
    )
    with pytest.raises(RemoteStorageError):
        read(simulation, twins, 2)
    assert (
        values_of(
            read(simulation, twins, 2).read(2, max_bytes=10**6, max_offset=3, min_one_message=True).records
        )[0][0]
        == 2
    )
    assert twins.store.count("index") == 2


def test_an_offset_without_a_copy(simulation, twins):
    fill(twins, 3)
    with pytest.raises(OffsetOutOfRange):
        read(simulation, twins, 1)
    twins.tier.metadata.is_late = True
    with pytest.raises(RemoteStorageError, match="still being read"):
        read(simulation, twins, 1)


# -- the twin ----------------------------------------------------------------------------------------


async def read_all(twins, offset, *, is_read_committed, max_bytes):
    """The records that a consumer gets from `offset` on, in both tiers."""
    log = twins.log
    end = log.last_stable_offset if is_read_committed else log.high_watermark
    found = []
    while offset < end:
        if offset < log.local_log_start_offset:
            chunk = await twins.reader.read(
                twins.partition, offset, max_bytes=max_bytes, is_read_committed=is_read_committed
            )
            part = chunk.read(offset, max_bytes=max_bytes, max_offset=end, min_one_message=True)
            if part.records:
                aborted = (
                    chunk.aborted_in(first_offset=part.base_offset, end_offset=part.end_offset)
                    if is_read_committed
                    else []
                )
                found += offsets_of(part.records, aborted, offset, is_read_committed)
            offset = part.end_offset
        else:
            part = log.reader.read(offset, max_bytes=10**6, max_offset=end, min_one_message=True)
            aborted = log.reader.aborted_transactions(offset, end) if is_read_committed else []
            found += offsets_of(part.records, aborted, offset, is_read_committed)
            offset = found_end(part.records, offset, end)
    return found


@given(
    steps=STEPS, local=st.floats(0, 1), start=st.floats(0, 1), max_bytes=st.sampled_from([1, 150, 300, 10**6])
)
@settings(max_examples=60)
def test_reads_are_those_of_an_untiered_twin(tmp_path_factory, steps, local, start, max_bytes):
    folder = tmp_path_factory.mktemp("twins")
    with Simulation(seed=1) as simulation:
        twins = TieredTwins(folder, simulation.runtime("broker"))
        simulation.run(twins.cache.start())
        play(twins, steps)
        log, twin = twins.log, twins.twin
        twins.offload(int(log.log_end_offset * local))
        if (offset := int(log.high_watermark * start)) > 0:
            log.maybe_increment_log_start_offset(offset)
            twin.maybe_increment_log_start_offset(offset)

        async def compare():
            for at in range(log.log_start_offset, log.high_watermark):
                for is_read_committed in (False, True):
                    expected = read_twin(twin, at, is_read_committed=is_read_committed)
                    found = await read_all(
                        twins, at, is_read_committed=is_read_committed, max_bytes=max_bytes
                    )
                    assert found == expected, (at, is_read_committed)
            for timestamp in range(NOW_MS - 1, NOW_MS + 105):
                expected = twin.reader.offset_for_timestamp(timestamp)
                found = await twins.reader.offset_for_timestamp(
                    twins.partition, timestamp, is_cancelled=lambda: False
                )
                assert found == expected, timestamp
            expected = twin.reader.max_timestamp_offset()
            assert expected == await twins.reader.max_timestamp_offset(
                twins.partition, is_cancelled=lambda: False
            )

        simulation.run(compare())
        twins.close()


# KIP-734
@pytest.mark.parametrize("local_from", [0, 4, 7, 10])
def test_the_largest_timestamp_is_that_of_a_record_that_can_be_read(simulation, twins, local_from):
    for times in ((3, 90, 50, 4), (50, 2), (1,), (40, 5, 40), (6,)):
        twins.producer.append_at(times)
        if times[0] in (1, 40):
            twins.producer.roll()
    twins.offload(local_from)
    found = []
    for start in range(12):
        for log in twins.producer.logs:
            log.maybe_increment_log_start_offset(start)
        found.append(
            simulation.run(twins.reader.max_timestamp_offset(twins.partition, is_cancelled=lambda: False))
        )
        assert found[-1] == twins.twin.reader.max_timestamp_offset(), start
    #          log start  0  1  2  3  4  5  6  7  8  9  10
    assert [each and each.offset for each in found] == [1, 1, 2, 4, 4, 7, 7, 7, 9, 9, 10, None]


@pytest.mark.logs("below the high watermark")
def test_a_part_of_a_copy_is_read_only_if_it_may_have_the_largest_timestamp(simulation, twins):
    for times in ((1, 2), (3, 4), (5, 6)):
        twins.producer.append_at(times)
    twins.producer.roll()
    twins.producer.append_at((7,))
    twins.offload(6)
    twins.log.maybe_increment_log_start_offset(1)

    def find():
        return simulation.run(twins.reader.max_timestamp_offset(twins.partition, is_cancelled=lambda: False))

    assert find() == (NOW_MS + 7, 6, 0)
    assert not twins.store.count("segment")
    for log in twins.producer.logs:
        log.truncate_to(6, now_ms=NOW_MS)
    assert find() == (NOW_MS + 6, 5, 0)
    assert twins.store.count("segment") == 1, "the batch that the time index names"


# -- unclean elections -------------------------------------------------------------------------------


@pytest.fixture
def diverged(twins):
    """Epoch 0's leader has copied [0, 3) and [3, 6); epoch 1's leader had none of [4, 6), and wrote its own.

    Producer 1 has aborted at 5 in the branch that was given up; in the log its transaction is committed at 4.
    """
    for number in range(6):
        if number == 3:
            twins.producer.append(producer=1, timestamp=NOW_MS + number)
        elif number == 5:
            twins.producer.end(1, commit=False)
        else:
            twins.producer.append(timestamp=NOW_MS + number)
        if number == 2:
            twins.producer.roll()
    twins.producer.roll()
    twins.tier.copy_closed_segments(twins.log, twins.partition.id)
    twins.producer.epoch = 1
    for log in twins.producer.logs:
        log.truncate_to(4, now_ms=NOW_MS)
        log.assign_epoch(1, start_offset=4)
    twins.producer.end(1, commit=True)
    twins.producer.append(timestamp=NOW_MS + 100)
    twins.producer.roll()
    twins.producer.append(timestamp=NOW_MS + 200)
    twins.offload(6)
    assert twins.log.local_log_start_offset == 6
    return twins


@pytest.mark.logs("below the high watermark")
@pytest.mark.parametrize("is_read_committed", [False, True])
def test_a_copy_of_another_branch_is_read_only_as_far_as_it_is_the_log(
    simulation, diverged, is_read_committed
):
    copies = list(diverged.tier.metadata.cache(diverged.partition.id).segments())
    assert [(copy.start_offset, copy.end_offset) for copy in copies] == [(0, 3), (3, 6), (3, 6)]
    chunk = read(simulation, diverged, 3, max_bytes=10**6, is_read_committed=is_read_committed)
    assert chunk.end_offset == 4
    assert chunk.aborted == (() if is_read_committed else None)
    for offset in range(7):
        found = simulation.run(
            read_all(diverged, offset, is_read_committed=is_read_committed, max_bytes=10**6)
        )
        assert found == read_twin(diverged.twin, offset, is_read_committed=is_read_committed)


@pytest.mark.logs("below the high watermark")
@pytest.mark.parametrize("number", [0, 3, 4, 5, 100, 101, 200, 201])
def test_times_of_another_branch_are_not_found(simulation, diverged, number):
    async def find():
        return await diverged.reader.offset_for_timestamp(
            diverged.partition, NOW_MS + number, is_cancelled=lambda: False
        )

    assert simulation.run(find()) == diverged.twin.reader.offset_for_timestamp(NOW_MS + number)
