"""Partitions are loaded: in pieces, in turns, one after the other, and not again if what was replayed is still true."""

import asyncio
from functools import cache
from uuid import UUID

import pytest

from ottla.broker.groups.offsets import CommittedOffset, OffsetAt, offset_key
from ottla.protocol.coordinator.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from ottla.protocol.coordinator.record_codec import GroupRecord, encode
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, patched, read_header
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import OF_BROKERS
from ottla.runtime import turns
from tests.harness.bombs import batch_of
from tests.unit.broker.groups.coordinator_support import (
    COUNT,
    PARTITION,
    E,
    MemoryLog,
    MemoryReplica,
    another_group,
    append,
    elect,
    here,
    offset_value,
    resign,
    simulate,
)


def offsets_log(*, batches: int, records_a_batch: int = 10, keys: int = 40) -> MemoryLog:
    """A partition in which groups have committed again and again; the newest offsets are the highest."""
    log = MemoryLog()
    for batch in offset_batches(batches, records_a_batch, keys):
        append(log, batch)
    return log


@cache
def offset_batches(batches: int, records_a_batch: int, keys: int) -> list[bytes]:
    made = []
    for number in range(batches):
        offsets = range(number * records_a_batch, (number + 1) * records_a_batch)
        pairs = [
            encode(
                GroupRecord(
                    offset_key(OffsetAt(another_group(), "t", offset % keys)),
                    offset_value(CommittedOffset(offset=offset, commit_timestamp_ms=0)),
                )
            )
            for offset in offsets
        ]
        made.append(build_batch(simple_records(pairs, timestamp=0)))
    return made


async def turns_of_load(world) -> int:
    """Turns of the loop until the partition is loaded; every other turn belongs to another task."""
    turns = 0
    while await world.fetched() is E.coordinator_load_in_progress:
        turns += 1
        await asyncio.sleep(0)
    return turns


def lead_again(world, *, with_new_log=False):
    resign(world.groups.shards, PARTITION, 1)
    if with_new_log:
        world.log.replicas.clear()
    elect(world.groups.shards, PARTITION, 2)


@pytest.mark.parametrize(("buffer_bytes", "reads"), [(1, 200), (10_000, 0), (10_000_000, 1)])
def test_a_long_log_is_loaded_in_pieces_and_turns(monkeypatch, buffer_bytes, reads):
    log = offsets_log(batches=200, records_a_batch=25)
    sizes = []
    read = MemoryReplica.read_for_replay

    def noted(*args, **fields):
        sizes.append(len(found := read(*args, **fields)))
        return found

    async def story(world):
        monkeypatch.setattr(MemoryReplica, "read_for_replay", noted)
        lead_again(world, with_new_log=True)
        assert await turns_of_load(world) >= 5, "5,000 records, at most 1,000 a turn"
        assert not reads or len(sizes) == reads
        assert reads or max(sizes) <= buffer_bytes

    simulate(story, log, offsets_load_buffer_bytes=buffer_bytes)


def test_partitions_are_loaded_one_after_the_other():
    log = offsets_log(batches=200, records_a_batch=25)
    for partition in range(COUNT):
        log.batches[partition] = log.batches[PARTITION]

    async def story(world):
        for partition in range(COUNT):
            resign(world.groups.shards, partition, 1)
        world.log.replicas.clear()
        for partition in range(COUNT):
            elect(world.groups.shards, partition, 2)
        order = []
        while len(order) < COUNT:
            replayed = [runner.state.next_offset for runner in world.groups.shards.by_partition.values()]
            order += [at for at, end in enumerate(replayed) if end == 5_000 and at not in order]
            assert sum(end not in (None, 5_000) for end in replayed) <= 1
            await asyncio.sleep(0)
        assert order == list(range(COUNT))

    simulate(story, log)


@pytest.mark.parametrize("turns_before", [1, 3, 6])
def test_an_interrupted_load_resumes_where_it_stopped(monkeypatch, turns_before):
    """A broker that is fenced for a moment leads again in the next epoch; with nothing kept it never gets to
    the end.
    """
    log = offsets_log(batches=200, records_a_batch=25)
    asked = []
    read = MemoryReplica.read_for_replay

    def noted(replica, offset, **fields):
        asked.append(offset)
        return read(replica, offset, **fields)

    async def story(world):
        monkeypatch.setattr(MemoryReplica, "read_for_replay", noted)
        resign(world.groups.shards, PARTITION, 1)
        world.log.replicas.clear()
        for epoch in range(2, 1_000):
            elect(world.groups.shards, PARTITION, epoch)
            for _ in range(turns_before + 3):
                await asyncio.sleep(0)
            if await world.fetched() is not E.coordinator_load_in_progress:
                break
            resign(world.groups.shards, PARTITION, epoch)
        else:
            raise AssertionError("it was never loaded")
        assert asked == sorted(asked)
        assert max(await world.fetched(another_group())) == 4_999

    simulate(story, log, offsets_load_buffer_bytes=20_000)


