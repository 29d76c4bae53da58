"""Chunks of the remote tier that are kept in memory or read ahead: bounds and order."""

import asyncio

import pytest
from reading_support import NOW_MS, TieredTwins

from ottla.remote.reading.chunk_cache import TTL_MS, ChunkCache
from ottla.remote.reading.chunk_reads import ChunkReads, PendingRead
from ottla.remote.reading.read_ahead import (
    MAX_CHUNK_BYTES,
    MAX_STREAMS,
    MIN_CHUNK_BYTES,
    QUICK_MS,
    USUAL_CHUNK_BYTES,
    ReadAhead,
)
from ottla.remote.reading.read_slots import ReadSlots, TooManyRemoteReads
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.runtime import Pool
from ottla.runtime.simulated import Simulation
from tests.harness.faulty_store import Fault, refuse, truncated


class NoQuota:
    def try_take(self, size_bytes):
        return True

    def record(self, size_bytes):
        pass

    def record_wait(self, waited_s):
        pass


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


@pytest.fixture
def twins(simulation, tmp_path):
    twins = TieredTwins(tmp_path, simulation.runtime("broker"))
    simulation.run(twins.cache.start())
    for number in range(6):
        twins.producer.append(timestamp=NOW_MS + number)
        twins.producer.roll()
    twins.producer.append()
    twins.offload(6)
    yield twins
    twins.close()


def chunks_of(simulation, twins, count=6):
    return [
        simulation.run(twins.reader.read(twins.partition, offset, max_bytes=1000, is_read_committed=False))
        for offset in range(count)
    ]


# -- the cache ---------------------------------------------------------------------------------------


def test_what_was_read_to_its_end_goes_first_then_the_oldest(simulation, twins):
    chunks = chunks_of(simulation, twins)
    size = chunks[0].size_bytes
    cache = ChunkCache(limit_bytes=3 * size)
    for at, chunk in enumerate(chunks[:3]):
        cache.add(twins.partition.id, chunk, now_ms=at)
    cache.touch(chunks[2], is_read_to_end=True, now_ms=3)
    assert not cache.reserve(2 * size)
    assert cache.reserve(size)
    assert not cache.reserve(1)
    cache.release(size)

    def kept():
        return [number for number, each in enumerate(chunks) if cache.find(each.segment_id, number) is each]

    cache.add(twins.partition.id, chunks[3], now_ms=4)
    assert kept() == [0, 1, 3]
    cache.touch(chunks[0], is_read_to_end=False, now_ms=5)
    cache.add(twins.partition.id, chunks[4], now_ms=6)
    assert kept() == [0, 3, 4]
    assert cache.size_bytes == 3 * size
    cache.expire(now_ms=TTL_MS + 4)
    assert kept() == [0, 4]
    cache.remove_partition(twins.partition.id)
    assert (kept(), cache.size_bytes) == ([], 0)


def test_room_for_what_is_read_ahead_is_made_before_it_arrives(simulation, twins):
    chunks = chunks_of(simulation, twins, 3)
    size = chunks[0].size_bytes
    cache = ChunkCache(limit_bytes=2 * size)
    cache.add(twins.partition.id, chunks[0], now_ms=0)
    cache.add(twins.partition.id, chunks[1], now_ms=0)
    cache.touch(chunks[0], is_read_to_end=True, now_ms=0)
    assert cache.reserve(size)
    assert len(cache) == 1
    assert cache.find(chunks[1].segment_id, 1) is chunks[1]
    cache.release(size)
    cache.add(twins.partition.id, chunks[2], now_ms=0)
    assert cache.size_bytes == 2 * size


def test_a_chunk_larger_than_the_cache_is_kept_until_the_next_one(simulation, twins):
    chunks = chunks_of(simulation, twins, 2)
    cache = ChunkCache(limit_bytes=1)
    for chunk in chunks:
        cache.add(twins.partition.id, chunk, now_ms=0)
    assert cache.find(chunks[0].segment_id, 0) is None
    assert cache.find(chunks[1].segment_id, 1) is chunks[1]


# -- slots -------------------------------------------------------------------------------------------


