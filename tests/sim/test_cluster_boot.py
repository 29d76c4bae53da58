"""Whole nodes of a cluster on virtual time: three controllers and three brokers start, work, lose a leader,
and start again.

Every node has a disk and a host of its own; they exchange messages over a network in memory. The tests
check Kafka's order: which node may serve when, and what a fail-over does not interrupt.

About KIP-590, KIP-631.
"""

import asyncio
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest
from booted_world import BROKERS, CLUSTER_ID, CONTROLLERS, DATA, PORT, run_story

from ottla.broker.membership.lifecycle import BrokerLifecycle
from ottla.broker.node import CannotStart, Node
from ottla.broker.roles.formatting import FormatOptions, format_node
from ottla.broker.roles.hooks import Hooks
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.harness.waiting import until

pytestmark = pytest.mark.logs("has not responded for")


async def work(world, name, *, through=1):
    await world.create(name, through=through)
    leaders = await world.leaders(name, through=through)
    for partition, leader in leaders.items():
        await world.produce(name, partition, leader)
    return leaders


async def read(world, name, leaders):
    for partition, leader in leaders.items():
        assert await world.fetch(name, partition, leader) == [b"v"]


STATIC = {"controller.quorum.voters": ",".join(f"{each}@node-{each}:{PORT}" for each in CONTROLLERS)}


@pytest.mark.parametrize("settings", [{}, STATIC], ids=["voters in the log", "static voters"])
@pytest.mark.logs("a heartbeat to the controller failed")
def test_start_work_failover_and_restart(settings):
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        assert len(world.active()) == 1
        first = await work(world, "first")
        assert set(first.values()) == set(BROKERS)
        (victim,) = world.active()
        world.isolate(victim)
        second = await work(world, "second", through=2)
        assert victim not in world.active() or len(world.active()) == 2
        world.rejoin(victim)
        await asyncio.sleep(10)
        assert len(world.active()) == 1
        await read(world, "first", first)
        await read(world, "second", second)
        # All at once, as after a power cut that was announced: brokers first.
        await world.stop(*BROKERS)
        await world.stop(*CONTROLLERS)
        await world.start(*CONTROLLERS, *BROKERS)
        assert await world.leaders("first") == first
        await read(world, "first", first)
        await read(world, "second", second)

    run_story(story, **settings)


def test_the_same_seed_gives_the_same_trace():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        await work(world, "first")

    traces = [run_story(story, seed=seed) for seed in (1, 1, 2)]
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def test_brokers_wait_for_controllers_and_clients_for_brokers():
    async def story(world):
        starting = asyncio.ensure_future(world.start(1))
        await asyncio.sleep(20)
        assert not starting.done()
        client = await world.client(1)  # the port is open, requests are not answered yet
        asking = asyncio.ensure_future(client.request(ApiKey.METADATA, 8, MetadataRequest(topics=[])))
        await asyncio.sleep(1)
        await world.start(*CONTROLLERS)
        await starting
        assert [broker.node_id for broker in (await asking).brokers] == [1]
        await client.close()

    run_story(story)


def test_a_broker_gives_up_when_there_is_no_controller():
    async def story(world):
        with pytest.raises(
            CannotStart, match=r"after 5 s to register broker 1\. .*node-101:9092: .*no listener"
        ):
            await world.start(1, **{"initial.broker.registration.timeout.ms": "5000"})
        assert world.simulation.network.listeners == {}

    run_story(story)


