"""The whole node on virtual time: nothing waits, and the same seed gives the same trace.

A broker and controller, its log on a real (temporary) disk, its clients on a network in memory. A group's
session timeout of 45 s and everything around it pass in milliseconds.
"""

import time

import pytest

from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.wire import WireClient

_SESSION_MS = 45_000


async def produce_and_consume(client: WireClient, now_ms: int) -> None:
    created = await client.request(
        ApiKey.CREATE_TOPICS,
        7,
        CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]),
    )
    assert created.topics[0].error_code == ErrorCode.none
    batch = build_batch(simple_records([(b"k1", b"v1"), (None, b"v2")], timestamp=now_ms))
    produced = await client.request(
        ApiKey.PRODUCE,
        12,
        ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
            ],
        ),
    )
    row = produced.responses[0].partition_responses[0]
    assert (row.error_code, row.base_offset) == (ErrorCode.none, 0)
    fetched = await client.request(
        ApiKey.FETCH,
        12,
        FetchRequest(
            max_wait_ms=30_000,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic="t",
                    partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
                )
            ],
        ),
    )
    data = fetched.responses[0].partitions[0].records
    assert [(record.key, record.value) for record in records(bytes(data))] == [(b"k1", b"v1"), (None, b"v2")]


async def join(client: WireClient, member_id: str = "") -> tuple[str, int]:
    """Join the group as a classic consumer does; the member's id and the generation."""
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=_SESSION_MS,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = await client.request(ApiKey.JOIN_GROUP, 9, request)
    if joined.error_code == ErrorCode.member_id_required:  # KIP-394
        return await join(client, joined.member_id)
    assert joined.error_code == ErrorCode.none, joined
    return joined.member_id, joined.generation_id


async def live_and_die_in_a_group(client: WireClient, runtime: SimulatedRuntime) -> None:
    """A member that heartbeats stays; one that is silent for its session timeout is gone, not before."""
    while True:
        found = await client.request(
            ApiKey.FIND_COORDINATOR, 6, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        )
        if found.coordinators[0].error_code == ErrorCode.none:
            break
    member_id, generation = await join(client)
    synced = await client.request(
        ApiKey.SYNC_GROUP,
        5,
        SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")],
        ),
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
    beat = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    for _ in range(4):
        await sleep(runtime, _SESSION_MS / 1000 - 1)
        assert (await client.request(ApiKey.HEARTBEAT, 4, beat)).error_code == ErrorCode.none
    await sleep(runtime, _SESSION_MS / 1000 - 0.5)
    assert await state_of_group(client) == "Stable"
    await sleep(runtime, 1)
    assert await state_of_group(client) == "Empty"
    assert (await client.request(ApiKey.HEARTBEAT, 4, beat)).error_code == ErrorCode.unknown_member_id


async def sleep(runtime: SimulatedRuntime, seconds: float) -> None:
    done = runtime.loop.create_future()
    runtime.call_later(seconds, done.set_result, None)
    await done


async def state_of_group(client: WireClient) -> str:
    described = await client.request(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"]))
    return described.groups[0].group_state


def run(folder, *, seed: int) -> tuple[list[tuple[float, str]], float]:
    """A whole life of a node; its trace and how long it lasted in virtual seconds."""
    runtime = SimulatedRuntime(seed=seed)

    async def scenario() -> float:
        node = await Node.start(
            runtime, load_config(data_dir=folder, overrides=["offsets.topic.num.partitions=2"])
        )
        client = await WireClient.connect(node.listeners[0].host, node.listeners[0].port)
        await produce_and_consume(client, runtime.now_ms())
        await live_and_die_in_a_group(client, runtime)
        await client.close()
        await node.stop()
        return runtime.monotonic()

    virtual_s = runtime.run(scenario())
    trace = list(runtime.trace)
    runtime.simulation.close()
    return trace, virtual_s


@pytest.mark.parametrize("seed", [1, 2])
def test_a_session_timeout_passes_in_milliseconds_twice_alike(tmp_path, seed):
    began = time.perf_counter()
    first, virtual_s = run(tmp_path / "first", seed=seed)
    took_s = time.perf_counter() - began
    second, _ = run(tmp_path / "second", seed=seed)
    assert first == second
    assert len(first) > 10
    assert virtual_s > 5 * _SESSION_MS / 1000 - 10
    assert took_s < virtual_s / 10


def test_another_seed_gives_another_trace(tmp_path):
    assert run(tmp_path / "one", seed=1)[0] != run(tmp_path / "two", seed=2)[0]
