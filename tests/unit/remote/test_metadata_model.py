"""Metadata managers on a topic that fails, delays, repeats, loses acknowledgements and records, against a
naive model (KIP-405).

The model is the topic itself, applied from its first record on: whatever happened before, when the faults
end, each broker answers for each of its partitions what a broker answers that has read everything.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_brokers import Brokers, of, partition, until_ready
from remote_support import copy_of, to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.errors import RemoteStorageError
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.records import from_value, user_partition_of
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.memory_topic import Faults

PARTITIONS = [partition(number) for number in range(4)]
METADATA_PARTITIONS = 2
BROKERS = 3

pytestmark = pytest.mark.logs("is ignored", "cannot be read, attempt", "read again from the beginning")


def truth(topic, user_partition):
    """The cache of a broker that has read the whole topic."""
    cache = RemoteLogMetadataCache(user_partition)
    number = metadata_partition(user_partition, partition_count=METADATA_PARTITIONS)
    for value in topic.partitions.values[number]:
        change = from_value(value)
        if user_partition_of(change) == user_partition:
            try:
                if isinstance(change, RemoteLogSegmentMetadata):
                    cache.add(change)
                else:
                    cache.update(change)
            except RemoteStorageError:
                pass
    return cache


def answers(cache):
    epochs = range(3)
    return (
        sorted(cache.segments(), key=lambda copy: copy.segment_id.id),
        [cache.segment(epoch=epoch, offset=each) for epoch in epochs for each in range(0, 60, 5)],
        [(cache.end_offset_for_epoch(epoch), cache.size_bytes(epoch)) for epoch in epochs],
        [cache.removed_until(epoch) for epoch in epochs],
        cache.finished_bytes,
    )


faults = st.builds(
    Faults,
    fail_append=st.sampled_from([0, 0.3]),
    lose_acknowledgement=st.sampled_from([0, 0.3]),
    duplicate=st.sampled_from([0, 0.5]),
    fail_read=st.sampled_from([0, 0.5]),
    max_delay_s=st.sampled_from([0, 2.0]),
)
brokers_of = st.integers(0, BROKERS - 1)
partitions_of = st.sampled_from(PARTITIONS)
copies = st.integers(1, 12)
steps = st.one_of(
    st.tuples(st.just("add"), brokers_of, partitions_of, copies, st.integers(0, 40), st.integers(0, 2)),
    st.tuples(st.just("update"), brokers_of, partitions_of, copies, st.sampled_from(list(State)[1:])),
    st.tuples(st.just("assign"), brokers_of, partitions_of),
    st.tuples(st.just("unassign"), brokers_of, partitions_of),
    st.tuples(st.just("restart"), brokers_of),
    st.tuples(st.just("crash"), brokers_of),
    st.tuples(st.just("faults"), brokers_of, faults),
    st.tuples(st.just("truncate"), st.integers(0, METADATA_PARTITIONS - 1), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([0.05, 3, 700])),
)


@dataclass
class Machine:
    """Three brokers, and changes under way."""

    runtime: SimulatedRuntime
    brokers: Brokers
    managers: dict = field(default_factory=dict)
    topics: dict = field(default_factory=dict)
    assigned: dict = field(
        default_factory=lambda: {each: dict.fromkeys(PARTITIONS[:3]) for each in range(BROKERS)}
    )
    changes: list = field(default_factory=list)

    def start(self, broker):
        found = Faults() if broker not in self.topics else self.topics[broker].faults
        self.managers[broker], self.topics[broker] = self.brokers.start(*self.assigned[broker], folder=broker)
        self.topics[broker].faults = found

    async def step(self, step):
        match step:
            case "add", broker, user, number, start, epoch:
                change = of(user, copy_of(number, start, start + 10, (epoch, start)))
                # The same copy always begins in the same way.
                change = replace(
                    change,
                    segment_id=change.segment_id._replace(id=UUID(int=number * 1000 + start * 3 + epoch)),
                )
                self.try_to(self.managers[broker].add_remote_log_segment_metadata(change))
            case "update", broker, user, number, state:
                known = list(truth(self.brokers.topic, user).segments())
                if known:
                    change = replace(to(1, state), segment_id=known[number % len(known)].segment_id)
                    self.try_to(self.managers[broker].update_remote_log_segment_metadata(change))
            case "assign", broker, user:
                self.assigned[broker][user] = None
                self.managers[broker].on_partition_leadership_changes(leaders=[user], followers=[])
            case "unassign", broker, user:
                self.assigned[broker].pop(user, None)
                self.managers[broker].on_stop_partitions([user])
            case "restart", broker:
                await self.managers[broker].close()
                self.start(broker)
            case "crash", broker:
                # Nothing is written any more.
                await self.abandon(broker)
                self.start(broker)
            case "faults", broker, found:
                self.topics[broker].faults = found
            case "truncate", number, count:
                # An unclean election, or a power cut; it may have grown again before a broker reads.
                del self.brokers.topic.partitions.values[number][-count:]
            case "wait", seconds:
                await asyncio.sleep(seconds)

    async def abandon(self, broker):
        subscriptions = self.managers[broker]._subscriptions
        subscriptions._log_dir = None
        await self.managers[broker].close()

    def try_to(self, change):
        async def attempt():
            with contextlib.suppress(RemoteStorageError):
                await change

        self.changes.append(asyncio.ensure_future(attempt()))

    async def settle(self):
        """Without faults, everything is soon as in the model."""
        for topic in self.topics.values():
            topic.faults = Faults()
        await asyncio.gather(*self.changes)
        await asyncio.sleep(10)
        for broker, manager in self.managers.items():
            if self.assigned[broker]:
                await until_ready(manager, *self.assigned[broker])
            for user in self.assigned[broker]:
                assert answers(manager.copies(user)) == answers(truth(self.brokers.topic, user)), (
                    broker,
                    user,
                )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**16), st.lists(steps, max_size=40))
def test_all_brokers_answer_what_the_topic_says(tmp_path_factory, seed, steps):
    runtime = SimulatedRuntime(seed=seed)

    async def main():
        brokers = Brokers(runtime, tmp_path_factory.mktemp("brokers"), partition_count=METADATA_PARTITIONS)
        machine = Machine(runtime, brokers)
        for broker in range(BROKERS):
            machine.start(broker)
        for each in steps:
            await machine.step(each)
            await asyncio.sleep(0.01)
        await machine.settle()
        # What is restored from the snapshots is the same.
        for broker in range(BROKERS):
            await machine.step(("restart", broker))
        await machine.settle()
        await brokers.stop()
        await runtime.close()

    with runtime.simulation:
        runtime.run(main())


async def acknowledged(runtime, folder):
    """Each change that returns without an error is visible at once, and in the topic."""
    brokers = Brokers(runtime, folder)
    manager, topic = brokers.start(PARTITIONS[0])
    await until_ready(manager, PARTITIONS[0])
    topic.faults = Faults(
        fail_append=0.1, lose_acknowledgement=0.2, duplicate=0.2, fail_read=0.3, max_delay_s=1
    )
    done = 0
    for number in range(100):
        begun = copy_of(number + 1, number, number + 1)
        for change, state in (
            (manager.add_remote_log_segment_metadata(begun), State.COPY_SEGMENT_STARTED),
            (
                manager.update_remote_log_segment_metadata(to(number + 1, State.COPY_SEGMENT_FINISHED)),
                State.COPY_SEGMENT_FINISHED,
            ),
        ):
            try:
                await change
            except RemoteStorageError:
                continue
            found = {each.segment_id: each.state for each in manager.list_remote_log_segments(PARTITIONS[0])}
            assert found[begun.segment_id] is state
            done += 1
    assert done > 50
    await brokers.stop()
    await runtime.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_change_that_returns_is_visible(seed, tmp_path):
    runtime = SimulatedRuntime(seed=seed)
    with runtime.simulation:
        runtime.run(acknowledged(runtime, tmp_path))
