"""No handler of a node fails whatever valid requests it gets, in any order and version, and the node
continues."""

import asyncio
from contextlib import suppress

import pytest

from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.drawn_messages import TOPICS, Drawing
from tests.harness.wire import WireClient

#: Each takes two milliseconds.
REQUESTS = 700
#: A request may wait longer, as a JoinGroup does: then another connection asks on.
PATIENCE_S = 3


@pytest.mark.logs("")
@pytest.mark.parametrize("seed", [1, 2])
def test_no_request_fails_unexpectedly(seed, tmp_path, caplog):
    runtime = SimulatedRuntime(seed=seed)
    asked = []

    async def story():
        config = load_config(
            data_dir=f"{tmp_path}/data", tier=f"{tmp_path}/tier", overrides=["offsets.topic.num.partitions=2"]
        )
        node = await Node.start(runtime, config)
        client = await connect(node)
        await client.request(ApiKey.CREATE_TOPICS, 7, topics())
        drawing = Drawing(seed)
        drawing.ids += [
            topic.topic_id for topic in (await client.request(ApiKey.METADATA, 12, MetadataRequest())).topics
        ]
        for _ in range(REQUESTS):
            key = drawing.choose(list(ApiKey))
            version = drawing.choose(KAFKA_VERSIONS[key])
            request = drawing.request(key, version)
            asked.append((key.name, version, request))
            try:
                answer = await asyncio.wait_for(client.request(key, version, request), PATIENCE_S)
                if member_id := getattr(answer, "member_id", ""):
                    drawing.texts["member_id"] = member_id
            except (TimeoutError, asyncio.IncompleteReadError, OSError):
                # It waits, or the node closes connections that send what is not served or allowed.
                client = await connect(node)
            failed = [record for record in caplog.records if record.exc_info]
            assert not failed, (asked[-1], failed)
            if key is ApiKey.DELETE_TOPICS:
                with suppress(asyncio.IncompleteReadError, OSError):
                    await client.request(ApiKey.CREATE_TOPICS, 7, topics())
        await node.stop()

    try:
        runtime.run(story())
    finally:
        runtime.simulation.close()
    assert len(asked) == REQUESTS


async def connect(node):
    return await WireClient.connect(node.listeners[0].host, node.listeners[0].port)


def topics():
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in TOPICS]
    )