@pytest.mark.logs("new connections wait until others are closed: there are")
def test_clients_that_take_all_connections_do_not_cut_replication_off():
    """Other brokers come by a listener of their own: for each of them an idle client is closed (max.connections)."""

    def two_listeners(node_id):
        return {
            "listeners": f"PLAINTEXT://node-{node_id}:{PORT},INTERNAL://node-{node_id}:{PORT + 1}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "max.connections": "6",
        }

    async def story(world):
        await world.start(*CONTROLLERS)
        starting = (world.start_one(each, **two_listeners(each)) for each in BROKERS)
        world.nodes.update(zip(BROKERS, await asyncio.gather(*starting), strict=True))
        await world.create("orders", replicas=3, partitions=1)
        leader = (await world.leaders("orders", count=1))[0]
        codes = []
        writer = await world.client(leader)
        writing = asyncio.ensure_future(write_on(writer, codes))
        crowd = [await world.client(broker) for broker in BROKERS for _ in range(10)]
        await until_written(codes)
        follower = next(each for each in BROKERS if each != leader)
        await world.stop(follower)
        # Clients are there before the other broker is back.
        crowd += [await world.client(leader) for _ in range(10)]
        world.nodes[follower] = await world.start_one(follower, **two_listeners(follower))
        await until_written(codes)
        writing.cancel()
        for client in (writer, *crowd):
            with suppress(ConnectionError):  # closed for another broker
                await client.close()

    async def write_on(client, codes):
        """A client that is not idle: it writes to all replicas, and keeps its connection."""
        batch = build_batch(simple_records([(b"k", b"v")], timestamp=1))
        row = PartitionProduceData(index=0, records=batch)
        data = [TopicProduceData(name="orders", partition_data=[row])]
        while True:
            request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data)
            produced = await client.request(ApiKey.PRODUCE, 12, request)
            codes.append(produced.responses[0].partition_responses[0].error_code)
            await asyncio.sleep(0.2)

    async def until_written(codes):
        seen = len(codes)
        await until(lambda: ErrorCode.none in codes[seen + 1 :], pause_s=0.1)

    run_story(story, **{"min.insync.replicas": "3"})


def test_a_second_node_with_the_id_of_a_broker_is_refused_and_the_first_goes_on(caplog):
    """The refusal is DUPLICATE_BROKER_REGISTRATION as long as the first one's session lasts, and it does not
    end here."""
    caplog.set_level("INFO")

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        leaders = await work(world, "orders")
        caplog.clear()
        with pytest.raises(CannotStart, match=r"after 30 s .* Another node with this node.id is alive"):
            await world.start_namesake(1, **{"initial.broker.registration.timeout.ms": "30000"})
        await read(world, "orders", leaders)
        assert await world.leaders("orders", through=2) == leaders

    run_story(story)
    lines = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert sum("DUPLICATE_BROKER_REGISTRATION" in line for line in lines) == 3
    assert len(lines) < 20


def test_a_second_node_with_the_id_of_the_active_controller_is_refused_and_the_first_goes_on(caplog):
    """It sends a request fifty times a second; the receiver logs it every ten seconds."""

    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        leaders = await work(world, "orders")
        (active,) = world.active()
        caplog.clear()
        namesake = await world.start_namesake(active)
        await asyncio.sleep(25)
        assert world.active() == [active]
        await namesake.stop()
        await read(world, "orders", leaders)

    run_story(story)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert (
        sum("another node sends Fetch requests with the node.id of this one" in line for line in errors) == 3
    )
    assert sum("another node has the same node.id, or this one has lost" in line for line in errors) == 1
    assert len(errors) == 4


def test_a_start_that_comes_to_nothing_leaves_a_clean_stop_clean():
    """Taken for a crash it would cost the broker its place among the eligible: the only one, here (KIP-966)."""

    async def story(world):
        mark = DATA / ".kafka_cleanshutdown"
        await world.start(*CONTROLLERS, 1)
        leaders = await work(world, "orders")
        await world.stop(1)
        closed = world.disks[1].contents()[mark]
        await world.stop(*CONTROLLERS)
        with pytest.raises(CannotStart, match="No controller has responded"):
            await world.start(1, **{"initial.broker.registration.timeout.ms": "5000"})
        assert world.disks[1].contents()[mark] == closed
        waiting = asyncio.ensure_future(world.start(1))
        await asyncio.sleep(3)
        waiting.cancel()  # as by Ctrl-C
        await asyncio.gather(waiting, return_exceptions=True)
        assert world.disks[1].contents()[mark] == closed
        await world.start(*CONTROLLERS, 1)
        assert await world.leaders("orders") == leaders
        await read(world, "orders", leaders)

    run_story(story)


