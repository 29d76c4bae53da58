"""Requests that wait, for followers or for a thread, while their partition changes its role.

A leader that follows for a moment may lose what it has appended, and hold others' records at the same offsets when it
leads again. Both changes can come in one turn of the loop, and before a request that is in a thread looks again.
"""

import asyncio

import pytest
from replicas_support import NOW_MS, TOPIC_ID, batch, follower_fetches, image

from ottla.broker.api import k00_produce, k02_list_offsets, k21_delete_records
from ottla.broker.groups.config import OFFSETS_TOPIC, GroupConfig
from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.replicas.following.follower_actions import FollowerActions
from ottla.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from ottla.protocol.errors import CorruptMessage, ErrorCode, NotLeaderOrFollower
from ottla.protocol.hot.fetch import Records
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import records
from ottla.replication.follower import Follower
from ottla.replication.follower_states import ReplicaState, Transitions
from ottla.runtime import Pool
from ottla.storage.log_availability import DESCRIPTORS_RETRY_S
from tests.unit.broker.groups.coordinator_support import KnownTopics

REPLICAS = (1, 2)
#: How long work in a thread takes, before it is done and after, in the tests that say so.
THREAD_S = 0.05
#: A moment at which work in a thread has begun, and is not done.
BESIDE_THE_THREAD_S = 0.01


def create(broker, partitions=1, name="t", **config):
    broker.create(name, partitions=dict.fromkeys(range(partitions), image(replicas=REPLICAS)), config=config)
    return [broker.replicas.hosted.by_key[name, index] for index in range(partitions)]


def change_leader(broker, leader, index=0):
    """A new leader epoch."""
    broker.replay(PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, leader=leader))


def follow_and_lead_again(broker, partition, *theirs):
    """Broker 2 leads for a moment; it has nothing of what is not committed, and appends its own."""
    change_leader(broker, 2)
    partition.follower.truncate_to(partition.log.high_watermark, now_ms=NOW_MS)
    if theirs:
        data = batch(*theirs, key=b"k", base_offset=partition.log.log_end_offset)
        data[12:16] = partition.leader_epoch.to_bytes(4, "big")
        partition.follower.append(
            memoryview(data),
            leader_epoch=partition.leader_epoch,
            high_watermark=0,
            log_start_offset=0,
            now_ms=NOW_MS,
        )
    change_leader(broker, 1)


def truncation(broker, partition, offset, *, is_wanted):
    """A follower that truncates, and the part of that which waits for the disk."""
    follower = Follower(partition.log)
    follower.follow(partition.leader_epoch)
    action = follower._truncate_to(Transitions.DIVERGED, offset)
    actions = FollowerActions(broker.runtime, pool=Pool.FLUSHES)
    rest = actions.execute(action, follower, partition.follower, is_wanted=is_wanted)
    assert rest is not None
    return follower, rest


def values(partition):
    log = partition.log
    return [
        record.value for _, data in log.reader.records_since(log.log_start_offset) for record in records(data)
    ]


def produce(broker, *batches, timeout_ms=30_000):
    data = [PartitionProduceData(index=index, records=bytes(each)) for index, each in enumerate(batches)]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=data)],
    )
    return broker.raw(k00_produce, request, 9)


async def codes_and_offsets(response):
    return [(row.error_code, row.base_offset) for row in (await response).responses[0].partition_responses]


def large(key: bytes | None = b"k"):
    """A batch that is validated in a thread where the topic is compacted."""
    return batch(*[b"x" * 100] * 3000, key=key, compression=Compression.ZSTD)


# -- Produce -----------------------------------------------------------------------------------------------


def test_records_that_are_gone_are_not_acknowledged(simulation, broker):
    """One row is appended, another one in a thread; the first row's records are lost, others' are committed there."""
    first, second = create(broker, 2, **{"cleanup.policy": "compact"})
    broker.runtime.blocking_s = lambda: THREAD_S

    async def story():
        waiting = asyncio.ensure_future(codes_and_offsets(produce(broker, batch(b"mine", key=b"k"), large())))
        await asyncio.sleep(BESIDE_THE_THREAD_S)
        assert values(first) == [b"mine"]
        follow_and_lead_again(broker, first, b"theirs")
        follower_fetches(first, 2, 1)
        assert first.log.high_watermark == 1
        await asyncio.sleep(2 * THREAD_S)
        follower_fetches(second, 2, 3000)
        assert await waiting == [(ErrorCode.not_leader_or_follower, 0), (ErrorCode.none, 0)]
        assert values(first) == [b"theirs"]

    simulation.run(story())


