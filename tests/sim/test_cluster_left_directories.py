"""Log directories that leave `log.dirs` while a broker is stopped, and come back: no acknowledged record is lost.

Every stop is clean, and no unclean election is allowed.
"""

import asyncio
import dataclasses
import errno
from pathlib import Path

import pytest
from booted_world import BROKERS, CONTROLLERS, run_story

from ottla.broker.roles.broker import BrokerRole
from ottla.controller.partitions import leader_and_isr_updates
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.types import TopicPartition
from tests.harness.waiting import until

A, B, C = Path("/disks/a"), Path("/disks/b"), Path("/disks/c")
TOPIC = "t"
pytestmark = pytest.mark.logs(
    "has not responded for", "was registered without log directory", "is not in log.dirs", "is offline"
)


def image(world, by, index):
    return world.nodes[by].broker.metadata.image.topics_by_name[TOPIC].partitions[index]


def log_of(world, broker_id, index):
    return world.nodes[broker_id].broker.replicas.logs.get(TopicPartition(TOPIC, index))


async def written(world, replicas, *, min_isr=2):
    """A topic with an acknowledged record in the partition that broker 2 has in its directory B; that partition."""
    client = await world.client(3)
    topic = CreatableTopic(
        name=TOPIC,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=replicas) for index in range(2)
        ],
        configs=[CreatableTopicConfig(name="min.insync.replicas", value=str(min_isr))],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    created = await client.request(ApiKey.CREATE_TOPICS, 7, request)
    assert not created.topics[0].error_code
    await until(lambda: all(len(image(world, 3, index).isr) == len(replicas) for index in range(2)))
    [index] = [each for each in range(2) if log_of(world, 2, each).directory.parent == B]
    directory_id = world.nodes[2].broker.replicas.logs.directory_ids[B]
    await until(lambda: directory_id in image(world, 3, index).directories)
    await world.produce(TOPIC, index, image(world, 3, index).leader)
    return index


async def stop_all(world, *broker_ids):
    for broker_id in broker_ids:
        await world.stop(broker_id)


async def settle(world, index, leader):
    await until(lambda: image(world, 3, index).leader == leader)
    await until(lambda: set(image(world, 3, index).isr) == set(image(world, 3, index).replicas))


@pytest.mark.parametrize("log_dirs", [f"{A}", f"{A},{C}"])
def test_a_directory_that_left_does_not_make_its_replica_leader(log_dirs):
    """Without it the replica is empty, and the other one has the record, though it is back later."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        index = await written(world, [2, 1])
        await stop_all(world, 1, 2)
        await world.start(2, **{"log.dirs": log_dirs})
        await asyncio.sleep(5)
        assert image(world, 3, index).leader is None
        assert log_of(world, 2, index) is None
        await world.start(1)
        await settle(world, index, 1)
        assert await world.fetch(TOPIC, index, 1) == [b"v"]
        assert log_of(world, 2, index).log_end_offset == 1
        # The directory is back, with a log that is older than the one which was copied meanwhile.
        await world.produce(TOPIC, index, 1)
        await world.stop(2)
        await world.start(2, **{"log.dirs": f"{log_dirs},{B}"})
        await settle(world, index, 1)
        assert log_of(world, 2, index).directory.parent != B
        assert log_of(world, 2, index).log_end_offset == 2

    run_story(story, **{"log.dirs": f"{A},{B}"})


test_a_directory_that_left_does_not_make_its_replica_leader.pytestmark.append(
    pytest.mark.logs("the log is renamed to a stray")
)


def test_a_failed_directory_that_is_taken_out():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        index = await written(world, [2, 1])
        world.disks[2].fail(None, errno=errno.EIO, under=B, is_lasting=True)
        world.nodes[2].broker.replicas.logs.take_offline(B, OSError(errno.EIO, "Input/output error"))
        await until(lambda: image(world, 3, index).leader == 1)
        await stop_all(world, 2, 1)
        await world.start(2, **{"log.dirs": f"{A}"})
        await asyncio.sleep(5)
        assert image(world, 3, index).leader is None
        await world.start(1)
        await settle(world, index, 1)
        assert await world.fetch(TOPIC, index, 1) == [b"v"]

    run_story(story, **{"log.dirs": f"{A},{B}"})


@pytest.mark.parametrize("way", ["back", "renamed", "given up"])
def test_the_only_copy_is_offline_until_its_directory_is_back(way):
    """The same id at another path is the same directory; an operator may give the records up."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        index = await written(world, [2], min_isr=1)
        await world.stop(2)
        await world.start(2, **{"log.dirs": f"{A}"})
        await asyncio.sleep(5)
        assert image(world, 3, index).leader is None
        if way == "given up":
            client = await world.client(3)
            request = ElectLeadersRequest(
                election_type=1, topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[index])]
            )
            answer = await client.request(ApiKey.ELECT_LEADERS, 2, request)
            assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.none
            await settle(world, index, 2)
            await until(lambda: log_of(world, 2, index) is not None)
            assert log_of(world, 2, index).log_end_offset == 0
            await world.produce(TOPIC, index, 2)
            return
        await world.stop(2)
        if way == "renamed":
            world.disks[2].rename(B, C)
        await world.start(2, **{"log.dirs": f"{A},{B if way == 'back' else C}"})
        await settle(world, index, 2)
        assert await world.fetch(TOPIC, index, 2) == [b"v"]

    run_story(story, **{"log.dirs": f"{A},{B}"})


