"""A topic of many partitions: its logs are made beside the loop's work, and whatever happens meanwhile."""

import asyncio
import errno
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from ottla.metadata.records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.protocol.errors import KafkaStorageError, NotLeaderOrFollower, UnknownTopicOrPartition
from ottla.protocol.types import TopicPartition
from ottla.storage.log_availability import DESCRIPTORS_RETRY_S
from ottla.storage.manager.log_creation import LogCreation
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaBroker, ReplicaCluster
from tests.harness.waiting import until

A, B = Path("/disks/a"), Path("/disks/b")
COUNT = 100
PARTITIONS = [TopicPartition("many", index) for index in range(COUNT)]


@asynccontextmanager
async def one_broker(simulation, log_dirs=(A,)):
    cluster = ReplicaCluster(simulation, [1], log_dirs=log_dirs)
    yield cluster, cluster.brokers[1]
    await cluster.brokers[1].replicas.stop()
    await cluster.brokers[1].stop()


def create(cluster: ReplicaCluster, topic_id: UUID = TOPIC_ID, count: int = COUNT, epoch: int = 0) -> None:
    cluster.commit(
        TopicRecord(name="many", topic_id=topic_id),
        *(
            PartitionRecord(
                partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=epoch,
                partition_epoch=0, directories=[cluster.directory(1)],
            )
            for index in range(count)
        ),
    )  # fmt: skip


async def some_are_made(broker: ReplicaBroker) -> None:
    """Wait for the first part, and not for all."""
    await until(lambda: broker.logs.logs, pause_s=0)
    assert len(broker.logs.logs) < COUNT


