"""A world of whole nodes on virtual time: three controllers and three brokers,
each with a disk and a host of its own.
"""

import asyncio
from pathlib import Path
from random import Random
from uuid import UUID

from ottla.broker.node import Node
from ottla.broker.roles.formatting import FormatOptions, InitialController, format_node
from ottla.broker.roles.hooks import Hooks
from ottla.config.broker_config import BrokerConfig
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.runtime.simulated import Simulation
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.harness.wire import WireClient

BROKERS, CONTROLLERS = (1, 2, 3), (101, 102, 103)
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAw"
PORT = 9092
DATA = Path("/data")
#: Errors of a broker that has not replayed a partition yet, or its role: another broker has returned it as leader.
NOT_YET = (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)


class World:
    """Hosts `node-1` ..., their disks, and the nodes that run on them."""

    def __init__(self, simulation, **settings):
        self.simulation = simulation
        self.settings = settings
        random = Random(simulation.seed)
        self.disks = {
            node_id: FaultyFiles(random=Random(random.getrandbits(32)))
            for node_id in (*BROKERS, *CONTROLLERS)
        }
        self.runtimes = {}
        self.nodes = {}
        self._random = random
        self.format()

    def config(self, node_id, **changes):
        role, name = ("broker", "PLAINTEXT") if node_id in BROKERS else ("controller", "CONTROLLER")
        settings = {
            "process.roles": role,
            "node.id": str(node_id),
            "listeners": f"{name}://node-{node_id}:{PORT}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(f"node-{each}:{PORT}" for each in CONTROLLERS),
            "log.dirs": str(DATA),
            **({"broker.rack": "abc"[node_id - 1]} if node_id in BROKERS else {}),
            **self.settings,
            **changes,
        }
        return BrokerConfig(settings)

    def format(self, cluster_id=CLUSTER_ID):
        def new_uuid():
            return UUID(int=self._random.getrandbits(128), version=4)

        voters = tuple(InitialController(each, f"node-{each}", PORT, new_uuid()) for each in CONTROLLERS)
        for node_id, files in self.disks.items():
            config = self.config(node_id)
            is_in_log = node_id in CONTROLLERS and not config.quorum_voters
            format_node(
                config,
                FormatOptions(cluster_id=cluster_id, initial_controllers=voters if is_in_log else ()),
                files=files,
                now_ms=0,
                new_uuid=new_uuid,
                random_bytes=bytes,
                say=lambda _: None,
            )

    async def start(self, *node_ids, **changes):
        """Start these at the same time."""
        started = await asyncio.gather(*(self.start_one(each, **changes) for each in node_ids))
        self.nodes.update(zip(node_ids, started, strict=True))

    async def start_one(self, node_id, **changes):
        runtime = self.runtimes[node_id] = self.simulation.runtime(f"node-{node_id}")
        return await Node.start(
            runtime, self.config(node_id, **changes), hooks=Hooks(files=self.disks[node_id])
        )

    async def start_namesake(self, node_id, **changes):
        """Start another node with this id, on a host and a disk of its own."""
        name = "PLAINTEXT" if node_id in BROKERS else "CONTROLLER"
        config = self.config(node_id, listeners=f"{name}://namesake:{PORT}", **changes)
        files = FaultyFiles(random=Random(1))
        format_node(
            config,
            FormatOptions(cluster_id=CLUSTER_ID, no_initial_controllers=node_id in CONTROLLERS),
            files=files,
            now_ms=0,
            new_uuid=lambda: UUID(int=self._random.getrandbits(128), version=4),
            random_bytes=bytes,
            say=lambda _: None,
        )
        return await Node.start(self.simulation.runtime("namesake"), config, hooks=Hooks(files=files))

    async def stop(self, *node_ids):
        await asyncio.gather(*(self.nodes.pop(each).stop() for each in node_ids))

    def isolate(self, node_id):
        """This node is cut off from all others."""
        for other in (*BROKERS, *CONTROLLERS):
            if other != node_id:
                self.simulation.network.cut(f"node-{node_id}", f"node-{other}")

    def rejoin(self, node_id):
        for other in (*BROKERS, *CONTROLLERS):
            if other != node_id:
                self.simulation.network.heal(f"node-{node_id}", f"node-{other}")

    def active(self):
        """The controllers that take themselves for the active one."""
        return [
            each
            for each in CONTROLLERS
            if each in self.nodes and self.nodes[each]._quorum.controller.is_active
        ]

    async def client(self, node_id):
        return await WireClient.connect(f"node-{node_id}", PORT)

    async def create(self, name, *, through=1, partitions=3, replicas=1):
        client = await self.client(through)
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
        created = await client.request(
            ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        )
        await client.close()
        assert created.topics[0].error_code == ErrorCode.none, created.topics[0]

    async def leaders(self, name, *, through=1, count=3):
        """Partition -> leader, once this broker knows all of them."""
        client = await self.client(through)
        async with asyncio.timeout(60):
            while True:
                metadata = await client.request(
                    ApiKey.METADATA, 8, MetadataRequest(topics=[MetadataRequestTopic(name=name)])
                )
                rows = {row.partition_index: row.leader_id for row in metadata.topics[0].partitions}
                if len(rows) == count and min(rows.values()) > 0:
                    await client.close()
                    return rows
                await asyncio.sleep(0.05)

    async def produce(self, name, partition, leader):
        client = await self.client(leader)
        batch = build_batch(simple_records([(b"k", b"v")], timestamp=1))
        data = [
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=partition, records=batch)])
        ]
        async with asyncio.timeout(60):
            while True:
                produced = await client.request(
                    ApiKey.PRODUCE, 12, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
                )
                code = produced.responses[0].partition_responses[0].error_code
                if code not in NOT_YET:
                    break
                await asyncio.sleep(0.05)
        await client.close()
        assert code == ErrorCode.none

    async def fetch(self, name, partition, leader):
        client = await self.client(leader)
        wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=10, topics=[FetchTopic(topic=name, partitions=[wanted])])
        fetched = await client.request(ApiKey.FETCH, 12, request)
        await client.close()
        row = fetched.responses[0].partitions[0]
        assert row.error_code == ErrorCode.none
        return [record.value for record in records(bytes(row.records or b""))]


def run_story(story, *, seed=3, **settings):
    """Run a story in a world of its own; its trace."""
    with Simulation(seed=seed) as simulation:
        world = World(simulation, **settings)

        async def whole():
            await story(world)
            for node_ids in (BROKERS, CONTROLLERS):
                await world.stop(*(each for each in node_ids if each in world.nodes))

        simulation.run(whole())
        return list(simulation.trace)
