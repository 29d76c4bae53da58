"""A disk of a running node fails: its directory goes offline, the others serve;
without the metadata log the node ends.
"""

import asyncio
import errno
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from ottla.broker.node import CannotStart, Node
from ottla.broker.roles.hooks import Hooks
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime.simulated import SimulatedRuntime
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.harness.wire import WireClient

DIRECTORIES = [Path("/disks/a"), Path("/disks/b")]


async def start(runtime, files, directories=DIRECTORIES):
    config = load_config(
        overrides=["log.dirs=" + ",".join(map(str, directories)), "offsets.topic.num.partitions=1"]
    )
    node = await Node.start(runtime, config, hooks=Hooks(files=files))
    client = await WireClient.connect(node.listeners[0].host, node.listeners[0].port)
    return node, client


async def create(client, partitions=4):
    topic = CreatableTopic(name="t", num_partitions=partitions, replication_factor=1)
    created = await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
    assert created.topics[0].error_code == ErrorCode.none


async def produce(client, partition):
    batch = build_batch(simple_records([(b"k", b"v")], timestamp=1))
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=batch)])]
    produced = await client.request(
        ApiKey.PRODUCE, 12, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
    )
    return produced.responses[0].partition_responses[0].error_code


async def fetch(client, partition):
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=10, topics=[FetchTopic(topic="t", partitions=[wanted])])
    fetched = await client.request(ApiKey.FETCH, 12, request)
    return fetched.responses[0].partitions[0].error_code


def where(files):
    """The directory of each partition."""
    return {
        int(path.parent.name[2:]): path.parents[1]
        for path in files.contents()
        if path.parent.name.startswith("t-")
    }


def simulate(story):
    runtime = SimulatedRuntime(seed=1)
    try:
        runtime.run(story(runtime))
    finally:
        runtime.simulation.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.logs("Log directory", "is offline", "are not valid batches, truncated")
def test_one_directory_of_two(error):
    async def story(runtime):
        files = FaultyFiles(random=Random(1))
        node, client = await start(runtime, files)
        await create(client)
        bad = {partition for partition, path in where(files).items() if path == DIRECTORIES[1]}
        assert len(bad) == 2
        reported = []
        request = node.broker.controller.request

        async def watch(api_key, message, context=None):
            if api_key == ApiKey.BROKER_HEARTBEAT:
                reported.append(message.offline_log_dirs)
            return await request(api_key, message, context)

        node.broker.lifecycle._controller = type("Watched", (), {"request": staticmethod(watch)})
        files.fail("write", errno=error, under=DIRECTORIES[1], is_lasting=True)
        first = min(bad)
        assert await produce(client, first) == ErrorCode.kafka_storage_error
        for partition in range(4):
            expected = ErrorCode.kafka_storage_error if partition in bad else ErrorCode.none
            assert await produce(client, partition) == expected, partition
            assert await fetch(client, partition) == expected, partition
        lost = node._directories.logs.directory_ids[DIRECTORIES[1]]
        assert [lost] in reported  # at once, not with the next heartbeat that is due
        assert not node.failure.done()
        await client.close()
        await node.stop()
        # The directory was not closed: the next start recovers it.
        assert DIRECTORIES[0] / ".kafka_cleanshutdown" in files.contents()
        assert DIRECTORIES[1] / ".kafka_cleanshutdown" not in files.contents()
        files.faults.clear()
        node, client = await start(runtime, files)
        for partition in range(4):
            assert await produce(client, partition) == ErrorCode.none
        await client.close()
        await node.stop()

    simulate(story)


@pytest.mark.parametrize(("directories", "says"), [
    (DIRECTORIES, "which holds the metadata log"),
    (DIRECTORIES[:1], "which holds the metadata log"),
])  # fmt: skip
@pytest.mark.logs("Log directory", "The node stops", "is offline")
def test_the_directory_of_the_metadata_log(directories, says):
    async def story(runtime):
        files = FaultyFiles(random=Random(1))
        node, client = await start(runtime, files, directories)
        await create(client)
        victim = next(partition for partition, path in where(files).items() if path == DIRECTORIES[0])
        files.fail("write", errno=errno.EIO, under=DIRECTORIES[0] / f"t-{victim}", is_lasting=True)
        assert await produce(client, victim) == ErrorCode.kafka_storage_error
        assert says in await node.failure
        await client.close()
        await node.stop()

    simulate(story)


