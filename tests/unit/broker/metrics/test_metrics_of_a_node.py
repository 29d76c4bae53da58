"""A whole node on virtual time, scraped: what was produced is what its page says, to the byte."""

import asyncio
from itertools import groupby

import pytest
from crc32c import crc32c
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from ottla import VERSION
from ottla.broker.node import CannotStart, Node
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.http_client import HttpClient
from tests.harness.wire import WireClient

PORT = 9404


class Scraped:
    """A page: the value of each sample by its name and labels."""

    def __init__(self, text, parse=prometheus):
        self.families = {family.name: family for family in parse(text)}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name, **labels):
        return self.samples[name, tuple(sorted((key, str(value)) for key, value in labels.items()))]


class NodeWorld:
    def __init__(self, folder):
        self.folder = folder
        self.runtime = SimulatedRuntime(seed=3)

    async def start(self, **settings):
        overrides = [f"log.dirs={self.folder}", f"metrics.listeners=http://:{PORT}"]
        overrides += [f"{key.replace('_', '.')}={value}" for key, value in settings.items()]
        self.node = await Node.start(self.runtime, load_config(overrides=overrides))
        self.client = await WireClient.connect("127.0.0.1", 9092)
        return self

    async def http(self):
        _, client = await self.runtime.connect("127.0.0.1", PORT, HttpClient)
        return client

    async def get(self, path, *headers):
        client = await self.http()
        found = await client.get(path, "Connection: close", *headers)
        await client.lost
        return found

    async def scrape(self):
        return Scraped((await self.get("/metrics")).body.decode())

    async def create(self, name, partitions=1):
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        created = await self.client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
        assert created.topics[0].error_code == 0

    async def produce(self, topic, index, *values, acks=-1, batch=None):
        batch = batch or build_batch(
            simple_records([(None, value) for value in values], timestamp=self.runtime.now_ms())
        )
        rows = [PartitionProduceData(index=index, records=batch)]
        request = ProduceRequest(
            acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=rows)]
        )
        response = await self.client.request(ApiKey.PRODUCE, 12, request)
        return len(batch), response.responses[0].partition_responses[0]

    async def fetch(self, topic, index, offset=0):
        rows = [FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=rows)])
        response = await self.client.request(ApiKey.FETCH, 12, request)
        return len(response.responses[0].partitions[0].records or b"")

    async def commit(self, group, offsets):
        """Commit as a consumer without members does, once the coordinator is there."""
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)],
            )
            for (topic, index), offset in offsets.items()
        ]
        await self.client.request(
            ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[group])
        )
        request = OffsetCommitRequest(group_id=group, topics=topics)
        while True:
            response = await self.client.request(ApiKey.OFFSET_COMMIT, 8, request)
            errors = {row.error_code for topic in response.topics for row in topic.partitions}
            if errors == {0}:
                return
            assert errors <= {ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress}, errors
            await asyncio.sleep(0.1)

    async def stop(self):
        await self.client.close()
        await self.node.stop()

    def run(self, scenario, **settings):
        async def main():
            await self.start(**settings)
            await scenario()
            await self.stop()

        self.runtime.run(main())


@pytest.fixture
def world(tmp_path):
    world = NodeWorld(tmp_path)
    yield world
    world.runtime.simulation.close()