def test_two_changes_of_role_in_one_turn_end_what_waits(simulation, broker):
    (partition,) = create(broker)

    async def story():
        waiting = produce(broker, batch(b"mine"))
        follow_and_lead_again(broker, partition, b"theirs")
        follower_fetches(partition, 2, 1)
        assert await codes_and_offsets(waiting) == [(ErrorCode.not_leader_or_follower, 0)]
        assert simulation.loop.time() < 1

    simulation.run(story())


def test_a_new_epoch_of_the_same_leader_ends_nothing(simulation, broker):
    """Its log is what it was. Below metadata version 3.6 the epoch changes with the ISR that an acks=all waits for."""
    (partition,) = create(broker)

    async def story():
        waiting = produce(broker, batch(b"mine"))
        change_leader(broker, 1)
        change_leader(broker, 1)
        assert partition.leader_epoch == 2
        follower_fetches(partition, 2, 1)
        assert await codes_and_offsets(waiting) == [(ErrorCode.none, 0)]

    simulation.run(story())


def test_a_batch_from_a_thread_is_appended_in_the_epoch_of_then(simulation, broker):
    (partition,) = create(broker, **{"cleanup.policy": "compact"})
    broker.runtime.blocking_s = lambda: THREAD_S

    async def story():
        waiting = asyncio.ensure_future(codes_and_offsets(produce(broker, large())))
        await asyncio.sleep(BESIDE_THE_THREAD_S)
        follow_and_lead_again(broker, partition, b"theirs")
        await asyncio.sleep(2 * THREAD_S)
        follower_fetches(partition, 2, 3001)
        assert await waiting == [(ErrorCode.none, 1)]
        epochs = [
            read_header(data).partition_leader_epoch for _, data in partition.log.reader.records_since(0)
        ]
        assert epochs == [1, 2]

    simulation.run(story())


def test_a_batch_from_a_thread_is_refused_by_a_follower(simulation, broker):
    (partition,) = create(broker, **{"cleanup.policy": "compact"})
    broker.runtime.blocking_s = lambda: THREAD_S

    async def story():
        waiting = asyncio.ensure_future(codes_and_offsets(produce(broker, large())))
        await asyncio.sleep(BESIDE_THE_THREAD_S)
        change_leader(broker, 2)
        assert await waiting == [(ErrorCode.not_leader_or_follower, -1)]
        assert partition.log.log_end_offset == 0

    simulation.run(story())


@pytest.mark.parametrize(("key", "code"), [(b"k", ErrorCode.none), (None, ErrorCode.invalid_record)])
def test_what_is_committed_beside_a_thread_is_answered_when_the_thread_is_done(simulation, broker, key, code):
    """Nothing signals the committed row again: the next append to its partition may be hours away."""
    first, second = create(broker, 2, **{"cleanup.policy": "compact"})
    broker.runtime.blocking_s = lambda: THREAD_S

    async def story():
        waiting = asyncio.ensure_future(
            codes_and_offsets(produce(broker, batch(b"quick", key=b"k"), large(key)))
        )
        await asyncio.sleep(BESIDE_THE_THREAD_S)
        follower_fetches(first, 2, 1)
        assert first.log.high_watermark == 1
        if key is not None:
            await asyncio.sleep(2 * THREAD_S)
            follower_fetches(second, 2, 3000)
        assert [row[0] for row in await waiting] == [ErrorCode.none, code]
        assert simulation.loop.time() < 1

    simulation.run(story())