def test_slots_and_those_that_wait_are_bounded(simulation):
    settings = RemoteReadSettings(reader_threads=2, max_pending_reads=1)
    slots = ReadSlots(simulation.runtime("broker"), lambda: settings)
    order = []

    async def work(name):
        async with slots.enter():
            order.append(name)
            await asyncio.sleep(1)

    async def main():
        tasks = [asyncio.ensure_future(work(name)) for name in "abc"]
        await asyncio.sleep(0)
        assert (slots.running_count, slots.waiting_count, slots.idle_ratio) == (2, 1, 0)
        assert not slots.try_enter_ahead()
        with pytest.raises(TooManyRemoteReads):
            await work("d")
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c"]
        assert slots.try_enter_ahead()
        assert not slots.try_enter_ahead()  # half of the slots
        slots.leave()
        assert slots.running_count == 0

    simulation.run(main())


def test_more_slots_are_used_while_the_store_answers_none(simulation):
    """None of the reads ends: those that wait began only when one had."""
    settings = [RemoteReadSettings(reader_threads=1)]
    slots = ReadSlots(simulation.runtime("broker"), lambda: settings[0])

    async def work():
        async with slots.enter():
            await asyncio.Event().wait()

    async def main():
        tasks = [asyncio.ensure_future(work()) for _ in range(3)]
        await asyncio.sleep(0)
        assert (slots.running_count, slots.waiting_count) == (1, 2)
        settings[0] = RemoteReadSettings(reader_threads=2)
        slots.grant()
        assert (slots.running_count, slots.waiting_count) == (2, 1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    simulation.run(main())


def test_one_that_waits_and_is_cancelled_takes_no_slot(simulation):
    settings = RemoteReadSettings(reader_threads=1)
    slots = ReadSlots(simulation.runtime("broker"), lambda: settings)

    async def work():
        async with slots.enter():
            await asyncio.sleep(1)

    async def main():
        tasks = [asyncio.ensure_future(work()) for _ in range(3)]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.sleep(0.5)
        tasks[2].cancel()  # in the turn in which it gets the slot, or after it
        await asyncio.sleep(2)
        assert (slots.running_count, slots.waiting_count) == (0, 0)

    simulation.run(main())


# -- read-ahead --------------------------------------------------------------------------------------


def test_chunks_grow_while_a_consumer_goes_on(twins):
    ahead, at = ReadAhead(memory_bytes=2**26), twins.partition.id
    stream = ahead.advance(at, offset=0, end_offset=10, size_bytes=300_000, now_ms=0)
    assert not stream.is_sequential
    sizes = []
    for offset in range(10, 100, 10):
        stream = ahead.advance(at, offset=offset, end_offset=offset + 10, size_bytes=300_000, now_ms=0)
        assert stream.is_sequential
        stream.chunk_bytes = ahead.next_chunk_bytes(stream)
        ahead.on_read(stream.chunk_bytes, took_ms=QUICK_MS)
        sizes.append(stream.chunk_bytes)
    assert sizes == [2**19, 2**20, 2**21, 2**22, 2**23, *[MAX_CHUNK_BYTES] * 4]
    assert ahead.first_chunk_bytes(at, 100, max_bytes=1) == USUAL_CHUNK_BYTES
    assert ahead.first_chunk_bytes(at, 4711, max_bytes=2**30) == USUAL_CHUNK_BYTES
    assert ahead.first_chunk_bytes(at, 4711, max_bytes=1) == MIN_CHUNK_BYTES


def test_chunks_are_small_while_the_store_is_slow(twins):
    """None of a chunk can be consumed before all of it is there."""
    ahead, at = ReadAhead(memory_bytes=2**26), twins.partition.id
    ahead.advance(at, offset=0, end_offset=10, size_bytes=2**20, now_ms=0)
    stream = ahead.advance(at, offset=10, end_offset=20, size_bytes=2**20, now_ms=0)

    def read(took_ms):
        stream.chunk_bytes = ahead.next_chunk_bytes(stream)
        ahead.on_read(stream.chunk_bytes, took_ms=took_ms)
        return stream.chunk_bytes

    slow = QUICK_MS + 1
    assert [read(slow) for _ in range(4)] == [2**21, *[USUAL_CHUNK_BYTES] * 3]
    assert [read(1) for _ in range(3)] == [USUAL_CHUNK_BYTES, 2 * USUAL_CHUNK_BYTES, MAX_CHUNK_BYTES]
    assert [read(slow) for _ in range(2)] == [MAX_CHUNK_BYTES, USUAL_CHUNK_BYTES]


def test_many_consumers_share_the_memory(twins):
    """50 remote readers: what is read for all of them stays within the memory for chunks."""
    ahead, at = ReadAhead(memory_bytes=2**26), twins.partition.id
    streams = [
        ahead.advance(at, offset=1000 * number, end_offset=1000 * number + 1, size_bytes=2**20, now_ms=0)
        for number in range(50)
    ]
    for stream in streams:
        for _ in range(10):
            stream.chunk_bytes = ahead.next_chunk_bytes(stream)
    assert sum(2 * stream.chunk_bytes for stream in streams) <= 2**26
    for number in range(2 * MAX_STREAMS):
        ahead.advance(at, offset=10**6 + number, end_offset=0, size_bytes=1, now_ms=0)
        ahead.advance(at, offset=10**6 + number, end_offset=10**6 - number, size_bytes=1, now_ms=0)
    assert len(ahead) == MAX_STREAMS
    ahead.expire(now_ms=10**6)
    assert len(ahead) == 0


# -- reads -------------------------------------------------------------------------------------------


def test_what_is_read_in_an_old_leader_epoch_is_not_kept(simulation, twins):
    """The log may have been truncated meanwhile: the read is repeated."""
    twins.runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: 0.1
    slots = ReadSlots(twins.runtime, lambda: twins.settings)
    reads = ChunkReads(twins.reader, runtime=twins.runtime, slots=slots, quota=NoQuota(), wait_ms=lambda: 500)

    def get():
        return reads.get(twins.partition, 0, max_bytes=1000, is_read_committed=False, has_waited=False)

    async def main():
        first = get()
        assert get() is first
        await asyncio.sleep(0.05)
        twins.partition.leader_epoch = 1
        await asyncio.sleep(5)
        assert first.is_done
        second = get()
        assert isinstance(second, PendingRead)
        await asyncio.sleep(5)
        chunk = get()
        assert not isinstance(chunk, PendingRead)
        reads.forget(twins.partition)
        assert isinstance(get(), PendingRead)
        await asyncio.sleep(5)

    simulation.run(main())
    reads.close()


@pytest.mark.logs("cannot be read from the remote tier")
def test_a_read_that_has_failed_holds_no_memory(simulation, twins, monkeypatch):
    """While the store is down, many consumers wait at many offsets: what is kept of each is its error."""
    taken = []

    def take(size_bytes):
        taken.append(bytearray(size_bytes))
        return memoryview(taken[-1])

    monkeypatch.setattr(twins.reader._copy_reader.memory, "take", take)
    slots = ReadSlots(twins.runtime, lambda: twins.settings)
    reads = ChunkReads(twins.reader, runtime=twins.runtime, slots=slots, quota=NoQuota(), wait_ms=lambda: 500)

    async def main():
        twins.store.faults += [
            Fault("segment", truncated(10), times=3),
            Fault("segment", refuse(503), times=100),
        ]
        failed = []
        for offset in range(3):
            failed.append(
                reads.get(twins.partition, offset, max_bytes=1000, is_read_committed=False, has_waited=False)
            )
            await asyncio.sleep(2)
        assert all(each.is_done and each.error is not None for each in failed)
        assert len(taken) >= 9
        for each in taken:
            each.append(0)  # not possible while there are views

    simulation.run(main())
    reads.close()


@pytest.mark.logs("cannot be read from the remote tier")
@pytest.mark.parametrize(("wait_ms", "attempts"), [(0, 1), (500, 4), (5000, 7)])
def test_a_read_that_fails_is_repeated_while_a_request_waits(simulation, twins, wait_ms, attempts):
    """KIP-405: "retried with Exponential Back-Off, until the original consumer fetch request timeout"."""
    slots = ReadSlots(twins.runtime, lambda: twins.settings)
    reads = ChunkReads(
        twins.reader, runtime=twins.runtime, slots=slots, quota=NoQuota(), wait_ms=lambda: wait_ms
    )

    def get():
        return reads.get(twins.partition, 0, max_bytes=1000, is_read_committed=False, has_waited=False)

    async def main():
        twins.store.faults += [Fault("segment", refuse(503), times=100)]
        first = get()
        while not first.is_done:
            assert first.error is None or "503" in str(first.error)
            await asyncio.sleep(0.01)
        count = sum(call.operation == "segment" for call in twins.store.calls)
        assert abs(count - attempts) <= (attempts > 1)
        twins.store.faults.clear()
        assert get() is first
        await asyncio.sleep(5)
        assert not isinstance(get(), PendingRead)

    simulation.run(main())
    reads.close()
