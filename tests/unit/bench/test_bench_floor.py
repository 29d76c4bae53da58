"""The floor stores what it is sent, on all replicas, and answers as a broker does: else it would be a floor
of something else.
"""

import select

import psutil
import pytest

from ottla.bench.components.processes import wait_until
from ottla.bench.generators import librdkafka, paced
from ottla.bench.internals import floor
from ottla.bench.loads import LOADS
from ottla.bench.replication import MEASURES
from ottla.bench.targets.floor import FloorCluster, FloorServer
from ottla.bench.targets.settings import SETTINGS
from ottla.bench.targets.wire import WireClient, produce_frame, produce_message
from ottla.broker.network.connection import JOIN_BYTES
from ottla.broker.network.receive_buffer import SHARED_BYTES
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.records.batch import BatchHeader, unpack_header

BATCH_BYTES = 1024


@pytest.fixture(params=SETTINGS)
def server(request, tmp_path):
    server = FloorServer(tmp_path / "floor", SETTINGS[request.param])
    server.start()
    yield server
    server.kill()


def test_reads_and_writes_have_the_sizes_of_the_brokers():
    assert (floor._READ_BYTES, floor._JOIN_BYTES) == (SHARED_BYTES, JOIN_BYTES)


def batches(log):
    """The headers in a file."""
    data = log.read_bytes()
    found, at = [], 0
    while at < len(data):
        header = BatchHeader(*unpack_header(data, at))
        found.append(header)
        at += header.size_bytes
    return found


def test_pipelined_requests_are_all_in_the_log_in_their_order(server):
    with server.client() as client:
        client.create_topic("a", partitions=1, replication_factor=1)
        answered = paced.pipelined(
            server.port,
            produce_frame("a", batch_bytes=BATCH_BYTES),
            connections=2,
            depth=8,
            duration_s=0.1,
        )
        log = server.folder / "data" / "a" / "0.log"
        # What was under way at the end may be written later.
        written = len(batches(log))
        assert written >= answered > 0
        assert [each.base_offset for each in batches(log)][:written] == [*range(written)]
        assert client.record_count("a") >= written
        client.delete_topic("a")
        assert not log.exists()


def test_each_load_of_one_broker_that_has_a_floor_runs(server):
    names = []
    for load in LOADS:
        if load.has_floor and "java" not in load.name:
            sample = load.run(server, 0.02)
            assert all(value >= 0 for value in sample.values())
            names.append(load.name)
    assert names == [
        "rdkafka-produce-1024b-1p-acks-all",
        "rdkafka-produce-1024b-6p-acks-all",
        "api-versions-one-at-a-time",
        "metadata-one-at-a-time",
        "fetch-one-at-a-time",
        "fetch-v16-one-at-a-time",
        "one-at-a-time",
        "at-rate",
        "pipelined-200b",
        "pipelined-16384b",
    ]


def test_a_batch_whose_crc_is_wrong_ends_the_connection(server):
    with server.client() as topics:
        topics.create_topic("a", partitions=1, replication_factor=1)
    with WireClient(server.port) as client:
        frame = bytearray(produce_frame("a", batch_bytes=BATCH_BYTES))
        frame[-1] ^= 1
        client.send_frame(bytes(frame))
        with pytest.raises(ConnectionResetError):
            client.receive(ApiKey.PRODUCE, ProduceResponse)
    with WireClient(server.port) as client:
        assert client.record_count("a", partitions=1) == 0


@pytest.fixture
def cluster(tmp_path):
    floor = FloorCluster(tmp_path / "floor", SETTINGS["default"])
    floor.start()
    yield floor
    floor.kill()


def test_what_is_acknowledged_is_on_all_replicas(cluster):
    with cluster.client() as client:
        client.create_topic("a", partitions=3)
        with librdkafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"}) as producer:
            producer.produce("a", payload=b"x" * BATCH_BYTES, count=20_000)
        assert client.record_count("a") == 20_000
        leader, *followers = (node.data_dir / "a" for node in cluster.nodes)
        for follower in followers:
            logs = sorted(follower.glob("*.log"))
            assert sum(batch.records_count for log in logs for batch in batches(log)) == 20_000
            for log in logs:
                data = log.read_bytes()
                # The leader's file is longer than its log, for its mapping.
                with (leader / log.name).open("rb") as leaders_log:
                    assert leaders_log.read(len(data)) == data
        client.delete_topic("a")
        assert not any(node.data_dir.joinpath("a").exists() for node in cluster.nodes)


def test_an_answer_waits_for_all_followers(cluster):
    slow = psutil.Process(cluster.broker_pids()[1])
    other_log = cluster.node(3).data_dir / "a" / "0.log"
    with cluster.client() as client:
        client.create_topic("a", partitions=1)
        leader = client.broker(1)
        slow.suspend()
        leader.send(ApiKey.PRODUCE, produce_message("a", batch_bytes=BATCH_BYTES))
        wait_until(lambda: other_log.stat().st_size == BATCH_BYTES)
        assert select.select([leader], (), (), 0)[0] == []
        slow.resume()
        row = leader.receive(ApiKey.PRODUCE, ProduceResponse).responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, 0)


def test_each_load_of_replicas_that_has_a_floor_runs(cluster):
    names = []
    for load in MEASURES:
        if load.has_floor:
            assert all(value >= 0 for value in load.run(cluster, 0.02).values())
            names.append(load.name)
    assert names == ["produce-1p", "produce-6p", "one-at-a-time", "at-rate"]