def caught_up_but_not_in_the_isr(broker):
    """Broker 3 has everything, is about to join the ISR of 1 and 2, and holds the high watermark until then."""
    for broker_id in (1, 2, 3):
        broker.replay(RegisterBrokerRecord(broker_id=broker_id, broker_epoch=broker_id, fenced=False))
    broker.create(partitions={0: image(replicas=(1, 2, 3), isr=(1, 2))})
    partition = broker.replicas.hosted.by_key["t", 0]
    now_ms = broker.runtime.now_ms()
    for follower in (2, 3):
        follower_fetches(partition, follower, 0, now_ms=now_ms, broker_epoch=follower)
    assert partition.leader.state.proposed_isr == {1, 2, 3}
    return partition


def test_a_refused_isr_is_not_waited_for(simulation, broker):
    partition = caught_up_but_not_in_the_isr(broker)

    async def story():
        waiting = produce(broker, batch(b"a"))
        follower_fetches(partition, 2, 1, now_ms=broker.runtime.now_ms(), broker_epoch=2)
        # It has a new epoch, as the controller knows already.
        broker.metadata.image.replay_all([RegisterBrokerRecord(broker_id=3, broker_epoch=9, fenced=True)])
        assert partition.log.high_watermark == 0
        partition.on_isr_refused(leader_epoch=0)
        assert await codes_and_offsets(waiting) == [(ErrorCode.none, 0)]
        assert simulation.loop.time() < 1

    simulation.run(story())


def test_who_is_fenced_does_not_hold_the_high_watermark(simulation, broker):
    partition = caught_up_but_not_in_the_isr(broker)
    partition.on_isr_refused(leader_epoch=0)

    async def story():
        waiting = produce(broker, batch(b"a"))
        follower_fetches(partition, 2, 1, now_ms=broker.runtime.now_ms(), broker_epoch=2)
        assert partition.log.high_watermark == 0
        broker.replay(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, fenced=1))
        assert await codes_and_offsets(waiting) == [(ErrorCode.none, 0)]
        assert simulation.loop.time() < 1

    simulation.run(story())


# -- DeleteRecords -----------------------------------------------------------------------------------------


async def delete_records(broker, offset):
    request = DeleteRecordsRequest(
        timeout_ms=30_000,
        topics=[
            DeleteRecordsTopic(
                name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
            )
        ],
    )
    row = (await broker.call(k21_delete_records, request, 2)).topics[0].partitions[0]
    return row.error_code, row.low_watermark


def test_a_deletion_ends_with_its_leadership(simulation, broker):
    (partition,) = create(broker)
    broker.replay(RegisterBrokerRecord(broker_id=2, broker_epoch=1, fenced=False))

    async def story():
        partition.as_leader().append_records(batch(b"a", b"b"), required_acks=1, now_ms=NOW_MS)
        follower_fetches(partition, 2, 2)
        task = asyncio.ensure_future(delete_records(broker, 1))
        await asyncio.sleep(0)
        assert partition.log.log_start_offset == 1
        follow_and_lead_again(broker, partition)
        follower_fetches(partition, 2, 2, log_start_offset=1)
        assert await task == (ErrorCode.not_leader_or_follower, -1)

    simulation.run(story())


def test_a_deletion_does_not_wait_for_a_replica_that_is_fenced(simulation, broker):
    """It is in no ISR, so that no partition changes with it."""
    broker.create(partitions={0: image(replicas=REPLICAS, isr=(1,))})
    partition = broker.replicas.hosted.by_key["t", 0]
    broker.replay(RegisterBrokerRecord(broker_id=2, broker_epoch=1, fenced=False))

    async def story():
        partition.as_leader().append_records(batch(b"a", b"b"), required_acks=1, now_ms=NOW_MS)
        waiting = asyncio.ensure_future(delete_records(broker, 1))
        await asyncio.sleep(0)
        broker.replay(BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=1, fenced=1))
        assert await waiting == (ErrorCode.none, 1)
        assert simulation.loop.time() < 1

    simulation.run(story())


# -- ListOffsets -------------------------------------------------------------------------------------------


async def list_offsets(broker, timestamp, *, leader_epoch=-1):
    row = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=leader_epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[row])])
    answered = (await broker.call(k02_list_offsets, request, 9)).topics[0].partitions[0]
    return answered.error_code, answered.offset