def test_the_page_says_what_was_produced_and_fetched(world):
    async def scenario():
        await world.create("a", partitions=2)
        await world.create("b")
        sizes = [
            (await world.produce(*row))[0]
            for row in [("a", 0, b"x", b"y"), ("a", 1, b"z"), ("b", 0, b"w" * 500)]
        ]
        fetched = await world.fetch("a", 0)
        assert fetched == sizes[0]
        page = await world.scrape()
        assert page("kafka_server_brokertopicmetrics_messagesin_total") == 4
        assert page("kafka_server_brokertopicmetrics_messagesin_total", topic="a") == 3
        assert page("kafka_server_brokertopicmetrics_bytesin_total") == sum(sizes)
        assert page("kafka_server_brokertopicmetrics_bytesin_total", topic="b") == sizes[2]
        assert page("kafka_server_brokertopicmetrics_totalproducerequests_total", topic="a") == 2
        assert page("kafka_server_replicamanager_partitioncount") == 3
        assert page("kafka_server_replicamanager_leadercount") == 3
        assert page("kafka_log_log_logendoffset", topic="a", partition=0) == 2
        assert page("kafka_log_log_size", topic="b", partition=0) == sizes[2]
        assert page("kafka_log_log_numlogsegments", topic="b", partition=0) == 1
        # A deleted topic leaves the page, and stays in the sums.
        deleted = await world.node.broker.controller.request(ApiKey.DELETE_TOPICS, delete("a"))
        assert deleted.responses[0].error_code == 0
        page = await world.scrape()
        assert ("kafka_server_brokertopicmetrics_messagesin_total", (("topic", "a"),)) not in page.samples
        assert page("kafka_server_brokertopicmetrics_messagesin_total") == 4
        assert page("kafka_server_replicamanager_partitioncount") == 1

    world.run(scenario)


def test_requests_groups_and_the_quorum(world):
    async def scenario():
        await world.create("a", partitions=2)
        for _ in range(70):
            await world.produce("a", 0, b"x")
        await world.fetch("a", 0)
        page = await world.scrape()
        requests = "kafka_network_requestmetrics_requests_total"
        assert page(requests, request="Produce", version=12) == 70
        assert page(requests, request="Fetch", version=12) == page(requests, request="FetchConsumer") == 1
        assert page(requests, request="FetchFollower") == 0
        times = "kafka_network_requestmetrics_totaltimems"
        assert page(f"{times}_count", request="Produce") == 64  # one of 64 is timed
        assert page(f"{times}_bucket", request="Produce", le="+Inf") == 64
        assert page(f"{times}_count", request="CreateTopics") == 1
        assert page("kafka_server_raft_metrics_current_state_info", state="leader") == 1
        assert page("kafka_server_raft_metrics_current_leader") == 1
        end = page("kafka_server_raft_metrics_log_end_offset")
        assert page("kafka_server_raft_metrics_high_watermark") == end > 0
        assert page("kafka_controller_kafkacontroller_lastappliedrecordoffset") == end - 1
        controller = "kafka_controller_kafkacontroller_"
        assert page(f"{controller}activecontrollercount") == page(f"{controller}activebrokercount") == 1
        assert (page(f"{controller}globaltopiccount"), page(f"{controller}globalpartitioncount")) == (1, 2)
        assert page(f"{controller}offlinepartitionscount") == page(f"{controller}fencedbrokercount") == 0
        assert page("kafka_server_kafkaserver_brokerstate") == 3
        assert page("kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT") == 1
        assert page("kafka_coordinator_group_groupmetadatamanager_numgroups") == 0

    world.run(scenario)


def test_lag_and_partitions_under_the_names_of_kafka_exporter(world):
    async def scenario():
        await world.create("a", partitions=2)
        await world.create("b")
        for values, at in ((7, ("a", 0)), (3, ("a", 1)), (5, ("b", 0))):
            await world.produce(*at, *[b"x"] * values)
        await world.commit("g", {("a", 0): 2, ("a", 1): 3, ("b", 0): 1})
        await world.commit('wei"rd\n', {("b", 0): 5})
        page = await world.scrape()
        lag, committed = "kafka_consumergroup_lag", "kafka_consumergroup_current_offset"
        assert page(committed, consumergroup="g", topic="a", partition=0) == 2
        assert page(lag, consumergroup="g", topic="a", partition=0) == 5
        assert page(lag, consumergroup="g", topic="a", partition=1) == 0
        assert page(f"{lag}_sum", consumergroup="g", topic="a") == 5
        assert page(f"{committed}_sum", consumergroup="g", topic="a") == 5
        assert page(f"{lag}_sum", consumergroup="g", topic="b") == 4
        assert page(lag, consumergroup='wei"rd\n', topic="b", partition=0) == 0
        assert page("kafka_consumergroup_members", consumergroup="g") == 0
        assert page("kafka_coordinator_group_groupmetadatamanager_numoffsets") == 4
        assert page("kafka_brokers") == 1
        partition = "kafka_topic_partition_"
        assert page(f"{partition}current_offset", topic="a", partition=0) == 7
        assert page(f"{partition}oldest_offset", topic="a", partition=0) == 0
        for name, value in (("leader", 1), ("leader_is_preferred", 1), ("replicas", 1), ("in_sync_replica", 1),
                            ("under_replicated_partition", 0)):  # fmt: skip
            assert page(f"{partition}{name}", topic="b", partition=0) == value, name
        for name, value in (("underminisr", 0), ("atminisr", 1), ("replicascount", 1)):
            assert page(f"kafka_cluster_partition_{name}", topic="b", partition=0) == value, name
        # More is produced: the lag grows without any request of the group.
        await world.produce("a", 1, b"y", b"z")
        page = await world.scrape()
        assert page(f"{lag}_sum", consumergroup="g", topic="a") == 7

    world.run(scenario)


