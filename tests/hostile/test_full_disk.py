"""A broker whose disk takes no more: it says so and ends, as Kafka halts, and has lost nothing when it starts again."""

import resource

import pytest

from ottla.bench.components.processes import wait_until
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from tests.harness.blocking_wire import BlockingWire
from tests.harness.ottla import OttlaServer

#: No file may become longer; the system then cuts writes short, and refuses the next one (EFBIG).
LIMIT_BYTES = 500_000


@pytest.fixture
def server(tmp_path):
    # An index is as long as it may become from its first entry on.
    server = OttlaServer(tmp_path, settings={"log.index.size.max.bytes": "10000"}).start()
    yield server
    server.kill()


def produce(wire):
    batch = build_batch(simple_records([(None, b"v" * 10_000)], timestamp=1))
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
    answer = wire.call(ApiKey.PRODUCE, 12, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=data))
    return answer.responses[0].partition_responses[0].error_code


def end_offset(wire):
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    return wire.call(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0].offset


def test_the_only_disk_is_full(server):
    with BlockingWire(server.port) as wire:
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = wire.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(timeout_ms=60_000, topics=[topic]))
        assert created.topics[0].error_code == ErrorCode.none
        resource.prlimit(server.child.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
        wait_until(lambda: produce(wire) == ErrorCode.none)
        acknowledged = 1
        while (error := produce(wire)) == ErrorCode.none:
            acknowledged += 1
        assert error == ErrorCode.kafka_storage_error
    assert acknowledged == LIMIT_BYTES // 10_072
    assert server.child.wait() == 1
    said = server.child.output()
    assert f"File too large: 10072 bytes cannot be written: '{server.data_dir}/t-0/{0:020d}.log'" in said
    assert "The node stops." in said
    assert "Traceback" not in said
    assert (server.data_dir / "t-0" / f"{0:020d}.log").stat().st_size == LIMIT_BYTES  # the last batch is torn
    assert not (server.data_dir / ".kafka_cleanshutdown").exists()
    server.start()
    with BlockingWire(server.port) as wire:
        assert end_offset(wire) == acknowledged
        assert produce(wire) == ErrorCode.none
    assert server.stop() == 0