@pytest.mark.parametrize(
    ("leader_epoch", "code"), [(-1, ErrorCode.not_leader_or_follower), (0, ErrorCode.fenced_leader_epoch)]
)
@pytest.mark.parametrize("ends_as_leader", [True, False])
def test_what_a_search_has_found_does_not_outlive_the_role(
    simulation, broker, leader_epoch, code, ends_as_leader
):
    (partition,) = create(broker)
    broker.runtime.blocking_s = lambda: THREAD_S

    async def story():
        partition.as_leader().append_records(batch(b"a", timestamp=NOW_MS), required_acks=1, now_ms=NOW_MS)
        follower_fetches(partition, 2, 1)
        assert await list_offsets(broker, NOW_MS, leader_epoch=leader_epoch) == (ErrorCode.none, 0)
        waiting = asyncio.ensure_future(list_offsets(broker, NOW_MS, leader_epoch=leader_epoch))
        await asyncio.sleep(THREAD_S + BESIDE_THE_THREAD_S)  # it has looked
        change_leader(broker, 2)
        if ends_as_leader:
            change_leader(broker, 1)
        assert await waiting == (code, -1)

    simulation.run(story())


# -- coordinators ------------------------------------------------------------------------------------------


def test_what_a_coordinator_waits_for_ends_with_the_leadership(simulation, broker):
    (partition,) = create(broker)

    async def story():
        end_offset = broker.writer.append_as_coordinator(("t", 0), batch(b"mine")).last_offset + 1
        pending = broker.writer.committed(("t", 0), end_offset, timeout_ms=5_000)
        follow_and_lead_again(broker, partition, b"theirs")
        follower_fetches(partition, 2, 1)
        with pytest.raises(NotLeaderOrFollower):
            await pending

    simulation.run(story())


@pytest.mark.parametrize(
    ("leaders", "code"), [([2, 1], ErrorCode.not_coordinator), ([1], ErrorCode.none), ([2], ErrorCode.not_coordinator)]
)  # fmt: skip
def test_an_offset_that_is_committed_while_its_partition_changes_its_role(simulation, broker, leaders, code):
    (partition,) = create(broker, name=OFFSETS_TOPIC)

    async def story():
        coordinator = GroupCoordinator(
            config=GroupConfig(),
            log=broker.writer,
            runtime=broker.runtime,
            partition_count=lambda: 1,
            is_named=lambda _: False,
            topics=KnownTopics(),
        )
        coordinator.start()
        await asyncio.sleep(0.1)
        rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
        request = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="x", partitions=rows)]
        )
        waiting = coordinator.commit_offsets(request, version=8)
        for leader in leaders:
            change_leader(broker, leader)
            if leader == 2:
                partition.follower.truncate_to(0, now_ms=NOW_MS)
        if partition.is_leader:
            partition.as_leader().append_records(batch(b"k", key=b"k"), required_acks=1, now_ms=NOW_MS)
            follower_fetches(partition, 2, partition.log.log_end_offset)
        response = await waiting
        assert response.topics[0].partitions[0].error_code == code
        coordinator.stop()

    simulation.run(story())


# -- truncation --------------------------------------------------------------------------------------------


def test_a_truncation_that_waits_for_the_disk_ends_with_the_role(simulation, broker):
    """It was decided on as a follower, and is begun when the broker leads: its records are not cut off."""
    (partition,) = create(broker)
    partition.as_leader().append_records(batch(b"a"), required_acks=1, now_ms=NOW_MS)
    partition.as_leader().append_records(batch(b"b"), required_acks=1, now_ms=NOW_MS)
    change_leader(broker, 2)
    follower, rest = truncation(broker, partition, 1, is_wanted=lambda: not partition.is_leader)
    # What an earlier truncation has prepared, which is as good for this one.
    while (job := partition.log.truncation.next_job(1, now_ms=NOW_MS)) is not None:
        job.complete()
    change_leader(broker, 1)
    simulation.run(rest)
    assert follower.state is ReplicaState.TRUNCATING
    assert values(partition) == [b"a", b"b"]


