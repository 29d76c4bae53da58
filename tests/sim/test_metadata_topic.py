"""`__remote_log_metadata` on three brokers of a cluster, on virtual time: their managers exchange metadata
(KIP-405).
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from booted_world import BROKERS, CONTROLLERS, DATA, run_story

from ottla.broker.tiering.metadata_topic import BrokerMetadataTopic
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.topic_metadata.topic import TOPIC
from ottla.storage.leader_epoch_cache import EpochEntry
from tests.harness.waiting import until

pytestmark = pytest.mark.logs("has not responded for", "a heartbeat to the controller failed")

USERS = [TopicIdPartition(UUID(int=7), TopicPartition("t", number)) for number in range(6)]
PREFIX = "remote.log.metadata."


class Managers:
    """A manager on each broker, all of them with all user partitions."""

    def __init__(self, world, **settings):
        self._world = world
        self._settings = {f"{PREFIX}topic.num.partitions": 3, **settings}
        self._managers = {}
        self.topics = {}
        self._next_id = 0

    def __getitem__(self, broker_id):
        return self._managers[broker_id]

    def start(self, broker_id):
        services = self._world.nodes[broker_id].broker
        topic = BrokerMetadataTopic(
            services.runtime,
            node_id=broker_id,
            metadata=services.metadata,
            controller=services.controller,
            topic_config=self._world.nodes[broker_id]._broker_role._cluster_config.topic_config,
            listener_name=lambda: "PLAINTEXT",
        )
        files = self._world.disks[broker_id]
        for user in USERS:
            files.make_dir(Path(f"/snapshots/{user.topic_partition}"))
        self.topics[broker_id] = topic
        manager = TopicBasedRemoteLogMetadataManager(
            runtime=services.runtime,
            topic=topic,
            log_directory=lambda user: Path(f"/snapshots/{user.topic_partition}"),
            files=files,
        )
        manager.configure({"log.dir": DATA, **self._settings})
        manager.on_partition_leadership_changes(leaders=USERS[:2], followers=USERS[2:])
        manager.on_broker_ready()
        self._managers[broker_id] = manager

    async def stop(self, *broker_ids):
        for broker_id in broker_ids:
            await self._managers.pop(broker_id).close()

    async def until_ready(self, *broker_ids):
        await until(
            lambda: all(self[broker_id].is_ready(each) for broker_id in broker_ids for each in USERS),
            within_s=120, pause_s=0.05,
        )  # fmt: skip

    async def copy(self, broker_id, user, start, end):
        self._next_id += 1
        segment_id = RemoteLogSegmentId(user, UUID(int=self._next_id))
        begun = RemoteLogSegmentMetadata(
            segment_id=segment_id,
            start_offset=start,
            end_offset=end,
            max_timestamp_ms=5,
            broker_id=broker_id,
            event_timestamp_ms=7,
            segment_size_bytes=100,
            leader_epochs=(EpochEntry(0, start),),
        )
        await self[broker_id].add_remote_log_segment_metadata(begun)
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=segment_id,
            state=State.COPY_SEGMENT_FINISHED,
            broker_id=broker_id,
            event_timestamp_ms=8,
        )
        await self[broker_id].update_remote_log_segment_metadata(update)
        return replace(begun, state=State.COPY_SEGMENT_FINISHED, event_timestamp_ms=8)

    def copies(self, broker_id):
        return {each: self[broker_id].list_remote_log_segments(each) for each in USERS}


def test_brokers_exchange_metadata():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        managers = Managers(world)
        for broker_id in BROKERS:
            managers.start(broker_id)
        await managers.until_ready(*BROKERS)
        expected = {each: [] for each in USERS}
        for at, user in enumerate(USERS):
            expected[user].append(await managers.copy(BROKERS[at % 3], user, 0, 10))
        await asyncio.sleep(1)
        for broker_id in BROKERS:
            assert managers.copies(broker_id) == expected
        await managers.stop(*BROKERS)

    run_story(story)


def test_a_restarted_broker_reads_only_what_is_new():
    """It reads snapshots on its disk; the other broker continues meanwhile."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        managers = Managers(world)
        for broker_id in (1, 2):
            managers.start(broker_id)
        await managers.until_ready(1, 2)
        expected = {each: [] for each in USERS}
        for number in range(20):
            for user in USERS:
                expected[user].append(await managers.copy(1, user, number, number + 1))
        await asyncio.sleep(1)
        await managers.stop(2)
        await world.stop(2)
        for user in USERS:
            expected[user].append(await managers.copy(1, user, 20, 21))
        await world.start(2)
        managers.start(2)
        await managers.until_ready(2)
        assert managers.copies(2) == expected
        readers = managers[2]._subscriptions._readers.values()
        assert sum(reader.read_count for reader in readers) == 2 * len(USERS)
        await managers.stop(1, 2)

    run_story(story)


