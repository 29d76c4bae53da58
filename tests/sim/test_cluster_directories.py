"""Log directories of a cluster that operators cordon (KIP-1066), or that fail unknown to the controllers (KIP-858)."""

import asyncio
import errno
from pathlib import Path

import pytest
from test_cluster_boot import BROKERS, CONTROLLERS, run_story

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.types import TopicPartition
from tests.harness.waiting import until

A, B = Path("/disks/a"), Path("/disks/b")
_BROKER_RESOURCE, _SET = 4, 0


async def ask(world, broker_id, key, version, request):
    client = await world.client(broker_id)
    answer = await client.request(key, version, request)
    await client.close()
    return answer


async def cordon(world, broker_id, value, *, through=None):
    """Alter it, and wait until all have replayed it; the error code of the response."""
    config = AlterableConfig(name="cordoned.log.dirs", config_operation=_SET, value=value)
    resource = AlterConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=str(broker_id), configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = await ask(world, through or broker_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    code = answer.responses[0].error_code
    if code == ErrorCode.none:
        names = [A, B] if value == "*" else [Path(each) for each in value.split(",") if each]
        ids = world.nodes[broker_id].broker.replicas.logs.directory_ids
        wanted = {ids[name] for name in names}
        await until(
            lambda: set(world.nodes[2].broker.metadata.broker(broker_id).cordoned_log_dirs or ()) == wanted
        )
    return code


def log_dir(world, broker_id, topic, index=0):
    log = world.nodes[broker_id].broker.replicas.logs.get(TopicPartition(topic, index))
    return None if log is None else log.directory.parent


async def placed(world, name, **fields):
    """Create a topic; the error, or the replicas of each partition, when they have their logs."""
    topic = CreatableTopic(name=name, **fields)
    created = await ask(
        world, 2, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    )
    if created.topics[0].error_code:
        return ErrorCode(created.topics[0].error_code)
    image = world.nodes[2].broker.metadata.image
    await until(lambda: name in image.topics_by_name)
    replicas = {
        index: partition.replicas for index, partition in image.topics_by_name[name].partitions.items()
    }
    await until(
        lambda: all(log_dir(world, each, name, index) for index in replicas for each in replicas[index])
    )
    return replicas


async def described(world, broker_id):
    answer = await ask(world, broker_id, ApiKey.DESCRIBE_LOG_DIRS, 5, DescribeLogDirsRequest(topics=None))
    return {Path(row.log_dir): row.is_cordoned for row in answer.results}


async def move(world, broker_id, topic, path):
    asked = AlterReplicaLogDir(path=str(path), topics=[AlterReplicaLogDirTopic(name=topic, partitions=[0])])
    answer = await ask(
        world, broker_id, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, AlterReplicaLogDirsRequest(dirs=[asked])
    )
    return answer.results[0].partitions[0].error_code


@pytest.mark.logs("has not responded for")
def test_cordoned_directories_get_no_new_replicas():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        assert await described(world, 1) == {A: False, B: False}
        before = await placed(world, "before", num_partitions=4, replication_factor=3)
        assert {log_dir(world, 1, "before", index) for index in before} == {A, B}

        assert await cordon(world, 1, "/elsewhere") == ErrorCode.invalid_request
        assert await cordon(world, 1, str(A)) == ErrorCode.none
        assert await described(world, 1) == {A: True, B: False}
        one = await placed(world, "one", num_partitions=4, replication_factor=3)
        assert {log_dir(world, 1, "one", index) for index in one} == {B}
        assert {log_dir(world, 2, "one", index) for index in one} == {A, B}
        # What is there stays, and may go; nothing may come.
        assert {log_dir(world, 1, "before", index) for index in before} == {A, B}
        assert await move(world, 1, "one", A) == ErrorCode.invalid_replica_assignment
        assert await move(world, 1, "one", B) == ErrorCode.none

        assert await cordon(world, 1, "*") == ErrorCode.none
        assert await described(world, 1) == {A: True, B: True}
        none = await placed(world, "none", num_partitions=4, replication_factor=2)
        assert {replica for replicas in none.values() for replica in replicas} == {2, 3}
        refused = await placed(world, "refused", num_partitions=1, replication_factor=3)
        assert refused == ErrorCode.invalid_replication_factor
        # By hand it may be put there, and goes to the first directory.
        by_hand = CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
        await placed(world, "by-hand", num_partitions=-1, replication_factor=-1, assignments=[by_hand])
        assert log_dir(world, 1, "by-hand") == A

        # It is so after a restart, too.
        await world.stop(1)
        await world.start(1)
        await until(lambda: world.nodes[2].broker.metadata.broker(1).cordoned_log_dirs)
        assert await described(world, 1) == {A: True, B: True}
        # A controller does not know the directories' names, but can be asked where the broker is down.
        (active,) = world.active()
        assert await cordon(world, 1, f"{A},{B}", through=active) == ErrorCode.invalid_config
        assert await cordon(world, 1, f"{A},{B}") == ErrorCode.none
        assert await cordon(world, 1, str(B), through=active) == ErrorCode.none
        assert await described(world, 1) == {A: False, B: True}
        assert await cordon(world, 1, "", through=active) == ErrorCode.none
        assert await described(world, 1) == {A: False, B: False}
        again = await placed(world, "again", num_partitions=4, replication_factor=3)
        assert {log_dir(world, 1, "again", index) for index in again} == {A}  # which has fewer

    run_story(story, **{"log.dirs": f"{A},{B}"})


@pytest.mark.logs(
    "Fetch from broker",
    "Log directory",
    "The node stops",
    "a heartbeat to the controller failed",
    "has not responded for",
    "its session has expired",
    "replicas could not be reported to the controller",
)
def test_a_broker_that_cannot_report_a_failed_directory_ends():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        await placed(world, "t", num_partitions=4, replication_factor=3)
        victim = world.nodes[1]
        world.isolate(1)
        world.disks[1].fail(None, errno=errno.EIO, under=B, is_lasting=True)
        began = world.runtimes[1].monotonic()
        # A write finds out.
        victim.broker.replicas.logs.take_offline(B, OSError(errno.EIO, "Input/output error"))
        async with asyncio.timeout(60):
            why = await asyncio.shield(victim.failure)
        assert "log.dir.failure.timeout.ms" in str(why)
        assert 10 <= world.runtimes[1].monotonic() - began < 15
        # A second one reports it in time, and keeps running with the directory that is left.
        other = world.nodes[2]
        other.broker.replicas.logs.take_offline(B, OSError(errno.EIO, "Input/output error"))
        await asyncio.sleep(60)
        assert not other.failure.done()
        world.rejoin(1)

    run_story(story, **{"log.dirs": f"{A},{B}", "log.dir.failure.timeout.ms": "10000"})


@pytest.mark.logs("Log directory", "has not responded for")
def test_the_old_directory_fails_when_the_metadata_names_the_new_one():
    """The controller learns that the replica is not there: it would lead, or be in the ISR, without a log."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        by_hand = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
        for name in ("first", "t"):
            await placed(world, name, num_partitions=-1, replication_factor=-1, assignments=[by_hand])
        assert log_dir(world, 1, "t") == B
        broker = world.nodes[1].broker
        ids = broker.replicas.logs.directory_ids

        def known(by):
            return world.nodes[by].broker.metadata.image.topics_by_name["t"].partitions[0]

        assert await move(world, 1, "t", A) == ErrorCode.none
        await until(lambda: known(by=1).directories[0] == ids[A], pause_s=0.001)
        assert log_dir(world, 1, "t") == B, "it has not moved yet"
        broker.replicas.logs.take_offline(B, OSError(errno.EIO, "Input/output error"))
        await until(lambda: (known(by=2).leader, known(by=2).isr) == (2, (2,)))
        assert known(by=2).directories[0] == ids[B]

    run_story(story, **{"log.dirs": f"{A},{B}"})