def test_a_start_that_is_stopped_behind_its_logs_closes_them(monkeypatch):
    async def story(world):
        await world.start(*CONTROLLERS, 1)
        leaders = await work(world, "orders")
        await world.stop(1)
        is_waiting = asyncio.Event()

        async def serve(lifecycle):
            is_waiting.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(BrokerLifecycle, "serve", serve)
            waiting = asyncio.ensure_future(world.start(1))
            await is_waiting.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert DATA / ".kafka_cleanshutdown" in world.disks[1].contents()
        await world.start(1)
        assert world.nodes[1].broker.replicas.logs.was_clean
        assert await world.leaders("orders") == leaders
        await read(world, "orders", leaders)

    run_story(story)


def test_a_node_does_not_start_on_the_disk_of_another():
    async def story(world):
        await world.start(*CONTROLLERS, 1)
        runtime = world.simulation.runtime("twin")
        with pytest.raises(CannotStart, match="belongs to node 2"):
            await Node.start(
                runtime, world.config(1, listeners="PLAINTEXT://twin:9092"), hooks=Hooks(files=world.disks[2])
            )
        await work(world, "first")

    run_story(story)


@pytest.mark.logs("The metadata quorum has failed on this n", "returned an error in")
def test_a_node_of_another_cluster_stops_at_once():
    async def story(world):
        await world.start(*CONTROLLERS)
        files = FaultyFiles(random=Random(1))
        config = world.config(9, **{"process.roles": "broker", "listeners": "PLAINTEXT://node-9:9092"})
        format_node(
            config,
            FormatOptions(cluster_id="BBBBBBBBBBBBBBBBBBBBBw"),
            files=files,
            now_ms=0,
            new_uuid=lambda: UUID(int=77, version=4),
            random_bytes=bytes,
            say=lambda _: None,
        )
        mark, closed = DATA / ".kafka_cleanshutdown", b'{"version":0,"brokerEpoch":5}'
        files.write_atomically(mark, closed)
        runtime = world.simulation.runtime("node-9")
        with pytest.raises(CannotStart, match="belong to another cluster"):
            await Node.start(runtime, config, hooks=Hooks(files=files))
        assert runtime.monotonic() < 30
        assert files.contents()[mark] == closed

    run_story(story)


def test_a_folder_that_is_not_formatted_is_refused():
    async def story(world):
        for node_id, role in ((1, "broker"), (101, "controller")):
            world.disks[node_id] = FaultyFiles(random=Random(1))
            with pytest.raises(CannotStart, match="is not formatted"):
                await world.start(node_id)
            assert world.config(node_id).process_roles == (role,)

    run_story(story)


@pytest.mark.logs("a heartbeat to the controller failed", "its session has expired")
def test_a_broker_that_was_cut_off_is_fenced_and_comes_back():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        leaders = await work(world, "first")
        world.isolate(2)
        await asyncio.sleep(15)
        assert world.nodes[1].broker.metadata.image.brokers[2].is_fenced
        await world.create("second", partitions=4)
        world.rejoin(2)
        await asyncio.sleep(15)
        assert not world.nodes[1].broker.metadata.image.brokers[2].is_fenced
        await read(world, "first", await world.leaders("first", through=2))
        assert set(leaders.values()) == set(BROKERS)

    run_story(story)


@pytest.mark.logs("the controller refuses a heartbeat")
def test_a_broker_whose_registration_is_gone_registers_again():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        leaders = await work(world, "first")
        before = world.nodes[2].broker.lifecycle.broker_epoch
        client = await world.client(1)
        request = UnregisterBrokerRequest(broker_id=2)
        assert (await client.request(ApiKey.UNREGISTER_BROKER, 0, request)).error_code == ErrorCode.none
        await client.close()
        await asyncio.sleep(5)
        assert world.nodes[2].broker.lifecycle.broker_epoch > before
        image = world.nodes[3].broker.metadata.image.brokers[2]
        assert (image.epoch, image.is_fenced) == (world.nodes[2].broker.lifecycle.broker_epoch, False)
        await read(world, "first", await world.leaders("first", through=3))
        assert set(leaders.values()) == set(BROKERS)

    run_story(story)


