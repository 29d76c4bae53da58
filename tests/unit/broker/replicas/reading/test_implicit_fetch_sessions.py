"""Full fetches of a consumer without sessions: recognised rows, and what its connection keeps, beside
requests that are parsed.

What `test_fast_fetch` holds for any events, here one by one.
"""

import asyncio
from uuid import UUID

import pytest
from dispatch_support import Connection, ForgetfulConnection
from replicas_support import NOW_MS, batch, image
from test_fast_fetch import frame_of, transaction, whole

from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.replicas.reading.implicit_fetch_sessions import ImplicitPartition
from ottla.broker.replicas.reading.read_from_log import LogReads
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import NOT_REPORTED
from ottla.protocol.messages.fetch import FetchTopic, ReplicaState
from ottla.protocol.records.batch import read_header

pytestmark = pytest.mark.logs("")

#: The body of a request of two partitions of a topic: what precedes the topics, the topic, its rows, what follows.
BYTES_OF_TWO_ROWS = 25 + 1 + (16 + 1 + 2 * 33 + 1) + 3


class Consumer:
    """One without fetch sessions, beside another one whose requests are all parsed."""

    def __init__(self, broker):
        self.dispatch = Dispatcher(broker)
        self.connection, self.general = Connection(), ForgetfulConnection()

    def send(self, *rows, **fields):
        frame = frame_of(*rows, epoch=-1, replica_state=ReplicaState(), high_watermark=NOT_REPORTED, **fields)
        return self.dispatch(frame, self.connection), self.dispatch(frame, self.general)

    def fetch(self, *rows, **fields):
        """The offset of each partition's first record, or None."""
        repeated, general = map(whole, self.send(*rows, **fields))
        assert repeated == general
        topics = codec.decode_response(18, memoryview(repeated)[5:]).responses
        return {
            row.partition_index: read_header(row.records).base_offset if row.records else None
            for topic in topics
            for row in topic.partitions
        }


@pytest.fixture
def consumer(broker):
    broker.create(partitions=dict.fromkeys(range(3), image()))
    return Consumer(broker)


def produce(broker, index, value=b"value"):
    partition = broker.replicas.partition(("t", index))
    partition.leader.append_records(batch(value), required_acks=1, now_ms=NOW_MS)


def watchers(broker):
    return [len(broker.replicas.partition(("t", index)).watchers.consumers) for index in range(3)]


def test_without_a_session_only_changed_partitions_are_read(broker, consumer, monkeypatch):
    read, original = [], LogReads._read
    for _ in range(3):
        assert consumer.fetch((0, 0), (1, 0), (2, 0)) == {0: None, 1: None, 2: None}
    produce(broker, 1)

    def note(reads, fetched, **options):
        if isinstance(fetched, ImplicitPartition):
            read.append(fetched.key[1])
        return original(reads, fetched, **options)

    monkeypatch.setattr(LogReads, "_read", note)
    assert consumer.fetch((1, 0), (2, 0), (0, 0)) == {0: None, 1: 0, 2: None}
    assert consumer.fetch((2, 0), (0, 0), (1, 1)) == {0: None, 1: None, 2: None}
    assert consumer.fetch((0, 0), (1, 1), (2, 0)) == {0: None, 1: None, 2: None}
    assert consumer.fetch((1, 1), (2, 0), (0, 0)) == {0: None, 1: None, 2: None}
    assert read == [1, 1]


def test_without_a_session_a_fetch_waits_for_any_of_its_partitions(broker, consumer, simulation):
    async def story():
        for _ in range(3):
            consumer.fetch((0, 0), (1, 0), (2, 0))
        consumer.fetch((0, 0), (1, 0), (2, 0), max_wait_ms=500, min_bytes=0)
        waiting = [asyncio.ensure_future(it) for it in consumer.send((0, 0), (1, 0), (2, 0), max_wait_ms=500)]
        await asyncio.sleep(0.01)
        assert not any(it.done() for it in waiting)
        produce(broker, 2)
        await asyncio.sleep(0.01)
        repeated, general = (whole(it.result()) for it in waiting)
        assert repeated == general

    simulation.run(story())


def test_without_a_session_partitions_are_read_in_the_order_of_the_request(broker, consumer):
    for _ in range(3):
        consumer.fetch((0, 0), (1, 0), (2, 0), max_bytes=1)
    for index in (0, 1, 2):
        produce(broker, index)
    assert consumer.fetch((1, 0), (2, 0), (0, 0), max_bytes=1) == {0: None, 1: 0, 2: None}
    assert consumer.fetch((2, 0), (0, 0), (1, 1), max_bytes=1) == {0: None, 1: None, 2: 0}
    assert consumer.fetch((0, 0), (1, 1), (2, 1), max_bytes=1) == {0: 0, 1: None, 2: None}


