"""A delta that changes the roles of many partitions: they get them beside the loop's work, and whatever
happens meanwhile.
"""

import errno
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.replicas.partition import Partition
from ottla.metadata.records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.protocol.errors import KafkaStorageError, NotLeaderOrFollower, UnknownTopicOrPartition
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaBroker, ReplicaCluster
from tests.harness.waiting import until

A, B = Path("/disks/a"), Path("/disks/b")
COUNT = 1000
FEW = 16
PARTITIONS = [TopicPartition("many", index) for index in range(COUNT)]


@asynccontextmanager
async def leader_of_many(simulation, log_dirs=(A,)):
    """Broker 1 leads all partitions in leader epoch 0."""
    cluster = ReplicaCluster(simulation, [1], log_dirs=log_dirs)
    broker = cluster.brokers[1]
    create(cluster)
    await broker.replicas.all_created()
    yield cluster, broker
    await broker.replicas.stop()
    await broker.stop()


def create(cluster: ReplicaCluster, topic_id: UUID = TOPIC_ID, count: int = COUNT) -> None:
    cluster.commit(
        TopicRecord(name="many", topic_id=topic_id),
        *(
            PartitionRecord(
                partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=0,
                partition_epoch=0, directories=[cluster.directory(1)],
            )
            for index in range(count)
        ),
    )  # fmt: skip


def change(cluster: ReplicaCluster, count: int = COUNT, **to: object) -> None:
    """The first `count` partitions get another leader, or other replicas: a new leader epoch."""
    cluster.commit(
        *(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=index, **to) for index in range(count))
    )


def epochs(broker: ReplicaBroker) -> dict[int, int]:
    """The number of partitions in each leader epoch."""
    found = [partition.leader_epoch for partition in broker.replicas.partitions()]
    return {epoch: found.count(epoch) for epoch in sorted(set(found))}


async def some_are_changed(broker: ReplicaBroker) -> None:
    """Wait for the first turn, and not for all."""
    await until(lambda: broker.partition(PARTITIONS[0]).leader_epoch, pause_s=0)
    assert not broker.partition(PARTITIONS[-1]).leader_epoch


def test_others_have_their_turn(simulation):
    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            roles, before = broker.replicas.roles, broker.metadata.last_applied_offset
            assert roles.applied_offset == before
            change(cluster, leader=1)
            assert epochs(broker) == {0: COUNT}
            await some_are_changed(broker)
            assert list(epochs(broker)) == [0, 1]
            # Each partition has its old role or its new one, and the offset for the controller is the old one.
            assert broker.partition(PARTITIONS[0]).as_leader().state.epoch == 1
            assert broker.partition(PARTITIONS[0]).log.latest_epoch == 1
            assert broker.partition(PARTITIONS[-1]).as_leader().state.epoch == 0
            assert roles.applied_offset == before < broker.metadata.last_applied_offset
            await roles.idle()
            assert epochs(broker) == {1: COUNT}
            assert roles.applied_offset == broker.metadata.last_applied_offset

    simulation.run(story())


def test_few_are_changed_at_once(simulation):
    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            change(cluster, count=FEW, leader=1)
            assert epochs(broker) == {0: COUNT - FEW, 1: FEW}
            assert broker.replicas.roles.applied_offset == broker.metadata.last_applied_offset

    simulation.run(story())


def test_the_last_of_several_changes_takes_effect(simulation):
    """Pending changes may skip epochs; a change of few partitions waits behind them, since the log has an
    order."""

    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            change(cluster, leader=-1)
            await some_are_changed(broker)
            assert not broker.partition(PARTITIONS[0]).is_leader
            change(cluster, count=1, leader=1)
            cluster.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=COUNT - 1, leader=1))
            assert not broker.partition(PARTITIONS[0]).is_leader
            assert broker.partition(PARTITIONS[-1]).leader_epoch == 0
            await broker.replicas.roles.idle()
            assert epochs(broker) == {1: COUNT - 2, 2: 2}
            led = [each for each in broker.replicas.partitions() if each.is_leader]
            assert [each.topic_partition for each in led] == [PARTITIONS[0], PARTITIONS[-1]]
            # Not an interruption for a partition that has truncated nothing.
            assert led[1].as_leader().since_epoch == 0

    simulation.run(story())


