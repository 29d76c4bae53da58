"""A coordinator's state equals its partition's log, whatever happens to the log between two leaderships."""

import asyncio
from collections import deque
from random import Random

import pytest

from ottla.broker.groups import log_state
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.offsets import CommittedOffset, OffsetAt, offset_key
from ottla.broker.groups.shard import partition_for
from ottla.protocol.coordinator.group_records import GroupMetadataKey, GroupMetadataValue
from ottla.protocol.coordinator.record_codec import GroupRecord, encode
from ottla.protocol.records.batch import patched, read_header
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import payload_of, records
from ottla.protocol.types import TopicPartition
from ottla.runtime import turns
from tests.unit.broker.groups.coordinator_support import (
    COUNT,
    PARTITION,
    E,
    MemoryLog,
    elect,
    offset_value,
    resign,
    simulate,
)

PLACE = TopicPartition("__consumer_offsets", PARTITION)
GROUPS = [name for name in map(str, range(200)) if partition_for(name, COUNT) == PARTITION][:4]


class Story:
    """Leaders come and go at random; each of them appends in its own epoch."""

    def __init__(self, world, random: Random) -> None:
        self.world = world
        self.random = random
        self.epoch = 1
        self.is_led = True
        self.loaded_count = 0
        #: Batches that compaction has read: they are committed.
        self.committed_count = 0

    @property
    def batches(self) -> list[bytes]:
        return self.world.log.batches.setdefault(PARTITION, [])

    def step(self) -> None:
        """Do something that may happen now."""
        led, left = (8, 4, 0, 0, 0, 0), (8, 0, 4, 6, 1, 0.2)
        steps = (
            self.change_leader,
            self.commit,
            self.append_as_another,
            self.truncate,
            self.compact,
            self.make_again,
        )
        self.random.choices(steps, led if self.is_led else left)[0]()

    def change_leader(self) -> None:
        self.epoch += 1
        if self.is_led:
            resign(self.world.groups.shards, PARTITION, self.epoch)
        else:
            self.world.log.epoch = self.epoch
            elect(self.world.groups.shards, PARTITION, self.epoch)
        self.is_led = not self.is_led

    def commit(self) -> None:
        self.world.commit(self.random.randrange(1_000), group=self.random.choice(GROUPS))

    def append_as_another(self) -> None:
        self.epoch += 1
        for _ in range(self.random.randint(1, 3)):
            pairs = [encode(self.record()) for _ in range(self.random.randint(1, 12))]
            batch = build_batch(simple_records(pairs, timestamp=0))
            end = self.world.log.end(PARTITION)
            self.batches.append(
                b"".join(patched(memoryview(batch), base_offset=end, leader_epoch=self.epoch))
            )

    def record(self) -> GroupRecord:
        group, random = self.random.choice(GROUPS), self.random
        if random.random() < 0.2:
            value = GroupMetadataValue(protocol_type="consumer", generation=random.randint(1, 9))
            return GroupRecord(GroupMetadataKey(group=group), random.choice([value, None]))
        key = offset_key(OffsetAt(group, "t", random.randrange(6)))
        offset = CommittedOffset(offset=random.randrange(1_000), commit_timestamp_ms=0)
        return GroupRecord(key, random.choice([offset_value(offset), offset_value(offset), None]))

    def truncate(self) -> None:
        least = max(self.committed_count, len(self.batches) - 4)
        del self.batches[self.random.randint(least, len(self.batches)) :]

    def compact(self) -> None:
        """Remove batches of which every record has a newer one."""
        newest = {record.key: record.offset for batch in self.batches for record in records(batch)}
        self.batches[:-1] = [
            batch
            for batch in self.batches[:-1]
            if any(newest[record.key] == record.offset for record in records(batch))
        ]
        self.committed_count = len(self.batches)

    def make_again(self) -> None:
        self.world.log.batches[PARTITION] = []
        self.committed_count = 0
        self.world.log.replicas.pop(PARTITION, None)

    async def check(self) -> None:
        """Check that the loaded state equals the log's content."""
        if not self.is_led or await self.world.fetched() is E.coordinator_load_in_progress:
            return
        self.loaded_count += 1
        expected = LogState(PLACE)
        for batch in self.batches:
            header = read_header(batch)
            deque(expected.replay_batch(header, payload_of(header, memoryview(batch))), maxlen=0)
        state = self.world.groups.shards.by_partition[PARTITION].state
        for group in GROUPS:
            assert state.offsets.of_group(group) == expected.offsets.of_group(group), group
        assert state.groups == expected.groups


class EpochLog(MemoryLog):
    """A `MemoryLog` with the epochs of its leaders."""

    epoch = 0

    def append_as_coordinator(self, topic_partition, batch):
        appended = super().append_as_coordinator(topic_partition, batch)
        batches, start = self.batches[topic_partition.partition], appended.first_offset
        batches[-1] = b"".join(patched(memoryview(batches[-1]), base_offset=start, leader_epoch=self.epoch))
        return appended


@pytest.mark.parametrize("seed", range(30))
def test_a_state_that_is_resumed_is_what_the_log_says(monkeypatch, seed):
    monkeypatch.setattr(log_state, "_RECORDS_A_STEP", 2)
    monkeypatch.setattr(turns, "MAX_STEPS", 2)
    random = Random(seed)

    async def story(world):
        story = Story(world, random)
        for _ in range(200):
            story.step()
            for _ in range(random.choice([0, 0, 1, 3, 6, 10, 40])):
                await asyncio.sleep(0)
            await story.check()
        assert story.loaded_count > 5

    simulate(story, EpochLog(), offsets_load_buffer_bytes=random.choice([1, 500, 100_000]))