def test_without_a_session_aborted_transactions_are_named_where_they_are(broker, consumer):
    for _ in range(3):
        consumer.fetch((0, 0), isolation_level=1)
    transaction(broker.replicas.partition(("t", 0)), 5, end="abort")
    assert consumer.fetch((0, 0), isolation_level=1) == {0: 0}
    assert consumer.fetch((0, 2), isolation_level=1) == {0: None}


def test_without_a_session_a_batch_may_be_larger_than_the_limit(broker, consumer):
    limited = {"isolation_level": 1, "max_bytes": 100}
    for _ in range(3):
        consumer.fetch((0, 0), (1, 0), **limited)
    for index in (0, 1):
        produce(broker, index, bytes(1000))
    assert consumer.fetch((0, 0), (1, 0), **limited) == {0: 0, 1: None}
    assert consumer.fetch((0, 1), (1, 1), **limited) == {0: None, 1: None}


def test_without_a_session_the_remote_tier_is_read(simulation, tiered):
    tiered.fill(4, local_from=4)
    consumer = Consumer(tiered)

    async def story():
        for offset in (0, 1, 2, 4):
            repeated, general = consumer.send((0, offset), max_wait_ms=500)
            assert whole(await settled(repeated)) == whole(await settled(general))

    async def settled(reply):
        return reply if isinstance(reply, list) else await reply

    simulation.run(story())


def test_topics_without_partitions_are_not_kept(consumer):
    consumer.fetch((0, 0))
    fetches = consumer.connection.session.close.__self__
    for number in range(3):
        consumer.fetch(topics=[FetchTopic(topic_id=UUID(int=1000 + number))])
    assert not fetches._known


def test_a_partition_that_is_not_named_any_more_is_dropped(broker, consumer):
    for _ in range(3):
        consumer.fetch((0, 0), (1, 0), (2, 0))
    assert watchers(broker) == [1, 1, 1]
    produce(broker, 1)
    assert consumer.fetch((0, 0), (2, 0)) == {0: None, 2: None}
    assert watchers(broker) == [1, 0, 1]
    assert consumer.fetch((2, 0), (1, 0)) == {2: None, 1: 0}
    assert broker.fetch_sessions.implicit_partitions == 2


@pytest.mark.parametrize("rows", [[(0, 0), (0, 0)], [(0, 0), (0, 1)]])
def test_a_partition_that_is_named_twice_ends_the_session(broker, consumer, rows):
    for _ in range(3):
        consumer.fetch((0, 0), (1, 0))
    consumer.fetch(*rows)
    assert watchers(broker) == [0, 0, 0]
    assert broker.fetch_sessions.implicit_partitions == 0
    consumer.fetch((0, 0), (1, 0))
    assert watchers(broker) == [0, 0, 0]


@pytest.mark.parametrize(
    ("module", "limit", "most"),
    [
        ("replicas.reading.implicit_fetch_sessions", "MAX_ROWS", 2),
        ("api.k01_fetch", "MAX_REQUEST_BYTES", BYTES_OF_TWO_ROWS),
        ("replicas.reading.fetch_session_cache", "MAX_IMPLICIT_PARTITIONS", 4),
    ],
)
def test_what_is_remembered_is_bounded(broker, consumer, monkeypatch, module, limit, most):
    monkeypatch.setattr(f"ottla.broker.{module}.{limit}", most)
    for _ in range(3):
        consumer.fetch((0, 0), (1, 0))
    assert broker.fetch_sessions.implicit_partitions == 2
    for _ in range(3):
        consumer.fetch((0, 0), (1, 0), (2, 0))
    assert broker.fetch_sessions.implicit_partitions == 0
    assert watchers(broker) == [0, 0, 0]


def test_a_host_leaves_rows_to_others(broker, monkeypatch):
    """Its connections have half of them together."""
    monkeypatch.setattr("ottla.broker.replicas.reading.fetch_session_cache.MAX_IMPLICIT_PARTITIONS", 4)
    broker.create(partitions=dict.fromkeys(range(3), image()))
    consumers = [Consumer(broker) for _ in range(3)]
    consumers[2].connection.client_host = "another"
    for consumer in consumers:
        for _ in range(3):
            consumer.fetch((0, 0), (1, 0)) if consumer is consumers[0] else consumer.fetch((2, 0))
    assert watchers(broker) == [1, 1, 1]
    assert broker.fetch_sessions.implicit_partitions == 3
    consumers[0].connection.session.close()
    assert broker.fetch_sessions.implicit_partitions == 1


def test_another_kind_of_request_ends_the_session(broker, consumer):
    for _ in range(3):
        consumer.fetch((0, 0))
    assert watchers(broker) == [1, 0, 0]
    consumer.fetch((0, 0), max_bytes=10**6)
    assert watchers(broker) == [0, 0, 0]
    consumer.fetch((0, 0), max_bytes=10**6)
    assert watchers(broker) == [1, 0, 0]
    consumer.connection.session.close()  # as the connection does that is lost
    assert watchers(broker) == [0, 0, 0]
    assert broker.fetch_sessions.implicit_partitions == 0