def test_the_topic_is_deleted_meanwhile_and_made_again(simulation):
    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            change(cluster, leader=1)
            await some_are_changed(broker)
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            with pytest.raises(UnknownTopicOrPartition):
                broker.partition(PARTITIONS[-1])
            create(cluster, UUID(int=0xB))
            await broker.replicas.roles.idle()
            await broker.replicas.all_created()
            assert epochs(broker) == {0: COUNT}
            assert {broker.partition(at).topic_id for at in PARTITIONS} == {UUID(int=0xB)}

    simulation.run(story())


def test_replicas_are_removed_and_some_added_again_meanwhile(simulation):
    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            away = {"replicas": [2], "isr": [2], "leader": 2, "directories": [cluster.directory(1)]}
            change(cluster, **away)
            # Until its turn comes a partition is led as before; its controller knows by the offset.
            assert broker.partition(PARTITIONS[-1]).is_leader
            cluster.commit(
                PartitionChangeRecord(
                    topic_id=TOPIC_ID, partition_id=COUNT - 1, **away | {"replicas": [1], "isr": [1], "leader": 1}
                )
            )  # fmt: skip
            await broker.replicas.roles.idle()
            await broker.replicas.all_created()
            assert [str(each) for each in broker.replicas.partitions()] == [str(PARTITIONS[-1])]
            assert broker.partition(PARTITIONS[-1]).leader_epoch == 2
            with pytest.raises(NotLeaderOrFollower):
                broker.partition(PARTITIONS[0])
            assert list(broker.logs.logs) == [PARTITIONS[-1]]
            assert sum(name.endswith("-delete") for name in broker.files.list(A)) == COUNT - 1

    simulation.run(story())


@pytest.mark.logs("Log directory")
def test_a_directory_fails_meanwhile(simulation):
    async def story():
        async with leader_of_many(simulation, [A, B]) as (cluster, broker):
            broker.logs.on_dir_failure = lambda path, error: broker.replicas.handle_log_dir_failure(path)
            change(cluster, leader=1)
            await some_are_changed(broker)
            broker.logs.take_offline(B, OSError(errno.EIO, "I/O error"))
            await broker.replicas.roles.idle()
            assert epochs(broker) == {1: COUNT // 2}
            offline = [at for at in PARTITIONS if broker.replicas.hosted.is_offline(at)]
            assert len(offline) == COUNT // 2
            with pytest.raises(KafkaStorageError):
                broker.partition(offline[-1])

    simulation.run(story())


def test_the_node_stops_meanwhile(simulation):
    """Its partitions have their last roles before their logs are closed, in a thread; later changes come at once."""

    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            change(cluster, leader=1)
            await some_are_changed(broker)
            await broker.replicas.stop()
            assert epochs(broker) == {1: COUNT}
            change(cluster, leader=-1)
            assert epochs(broker) == {2: COUNT}
            assert not any(each.is_leader for each in broker.replicas.partitions())

    simulation.run(story())


def test_the_node_dies_meanwhile(simulation):
    """Its leader-epoch-checkpoints are of both epochs; the next process has all roles."""

    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            change(cluster, leader=1)
            await some_are_changed(broker)
            await broker.runtime.close()  # in the simulation, tasks of a dead process would go on
            await broker.crash(Loss.NOTHING)
            broker.start()
            await broker.replicas.all_created()
            assert epochs(broker) == {1: COUNT}
            assert {log.latest_epoch for log in broker.logs.logs.values()} == {1}

    simulation.run(story())


@pytest.mark.logs("The metadata log cannot be applied")
def test_an_offset_that_goes_back_stops_the_node(simulation, monkeypatch):
    """The controller would receive an offset whose roles are not applied."""

    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            failures, roles = [], broker.replicas.roles
            roles.on_failure = failures.append
            monkeypatch.setattr(roles, "_applied_offset", 1_000_000)
            change(cluster, leader=1)
            await roles.idle()
            (failure,) = failures
            assert "1000000" in failure

    simulation.run(story())


@pytest.mark.logs("The metadata log cannot be applied")
def test_a_bug_stops_the_node(simulation, monkeypatch):
    """A bug in a listener of the metadata log does the same: the partition's state is not the log's, and
    nothing repairs it."""

    async def story():
        async with leader_of_many(simulation) as (cluster, broker):
            failures, apply = [], Partition.apply
            broker.replicas.roles.on_failure = failures.append

            def fail(self, image):
                if self.topic_partition == PARTITIONS[500]:
                    raise RuntimeError("a bug")
                return apply(self, image)

            monkeypatch.setattr(Partition, "apply", fail)
            change(cluster, leader=1)
            await broker.replicas.roles.idle()
            (failure,) = failures
            assert "a bug" in failure

    simulation.run(story())