def test_the_rows_of_groups_are_bounded_and_their_sums_complete(world):
    async def scenario():
        await world.create("a", partitions=5)
        await world.commit("g", {("a", partition): partition for partition in range(5)})
        await world.commit("h", {("a", 0): 1})
        page = await world.scrape()
        rows = [key for key in page.samples if key[0] == "kafka_consumergroup_current_offset"]
        assert len(rows) == 2
        sums = {
            dict(labels)["consumergroup"]: value
            for (name, labels), value in page.samples.items()
            if name == "kafka_consumergroup_current_offset_sum"
        }
        assert sums == {"g": 0 + 1 + 2 + 3 + 4, "h": 1}
        assert page("ottla_group_rows_left_out") == 4
        assert page("kafka_coordinator_group_groupmetadatamanager_numoffsets") == 6

    world.run(scenario, metrics_groups_max_rows=2)


def test_what_waits_is_counted_until_its_deadline(world):
    async def scenario():
        await world.create("a")
        client = await WireClient.connect("127.0.0.1", 9092)
        rows = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]
        waiting = FetchRequest(max_wait_ms=2000, min_bytes=1, topics=[FetchTopic(topic="a", partitions=rows)])
        await client.send(ApiKey.FETCH, 12, waiting)
        await asyncio.sleep(1)
        purgatory, expired = (
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "kafka_server_delayedfetchmetrics_expires_total",
        )
        page = await world.scrape()
        assert (page(purgatory, delayedOperation="Fetch"), page(purgatory, delayedOperation="Produce")) == (
            1,
            0,
        )
        assert page(expired, fetcherType="consumer") == 0
        await client.receive()
        page = await world.scrape()
        assert page(purgatory, delayedOperation="Fetch") == 0
        assert page(expired, fetcherType="consumer") == 1
        times = "kafka_network_requestmetrics_totaltimems"
        assert page(f"{times}_sum", request="FetchConsumer") == pytest.approx(2000, abs=1)
        assert page(f"{times}_bucket", request="FetchConsumer", le="1000.0") == 0
        assert page(f"{times}_bucket", request="FetchConsumer", le="5000.0") == 1
        assert page(f"{times}_sum", request="Fetch") == page(f"{times}_sum", request="FetchConsumer")
        await client.close()

    world.run(scenario)


def test_the_phases_of_requests_and_the_build(world):
    async def scenario():
        await world.create("a")
        for _ in range(64):
            await world.produce("a", 0, b"x")
        page = await world.scrape()
        requests = "kafka_network_requestmetrics_"
        for phase, produced in (("totaltimems", 64), ("localtimems", 64), ("remotetimems", None)):
            found = page.samples.get((f"{requests}{phase}_count", (("request", "Produce"),)))
            assert found == produced, phase
        assert (
            page(f"{requests}remotetimems_count", request="CreateTopics") == 1
        )  # it waits for the controller
        assert ("kafka_controller_controllerstats_uncleanleaderelections_total", ()) in page.samples
        assert page("kafka_log_logflushstats_logflushrateandtimems_count") > 0  # the metadata log is flushed
        [labels] = [dict(labels) for name, labels in page.samples if name == "ottla_build_info"]
        assert labels["version"] == VERSION

    world.run(scenario)