def test_controllers_are_described_at_their_own_listener():
    async def story(world):
        await world.start(*CONTROLLERS)
        await asyncio.sleep(5)
        client = await world.client(102)
        described = await client.request(ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(endpoint_type=2))
        assert [(row.broker_id, row.host) for row in described.brokers] == [
            (each, f"node-{each}") for each in CONTROLLERS
        ]
        assert [described.controller_id] == world.active()
        assert described.cluster_id == CLUSTER_ID
        refused = await client.request(ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(endpoint_type=1))
        assert refused.error_code == ErrorCode.mismatched_endpoint_type
        await client.close()

    run_story(story)


def test_producer_ids_of_all_brokers_differ():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        found = []
        for node_id in BROKERS:
            client = await world.client(node_id)
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            answers = [await client.request(ApiKey.INIT_PRODUCER_ID, 4, request) for _ in range(3)]
            found += [answer.producer_id for answer in answers]
            await client.close()
        assert len(set(found)) == 9

    run_story(story)


def test_the_number_of_fetchers_is_changed_while_a_broker_runs():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        await world.create("followed", partitions=9, replicas=3)
        client = await world.client(2)
        wanted = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=4,
                    resource_name="",
                    configs=[AlterableConfig(name="num.replica.fetchers", config_operation=0, value="2")],
                )
            ]
        )
        altered = await client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, wanted)
        assert altered.responses[0].error_code == ErrorCode.none, altered
        await client.close()
        await asyncio.sleep(2)
        for partition, leader in (await world.leaders("followed", count=9)).items():
            await world.produce("followed", partition, leader)
        for node_id in BROKERS:
            fetchers = world.nodes[node_id]._broker_role.fetchers._fetchers
            assert {number for _, number in fetchers} == {0, 1}

    run_story(story)


def test_the_controller_learns_in_which_directory_a_replica_lies():
    async def story(world):
        await world.start(*CONTROLLERS, *BROKERS)
        await world.create("spread", partitions=12)
        await asyncio.sleep(2)
        image = world.nodes[3].broker.metadata.image
        used = set()
        for index, partition in image.topics_by_name["spread"].partitions.items():
            (broker_id,) = partition.replicas
            logs = world.nodes[broker_id]._directories.logs
            log = logs.get(TopicPartition("spread", index))
            assert partition.directories == (logs.directory_ids[log.directory.parent],)
            used.update(partition.directories)
        assert len(used) == 6

    run_story(story, **{"log.dirs": f"{DATA},/more"})


def test_controllers_follow_altered_values_and_say_which_have_no_effect(caplog):
    """KIP-226 at nodes that are no brokers: limits of the controller listener hold at once, on all of them."""

    async def story(world):
        await world.start(*CONTROLLERS)
        await asyncio.sleep(10)
        client = await world.client(world.active()[0])
        configs = [
            AlterableConfig(name="num.io.threads", config_operation=0, value="9"),
            AlterableConfig(name="listener.name.controller.max.connections", config_operation=0, value="77"),
        ]
        wanted = IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=4, resource_name="", configs=configs)]
        )
        altered = await client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, wanted)
        assert altered.responses[0].error_code == ErrorCode.none, altered
        await client.close()
        await asyncio.sleep(2)
        for node_id in CONTROLLERS:
            settings = world.nodes[node_id]._controller_role.server.settings
            assert settings.of_listener("CONTROLLER").max_connections == 77

    run_story(story)
    found = [record.getMessage() for record in caplog.records if "num.io.threads" in record.getMessage()]
    assert found == ["Dynamic configurations without a meaning for this broker: num.io.threads."] * 3