@pytest.mark.logs("cannot be truncated now")
def test_a_truncation_for_which_no_descriptor_is_free_is_tried_again(simulation, broker, monkeypatch):
    """Otherwise the replica would send no request until the next leader epoch."""
    (partition,) = create(broker)
    for value in (b"a", b"b"):
        partition.as_leader().append_records(batch(value), required_acks=1, now_ms=NOW_MS)
    change_leader(broker, 2)
    partition.log.files.close_descriptors()

    async def story():
        with monkeypatch.context() as patch:
            patch.setattr("ottla.storage.files._unreserved", lambda: 0)
            follower, rest = truncation(broker, partition, 1, is_wanted=lambda: True)
            task = asyncio.ensure_future(rest)
            await asyncio.sleep(2.5 * DESCRIPTORS_RETRY_S)
            assert follower.state is ReplicaState.TRUNCATING
        await task
        assert follower.state is ReplicaState.FETCHING

    simulation.run(story())
    assert values(partition) == [b"a"]


def test_a_truncation_that_is_cancelled_leaves_no_copy_of_the_log(simulation, broker, monkeypatch):
    """A fetcher without partitions is stopped so; the thread that copies continues to its end."""
    (partition,) = create(broker)
    for _ in range(2):
        partition.as_leader().append_records(batch(b"x" * 200_000), required_acks=1, now_ms=NOW_MS)
    log = partition.log
    lent = log.reader.read(1, max_bytes=500_000, lend=True).records
    assert isinstance(lent, memoryview)
    change_leader(broker, 2)
    begun = []

    async def slowly(function):
        begun.append(function)
        await asyncio.sleep(1)
        return function()

    async def in_thread(function, *, pool):
        return await asyncio.shield(asyncio.ensure_future(slowly(function)))

    async def story():
        monkeypatch.setattr(broker.runtime, "run_blocking", in_thread)
        _, rest = truncation(broker, partition, 1, is_wanted=lambda: True)
        task = asyncio.ensure_future(rest)
        await asyncio.sleep(1.5)  # what the producers wrote has been read, and the file is being copied
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(2)

    simulation.run(story())
    assert len(begun) == 2
    assert not list(log.directory.glob("*.tmp"))
    assert len(lent) > 200_000


def test_what_a_thread_finds_in_a_log_that_another_epoch_has_truncated_is_no_damage(
    simulation, broker, monkeypatch
):
    (partition,) = create(broker)
    for value in (b"a", b"b", b"c"):
        partition.as_leader().append_records(batch(value), required_acks=1, now_ms=NOW_MS)
    change_leader(broker, 2)
    epoch = partition.leader_epoch

    async def in_thread(function, *, pool):
        change_leader(broker, 1)
        change_leader(broker, 2)
        partition.follower.truncate_to(0, now_ms=NOW_MS)
        function()
        raise CorruptMessage("not a batch")

    monkeypatch.setattr(broker.runtime, "run_blocking", in_thread)
    follower, rest = truncation(broker, partition, 2, is_wanted=lambda: partition.leader_epoch == epoch)
    simulation.run(rest)
    assert follower.state is ReplicaState.TRUNCATING
    assert partition.log.is_writable


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_log_that_starts_within_a_batch_takes_it_when_its_checkpoints_are_written(
    simulation, broker, is_wanted
):
    """The loop does not wait for the disk; the records are those of then, though the response buffer is used again."""
    (partition,) = create(broker)
    change_leader(broker, 2)
    log = partition.log
    log.truncate_fully_and_start_at(2, now_ms=NOW_MS)
    log.flush()
    follower = Follower(log)
    follower.follow(partition.leader_epoch)
    follower._fetch(Transitions.TRUNCATED)
    data = batch(b"a", b"b", b"c", b"d")
    data[12:16] = partition.leader_epoch.to_bytes(4, "big")
    answer = Records(records=memoryview(data), high_watermark=4, log_start_offset=2)
    actions = FollowerActions(broker.runtime, pool=Pool.FLUSHES)
    rest = actions.execute(
        follower.on_records(follower.next_request(), answer),
        follower,
        partition.follower,
        is_wanted=lambda: is_wanted,
    )
    data[:] = bytes(len(data))
    assert (log.log_end_offset, follower.next_request()) == (2, None)
    simulation.run(rest)
    if is_wanted:
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 4, 4)
        assert values(partition)[-2:] == [b"c", b"d"]
        assert follower.next_request().fetch_offset == 4
    else:
        assert (log.log_end_offset, follower.next_request()) == (2, None)
