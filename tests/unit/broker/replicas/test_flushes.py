"""flush.messages: nothing is answered, committed or fetched on before the flush, and the loop goes on meanwhile."""

import asyncio

import pytest
from replicas_support import TOPIC_ID, batch, follower_fetches, image

from ottla.broker.api import k00_produce
from ottla.metadata.records import ConfigRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.replicas import ReplicaCluster
from tests.harness.waiting import until

FLUSH_S = 2.0
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def slow(broker):
    """A broker whose flushes take a while."""
    broker.runtime.blocking_s = lambda: FLUSH_S
    return broker


def produce(broker, data, *, acks):
    rows = [PartitionProduceData(index=0, records=bytes(data))]
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=rows)],
    )
    return broker.raw(k00_produce, request, 9)


async def code(response):
    return (await response).responses[0].partition_responses[0].error_code


def create(broker, replicas=(1,), **config):
    broker.create(partitions={0: image(replicas=replicas)}, config={"flush.messages": "1"} | config)
    return broker.replicas.hosted.by_key["t", 0]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_produce_is_answered_after_its_flush(simulation, slow, acks):
    partition = create(slow)

    async def story():
        begun = simulation.loop.time()
        waiting = asyncio.ensure_future(code(produce(slow, batch(b"a"), acks=acks)))
        await asyncio.sleep(FLUSH_S / 2)
        assert not waiting.done()
        assert (partition.log.log_end_offset, partition.log.high_watermark) == (1, 0)
        assert await waiting == ErrorCode.none
        assert partition.log.recovery_point == partition.log.high_watermark == 1
        assert simulation.loop.time() - begun >= FLUSH_S

    simulation.run(story())


def test_what_is_appended_beside_a_flush_has_the_next_one(simulation, slow):
    partition = create(slow)

    async def story():
        first = asyncio.ensure_future(code(produce(slow, batch(b"a"), acks=1)))
        await asyncio.sleep(FLUSH_S / 2)
        second = asyncio.ensure_future(code(produce(slow, batch(b"b"), acks=1)))
        assert await first == ErrorCode.none
        assert not second.done()
        assert await second == ErrorCode.none
        assert partition.log.recovery_point == 2

    simulation.run(story())


def test_with_replicas_the_leaders_disk_counts_like_the_followers(simulation, slow):
    partition = create(slow, (1, 2))

    async def story():
        waiting = asyncio.ensure_future(code(produce(slow, batch(b"a"), acks=-1)))
        await asyncio.sleep(FLUSH_S / 2)
        follower_fetches(partition, 2, 1)
        assert partition.log.high_watermark == 0
        assert await waiting == ErrorCode.none
        assert partition.log.high_watermark == 1

    simulation.run(story())


def test_a_change_of_the_leader_ends_what_waits_for_a_flush(simulation, slow):
    create(slow, (1, 2))

    async def story():
        waiting = asyncio.ensure_future(code(produce(slow, batch(b"a"), acks=1)))
        await asyncio.sleep(FLUSH_S / 2)
        slow.replay(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=2))
        assert await waiting == ErrorCode.not_leader_or_follower

    simulation.run(story())


def test_fewer_unflushed_records_than_the_configuration_wait_for_nothing(simulation, slow):
    partition = create(slow, **{"flush.messages": "3"})

    async def story():
        for end in (1, 2):
            response = produce(slow, batch(b"a"), acks=-1)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.none
            assert partition.log.high_watermark == end
        assert await code(produce(slow, batch(b"a"), acks=-1)) == ErrorCode.none
        assert partition.log.recovery_point == 3

    simulation.run(story())


def test_a_smaller_flush_messages_delays_no_record(simulation, slow):
    """Records that were appended before the change wait for a flush that no append begins."""
    partition = create(slow, (1, 2), **{"flush.messages": "3"})

    async def story():
        waiting = asyncio.ensure_future(code(produce(slow, batch(b"a"), acks=-1)))
        await asyncio.sleep(0)
        slow.configs["t"]["flush.messages"] = "1"
        slow.replay(ConfigRecord(resource_type=2, resource_name="t", name="flush.messages", value="1"))
        follower_fetches(partition, 2, 1)
        assert partition.log.high_watermark == 0
        assert await waiting == ErrorCode.none
        assert partition.log.high_watermark == 1

    simulation.run(story())


def test_a_retry_of_a_flushed_batch_waits_for_no_other_flush(simulation, slow):
    """Its directory may even fail before that flush ends: the retry is answered without an error."""
    partition = create(slow)

    def produced(sequence):
        data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=sequence)
        return produce(slow, data, acks=1)

    async def story():
        assert await code(produced(0)) == ErrorCode.none
        second = asyncio.ensure_future(code(produced(1)))
        await asyncio.sleep(FLUSH_S / 2)
        assert partition.log.recovery_point == 1
        retried = produced(0).responses[0].partition_responses[0]
        assert (retried.error_code, retried.base_offset) == (ErrorCode.none, 0)
        # The batch whose flush is under way: its retry waits for that flush, and for its failure.
        retry_of_second = asyncio.ensure_future(code(produced(1)))
        await asyncio.sleep(0)
        slow.replicas.handle_log_dir_failure(partition.log.directory.parent)
        assert await retry_of_second == await second != ErrorCode.none

    simulation.run(story())


def test_a_flush_by_the_upkeep_answers_too(simulation, slow):
    """It ends between an append and the flush that this begins."""
    partition = create(slow)

    async def story():
        waiting = code(produce(slow, batch(b"a"), acks=1))
        partition.log.flush()
        assert await waiting == ErrorCode.none
        assert partition.log.high_watermark == 1

    simulation.run(story())


def test_a_follower_flushes_before_it_fetches_on(simulation):
    """The leader counts as had what the follower's next fetch begins behind."""

    async def story():
        cluster = ReplicaCluster(simulation, [1, 2], configs={"flush.messages": "1"})
        cluster.create("orders", {0: [1, 2]})
        for each in cluster.brokers.values():
            await each.listen()
        cluster.elect(ORDERS, 1)
        leader, follower = (each.partition(ORDERS) for each in cluster.brokers.values())
        cluster.brokers[2].runtime.blocking_s = lambda: FLUSH_S
        now_ms = cluster.brokers[1].runtime.now_ms()
        leader.as_leader().append_records(batch(b"a"), required_acks=1, now_ms=now_ms)
        await until(lambda: follower.log.log_end_offset == 1)
        assert follower.log.recovery_point == 0
        await until(lambda: leader.log.high_watermark == 1)
        assert follower.log.recovery_point == 1
        for each in cluster.brokers.values():
            await each.stop()

    simulation.run(story())
