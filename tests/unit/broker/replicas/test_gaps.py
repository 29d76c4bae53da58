"""A power cut took the end of a closed segment, on a batch's boundary: later records are there, and some
before them are not.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import ReplicaBroker, ReplicaCluster
from tests.harness.waiting import until

ORDERS = TopicPartition("orders", 0)
WHOLE = [b"%d" % number for number in range(9)]


@asynccontextmanager
async def replicating(simulation):
    """Broker 1 leads, 2 follows: three segments of three batches each, of which nothing is flushed."""
    cluster = ReplicaCluster(simulation, [1, 2])
    cluster.create("orders", {0: [1, 2]})
    for broker in cluster.brokers.values():
        await broker.listen()
    cluster.elect(ORDERS, 1)
    leader, follower = cluster.brokers.values()
    for number, value in enumerate(WHOLE):
        if number in (3, 6):
            for broker in (leader, follower):
                broker.partition(ORDERS).log.roll(broker.runtime.now_ms())
        now_ms = leader.runtime.now_ms()
        batch = build_batch(simple_records([(None, value)], timestamp=now_ms))
        leader.partition(ORDERS).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=now_ms)
        await until(lambda end=number + 1: follower.partition(ORDERS).log.high_watermark == end)
    yield cluster
    for broker in cluster.brokers.values():
        if broker.is_up:
            await broker.stop()


async def lose_a_batch(broker: ReplicaBroker) -> None:
    """The broker's machine loses its power, and the last batch of the second segment."""
    _, second, _ = broker.partition(ORDERS).log.segments
    path, data = second.path_of(".log"), broker.files.read(second.path_of(".log"))
    (*_, (_, last)) = batches(memoryview(data))
    await broker.crash(Loss.NOTHING)
    broker.files.tear(path, len(data) - len(last))


def values(broker: ReplicaBroker) -> list[bytes | None]:
    log = broker.partition(ORDERS).log
    return [
        record.value for _, data in log.reader.records_since(log.log_start_offset) for record in records(data)
    ]


@pytest.mark.logs("Fetch from broker", "begins after a gap")
def test_a_follower_copies_what_it_may_lack(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await lose_a_batch(follower)
            await leader.crash(Loss.NOTHING)
            follower.start()
            await follower.listen()
            await asyncio.sleep(60)
            # As long as no leader answers, it may be the last one that has the rest.
            assert values(follower) == WHOLE[:5] + WHOLE[6:]
            leader.start()
            await leader.listen()
            await until(lambda: values(follower) == WHOLE)

    simulation.run(story())


@pytest.mark.logs("begins after a gap")
def test_a_leader_keeps_what_it_has(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await lose_a_batch(leader)
            leader.start()
            await leader.listen()
            assert values(leader) == WHOLE[:5] + WHOLE[6:]
            # Also when it follows later on: others have copied from it by then.
            cluster.elect(ORDERS, 2)
            await until(lambda: follower.partition(ORDERS).leader.state.followers[1].log_end_offset == 9)
            assert values(leader) == WHOLE[:5] + WHOLE[6:]

    simulation.run(story())