def test_others_have_their_turn(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            placed = []
            broker.replicas.on_placed = placed.append
            create(cluster)
            assert not broker.logs.logs
            with pytest.raises(NotLeaderOrFollower, match="being created"):
                broker.partition(PARTITIONS[0])
            await some_are_made(broker)
            # A partition has its role as soon as it has its log.
            assert broker.partition(PARTITIONS[0]).is_leader
            with pytest.raises(NotLeaderOrFollower, match="being created"):
                broker.partition(PARTITIONS[-1])
            await broker.replicas.all_created()
            assert all(broker.partition(at).is_leader for at in PARTITIONS)
            assert len(placed) > 2
            assert [place for part in placed for place in part] == [(TOPIC_ID, at) for at in range(COUNT)]

    simulation.run(story())


def test_a_small_topic_is_there_at_once(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster, count=10)
            assert all(broker.partition(at).is_leader for at in PARTITIONS[:10])

    simulation.run(story())


@pytest.mark.logs("has no log yet")
@pytest.mark.parametrize("count", [10, COUNT])
def test_logs_for_which_no_descriptor_is_free_are_created_later(simulation, monkeypatch, count):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            with monkeypatch.context() as patch:
                patch.setattr("ottla.storage.files._unreserved", lambda: 0)
                create(cluster, count=count)
                await asyncio.sleep(3 * DESCRIPTORS_RETRY_S)
                with pytest.raises(NotLeaderOrFollower):
                    broker.partition(PARTITIONS[0])
                assert not broker.logs.offline_dirs
            await asyncio.sleep(2 * DESCRIPTORS_RETRY_S)
            assert all(broker.partition(at).is_leader for at in PARTITIONS[:count])

    simulation.run(story())


def test_at_a_start_the_partitions_of_existing_logs_get_their_roles_in_turns(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await broker.replicas.all_created()
            await broker.replicas.stop()
            await broker.crash(Loss.NOTHING)
            broker.start()
            assert len(broker.logs.logs) == COUNT
            with pytest.raises(NotLeaderOrFollower, match="being created"):
                broker.partition(PARTITIONS[0])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # A topic that is deleted before all have their turn.
            assert broker.partition(PARTITIONS[0]).is_leader
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            create(cluster, UUID(int=0xB))
            await broker.replicas.all_created()
            assert {broker.partition(at).topic_id for at in PARTITIONS} == {UUID(int=0xB)}

    simulation.run(story())


@pytest.mark.logs("Log directory", "has no log, and is offline on this broker")
def test_at_a_start_a_directory_fails_before_its_partitions_have_their_roles(simulation):
    async def story():
        async with one_broker(simulation, [A, B]) as (cluster, broker):
            create(cluster)
            await broker.replicas.all_created()
            await broker.replicas.stop()
            await broker.crash(Loss.NOTHING)
            broker.start()
            broker.logs.on_dir_failure = lambda path, error: broker.replicas.handle_log_dir_failure(path)
            broker.logs.take_offline(B, OSError(errno.EIO, "I/O error"))
            await broker.replicas.all_created()
            offline = [at for at in PARTITIONS if broker.replicas.hosted.is_offline(at)]
            assert len(offline) == len(broker.logs.logs) == COUNT // 2
            with pytest.raises(KafkaStorageError):
                broker.partition(offline[0])

    simulation.run(story())


def test_the_role_is_that_of_the_moment_when_the_log_is_there(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            cluster.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=99, leader=1))
            cluster.configs["retention.ms"] = "4711"
            cluster.commit(
                ConfigRecord(resource_type=2, resource_name="many", name="retention.ms", value="4711")
            )
            await broker.replicas.all_created()
            assert broker.partition(PARTITIONS[99]).leader_epoch == 1
            assert broker.partition(PARTITIONS[99]).log.latest_epoch == 1
            assert {log.config.retention_ms for log in broker.logs.logs.values()} == {4711}

    simulation.run(story())


def test_deleted_and_made_again_meanwhile(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            new_id = UUID(int=0xB)
            create(cluster)
            await some_are_made(broker)
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            assert not broker.logs.logs
            with pytest.raises(UnknownTopicOrPartition):
                broker.partition(PARTITIONS[-1])
            create(cluster, new_id)
            await broker.replicas.all_created()
            assert {broker.partition(at).topic_id for at in PARTITIONS} == {new_id}
            assert {log.topic_id for log in broker.logs.logs.values()} == {new_id}
            assert len(broker.logs.logs) == COUNT
            # What had been made of the first one is put aside.
            left = [name for name in broker.files.list(A) if name.endswith("-delete")]
            assert 0 < len(left) < COUNT

    simulation.run(story())


def names_in_use(broker: ReplicaBroker) -> int:
    """The number of directories whose names a new log of the topic would need."""
    return sum(name in map(str, PARTITIONS) for name in broker.files.list(A))


def test_deleted_logs_are_put_aside_in_turns(simulation):
    """No request finds them after the deletion; the loop does not rename the directories of a thousand in one turn."""

    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await broker.replicas.all_created()
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            assert not broker.logs.logs
            with pytest.raises(UnknownTopicOrPartition):
                broker.partition(PARTITIONS[0])
            assert names_in_use(broker) == COUNT
            create(cluster, UUID(int=0xB), count=1)
            with pytest.raises(NotLeaderOrFollower, match="being created"):
                broker.partition(PARTITIONS[0])
            await broker.replicas.all_created()
            assert broker.partition(PARTITIONS[0]).topic_id == UUID(int=0xB)
            assert names_in_use(broker) == 1
            # Of a small topic all is done at once.
            cluster.commit(RemoveTopicRecord(topic_id=UUID(int=0xB)))
            assert names_in_use(broker) == 0

    simulation.run(story())


def test_the_node_stops_while_deleted_logs_have_their_names(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await broker.replicas.all_created()
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            await broker.replicas.stop()
            assert names_in_use(broker)
            broker.logs.shutdown(broker.runtime.now_ms(), broker_epoch=1)
            assert names_in_use(broker) == 0

    simulation.run(story())


def test_nothing_begins_after_the_stop(simulation):
    """The node follows the metadata for a while yet, and then closes its logs in a thread."""

    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await broker.replicas.all_created()
            await broker.replicas.stop()
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            create(cluster, UUID(int=0xB))
            await asyncio.sleep(1)
            assert names_in_use(broker) == COUNT
            assert not broker.logs.logs
            broker.logs.shutdown(broker.runtime.now_ms(), broker_epoch=1)
            assert names_in_use(broker) == 0

    simulation.run(story())


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.logs("the log is renamed to a stray")
def test_the_node_dies_while_deleted_logs_have_their_names(simulation, is_made_again):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await broker.replicas.all_created()
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            await broker.replicas.stop()  # in the simulation, tasks of a dead process would go on
            await broker.crash(Loss.NOTHING)
            if is_made_again:
                create(cluster, UUID(int=0xB))
            broker.start()
            await broker.replicas.all_created()
            assert len(broker.logs.logs) == names_in_use(broker) == COUNT * is_made_again
            assert {log.topic_id for log in broker.logs.logs.values()} <= {UUID(int=0xB)}
            assert sum(name.endswith("-stray") for name in broker.files.list(A)) == COUNT

    simulation.run(story())


def test_a_replica_that_is_removed_and_added_again_meanwhile(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await some_are_made(broker)
            for replicas in ([2], [1]):
                for index in (0, 99):
                    cluster.commit(
                        PartitionChangeRecord(
                            topic_id=TOPIC_ID, partition_id=index, replicas=replicas, isr=replicas, leader=replicas[0],
                            directories=[cluster.directory(1)],
                        )
                    )  # fmt: skip
            await broker.replicas.all_created()
            for index in (0, 99):
                partition = broker.partition(PARTITIONS[index])
                assert (partition.leader_epoch, partition.is_leader) == (2, True)
            assert len(broker.logs.logs) == COUNT

    simulation.run(story())


@pytest.mark.logs("Log directory", "has no log, and is offline on this broker")
def test_a_directory_fails_meanwhile(simulation):
    async def story():
        async with one_broker(simulation, [A, B]) as (cluster, broker):
            broker.logs.on_dir_failure = lambda path, error: broker.replicas.handle_log_dir_failure(path)
            create(cluster)
            await some_are_made(broker)
            broker.files.fail("create", errno=errno.EIO, under=B, is_lasting=True)
            await broker.replicas.all_created()
            assert list(broker.logs.offline_dirs) == [B]
            online, offline = 0, 0
            for at in PARTITIONS:
                try:
                    assert broker.partition(at).log.directory.parent == A
                    online += 1
                except KafkaStorageError:
                    offline += 1
            assert (online, offline) == (50, 50)
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            assert not broker.logs.logs

    simulation.run(story())


def test_the_node_stops_meanwhile(simulation):
    async def story():
        async with one_broker(simulation) as (cluster, broker):
            create(cluster)
            await some_are_made(broker)
            await broker.replicas.stop()
            made = len(broker.logs.logs)
            assert 0 < made < COUNT
            await asyncio.sleep(1)
            assert len(broker.logs.logs) == made
            broker.logs.shutdown(broker.runtime.now_ms(), broker_epoch=1)
            await broker.crash(Loss.NOTHING)
            broker.start()  # the rest is made by the next process
            await broker.replicas.all_created()
            assert all(broker.partition(at).is_leader for at in PARTITIONS)

    simulation.run(story())


@pytest.mark.logs("failed; it is started again in")
def test_logs_that_a_failing_thread_has_not_made_are_made_by_the_next_run(simulation, monkeypatch):
    """A thread that cannot be started, a bug: the partitions had no log as long as the broker ran."""

    async def story():
        async with one_broker(simulation) as (cluster, broker):
            run, calls = LogCreation.run, []

            def fail_once(self, part):
                calls.append(len(part))
                if len(calls) == 2:
                    raise RuntimeError("can't start new thread")
                run(self, part)

            monkeypatch.setattr(LogCreation, "run", fail_once)
            create(cluster)
            await broker.replicas.all_created()
            assert all(broker.partition(at).is_leader for at in PARTITIONS)
            assert sum(calls) == COUNT + calls[1]
            assert [str(each) for each in simulation.failures] == ["can't start new thread"]
            simulation.failures.clear()

    simulation.run(story())
