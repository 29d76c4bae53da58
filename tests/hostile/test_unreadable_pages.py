"""A mapped page that cannot be read: the connection that sends it is closed, and the process goes on.

Every mapping of this broker is without permission to read. Python code that looks into one ends the process
(SIGSEGV; SIGBUS for a page that a disk cannot read); the kernel answers EFAULT, for either.
"""

import pytest

from ottla.bench.components.processes import wait_until
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from tests.harness.blocking_wire import BlockingWire
from tests.harness.ottla import OttlaServer

_WITHOUT_PERMISSION = """
import mmap, runpy
from ottla.storage.files import Files

def map_nothing(self, fd, size):
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)

Files.map = map_nothing
runpy.run_module("ottla", run_name="__main__")
"""

_HALF_READABLE = """
import mmap, os, runpy
from ottla.storage.files import Files

def map_half(self, fd, size):
    copy = os.memfd_create("half")
    self.copy_prefix(fd, copy, size)
    mapping = mmap.mmap(copy, size, access=mmap.ACCESS_READ)
    os.ftruncate(copy, size // 2)
    os.close(copy)
    return mapping

Files.map = map_half
runpy.run_module("ottla", run_name="__main__")
"""

SEGMENT = {"segment.bytes": "1048576"}
BATCH_BYTES = 300_000


@pytest.fixture(params=[_WITHOUT_PERMISSION], ids=["no page readable"])
def server(tmp_path, request):
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.segment.bytes": "1048576"}
    server = OttlaServer(tmp_path, settings=settings, program=("-c", request.param)).start()
    yield server
    server.kill()


def create(wire, topic):
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in SEGMENT.items()]
    row = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, configs=configs)
    answer = wire.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(timeout_ms=60_000, topics=[row]))
    assert answer.topics[0].error_code == ErrorCode.none


def produce(wire, topic):
    batch = build_batch(simple_records([(b"k", b"v" * BATCH_BYTES)], timestamp=1))
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
    answer = wire.call(ApiKey.PRODUCE, 12, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=data))
    return answer.responses[0].partition_responses[0].error_code


def fetch(wire, topic, *, max_bytes=600_000):
    row = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=10**8, topics=[FetchTopic(topic=topic, partitions=[row])]
    )
    return wire.call(ApiKey.FETCH, 12, request).responses[0].partitions[0]


def offset_at(wire, topic, timestamp):
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    return wire.call(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0].offset


def commit(wire, metadata):
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=metadata)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[row])]
    answer = wire.call(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id="g", topics=topics))
    return answer.topics[0].partitions[0].error_code


def find_coordinator(wire):
    wire.call(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))


@pytest.mark.parametrize(
    "server", [_WITHOUT_PERMISSION, _HALF_READABLE], ids=["no page readable", "half"], indirect=True
)
def test_the_connection_is_closed_and_later_reads_are_copied(server):
    """It is closed even in the middle of a response, of which the socket has taken the beginning."""
    with BlockingWire(server.port) as wire:
        create(wire, "t")
        wait_until(lambda: produce(wire, "t") == ErrorCode.none)
        for _ in range(8):
            assert produce(wire, "t") == ErrorCode.none
        with pytest.raises((AssertionError, ConnectionError), match=r"closed|reset"):
            fetch(wire, "t", max_bytes=2_000_000)
    with BlockingWire(server.port) as wire:
        row = fetch(wire, "t")
        assert row.error_code == ErrorCode.none
        assert b"v" * 1000 in bytes(row.records)
    assert "EFAULT" in server.child.output()
    assert server.stop() == 0


def test_nothing_else_looks_into_a_mapping(server):
    """Look-ups by time, loads of a coordinator, a node that reads its metadata, recovery and compaction do
    not."""
    with BlockingWire(server.port) as wire:
        create(wire, "t")
        wait_until(lambda: produce(wire, "t") == ErrorCode.none)
        for _ in range(8):
            assert produce(wire, "t") == ErrorCode.none
        assert offset_at(wire, "t", 1) == 0
        wait_until(lambda: find_coordinator(wire) or commit(wire, "m" * 4000) == ErrorCode.none)
        for _ in range(300):  # 1.2 MB: closed segments, which would be mapped
            assert commit(wire, "m" * 4000) == ErrorCode.none
    server.kill()
    server.start()
    with BlockingWire(server.port) as wire:
        wait_until(lambda: commit(wire, "n") == ErrorCode.none)
        assert offset_at(wire, "t", 1) == 0
    assert server.stop() == 0
