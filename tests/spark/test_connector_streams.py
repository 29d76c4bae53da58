"""Structured streaming with Spark's Kafka connector: checkpoints, restarts of the query and of the broker."""

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from ottla.bench.components.processes import PATIENCE_S, wait_until
from tests.compat.admin import admin_of, create_topic, produce
from tests.compat.conftest import make_server


def numbers(begin, end):
    return [str(number).encode() for number in range(begin, end)]


@pytest.fixture
def stream(spark, tmp_path):
    """Start a query from a topic to a folder of Parquet files, which has each record once, or to another topic."""
    queries = []

    def start(server, topic, *, to=None, trigger=None, transform=None, **options):
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
        frame = source.options(**{"subscribe": topic, "startingOffsets": "earliest", **options}).load()
        frame = transform(frame) if transform else frame
        # Of counts, those that have changed.
        sink = frame.writeStream.outputMode("update" if transform else "append").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        if to is None:
            sink = sink.format("parquet").option("path", str(tmp_path / "copy"))
        else:
            sink = (
                sink.format("kafka").option("kafka.bootstrap.servers", server.bootstrap).option("topic", to)
            )
        query = sink.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()
        queries.append(query)
        return query

    start.run = lambda *arguments, **options: start(
        *arguments, trigger={"availableNow": True}, **options
    ).awaitTermination(PATIENCE_S)
    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def copied(spark, tmp_path):
    """The values in the folder."""
    return lambda: sorted(
        int(row.value)
        for row in spark.read.parquet(str(tmp_path / "copy"))
        .selectExpr("CAST(value AS STRING) AS value")
        .collect()
    )


def in_topic(spark, server, topic):
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", server.bootstrap)
        .option("subscribe", topic)
        .load()
    )
    return [
        row.value for row in frame.orderBy("offset").selectExpr("CAST(value AS STRING) AS value").collect()
    ]


def test_a_query_goes_on_from_its_checkpoint(server, topic, stream, copied):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, numbers(0, 1000))
    assert stream.run(server, topic)
    assert copied() == list(range(1000))
    produce(server.bootstrap, topic, numbers(1000, 1500))
    assert stream.run(server, topic)
    assert copied() == list(range(1500))
    assert stream.run(server, topic), "nothing is new"
    assert copied() == list(range(1500))


def test_the_size_of_batches_is_bounded(server, topic, stream, copied):
    create_topic(server.bootstrap, topic, 2)
    for partition in range(2):
        produce(server.bootstrap, topic, numbers(500 * partition, 500 * (partition + 1)), partition=partition)
    query = stream(server, topic, trigger={"availableNow": True}, maxOffsetsPerTrigger="300")
    assert query.awaitTermination(PATIENCE_S)
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(sizes) == 1000
    assert max(sizes) <= 301
    ends = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert ends == {topic: {"0": 500, "1": 500}}
    assert copied() == list(range(1000))


def test_a_broker_restarts_while_a_query_runs(tmp_path, topic, stream, copied):
    server = make_server(tmp_path / "server").start()
    try:
        create_topic(server.bootstrap, topic)
        produce(server.bootstrap, topic, numbers(0, 500))
        query = stream(server, topic)
        wait_until(lambda: query.lastProgress is not None)
        server.kill()
        server.start()
        produce(server.bootstrap, topic, numbers(500, 1000))
        wait_until(lambda: query.isActive is False or len(copied()) == 1000, interval_s=0.5)
        assert query.exception() is None
        assert copied() == list(range(1000))
        query.stop()
    finally:
        server.stop()


def test_a_query_sees_partitions_that_are_added(server, topic, stream, copied):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, numbers(0, 10))
    assert stream.run(server, topic)
    admin = admin_of(server.bootstrap)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 2)
    produce(server.bootstrap, topic, numbers(10, 20), partition=1)
    assert stream.run(server, topic)
    assert copied() == list(range(20))


def test_records_that_are_gone_stop_a_query_or_are_left_out(server, topic, stream, copied):
    create_topic(server.bootstrap, topic)
    produce(server.bootstrap, topic, numbers(0, 100))
    assert stream.run(server, topic)
    produce(server.bootstrap, topic, numbers(100, 200))
    admin = admin_of(server.bootstrap)
    admin.delete_records([TopicPartition(topic, 0, 150)])[TopicPartition(topic, 0)].result(PATIENCE_S)
    with pytest.raises(StreamingQueryException, match=r"(?i)data.*lost|missing"):
        stream.run(server, topic)
    assert stream.run(server, topic, failOnDataLoss="false")
    assert copied() == [*range(100), *range(150, 200)]


def test_a_stream_begins_at_a_time(server, topic, stream, copied):
    create_topic(server.bootstrap, topic, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(100):
        producer.produce(topic, value=str(number), timestamp=1_700_000_000_000 + 1000 * number)
    assert producer.flush(PATIENCE_S) == 0
    assert stream.run(server, topic, startingTimestamp="1700000060000")
    assert copied() == list(range(60, 100))


def test_a_topic_goes_into_another_one_with_counts_that_survive_a_restart(spark, server, topic, stream):
    copy = f"{topic}-copy"
    create_topic(server.bootstrap, topic, 2)
    create_topic(server.bootstrap, copy)

    def count_by_parity(frame):
        number = F.expr("CAST(CAST(value AS STRING) AS LONG)")
        counts = frame.groupBy((number % 2).alias("parity")).count()
        return counts.selectExpr("concat(parity, '=', count) AS value")

    for begin in (0, 100):
        for partition in range(2):
            produce(server.bootstrap, topic, numbers(begin, begin + 100)[partition::2], partition=partition)
        assert stream.run(server, topic, to=copy, transform=count_by_parity)
    assert sorted(in_topic(spark, server, copy)) == ["0=100", "0=50", "1=100", "1=50"]
