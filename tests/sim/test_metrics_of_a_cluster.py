"""Metrics and readiness of six nodes on virtual time, while a broker is cut off, and while the quorum is lost."""

import asyncio

import pytest
from booted_world import BROKERS, CONTROLLERS, run_story
from prometheus_client.parser import text_string_to_metric_families

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.harness.waiting import until_answered

pytestmark = pytest.mark.logs(
    "has not responded for", "a heartbeat to the controller", "Fetch from broker", "AlterPartition",
    "controlled shutdown", "has fenced this broker", "fencing broker", "failed",
)  # fmt: skip

PORT = 9404
TOPICS = "kafka_server_brokertopicmetrics_"
REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"


class Prometheus:
    """Asks nodes for their pages, from a host that is cut off from none of them."""

    def __init__(self, world):
        self.world = world

    async def get(self, node_id, path):
        host = f"node-{node_id}"
        reader, writer = await asyncio.open_connection(host, PORT)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def ready(self, *node_ids):
        return [(await self.get(each, "/readyz"))[0] for each in node_ids]

    async def page(self, node_id):
        status, text = await self.get(node_id, "/metrics")
        assert status == 200
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def sum(self, name, node_ids=BROKERS):
        return sum([(await self.page(each))[(name,)] for each in node_ids])

    async def until(self, condition):
        await until_answered(condition, within_s=120, pause_s=1)


def run(story, **settings):
    async def whole(world):
        await world.start(*CONTROLLERS, *BROKERS)
        await story(world, Prometheus(world))

    run_story(whole, **{"metrics.listeners": f"http://0.0.0.0:{PORT}", **settings})


def test_a_broker_that_is_cut_off():
    async def story(world, prometheus):
        await world.create("t", replicas=3)
        for partition, leader in (await world.leaders("t")).items():
            await world.produce("t", partition, leader)
        assert await prometheus.ready(*BROKERS, *CONTROLLERS) == [200] * 6
        await prometheus.until(lambda: replicated(prometheus))
        assert await prometheus.sum(f"{REPLICAS}leadercount") == 3
        assert await prometheus.sum(f"{REPLICAS}partitioncount") == 9
        assert await prometheus.sum(f"{REPLICAS}underreplicatedpartitions") == 0
        world.isolate(3)
        await prometheus.until(lambda: is_status(prometheus, 3, 503))
        assert "heartbeat" in (await prometheus.get(3, "/readyz"))[1]
        assert await prometheus.ready(1, 2, *CONTROLLERS) == [200] * 5
        await prometheus.until(lambda: is_alone(prometheus))
        [fenced] = {
            (await prometheus.page(each))[(f"{CONTROLLER}fencedbrokercount",)] for each in CONTROLLERS
        }
        assert fenced == 1
        world.rejoin(3)
        await prometheus.until(lambda: is_status(prometheus, 3, 200))
        await prometheus.until(lambda: is_zero(prometheus, f"{REPLICAS}underreplicatedpartitions"))
        assert await prometheus.sum(f"{REPLICAS}isrexpands_total") >= 3

    async def replicated(prometheus):
        bytes_in = await prometheus.sum(f"{TOPICS}bytesin_total")
        copied = await prometheus.sum(f"{TOPICS}replicationbytesin_total")
        return bytes_in > 0 and copied == 2 * bytes_in == await prometheus.sum(
            f"{TOPICS}replicationbytesout_total"
        )

    async def is_alone(prometheus):
        return await prometheus.sum(f"{REPLICAS}underreplicatedpartitions", (1, 2)) == 3

    async def is_zero(prometheus, name):
        return await prometheus.sum(name) == 0

    run(story)


async def is_status(prometheus, node_id, status):
    return await prometheus.ready(node_id) == [status]


def test_a_quorum_without_a_majority():
    async def story(world, prometheus):
        assert await prometheus.sum(f"{CONTROLLER}activecontrollercount", CONTROLLERS) == 1
        left, *others = CONTROLLERS
        epoch = (await prometheus.page(left))[("kafka_server_raft_metrics_current_epoch",)]
        await world.stop(*others)
        await prometheus.until(lambda: is_status(prometheus, left, 503))
        assert await prometheus.get(left, "/readyz") == (503, "The metadata quorum has no leader.\n")
        assert await prometheus.get(left, "/healthz") == (200, "ok\n")
        page = await prometheus.page(left)
        assert page[(f"{CONTROLLER}activecontrollercount",)] == 0
        assert ("kafka_server_raft_metrics_current_state_info", "leader") not in page
        await world.start(*others)
        await prometheus.until(lambda: is_status(prometheus, left, 200))
        assert (await prometheus.page(left))[("kafka_server_raft_metrics_current_epoch",)] > epoch

    run(story)


def test_the_lag_of_partitions_of_which_the_coordinator_has_no_replica():
    """Their leaders are asked before a page is written; one that does not answer is not waited for."""

    async def story(world, prometheus):
        await world.create("t")
        leaders = await world.leaders("t")
        for partition, leader in leaders.items():
            for _ in range(partition + 1):
                await world.produce("t", partition, leader)
        coordinator = await commit(world, "g", "t", dict.fromkeys(leaders, 0))
        lag, lag_sum = "kafka_consumergroup_lag", ("kafka_consumergroup_lag_sum", "g", "t")
        first = await prometheus.page(coordinator)
        assert {key for key in first if key[0] == lag} == {
            (lag, "g", str(partition), "t") for partition, leader in leaders.items() if leader == coordinator
        }
        assert lag_sum not in first
        second = await prometheus.page(coordinator)
        assert [second[lag, "g", str(partition), "t"] for partition in sorted(leaders)] == [1, 2, 3]
        assert second[lag_sum] == 6
        # It is exported once.
        for other in set(BROKERS) - {coordinator}:
            assert lag_sum not in await prometheus.page(other)
        [cut, *_] = {leader for leader in leaders.values() if leader != coordinator}
        world.isolate(cut)
        began = asyncio.get_running_loop().time()
        third = await prometheus.page(coordinator)
        assert (
            asyncio.get_running_loop().time() - began < 0.5
        )  # with its last answer, and without a wait for it
        assert {key: value for key, value in third.items() if key[0].startswith(lag)} == {
            key: value for key, value in second.items() if key[0].startswith(lag)
        }

        async def is_missing():
            page = await prometheus.page(coordinator)
            cut_off = next(each for each in leaders if leaders[each] == cut)
            return lag_sum not in page and (lag, "g", str(cut_off), "t") not in page

        await prometheus.until(is_missing)
        world.rejoin(cut)

    run(story, **{"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"})


async def commit(world, group, topic, offsets):
    """Commit as a consumer without members; the coordinator's id."""
    client = await world.client(1)
    find = FindCoordinatorRequest(coordinator_keys=[group])
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        for index, offset in offsets.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)]
    )
    found = []

    async def is_committed():
        [at] = (await client.request(ApiKey.FIND_COORDINATOR, 4, find)).coordinators
        if at.error_code:
            return False
        found[:] = [at.node_id]
        coordinator = await world.client(at.node_id)
        response = await coordinator.request(ApiKey.OFFSET_COMMIT, 8, request)
        await coordinator.close()
        return {row.error_code for each in response.topics for row in each.partitions} == {0}

    await until_answered(is_committed, within_s=60, pause_s=0.1)
    await client.close()
    return found[0]
