"""RemoteLogManager where a topic's tiering or copying is switched off, and on again (KIP-405, KIP-950)."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from one_leader_support import FINISHED, ORDERS, OneLeader

from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.log_manager import expiration_task
from ottla.remote.segment_metadata import RemoteLogSegmentId
from ottla.runtime.simulated import Simulation
from ottla.runtime.virtual_loop import VirtualLoop
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.remote_tier import TIERED, RemoteTier
from ottla.stories.partition.replicas import ReplicaCluster


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


def test_a_topic_that_is_not_tiered_is_left_alone(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path, remote_storage_enable="false")
        leader.write_segment("a")
        await asyncio.sleep(60)
        assert leader.tier.log.changes == []
        assert leader.log.offsets.remote_end_offset is None

    simulation.run(story())


# remote.log.copy.disable, remote.log.delete.on.disable (KIP-950)


def test_copying_is_disabled_and_enabled_again(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.write_segment("a")
        await asyncio.sleep(1)
        leader.alter(remote_log_copy_disable="true")
        leader.write_segment("b")
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 1, FINISHED)]
        leader.alter(remote_log_copy_disable="false")
        await asyncio.sleep(1)  # not the next interval
        assert leader.copies() == [(0, 1, FINISHED), (1, 2, FINISHED)]

    simulation.run(story())


def test_tiering_is_disabled_all_copies_are_deleted_and_it_is_enabled_again(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path, local_retention_ms="1000")
        leader.write_segment("a")
        await asyncio.sleep(10)
        leader.write_segment("b")
        leader.write("c")
        await asyncio.sleep(30)
        leader.log.apply_retention(leader.broker.runtime.now_ms())
        local_start = leader.log.local_log_start_offset
        assert (leader.log.log_start_offset, local_start) == (0, 2)
        leader.alter(
            remote_storage_enable="false", remote_log_delete_on_disable="true", local_retention_ms="-2"
        )
        await asyncio.sleep(60)
        assert leader.copies() == []
        assert leader.tier.objects() == set()
        assert leader.log.log_start_offset == local_start
        leader.alter(remote_storage_enable="true")
        leader.log.roll(leader.broker.runtime.now_ms())
        await asyncio.sleep(60)
        assert leader.copies() == [(2, 3, FINISHED)]

    simulation.run(story())


def test_the_copies_that_are_deleted_when_tiering_is_switched_off_are_looked_up_in_turns(
    simulation, tmp_path, monkeypatch
):
    """The first ones first: what is left is what another leader, or tiering that is enabled again, continues with."""
    turns, turn_of, deleted = [0], {}, []
    run_once, start_offsets = VirtualLoop._run_once, expiration_task._start_offsets

    def counted(loop):
        turns[0] += 1
        run_once(loop)

    def noted(copies, being_copied):
        for start_offset, segment_id in start_offsets(copies, being_copied):
            turn_of[start_offset] = turns[0]
            yield start_offset, segment_id

    async def story():
        leader = OneLeader(simulation, tmp_path)
        delete = leader.own.store.delete_log_segment_data

        def note(copy):
            deleted.append(copy.start_offset)
            delete(copy)

        monkeypatch.setattr(leader.own.store, "delete_log_segment_data", note)
        for value in "abcdef":
            leader.write_segment(value)
        await asyncio.sleep(60)
        assert len(leader.copies()) == 6
        leader.alter(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await asyncio.sleep(60)
        assert leader.copies() == []

    monkeypatch.setattr(VirtualLoop, "_run_once", counted)
    monkeypatch.setattr("ottla.runtime.turns.MAX_STEPS", 1)
    monkeypatch.setattr(expiration_task, "_LOOKED_OF_STEP", 1)
    monkeypatch.setattr(expiration_task, "_start_offsets", noted)
    simulation.run(story())
    assert deleted == [0, 1, 2, 3, 4, 5]
    assert len({*turn_of.values()}) >= 5


def test_a_copy_whose_record_is_appended_after_all_were_deleted_is_deleted_too(simulation, tmp_path):
    """The leader that began it was without enough replicas in sync, gave it up, and tiering was switched off."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.write_segment("a")
        await asyncio.sleep(60)
        [copy] = leader.tier.copies()
        leader.alter(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await asyncio.sleep(60)
        assert leader.copies() == []
        late = RemoteLogSegmentId(copy.segment_id.partition, UUID(int=5))
        await leader.own.metadata.add_remote_log_segment_metadata(
            replace(copy, segment_id=late, state=State.COPY_SEGMENT_STARTED)
        )
        assert len(leader.copies()) == 1
        await asyncio.sleep(60)
        assert leader.copies() == []

    simulation.run(story())


@pytest.mark.logs("Fetch from broker")
@pytest.mark.parametrize("moves", [True, False])
def test_a_late_record_after_a_change_of_role_or_a_restart(simulation, tmp_path, moves):
    """The partition is not forgotten before, by a follower that becomes leader or a leader that is restarted."""

    async def story():
        tier = RemoteTier(tmp_path)
        tier.names_tiering = True
        cluster = ReplicaCluster(simulation, [1, 2], tier=tier, configs=dict(TIERED))
        cluster.create("orders", {0: [1, 2]})
        cluster.elect(ORDERS, 1)
        one, _ = cluster.brokers.values()
        for broker in cluster.brokers.values():
            await broker.listen()
        now_ms = one.runtime.now_ms()
        data = build_batch(simple_records([(None, b"a")], timestamp=now_ms))
        one.partition(ORDERS).as_leader().append_records(bytearray(data), required_acks=1, now_ms=now_ms)
        one.partition(ORDERS).log.roll(now_ms)
        await asyncio.sleep(60)
        [copy] = tier.copies()
        cluster.configs |= {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        for number, broker in cluster.brokers.items():
            partition = broker.partition(ORDERS)
            partition.log.update_config(cluster.topic_config("orders"))
            tier.brokers[number].on_role(partition)
        await asyncio.sleep(60)
        assert tier.copies() == []
        if not moves:
            await one.crash(Loss.NOTHING)
            one.start()
            await one.listen()
        cluster.elect(ORDERS, 2 if moves else 1)
        await asyncio.sleep(31)
        late = RemoteLogSegmentId(copy.segment_id.partition, UUID(int=5))
        await tier.brokers[1].metadata.add_remote_log_segment_metadata(
            replace(copy, segment_id=late, state=State.COPY_SEGMENT_STARTED)
        )
        await asyncio.sleep(600)
        assert tier.copies() == []

    simulation.run(story())


def test_tiering_is_enabled_again_while_copies_are_deleted(simulation, tmp_path):
    """The remaining copies count again, so no further one is deleted."""

    async def story():
        leader = OneLeader(simulation, tmp_path, local_retention_ms="1000000")
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        for value in "abcd":
            leader.write_segment(value)
        leader.write("e")
        await asyncio.sleep(60)
        assert len(leader.copies()) == 4
        leader.own.store.duration_s = 100.0
        leader.alter(
            remote_storage_enable="false", remote_log_delete_on_disable="true", local_retention_ms="-2"
        )
        await asyncio.sleep(150)
        leader.alter(remote_storage_enable="true", local_retention_ms="1000")
        for _ in range(60):
            await asyncio.sleep(30)
            leader.log.apply_retention(leader.broker.runtime.now_ms())
            readable_from = min(
                [leader.log.local_log_start_offset]
                + [start for start, _, state in leader.copies() if state is FINISHED]
            )
            assert readable_from == leader.log.log_start_offset == 0, leader.log.offsets
        assert [start for start, _, _ in leader.copies()] == [0, 1, 2, 3, 4]
        assert leader.log.local_log_start_offset == 5

    simulation.run(story())


@pytest.mark.logs("the store is down")
def test_what_is_switched_off_is_deleted_whatever_the_configuration_is_later(simulation, tmp_path):
    """The next leader epoch deletes it too, though `remote.log.delete.on.disable` was removed before the
    store deleted anything.
    """

    async def story():
        leader = OneLeader(simulation, tmp_path, local_retention_ms="1000")
        for value in "abc":
            leader.write_segment(value)
        await asyncio.sleep(10)
        leader.own.store.failure = RetriableRemoteStorageError("the store is down")
        leader.alter(
            remote_storage_enable="false", remote_log_delete_on_disable="true", local_retention_ms="-2"
        )
        await asyncio.sleep(40)
        leader.alter(remote_log_delete_on_disable="false")
        await asyncio.sleep(40)
        leader.cluster.elect(ORDERS, 1)
        assert len(leader.tier.objects()) == 3
        leader.own.store.failure = None
        await asyncio.sleep(300)
        assert (leader.tier.objects(), leader.copies()) == (set(), [])

    simulation.run(story())


@pytest.mark.parametrize("names_tiering", [True, False])
def test_after_a_restart_what_is_switched_off_is_deleted(simulation, tmp_path, names_tiering):
    """By the topic's own `remote.storage.enable=false`: a topic that was never tiered has none."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.write_segment("a")
        await asyncio.sleep(10)
        await leader.broker.crash(Loss.NOTHING)
        leader.cluster.configs |= {"remote.storage.enable": "false"}
        leader.tier.names_tiering = names_tiering
        leader.broker.start()
        leader.cluster.elect(ORDERS, 1)
        await asyncio.sleep(60)
        assert (leader.copies() == []) is names_tiering

    simulation.run(story())


@pytest.mark.parametrize("topic", ["__remote_log_metadata", "__consumer_offsets"])
def test_topics_that_are_never_tiered_have_no_copies_whatever_their_configuration(
    simulation, tmp_path, topic
):
    """`__remote_log_metadata` is created with `remote.storage.enable=false`: all of it would be read at each start."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        assigned = []
        leader.own.metadata.on_partition_leadership_changes = lambda **changes: assigned.append(changes)
        leader.tier.names_tiering = True
        leader.cluster.create(topic, {0: [1]}, topic_id=UUID(int=11))
        leader.cluster.elect(TopicPartition(topic, 0), 1)
        leader.alter(remote_log_delete_on_disable="true")
        leader.own.on_role(leader.broker.partition(TopicPartition(topic, 0)))
        assert not assigned

    simulation.run(story())


def test_the_metadata_of_a_partition_that_was_never_tiered_are_read_once(simulation, tmp_path):
    """All records of a partition of `__remote_log_metadata` are read for it: not again in each leader epoch."""

    async def story():
        leader = OneLeader(simulation, tmp_path, remote_storage_enable="false")
        leader.tier.names_tiering = True
        metadata, assigned = leader.own.metadata, []
        assign = metadata.on_partition_leadership_changes

        def noted(**changes):
            assigned.append(changes)
            assign(**changes)

        metadata.on_partition_leadership_changes = noted
        for _ in range(3):
            leader.cluster.elect(ORDERS, 1)
            await asyncio.sleep(60)
        assert len(assigned) == 1
        leader.alter(remote_storage_enable="true")
        leader.write_segment("a")
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 1, FINISHED)]
        leader.alter(remote_storage_enable="false", remote_log_delete_on_disable="true")
        await asyncio.sleep(60)
        assert leader.copies() == []
        # A former leader may finish a copy late: it is found in the next leader epoch.
        count = len(assigned)
        leader.cluster.elect(ORDERS, 1)
        await asyncio.sleep(60)
        assert len(assigned) == count + 1

    simulation.run(story())