def test_names_by_strimzis_rules(world):
    async def main():
        await world.start(metrics_names="strimzi")
        page = await world.scrape()
        assert page("kafka_server_raftmetrics_current_state", current_state="leader") == 1
        assert page("kafka_server_raftmetrics_high_watermark") > 0
        assert page("kafka_server_raftmetrics_election_latency_max") == 0
        assert page("kafka_server_brokermetadatametrics_last_applied_record_offset") > 0
        assert page("kafka_brokers") == 1
        assert not [name for name, _ in page.samples if "raft_metrics" in name]
        await world.stop()

    world.runtime.run(main())


def test_failures_of_appends(world):
    """Kafka counts the same: a refused size counts its bytes; an invalid record is a failure, and no append."""

    async def scenario():
        await world.create("a")
        _, row = await world.produce("a", 0, b"x" * 2_000_000)
        assert row.error_code == ErrorCode.message_too_large
        damaged = bytearray(build_batch(simple_records([(None, b"v")], timestamp=0)))
        damaged[23 + 3] = 9  # last offset delta: more records than there are
        damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
        _, row = await world.produce("a", 0, batch=bytes(damaged))
        assert row.error_code == ErrorCode.invalid_record
        page = await world.scrape()
        topic = "kafka_server_brokertopicmetrics_"
        assert page(f"{topic}totalproducerequests_total", topic="a") == 2
        assert page(f"{topic}failedproducerequests_total", topic="a") == 1
        assert page(f"{topic}bytesrejected_total", topic="a") > 2_000_000
        assert page(f"{topic}messagesin_total", topic="a") == page(f"{topic}bytesin_total", topic="a") == 0

    world.run(scenario)


def delete(name):
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)


def test_both_formats_have_the_same_samples(world):
    async def scenario():
        await world.create("a", partitions=30)
        await world.produce("a", 7, b"x")
        plain = await world.get("/metrics", "Accept: text/plain")
        assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        opened = await world.get(
            "/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.1"
        )
        assert opened.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        # Its parser is strict: types, order, and the end of the text.
        pages = [Scraped(opened.body.decode(), open_metrics), Scraped(plain.body.decode())]
        rates = [
            page.samples.pop(("kafka_server_raft_metrics_append_records_rate", ())) for page in pages
        ]  # of the time between the two
        assert rates[0] == pytest.approx(rates[1], rel=0.01)
        assert pages[0].samples == pages[1].samples

    world.run(scenario)


def test_health_and_readiness_through_start_and_stop(world):
    """/healthz answers from the first moment to the last; /readyz while clients are served."""

    async def scenario():
        seen = []

        async def watch():
            while True:
                try:
                    health, ready = await world.get("/healthz"), await world.get("/readyz")
                except (ConnectionError, AttributeError):
                    ready = None
                else:
                    assert health.status == 200
                line = None if ready is None else (ready.status, ready.body.decode().strip())
                if line not in seen[-1:]:
                    seen.append(line)
                await asyncio.sleep(0.001)

        watching = asyncio.ensure_future(watch())
        await world.start()
        assert (await world.get("/readyz")).status == 200
        await asyncio.sleep(1)
        await world.stop()
        await asyncio.sleep(1)
        watching.cancel()
        assert seen[0] is None
        assert seen[-1] is None
        # Not ready with changing reasons, ready, not ready: and nothing in between.
        statuses = [status for status, _ in groupby(line[0] for line in seen[1:-1])]
        assert statuses == [503, 200, 503]
        assert len(seen) > 5, "more than one reason before it was ready"
        assert seen[-2] == (503, "The node stops.")

    world.runtime.blocking_s = lambda: 0.05
    world.runtime.run(scenario())


def test_an_address_in_use(world):
    async def scenario():
        await world.runtime.listen("127.0.0.1", PORT, asyncio.Protocol)
        with pytest.raises(
            CannotStart, match=rf"Cannot listen at http://127\.0\.0\.1:{PORT}: .*metrics\.listeners"
        ):
            await world.start()

    world.runtime.run(scenario())


def test_unknown_pages(world):
    async def scenario():
        assert (await world.get("/metrics/")).status == 404
        unknown = await world.get("/unknown")
        assert (unknown.status, b"/metrics" in unknown.body) == (404, True)

    world.run(scenario)
