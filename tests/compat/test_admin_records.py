"""Records and offsets through the admin clients: deleted, and looked up by timestamp and by position."""

import time

import kafka
import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.compat.admin import (
    PATIENCE_S,
    admin_of,
    code_of,
    create_topic,
    eventually_equal,
    produce,
    read,
    wait_until,
)
from tests.compat.clients import CODECS


def offset_of(admin, topic: str, spec: OffsetSpec, **options) -> tuple[int, int]:
    """The answer of ListOffsets for partition 0, as (offset, timestamp)."""
    partition = TopicPartition(topic, 0)
    found = admin.list_offsets({partition: spec}, **options)[partition].result(PATIENCE_S)
    return found.offset, found.timestamp


def _recently() -> int:
    """An hour ago: old enough to differ from the time of arrival, too recent for retention."""
    return int(time.time() * 1000) - 3_600_000


def produce_at(bootstrap: str, topic: str, timestamps: list[int], codec: str = "none") -> None:
    """One record for each timestamp, all in one batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 250_000, "compression.type": codec})
    for timestamp in timestamps:
        producer.produce(topic, value=b"x" * 100, partition=0, timestamp=timestamp)
    assert producer.flush(PATIENCE_S) == 0


# KIP-79
@pytest.mark.parametrize("codec", CODECS)
def test_offsets_are_found_by_time_within_a_batch(server, topic, codec):
    create_topic(server.bootstrap, topic)
    admin = admin_of(server.bootstrap)
    assert offset_of(admin, topic, OffsetSpec.earliest()) == (0, -1)
    assert offset_of(admin, topic, OffsetSpec.latest()) == (0, -1)
    assert offset_of(admin, topic, OffsetSpec.max_timestamp()) == (-1, -1)
    now = _recently()
    produce_at(server.bootstrap, topic, [now, now + 10, now + 40, now + 20], codec)
    produce_at(server.bootstrap, topic, [now + 30, now + 50], codec)
    for asked, expected in [
        # the first record that is not older
        (0, (0, now)),
        (now, (0, now)),
        (now + 1, (1, now + 10)),
        (now + 15, (2, now + 40)),
        (now + 41, (5, now + 50)),
        (now + 51, (-1, -1)),
    ]:
        assert offset_of(admin, topic, OffsetSpec.for_timestamp(asked)) == expected, asked - now
    assert offset_of(admin, topic, OffsetSpec.max_timestamp()) == (5, now + 50)
    assert offset_of(admin, topic, OffsetSpec.latest()) == (6, -1)
    committed = {"isolation_level": IsolationLevel.READ_COMMITTED}
    assert offset_of(admin, topic, OffsetSpec.latest(), **committed) == (6, -1)


# KIP-734
def test_of_equal_maximum_timestamps_the_first_is_returned(server, topic):
    create_topic(server.bootstrap, topic)
    now = _recently()
    produce_at(server.bootstrap, topic, [now, now + 5, now + 5, now + 1])
    produce_at(server.bootstrap, topic, [now + 5])
    assert offset_of(admin_of(server.bootstrap), topic, OffsetSpec.max_timestamp()) == (1, now + 5)


def test_unknown_partitions_have_no_offsets(server, topic):
    create_topic(server.bootstrap, topic)
    admin = admin_of(server.bootstrap)
    unknown = TopicPartition(f"{topic}-unknown", 0)
    answer = admin.list_offsets({unknown: OffsetSpec.earliest()}, request_timeout=8)[unknown]
    assert code_of(answer) == "_NOENT"


# KIP-107
def test_deleted_records_are_not_returned_to_any_consumer(server, topic):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, [f"{number}".encode() for number in range(100)])
    admin = admin_of(server.bootstrap)

    def delete(offset: int) -> object:
        partition = TopicPartition(topic, 0, offset)
        return admin.delete_records([partition])[partition]

    assert delete(40).result(PATIENCE_S).low_watermark == 40
    assert offset_of(admin, topic, OffsetSpec.earliest()) == (40, -1)
    assert [message.offset() for message in read(server.bootstrap, topic, 5, offset=40)] == [
        40,
        41,
        42,
        43,
        44,
    ]
    assert delete(10).result(PATIENCE_S).low_watermark == 40  # already deleted
    assert code_of(delete(101)) == "OFFSET_OUT_OF_RANGE"
    assert delete(-1).result(PATIENCE_S).low_watermark == 100  # everything
    assert offset_of(admin, topic, OffsetSpec.earliest()) == (100, -1)
    produce(server.bootstrap, topic, [b"after"])
    assert read(server.bootstrap, topic, 1, offset=100)[0].value() == b"after"


def test_a_consumer_before_the_log_start_is_reset(server, topic):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, [f"{number}".encode() for number in range(10)])
    admin = admin_of(server.bootstrap)
    partition = TopicPartition(topic, 0, 7)
    admin.delete_records([partition])[partition].result(PATIENCE_S)
    first = read(server.bootstrap, topic, 1, offset=3, auto_offset_reset="earliest")
    assert first[0].offset() == 7


def test_kafka_python_asks_for_log_directories_and_offsets(server, topic):
    create_topic(server.bootstrap, topic, 2)
    produce(server.bootstrap, topic, [b"x" * 1000] * 10)
    admin = kafka.KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:

        def sizes() -> dict[int, int]:
            (broker,) = admin.describe_log_dirs()
            (folder,) = broker["results"] if "results" in broker else broker["log_dirs"]
            (found,) = [one for one in folder["topics"] if one["name"] == topic]
            return {one["partition_index"]: one["partition_size"] for one in found["partitions"]}

        wait_until(lambda: sizes()[0] > 10_000, detail=sizes)
        assert sizes()[1] == 0
        partitions = {kafka.TopicPartition(topic, 0): kafka.admin.OffsetSpec.LATEST}
        found = admin.list_partition_offsets(partitions)
        eventually_equal(lambda: found[kafka.TopicPartition(topic, 0)].offset, 10)
        admin.delete_records({kafka.TopicPartition(topic, 0): 4})
        consumer = kafka.KafkaConsumer(bootstrap_servers=server.bootstrap)
        assert consumer.beginning_offsets([kafka.TopicPartition(topic, 0)]) == {
            kafka.TopicPartition(topic, 0): 4
        }
        consumer.close()
    finally:
        admin.close()