@pytest.mark.parametrize("turns_before", [4, 10, 13])
@pytest.mark.parametrize("turns_without", [0, 1])
def test_a_load_that_is_broken_off_within_a_batch_loses_nothing(turns_before, turns_without):
    """Records read for the old leadership are not replayed any more: the new one reads them again."""
    log = offsets_log(batches=3, records_a_batch=5_000)

    async def story(world):
        lead_again(world, with_new_log=True)
        for _ in range(turns_before):
            await asyncio.sleep(0)
        resign(world.groups.shards, PARTITION, 2)
        for _ in range(turns_without):
            await asyncio.sleep(0)
        elect(world.groups.shards, PARTITION, 3)
        await turns_of_load(world)
        assert max(await world.fetched(another_group())) == 14_999

    simulate(story, log, offsets_load_buffer_bytes=1)


def test_a_log_that_has_changed_meanwhile_is_read_from_its_start():
    log = offsets_log(batches=20)

    async def story(world):
        resign(world.groups.shards, PARTITION, 1)
        # Another leader did not have the last batch: it is truncated, and replaced by one of the next epoch.
        last = log.batches[PARTITION].pop()
        start = read_header(last).base_offset
        log.batches[PARTITION].append(b"".join(patched(memoryview(last), base_offset=start, leader_epoch=1)))
        elect(world.groups.shards, PARTITION, 2)
        assert world.groups.shards.by_partition[PARTITION].state.next_offset is None
        await turns_of_load(world)
        # Another one appended to it: what was replayed is still there.
        resign(world.groups.shards, PARTITION, 2)
        append(log, last)
        elect(world.groups.shards, PARTITION, 3)
        assert world.groups.shards.by_partition[PARTITION].state.next_offset == 200
        await turns_of_load(world)
        assert world.groups.shards.by_partition[PARTITION].state.next_offset == 210

    simulate(story, log)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_was_read_of_a_truncated_batch_is_dropped(is_replaced):
    """The load is broken off within a batch that no other replica has: the next leader has other records
    there, or none.
    """
    log = offsets_log(batches=2, records_a_batch=5_000)
    own = log.batches[PARTITION]
    others = offsets_log(batches=1, records_a_batch=5_000, keys=1).batches[PARTITION][0]

    async def story(world):
        lead_again(world, with_new_log=True)
        state = world.groups.shards.by_partition[PARTITION].state
        newest = OffsetAt(another_group(), "t", 39)
        for _ in range(100):
            await asyncio.sleep(0)
            if (found := state.offsets.get(newest)) is not None and found.offset >= 5_000:
                break
        assert state.next_offset == 5_000, "within the second batch"
        resign(world.groups.shards, PARTITION, 2)
        own.pop()
        if is_replaced:
            own.append(b"".join(patched(memoryview(others), base_offset=5_000, leader_epoch=3)))
        elect(world.groups.shards, PARTITION, 4)
        await turns_of_load(world)
        assert max((await world.fetched(another_group()))[1:]) == 4_999

    simulate(story, log, offsets_load_buffer_bytes=1)


def test_what_was_led_before_is_led_again_as_the_log_says():
    """Own appends count as replayed: offsets, generations, tombstones. What was in no record is gone."""

    async def story(world):
        member_id = await world.member()
        await world.committed(7, member_id=member_id, generation=1)
        await world.committed(9, group=(other := another_group()))
        assert E((await here(world.groups.delete(other))).error_code) is E.none
        joining = asyncio.ensure_future(world.join())
        await asyncio.sleep(0)
        described = world.groups.describe("g", version=6)
        assert described.group_state == "PreparingRebalance"
        monkey_reads = []
        for replica in world.log.replicas.values():
            replica.read_for_replay = lambda *_, **__: monkey_reads.append(1) or b""
        lead_again(world)
        await turns_of_load(world)
        assert monkey_reads == [], "nothing is read again"
        assert E((await joining).error_code) is E.not_coordinator
        described = world.groups.describe("g", version=6)
        assert (described.group_state, [m.member_id for m in described.members]) == ("Stable", [member_id])
        assert world.heartbeat(member_id) is E.none
        assert await world.fetched() == [7]
        assert [row.group_id for row in world.groups.list_groups().groups] == ["g"]
        await asyncio.sleep(11)
        assert world.heartbeat(member_id) is E.unknown_member_id, "its session began again"

    simulate(story)