def test_concurrent_changes_share_requests_and_are_seen_at_once():
    """A poll that waits does not delay a change that this broker itself has made."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        managers = Managers(world)
        managers.start(1)
        await managers.until_ready(1)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(20):
            await managers.copy(1, USERS[0], number, number + 1)
        assert loop.time() - begin < 20 * 2 * 0.1
        begin = loop.time()
        await asyncio.gather(
            *(managers.copy(1, user, number, number + 1) for user in USERS[1:] for number in range(20))
        )
        assert loop.time() - begin < 3
        assert [len(each) for each in managers.copies(1).values()] == [20] * 6
        await managers.stop(1)

    run_story(story)


@pytest.mark.logs("controlled shutdown did not complete", "fencing broker")
def test_a_leader_of_the_topic_dies():
    """Changes wait for the next leader; a broker that starts later reads everything."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        managers = Managers(world)
        for broker_id in (1, 2):
            managers.start(broker_id)
        await managers.until_ready(1, 2)
        expected = {each: [await managers.copy(1, each, 0, 10)] for each in USERS}
        leaders = await world.leaders(TOPIC)
        assert set(leaders.values()) == {1, 2, 3}
        world.isolate(3)
        await world.nodes.pop(3).stop()
        for user in USERS:
            expected[user].append(await managers.copy(2, user, 10, 20))
        await asyncio.sleep(1)
        assert managers.copies(1) == managers.copies(2) == expected
        world.rejoin(3)
        await world.start(3)
        managers.start(3)
        await managers.until_ready(3)
        assert managers.copies(3) == expected
        await managers.stop(*BROKERS)

    run_story(story)


@pytest.mark.logs("is not available")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({f"{PREFIX}topic.num.partitions": 4}, "has 3 partitions"),
        ({f"{PREFIX}topic.replication.factor": 4}, "was not created"),
    ],
)
def test_a_topic_that_cannot_be_used(settings, sentence, caplog):
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        if "has" in sentence:
            await world.create(TOPIC, partitions=3)
        managers = Managers(world, **settings)
        managers.start(1)
        await asyncio.sleep(150)
        await managers.stop(1)

    run_story(story)
    assert sentence in caplog.text


@pytest.mark.logs("is not available")
def test_a_compacted_topic_is_refused(caplog):
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        await world.create(TOPIC, partitions=3)
        managers = Managers(world)
        managers.start(1)
        await asyncio.sleep(1)
        await managers.stop(1)

    run_story(story, **{"log.cleanup.policy": "compact"})
    assert "would remove its records" in caplog.text


def test_the_topic_has_kafkas_configuration():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        managers = Managers(world)
        managers.start(1)
        await managers.until_ready(1)
        image = world.nodes[1].broker.metadata.image
        assert len(image.topics_by_name[TOPIC].partitions[0].replicas) == 3
        assert dict(image.topic_config(TOPIC)) == {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "min.insync.replicas": "2",
            "flush.messages": "1",
            "remote.storage.enable": "false",
        }
        await managers.stop(1)

    run_story(story)
