"""Spark's own Kafka connector in batches, as a Spark user reads and writes topics.

KAFKA_ORACLE=1: against Apache Kafka.
"""

import datetime
import json

import pytest
from confluent_kafka import Producer, TopicPartition
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as F

from ottla.bench.components.processes import PATIENCE_S
from tests.compat.admin import admin_of, create_topic, produce, read


@pytest.fixture
def kafka(spark, server):
    """A reader with its options, without a topic yet."""

    def reader(**options):
        found = spark.read.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
        return found.options(**{name.replace("_", "."): value for name, value in options.items()})

    return reader


@pytest.fixture
def write(server):
    """Append a frame to a topic; its columns are the connector's."""

    def append(frame, topic=None, **options):
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**{name.replace("_", "."): value for name, value in options.items()}).save()

    return append


def values_of(frame):
    return [row.value for row in frame.selectExpr("CAST(value AS STRING) AS value").collect()]


def offsets_json(topic, offsets):
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def test_all_columns_of_a_record_come_back(spark, server, kafka, write, topic):
    create_topic(server.bootstrap, topic, 2)
    headers = [("trace", bytearray(b"\x00\xff")), ("trace", bytearray(b"again")), ("none", None)]
    rows = [
        (topic, 0, bytearray(b"key"), bytearray(b"value"), headers),
        (topic, 0, None, bytearray(b""), None),
        (topic, 1, bytearray(b"tombstone"), None, None),
    ]
    schema = "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"
    before = datetime.datetime.now(datetime.UTC)
    write(spark.createDataFrame(rows, schema).coalesce(1))
    found = kafka(subscribe=topic, includeHeaders="true").load().orderBy("partition", "offset").collect()
    shown = [
        (row.topic, row.partition, row.offset, row.key, row.value, row.timestampType, row.headers)
        for row in found
    ]
    assert shown == [
        (topic, 0, 0, b"key", b"value", 0, headers),
        (topic, 0, 1, None, b"", 0, None),
        (topic, 1, 0, b"tombstone", None, 0, None),
    ]
    ages = [row.timestamp.astimezone(datetime.UTC) - before for row in found]
    assert all(abs(age) < datetime.timedelta(minutes=10) for age in ages), ages
    # And the same for another client.
    [first, _] = read(server.bootstrap, topic, 2)
    assert (first.key(), first.value()) == (b"key", b"value")
    assert first.headers() == [("trace", b"\x00\xff"), ("trace", b"again"), ("none", None)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_is_written_and_read_once(spark, server, kafka, write, topic, codec):
    create_topic(server.bootstrap, topic, 3)
    write(
        spark.range(30_000).selectExpr(
            "CAST(id AS STRING) AS key", "repeat(CAST(id AS STRING), 20) AS value"
        ),
        topic,
        kafka_compression_type=codec,
    )
    found = kafka(subscribe=topic).load().selectExpr("CAST(CAST(key AS STRING) AS LONG) AS id", "value")
    right = F.expr("CAST(value AS STRING) = repeat(CAST(id AS STRING), 20)")
    counts = found.agg(F.count("*"), F.countDistinct("id"), F.sum("id"), F.sum(right.cast("int"))).first()
    assert tuple(counts) == (30_000, 30_000, 30_000 * 29_999 // 2, 30_000)


def test_a_range_of_offsets_of_each_partition(spark, server, kafka, write, topic):
    create_topic(server.bootstrap, topic, 3)
    write(
        spark.range(300)
        .selectExpr("CAST(id AS STRING) AS value", "CAST(id % 3 AS INT) AS partition")
        .coalesce(1),
        topic,
    )
    frame = kafka(
        subscribe=topic,
        startingOffsets=offsets_json(topic, {0: 10, 1: -2, 2: 100}),
        endingOffsets=offsets_json(topic, {0: 20, 1: 5, 2: -1}),
    ).load()
    found = sorted((row.partition, row.offset, int(row.value)) for row in frame.collect())
    assert found == [(0, at, 3 * at) for at in range(10, 20)] + [(1, at, 3 * at + 1) for at in range(5)]


def test_a_range_of_times(server, kafka, topic):
    create_topic(server.bootstrap, topic, 2, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(100):
        producer.produce(
            topic, value=str(number), partition=number % 2, timestamp=1_700_000_000_000 + 1000 * number
        )
    assert producer.flush(PATIENCE_S) == 0
    bounded = kafka(
        subscribe=topic, startingTimestamp="1700000030000", endingTimestamp="1700000040000"
    ).load()
    assert sorted(map(int, values_of(bounded))) == list(range(30, 40))
    by_partition = kafka(
        subscribe=topic,
        startingOffsetsByTimestamp=offsets_json(topic, {0: 1_700_000_090_000, 1: 1_700_000_095_000}),
    ).load()
    assert sorted(map(int, values_of(by_partition))) == [90, 92, 94, 95, 96, 97, 98, 99]
    with pytest.raises(IllegalArgumentException, match="No offset matched from request"):
        kafka(subscribe=topic, startingTimestamp="1800000000000").load().collect()


def test_a_partition_is_read_by_several_tasks(spark, server, kafka, write, topic):
    create_topic(server.bootstrap, topic, 1)
    write(spark.range(5_000).selectExpr("CAST(id AS STRING) AS value"), topic)
    assert kafka(subscribe=topic).load().rdd.getNumPartitions() == 1
    split = kafka(subscribe=topic, minPartitions="4").load()
    assert split.rdd.getNumPartitions() >= 4
    assert sorted(map(int, values_of(split))) == list(range(5_000))


def test_topics_by_list_by_pattern_and_by_partition(server, kafka, topic):
    for number in range(3):
        create_topic(server.bootstrap, f"{topic}-{number}", 2)
        for partition in range(2):
            produce(
                server.bootstrap, f"{topic}-{number}", [f"{number}/{partition}".encode()], partition=partition
            )
    assert sorted(values_of(kafka(subscribe=f"{topic}-0,{topic}-2").load())) == ["0/0", "0/1", "2/0", "2/1"]
    assert sorted(values_of(kafka(subscribePattern=f"{topic}-[12]").load())) == ["1/0", "1/1", "2/0", "2/1"]
    assigned = kafka(assign=json.dumps({f"{topic}-0": [1], f"{topic}-1": [0]})).load()
    assert sorted(values_of(assigned)) == ["0/1", "1/0"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_records_without_a_transaction_are_read_at_each_isolation_level(server, kafka, topic, level):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, [str(number).encode() for number in range(50)], enable_idempotence=True)
    found = kafka(subscribe=topic, kafka_isolation_level=level).load()
    assert values_of(found.orderBy("offset")) == [str(number) for number in range(50)]


def test_records_that_are_gone_are_an_error_or_left_out(server, kafka, topic):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, [str(number).encode() for number in range(100)])
    admin = admin_of(server.bootstrap)
    admin.delete_records([TopicPartition(topic, 0, 60)])[TopicPartition(topic, 0)].result(PATIENCE_S)
    from_start = {"subscribe": topic, "startingOffsets": offsets_json(topic, {0: 50})}
    with pytest.raises(Py4JJavaError, match=r"(?i)data loss|out of range|lost|failOnDataLoss"):
        kafka(**from_start).load().collect()
    found = kafka(**from_start, failOnDataLoss="false").load()
    assert sorted(map(int, values_of(found))) == list(range(60, 100))


def test_a_topic_that_does_not_exist_is_an_error(kafka, topic):
    with pytest.raises(Py4JJavaError, match="UnknownTopicOrPartitionException"):
        kafka(subscribe=topic).load().collect()


def test_a_record_that_the_topic_does_not_take_fails_the_job(spark, server, write, topic):
    create_topic(server.bootstrap, topic, config={"max.message.bytes": "1000"})
    with pytest.raises(Py4JJavaError, match="RecordTooLargeException"):
        # A batch of one record: the client tries to split larger ones, without end if they are below batch.size.
        write(spark.range(1).selectExpr("repeat('x', 5000) AS value"), topic)


def test_a_join_of_two_topics_goes_to_a_third(spark, server, kafka, write, topic):
    orders, customers, joined = f"{topic}-orders", f"{topic}-customers", f"{topic}-joined"
    for name in (orders, customers, joined):
        create_topic(server.bootstrap, name, 2)
    write(
        spark.range(1000).selectExpr("CAST(id % 10 AS STRING) AS key", "CAST(id AS STRING) AS value"), orders
    )
    write(
        spark.range(10).selectExpr("CAST(id AS STRING) AS key", "concat('customer ', id) AS value"), customers
    )
    amounts = (
        kafka(subscribe=orders)
        .load()
        .selectExpr("key", "CAST(CAST(value AS STRING) AS LONG) AS amount")
        .groupBy("key")
        .sum()
    )
    names = kafka(subscribe=customers).load().selectExpr("key", "CAST(value AS STRING) AS name")
    write(names.join(amounts, "key").selectExpr("key", "concat(name, ': ', `sum(amount)`) AS value"), joined)
    expected = [f"customer {number}: {sum(range(number, 1000, 10))}" for number in range(10)]
    assert sorted(values_of(kafka(subscribe=joined).load())) == expected