def test_partitions_are_unloaded_one_after_the_other():
    """A broker that is fenced resigns them all at once; a turn of the loop is no longer than for one of them."""
    names = [str(number) for number in range(2_000)]

    async def story(world):
        for name in names:
            await world.committed(7, group=name)
        runners = list(world.groups.shards.by_partition.values())

        def left():
            return sum(len(runner._shard.groups) for runner in runners)

        for partition in range(COUNT):
            resign(world.groups.shards, partition, 1)
        before = left()
        assert before >= len(names)
        for _ in range(len(names)):
            await asyncio.sleep(0)
            # What runs before this task and after it in one turn of the loop counts in two of them.
            assert before - left() <= 2 * turns.MAX_STEPS
            before = left()
        assert before == 0

    simulate(story)


def test_the_state_of_a_partition_that_moved_away_is_given_up():
    async def story(world):
        await world.committed(7)
        resign(world.groups.shards, PARTITION, 1)
        kept = world.groups.shards.resumables[PARTITION].state
        assert kept.offsets.group_ids == ["g"]
        await asyncio.sleep(61)
        assert (world.groups.shards.resumables, kept.offsets.group_ids) == ({}, [])
        elect(world.groups.shards, PARTITION, 2)
        await turns_of_load(world)
        assert await world.fetched() == [7]

    simulate(story)


def test_a_topic_that_is_deleted_while_a_partition_is_loaded_is_forgotten_there():
    async def story(world):
        await world.committed(7)
        lead_again(world, with_new_log=True)
        world.groups.on_topics_deleted([(UUID(int=1), "t")])
        await turns_of_load(world)
        await asyncio.sleep(0.001)
        assert await world.fetched() == []

    simulate(story)


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("records_count", [3, 3_000])
@pytest.mark.logs("the batch at offset")
def test_compressed_batches_are_loaded(compression, records_count):
    log = MemoryLog()
    offsets = [CommittedOffset(offset=number, commit_timestamp_ms=0) for number in range(records_count)]
    pairs = [
        encode(GroupRecord(offset_key(OffsetAt("g", "t", number)), offset_value(offset)))
        for number, offset in enumerate(offsets)
    ]
    append(log, build_batch(simple_records(pairs, timestamp=0), compression=compression))
    batch = bytearray(build_batch(simple_records(pairs, timestamp=0), compression=compression))
    batch[HEADER_SIZE_BYTES:] = bytes(len(batch) - HEADER_SIZE_BYTES)
    append(log, batch)

    async def story(world):
        assert await world.fetched() == list(range(records_count))

    simulate(story, log)


@pytest.mark.logs("the batch at offset")
def test_batches_that_hold_too_much_are_skipped_at_once():
    """327 bytes of zstd hold three million records."""
    record = bytes.fromhex("10 00 00 00 04 00 4d 01 00")
    log = MemoryLog()
    for count in (3_000_000, OF_BROKERS.max_records + 1):
        append(log, batch_of(record * count, count=count))
    value = offset_value(CommittedOffset(offset=7, commit_timestamp_ms=0))
    pairs = [encode(GroupRecord(offset_key(OffsetAt("g", "t", 0)), value))]
    append(log, build_batch(simple_records(pairs, timestamp=0)))

    async def story(world):
        assert await world.fetched() == [7]

    simulate(story, log)


def test_records_that_are_skipped_are_counted_in_the_log(caplog):
    record = bytes.fromhex("10 00 00 00 04 00 4d 01 00")
    log = MemoryLog()
    append(log, batch_of(record * 500, count=500))
    for _ in range(500):
        append(log, batch_of(record, count=1))

    async def story(world):
        await world.fetched()

    simulate(story, log)
    lines = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(lines) == 11
    assert "990 more records or batches before offset 1000 are skipped" in lines[-1]


@pytest.mark.parametrize("count", [1, 2_000])
@pytest.mark.logs("is skipped, its record cannot be decoded")
def test_groups_of_any_size_are_loaded(count):
    members = [
        MemberMetadata(member_id=f"member-{number}", session_timeout=10_000) for number in range(count)
    ]
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", members=members)
    log = MemoryLog()
    twins = [MemberMetadata(member_id=str(at), group_instance_id="i") for at in (1, 2)]
    strange = [
        (encode(GroupRecord(GroupMetadataKey(group="x"), None))[0], b"\0\1\0"),
        encode(GroupRecord(GroupMetadataKey(group="y"), GroupMetadataValue(members=[members[0]] * 2))),
        encode(GroupRecord(GroupMetadataKey(group="z"), GroupMetadataValue(members=twins))),
    ]
    pairs = [encode(GroupRecord(GroupMetadataKey(group="g"), value)), *strange]
    append(log, build_batch(simple_records(pairs, timestamp=0)))

    async def story(world):
        described = world.groups.describe("g", version=6)
        assert (described.group_state, len(described.members)) == ("Stable", count)
        assert E(world.groups.describe("x", version=6).error_code) is E.group_id_not_found
        await asyncio.sleep(11)
        assert world.groups.describe("g", version=6).group_state == "Empty"

    simulate(story, log)
