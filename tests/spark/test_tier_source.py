"""`spark.read.format("ottla-tier")` is what Spark's Kafka connector reads through the brokers,
on real clusters and stores.

Ottla's brokers with MinIO; Apache Kafka's with LocalTieredStorage, whose transactions Ottla reads as well.
"""

import shutil
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import cycle

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import functions

from ottla.bench.components.minio import MinioServer
from ottla.bench.components.processes import PATIENCE_S, wait_until
from ottla.remote.spark_source.source import TierDataSource
from tests.compat.tiering.stage import Stage
from tests.compat.tiering.tiered_cluster import DirectoryTier, MinioTier, TieredCluster

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START = datetime(2026, 1, 1, tzinfo=UTC)
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


class Place:
    """A cluster with a store, and the options of both ways to its metadata."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.stage = Stage(cluster)
        self.store = {
            name: text for name, text in cluster.store.properties().items() if not name.startswith("rlmm")
        }
        self.with_cluster = {"kafka.bootstrap.servers": cluster.bootstrap}

    def story(self, text):
        for line in text.split("\n"):
            if line.strip():
                self.stage.run(line.strip())

    def read(self, spark, topic, schema=None, **options):
        reader = spark.read.format("ottla-tier").options(**self.store, subscribe=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def through_brokers(self, spark, topic, **options):
        kafka = {"startingOffsets": "earliest", "endingOffsets": "latest", "includeHeaders": "true"}
        reader = spark.read.format("kafka").options(**self.with_cluster, subscribe=topic, **kafka | options)
        return reader.load()

    def wait_tiered(self, folder):
        """Wait until each broker has the active segment only, since then the store does not change any more."""

        def are_active_only():
            brokers = self.cluster.brokers.values()
            logs = [[*directory.glob(f"{folder}/*.log")] for node in brokers for directory in node.log_dirs]
            return sum(map(len, logs)) == len(brokers)

        wait_until(are_active_only)


def by_place(frame):
    return [row.asDict(recursive=True) for row in frame.orderBy("topic", "partition", "offset").collect()]


def ends_of(frame):
    return {row[0]: row[1] + 1 for row in frame.groupBy("partition").agg(functions.max("offset")).collect()}


@pytest.fixture(scope="module")
def source(spark):
    spark.dataSource.register(TierDataSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# -- Ottla and MinIO -------------------------------------------------------------------------------------

#: Of each partition in the store, at least.
SEGMENTS = 6


@pytest.fixture(scope="module")
def ottla(tmp_path_factory):
    """Two brokers and `orders`: two partitions with every codec, headers, nulls,
    and three leaders one after the other.
    """
    folder = tmp_path_factory.mktemp("ottla")
    with ExitStack() as stack:
        server = stack.enter_context(MinioServer(folder))
        place = Place(
            stack.enter_context(TieredCluster(folder, ["ottla", "ottla"], MinioTier(server, "tier"), {}))
        )
        place.story("topic orders 1,2 2,1 batches 2")
        produce(place, codecs=CODECS[:2], first=0)
        place.story("lead orders-0 2")
        produce(place, codecs=CODECS[2:], first=1000)
        place.story("lead orders-0 1")
        produce(place, codecs=CODECS[:3], first=2000)
        for partition in (0, 1):
            place.wait_tiered(f"orders-{partition}")
        yield place


def produce(place, *, codecs, first):
    """To each partition, for each codec, two batches of five records."""
    numbers = cycle(range(10))
    for codec in codecs:
        producer = Producer(
            {"bootstrap.servers": place.cluster.bootstrap, "linger.ms": 100, "compression.type": codec}
        )
        for batch in range(2):
            for record in range(5):
                for partition in (0, 1):
                    number = next(numbers)
                    at = START + timedelta(seconds=first + 100 * batch + record)
                    producer.produce(
                        "orders",
                        key=None if number == 3 else b"k%d" % number,
                        value=None if number == 4 else b"%d %s" % (number, codec.encode()) * 20 * number,
                        headers=[("one", b"1"), ("none", None), ("one", b"")] if number % 3 == 0 else None,
                        partition=partition,
                        timestamp=round(at.timestamp() * 1000),
                    )
            assert producer.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("way", ["records", "objects"])
def test_the_history_is_what_the_brokers_return(source, ottla, way):
    options = ottla.with_cluster if way == "records" else {}
    found = ottla.read(source, "orders", includeHeaders="true", **options)
    through_brokers = ottla.through_brokers(source, "orders")
    assert found.schema == through_brokers.schema
    ends = ends_of(found)
    assert set(ends) == {0, 1}
    assert min(ends.values()) >= 2 * SEGMENTS
    expected = [row for row in by_place(through_brokers) if row["offset"] < ends[row["partition"]]]
    assert by_place(found) == expected
    assert {row["key"] for row in expected} >= {None, b"k1"}
    assert {row["value"] for row in expected} >= {None, b""}


def test_leader_epochs(source, ottla):
    found = ottla.read(source, "orders", includeLeaderEpoch="true").where("partition = 0")
    epochs = [row["leaderEpoch"] for row in by_place(found)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > 2


def test_a_query_of_two_columns(source, ottla):
    found = ottla.read(source, "orders", "offset bigint, value binary")
    assert found.columns == ["offset", "value"]
    assert found.count() == ottla.read(source, "orders").count()


@pytest.fixture(scope="module")
def everything(source, ottla):
    """All rows, in memory."""
    rows = ottla.read(source, "orders").collect()
    return source.createDataFrame(rows, ottla.read(source, "orders").schema)


@pytest.mark.parametrize("condition", [
    "offset >= 7 and offset < 21",
    "partition = 1 and offset in (3, 14)",
    "timestamp >= '2026-01-01T00:16:45Z'",
    "timestamp between '2026-01-01T00:01:42Z' and '2026-01-01T00:16:43Z'",
    "topic = 'payments'",
    "offset > 3 or partition = 0",
    "key = X'6B31'",
    "offset <> 5 and key is not null",
])  # fmt: skip
def test_filters(source, ottla, everything, condition):
    """Evaluated by Spark, and used to leave out parts of copies before."""
    expected = by_place(everything.where(condition))
    assert by_place(ottla.read(source, "orders", pushFilters="true").where(condition)) == expected


def test_filters_leave_out_tasks(source, ottla):
    def tasks(**options):
        frame = ottla.read(source, "orders", maxPartitionBytes="1", **options)
        return frame.where("partition = 0 and offset = 9").rdd.getNumPartitions()

    assert tasks(pushFilters="true") == 1
    assert tasks() > 2 * SEGMENTS


def test_a_frame_of_several_queries(source, ottla, everything):
    """Spark 4.2.0 reads what the filters of the first one have left, if they are pushed: by default they are not."""
    found = ottla.read(source, "orders")
    assert found.where("offset = 9").count() == 2
    assert found.count() == everything.count()


def test_where_it_begins_and_ends(source, ottla):
    options = {
        "startingOffsets": '{"orders": {"0": 3, "1": -2}}',
        "endingTimestamp": str(round((START + timedelta(seconds=1000)).timestamp() * 1000)),
    }
    found = by_place(ottla.read(source, "orders", **options))
    kafka = {
        "endingOffsetsByTimestamp": '{"orders": {"0": %s, "1": %s}}' % ((options["endingTimestamp"],) * 2)
    }
    expected = ottla.through_brokers(source, "orders", startingOffsets=options["startingOffsets"], **kafka)
    assert found == by_place(expected.drop("headers"))


def test_two_topics_and_one_without_copies(source, ottla):
    ottla.story("topic empty 1 batches 2")
    found = ottla.read(source, "orders,empty", **ottla.with_cluster)
    assert found.count() == ottla.read(source, "orders").count()
    assert ottla.read(source, "empty", **ottla.with_cluster).collect() == []


@pytest.mark.parametrize(("options", "sentence"), [
    ({"subscribe": "nosuch"},                     "The store has no objects of the topic nosuch."),
    ({"subscribe": "nosuch", "kafka.bootstrap.servers": None}, "The topic nosuch cannot be described"),
    ({"startingOfsets": "earliest"},              "did you mean startingOffsets"),
    ({"endingOffsets": '{"orders": {"0": 9999}}'}, "asks for 9999, but the store has"),
])  # fmt: skip
def test_bad_options(source, ottla, options, sentence):
    given = {"subscribe": "orders", **ottla.store, **options}
    if "kafka.bootstrap.servers" in options:
        given |= ottla.with_cluster
    with pytest.raises(PySparkException) as refused:
        source.read.format("ottla-tier").options(**given).load().collect()
    assert sentence in str(refused.value)


def test_unknown_columns(source, ottla):
    with pytest.raises(PySparkException) as refused:
        ottla.read(source, "orders", "ofset bigint").collect()
    assert "The schema has ofset bigint: the columns of ottla-tier are key binary" in str(refused.value)


def test_filters_that_spark_does_not_push(source, ottla):
    """Spark says what to set."""
    source.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert ottla.read(source, "orders", "offset bigint").where("offset = 9").count() == 2
        with pytest.raises(PySparkException, match=r"filterPushdown\.enabled"):
            ottla.read(source, "orders", pushFilters="true").collect()
    finally:
        source.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# -- Apache Kafka and its LocalTieredStorage -------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """Transactions of several segments, committed and aborted, that Apache Kafka has coordinated and tiered."""
    folder = tmp_path_factory.mktemp("kafka")
    settings = {
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
    }
    with TieredCluster(folder, ["kafka"], DirectoryTier(folder / "tier"), settings) as cluster:
        place = Place(cluster)
        place.story("""
            transactions-on 1
            topic A 1 batches 2
            transaction A-0 3 abort
            transaction A-0 3 commit
            transaction A-0 2 abort
            produce A-0 3
            transaction A-0 1 abort
            transaction A-0 1 commit
            produce A-0 1
            tiered A-0 0 2 4 6 8 10 12 14 16
        """)
        yield place


@pytest.mark.parametrize("way", ["records", "objects"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("size", ["1", "1000000"])
def test_transactions_in_kafkas_directory(source, kafka, way, isolation, size):
    options = {"kafka.isolation.level": isolation}
    ways = kafka.with_cluster if way == "records" else {}
    found = by_place(
        kafka.read(source, "A", includeHeaders="true", maxPartitionBytes=size, **options, **ways)
    )
    expected = [row for row in by_place(kafka.through_brokers(source, "A", **options)) if row["offset"] < 18]
    assert found == expected
    assert len(expected) == (7 if isolation == "read_committed" else 13)


def test_missing_and_damaged_objects(source, kafka, tmp_path):
    """One clear error for each; the copies are in a directory of their own."""
    shutil.copytree(kafka.store["rsm.config.dir"], tmp_path / "tier")
    store = {**kafka.store, "rsm.config.dir": str(tmp_path / "tier")}
    options = {**store, "subscribe": "A", **kafka.with_cluster}
    logs = sorted((tmp_path / "tier").rglob("*.log"))
    body = bytearray(logs[1].read_bytes())
    body[-1] ^= 1
    logs[1].write_bytes(body)
    with pytest.raises(PySparkException, match="has a wrong checksum"):
        source.read.format("ottla-tier").options(**options).load().collect()
    logs[1].unlink()
    with pytest.raises(PySparkException, match="is not in the store any more"):
        source.read.format("ottla-tier").options(**options).load().collect()
    del options["kafka.bootstrap.servers"]
    with pytest.raises(PySparkException, match=r"no copy in the store has the offsets \[2, 4\)"):
        source.read.format("ottla-tier").options(**options).load().collect()
