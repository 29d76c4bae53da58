"""A node on virtual time with its page, and what a client of the tests sees of it."""

import asyncio
import json

import pytest

from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.http_client import HttpClient
from tests.harness.wire import WireClient

PORT = 9404


class PageWorld:
    def __init__(self, folder):
        self.folder = folder
        self.runtime = SimulatedRuntime(seed=5)

    async def start(self, **options):
        overrides = [f"log.dirs={self.folder}/data", f"metrics.listeners=http://127.0.0.1:{PORT}"]
        self.node = await Node.start(self.runtime, load_config(overrides=overrides, **options))
        self.client = await WireClient.connect("127.0.0.1", 9092)

    async def http(self):
        _, client = await self.runtime.connect("127.0.0.1", PORT, HttpClient)
        return client

    async def get(self, path, *headers, host="127.0.0.1"):
        client = await self.http()
        found = await client.get(path, "Connection: close", *headers, host=host)
        await client.lost
        return found

    async def view(self, path, status=200):
        found = await self.get(f"/view/{path}")
        assert found.status == status, found
        return json.loads(found.body)

    async def watch(self, path):
        """A stream of a view: returns its client, after the head."""
        client = await self.http()
        found = await client.get(f"/view/{path}", "Accept: text/event-stream")
        assert (found.status, found.headers["Content-Type"]) == (200, "text/event-stream")
        return client

    async def create(self, name, partitions=1, **configs):
        entries = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=entries)
        created = await self.client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        assert created.topics[0].error_code == 0

    async def produce(self, topic, *values, partition=0):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in values]
        batch = build_batch(simple_records(pairs, timestamp=self.runtime.now_ms()))
        await self.append(topic, batch, partition=partition)

    async def append(self, topic, batch, *, partition=0):
        rows = [PartitionProduceData(index=partition, records=batch)]
        data = [TopicProduceData(name=topic, partition_data=rows)]
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
        response = await self.client.request(ApiKey.PRODUCE, 9, request)
        assert response.responses[0].partition_responses[0].error_code == 0

    async def coordinator_request(self, group, api_key, version, message):
        """A request to the coordinator, which is asked for until it is there."""
        while True:
            found = await self.client.request(
                ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[group])
            )
            if not found.coordinators[0].error_code:
                return await self.client.request(api_key, version, message)
            await asyncio.sleep(0.1)

    async def pass_time(self, seconds):
        await asyncio.sleep(seconds)

    def run(self, scenario, **options):
        async def main():
            await self.start(**options)
            await scenario()
            await self.node.stop()

        self.runtime.run(main())


@pytest.fixture
def world(tmp_path):
    world = PageWorld(tmp_path)
    yield world
    world.runtime.simulation.close()
