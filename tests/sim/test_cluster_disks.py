"""A log directory of one broker fails in a cluster: its partitions get other leaders,
and clients go on (KIP-112, KIP-858).
"""

import errno
from functools import partial
from pathlib import Path

import pytest
from test_cluster_boot import BROKERS, CONTROLLERS, run_story

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from tests.harness.waiting import until, until_answered

LASTING, FAILING = Path("/disks/a"), Path("/disks/b")
PARTITIONS = 12


async def produce(world, partition, leader):
    client = await world.client(leader)
    batch = build_batch(simple_records([(b"k", b"v")], timestamp=1))
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=batch)])]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)
    produced = await client.request(ApiKey.PRODUCE, 12, request)
    await client.close()
    return produced.responses[0].partition_responses[0].error_code


async def is_produced(world, partition, leader):
    return await produce(world, partition, leader) == ErrorCode.none


def partitions(world, through):
    return world.nodes[through].broker.metadata.image.topics_by_name["t"].partitions


@pytest.mark.timeout(300)
@pytest.mark.logs("Log directory", "has not responded for", "is offline")
def test_a_directory_that_fails_moves_leadership_away():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        client = await world.client(2)
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=3)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        created = await client.request(ApiKey.CREATE_TOPICS, 7, request)
        assert created.topics[0].error_code == ErrorCode.none
        await client.close()
        leaders = await world.leaders("t", through=2, count=PARTITIONS)
        ids = {each: world.nodes[each].broker.replicas.logs.directory_ids for each in BROKERS}

        def known(partition, broker_id):
            image = partitions(world, 2)[partition]
            return image.directories[image.replicas.index(broker_id)]

        # The controller gets the replicas' directories: so it knows which ones the failure concerns.
        await until(
            lambda: all(
                known(each, broker_id) in ids[broker_id].values()
                for each in range(PARTITIONS)
                for broker_id in BROKERS
            ),
            pause_s=0.05,
        )
        for partition, leader in leaders.items():
            assert await produce(world, partition, leader) == ErrorCode.none
        first = next(each for each in leaders if known(each, leaders[each]) == ids[leaders[each]][FAILING])
        victim = leaders[first]
        hit = {each for each in leaders if known(each, victim) == ids[victim][FAILING]}
        assert hit < leaders.keys()

        world.disks[victim].fail("write", errno=errno.EIO, under=FAILING, is_lasting=True)
        assert await produce(world, first, victim) == ErrorCode.kafka_storage_error
        await until(lambda: all(victim not in partitions(world, 2)[each].isr for each in hit), pause_s=0.05)
        now = dict(partitions(world, 2))
        for partition, image in now.items():
            if partition in hit:
                assert victim not in (image.leader, *image.isr)
            else:
                assert set(image.isr) == set(BROKERS)
            # The leader may not have replayed its election yet.
            await until_answered(
                partial(is_produced, world, partition, image.leader), within_s=5, pause_s=0.05
            )
        assert not world.nodes[victim].failure.done()

    run_story(story, **{"log.dirs": f"{LASTING},{FAILING}"})