@pytest.mark.logs("registers again, as after an unclean shutdown")
@pytest.mark.parametrize("controllers", ["Ottla's", "Kafka's"])
def test_a_broker_does_not_count_as_complete_without_a_directory(controllers, monkeypatch):
    """Apache Kafka's controllers leave it in the ELR unless its shutdown was unclean;
    it is then elected with half a log.
    """
    if controllers == "Kafka's":
        monkeypatch.setattr(leader_and_isr_updates, "remove_replicas_without_directory", lambda *_: [])

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        index = await written(world, [2, 1])
        await stop_all(world, 2, 1)
        assert image(world, 3, index).elr == (1, 2)
        await world.start(2, **{"log.dirs": f"{A}"})
        now = image(world, 3, index)
        assert (now.leader, now.isr, now.elr) == (None, (), (1,))
        await world.start(1)
        await settle(world, index, 1)
        assert await world.fetch(TOPIC, index, 1) == [b"v"]

    run_story(story, **{"log.dirs": f"{A},{B}"})


@pytest.mark.logs("the log is renamed to a stray", "or is not in log.dirs")
def test_a_stale_log_does_not_stand_in_for_one_that_cannot_be_opened(monkeypatch):
    """The assigned directory fails while logs are opened, which the controller learns late,
    and another one with an older log of the partition is back.
    """
    late, offline = [True], BrokerRole._offline_log_dirs

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        index = await written(world, [2, 1], min_isr=1)
        await world.stop(2)
        # B is away, and the replica is copied to C.
        await world.start(2, **{"log.dirs": f"{A},{C}", "cordoned.log.dirs": f"{A}"})
        await settle(world, index, 1)
        assert log_of(world, 2, index).directory.parent == C
        await until(lambda: not unplaced(world, 2))
        await world.produce(TOPIC, index, 1)
        await world.stop(1)
        await until(lambda: image(world, 3, index).leader == 2)
        await world.stop(2)
        # B is back, and C fails for a while. Its log has the second record, and nothing else has.
        world.disks[2].fail("read", errno=errno.EIO, under=C / f"{TOPIC}-{index}", is_lasting=True)
        monkeypatch.setattr(BrokerRole, "_offline_log_dirs", lambda role: [] if late else offline(role))
        await world.start(2, **{"log.dirs": f"{A},{B},{C}"})
        await asyncio.sleep(5)
        late.clear()
        await until(lambda: image(world, 3, index).leader is None)
        assert image(world, 3, index).directories[0] == world.nodes[2].broker.replicas.logs.directory_ids[C]
        await world.stop(2)
        world.disks[2].faults.clear()
        await world.start(2, **{"log.dirs": f"{A},{B},{C}"})
        await until(lambda: image(world, 3, index).leader == 2)
        await until(lambda: log_of(world, 2, index) is not None)
        assert log_of(world, 2, index).log_end_offset == 2

    run_story(story, **{"log.dirs": f"{A},{B}"})


@pytest.mark.parametrize("has_failed", [True, False])
@pytest.mark.parametrize("is_placed", [True, False])
def test_a_broker_whose_log_is_not_where_the_metadata_says_has_not_stopped_cleanly(is_placed, has_failed):
    """Before a move is reported, the controller would not learn that a failed directory has taken the log with it."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        index = await written(world, [2, 1])
        await until(lambda: not unplaced(world, 2))
        role = world.nodes[2]._broker_role
        if not is_placed:
            role._assignments.check_delta = lambda delta: None  # it is not reported in time
            logs = world.nodes[2].broker.replicas.logs
            other = logs.directory_ids[A]
            logs.directories[B] = dataclasses.replace(logs.directories[B], directory_id=other)
        epoch = world.nodes[2].broker.lifecycle.broker_epoch
        if has_failed:
            world.nodes[2].broker.replicas.logs.take_offline(B, OSError(errno.EIO, "Input/output error"))
            await until(lambda: log_of(world, 2, index) is None)
        await world.stop(2)
        assert role.shutdown_epoch == (epoch if is_placed else -1)
        assert image(world, 3, index).leader == 1

    run_story(story, **{"log.dirs": f"{A},{B}"})


def unplaced(world, broker_id):
    """Replicas of this broker whose directory the metadata does not name."""
    ids = world.nodes[broker_id].broker.replicas.logs.directory_ids
    return [
        index
        for index in range(2)
        if ids[log_of(world, broker_id, index).directory.parent] not in image(world, 3, index).directories
    ]