@pytest.mark.logs(
    "Log directory",
    "The node stops",
    "a heartbeat to the controller failed",
    "controlled shutdown did not complete in time; the broker stops without it",
    "has not responded for",
    "is offline",
    "the metadata log cannot be processed any further; this node stops",
    "the metadata log was not closed",
)
def test_the_metadata_log_itself():
    async def story(runtime):
        files = FaultyFiles(random=Random(1))
        node, client = await start(runtime, files)
        files.fail(
            "write", errno=errno.ENOSPC, under=DIRECTORIES[0] / "__cluster_metadata-0", is_lasting=True
        )
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        with suppress(asyncio.IncompleteReadError):  # whether there is an answer does not matter any more
            created = await client.request(
                ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(timeout_ms=100, topics=[topic])
            )
            assert created.topics[0].error_code != ErrorCode.none
        assert "metadata quorum" in await node.failure
        await client.close()
        await node.stop()

    simulate(story)


@pytest.mark.logs("cannot be used")
def test_no_start_without_the_metadata_log():
    async def story(runtime):
        files = FaultyFiles(random=Random(1))
        files.fail("create", errno=errno.EIO, under=DIRECTORIES[0], is_lasting=True)
        with pytest.raises(CannotStart, match="disks/a"):
            await start(runtime, files)

    simulate(story)


@pytest.mark.logs(
    "cannot be used", "was registered without log directory", "has no log, and is offline on this broker"
)
def test_a_start_with_a_disk_that_does_not_answer():
    async def story(runtime):
        files = FaultyFiles(random=Random(1))
        node, client = await start(runtime, files)
        await create(client)
        bad = {partition for partition, path in where(files).items() if path == DIRECTORIES[1]}
        await client.close()
        await node.stop()
        files.fail("read", errno=errno.EIO, under=DIRECTORIES[1], is_lasting=True)
        node, client = await start(runtime, files)
        for partition in range(4):
            expected = ErrorCode.kafka_storage_error if partition in bad else ErrorCode.none
            assert await produce(client, partition) == expected, partition
        assert {path for partition, path in where(files).items() if partition in bad} == {DIRECTORIES[1]}
        await client.close()
        await node.stop()
        files.fail("read", errno=errno.EIO, under=DIRECTORIES[0], is_lasting=True)
        with pytest.raises(CannotStart, match="metadata log is in this directory"):
            await start(runtime, files)

    simulate(story)


@pytest.mark.logs(
    "Log directory",
    "the log is renamed to a stray",
    "is offline",
    "are not valid batches, truncated",
)
def test_a_topic_that_was_made_again_while_its_disk_was_away():
    """The disk comes back with logs of the old topic: they are strays, not second logs of the new one (KIP-516)."""

    async def story(runtime):
        files = FaultyFiles(random=Random(1))
        node, client = await start(runtime, files)
        await create(client)
        bad = {partition for partition, path in where(files).items() if path == DIRECTORIES[1]}
        files.fail("write", errno=errno.EIO, under=DIRECTORIES[1], is_lasting=True)
        assert await produce(client, min(bad)) == ErrorCode.kafka_storage_error
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
        deleted = await client.request(ApiKey.DELETE_TOPICS, 6, deletion)
        assert deleted.responses[0].error_code == ErrorCode.none
        await create(client)
        for partition in bad:
            assert await produce(client, partition) == ErrorCode.none
        await client.close()
        await node.stop()
        files.faults.clear()
        node, client = await start(runtime, files)
        logs = node._directories.logs.logs
        assert {logs["t", partition].log_end_offset for partition in bad} == {1}
        assert {logs["t", partition].directory.parent for partition in bad} == {DIRECTORIES[0]}
        names = {path.parent.name for path in files.contents(DIRECTORIES[1])}
        assert sum(name.endswith("-stray") for name in names) == len(bad)
        await client.close()
        await node.stop()

    simulate(story)
