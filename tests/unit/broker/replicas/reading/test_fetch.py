"""Fetch through its handler: versions, sessions, delayed requests, and the leader that an error names."""

from uuid import UUID

import pytest
from replicas_support import TOPIC_ID, batch, image

from ottla.broker.api import k01_fetch
from ottla.broker.request_context import RequestContext
from ottla.metadata.image import BrokerImage, Endpoint
from ottla.metadata.records import RemoveTopicRecord
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records

VERSIONS = k01_fetch.API.versions
UNKNOWN_ID = UUID(int=9)


def request(offsets, *, topic="t", topic_id=TOPIC_ID, session=(0, -1), forgotten=(), epoch=-1, **fields):
    defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10**6}
    topics = [
        FetchTopic(
            topic=topic,
            topic_id=topic_id,
            partitions=[
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=10**6,
                    current_leader_epoch=epoch,
                )
                for index, offset in offsets.items()
            ],
        )
    ]
    return FetchRequest(
        topics=topics if offsets else [],
        session_id=session[0],
        session_epoch=session[1],
        forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forgotten))]
        if forgotten
        else [],
        **(defaults | fields),
    )


def fetch(broker, offsets, version=12, **fields):
    return broker.raw(k01_fetch, request(offsets, **fields), version)


def rows(response):
    return {row.partition_index: row for topic in response.responses for row in topic.partitions}


def values(row):
    return [record.value for _, part in batches(memoryview(row.records)) for record in records(part)]


def append(broker, *payload, index=0, topic="t"):
    partition = broker.replicas.partition((topic, index))
    return partition.as_leader().append_records(
        batch(*payload), required_acks=-1, now_ms=broker.runtime.now_ms()
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_every_version_reads(broker, version, isolation_level):
    broker.create(partitions=2)
    append(broker, b"a", b"b")
    response = fetch(broker, {0: 0, 1: 0}, version, isolation_level=isolation_level)
    assert (response.error_code, response.session_id) == (0, 0)
    (topic,) = response.responses
    assert (topic.topic_id == TOPIC_ID) == (version >= 13)
    full, empty = topic.partitions
    assert values(full) == [b"a", b"b"]
    assert (full.error_code, full.high_watermark, full.last_stable_offset) == (0, 2, 2)
    assert full.aborted_transactions == ([] if isolation_level else None)
    assert len(empty.records) == 0
    assert full.preferred_read_replica == -1


def test_records_are_not_copied(broker, monkeypatch):
    broker.create()
    append(broker, b"x" * 1000)
    log = broker.replicas.partition(("t", 0)).log
    really_read, found = log.reader.read_newest, []

    def read(*arguments, **others):
        found.append(really_read(*arguments, **others))
        return found[-1]

    monkeypatch.setattr(log.reader, "read_newest", read)
    key = k01_fetch.API.key
    context = RequestContext(key, 12, 1, "client", "127.0.0.1", "PLAINTEXT")
    frame = memoryview(encode_request(key, 12, request({0: 0})))
    buffers = k01_fetch.handle_raw(frame, context, broker)
    assert any(buffer is found[0] for buffer in buffers)


def test_a_long_poll(simulation, broker):
    broker.create()

    async def main():
        waiting = fetch(broker, {0: 0}, max_wait_ms=30_000)
        append(broker, b"a")
        assert values(rows(await waiting)[0]) == [b"a"]
        began = simulation.loop.time()
        assert not rows(await fetch(broker, {0: 1}, max_wait_ms=30_000))[0].records
        assert simulation.loop.time() - began == pytest.approx(30)

    simulation.run(main())


@pytest.mark.parametrize("version", [12, 13])
def test_a_session_from_open_to_close(simulation, broker, version):
    broker.create(partitions=3)

    async def main():
        response = fetch(broker, {0: 0, 1: 0, 2: 0}, version, session=(0, 0))
        session = response.session_id
        assert session > 0
        assert set(rows(response)) == {0, 1, 2}
        append(broker, b"a", index=1)
        response = fetch(broker, {}, version, session=(session, 1))
        assert set(rows(response)) == {1}
        assert response.session_id == session
        waiting = fetch(broker, {1: 1}, version, session=(session, 2), max_wait_ms=30_000)
        append(broker, b"b", index=2)
        assert set(rows(await waiting)) == {2}
        response = fetch(broker, {2: 1}, version, session=(session, 3), forgotten=[0])
        assert rows(response) == {}
        append(broker, b"c", index=0)
        assert rows(fetch(broker, {}, version, session=(session, 4))) == {}
        response = fetch(broker, {1: 0}, version, session=(session, -1))
        assert response.session_id == 0
        assert set(rows(response)) == {1}
        response = fetch(broker, {}, version, session=(session, 5))
        assert (response.error_code, response.session_id) == (ErrorCode.fetch_session_id_not_found, 0)

    simulation.run(main())


def test_session_errors(broker):
    broker.create()
    session = fetch(broker, {0: 0}, 12, session=(0, 0)).session_id
    assert fetch(broker, {}, 12, session=(session, 9)).error_code == ErrorCode.invalid_fetch_session_epoch
    assert fetch(broker, {}, 13, session=(session, 1)).error_code == ErrorCode.fetch_session_topic_id_error
    assert fetch(broker, {}, 12, session=(session, 1)).error_code == 0


def test_a_topic_that_comes_and_goes_in_a_session(broker):
    response = fetch(broker, {0: 0}, 12, session=(0, 0))
    session = response.session_id
    assert rows(response)[0].error_code == ErrorCode.unknown_topic_or_partition
    broker.create()
    append(broker, b"a")
    assert values(rows(fetch(broker, {}, 12, session=(session, 1)))[0]) == [b"a"]
    assert rows(fetch(broker, {0: 1}, 12, session=(session, 2))) == {}
    broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    response = fetch(broker, {}, 12, session=(session, 3))
    assert rows(response)[0].error_code == ErrorCode.unknown_topic_or_partition
    broker.create(topic_id=UUID(int=77))
    append(broker, b"new")
    response = fetch(broker, {0: 0}, 12, session=(session, 4))
    assert values(rows(response)[0]) == [b"new"]


NEW_ID = UUID(int=77)


@pytest.mark.parametrize("is_named_again", [False, True])
@pytest.mark.parametrize("version", [13, 18])
def test_a_session_keeps_the_name_of_an_id(broker, version, is_named_again):
    """Kafka does the same: only an id that never stood for a topic is unknown."""
    broker.create()
    session = fetch(broker, {0: 0}, version, session=(0, 0)).session_id
    epoch = 0

    def code():
        nonlocal epoch
        epoch += 1
        return rows(fetch(broker, {0: 0} if is_named_again else {}, version, session=(session, epoch)))[
            0
        ].error_code

    broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert code() == ErrorCode.unknown_topic_or_partition
    broker.create(topic_id=NEW_ID, partitions={0: image(leader=2, replicas=(2,))})
    assert code() == ErrorCode.not_leader_or_follower
    broker.replay(RemoveTopicRecord(topic_id=NEW_ID))
    broker.create(topic_id=NEW_ID)
    assert code() == ErrorCode.inconsistent_topic_id
    assert (
        rows(fetch(broker, {0: 0}, version))[0].error_code == ErrorCode.unknown_topic_id
    )  # outside of the session


@pytest.mark.parametrize("version", [13, 18])
def test_a_session_finds_the_name_of_an_id_that_comes_later(broker, version):
    response = fetch(broker, {0: 0}, version, session=(0, 0))
    session = response.session_id
    assert rows(response)[0].error_code == ErrorCode.unknown_topic_id
    broker.create(partitions={0: image(leader=2, replicas=(2,))})
    response = fetch(broker, {}, version, session=(session, 1))
    assert rows(response)[0].error_code == ErrorCode.not_leader_or_follower
    broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    response = fetch(broker, {}, version, session=(session, 2))
    assert rows(response)[0].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("successor", "code"),
    [(None, ErrorCode.unknown_topic_or_partition), (NEW_ID, ErrorCode.inconsistent_topic_id)],
)
def test_a_topic_goes_while_a_fetch_of_its_id_waits(simulation, broker, successor, code):
    broker.create()

    async def story():
        waiting = fetch(broker, {0: 0}, 13, max_wait_ms=30_000)
        broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
        if successor is not None:
            broker.create(topic_id=successor)
        assert rows(await waiting)[0].error_code == code
        assert simulation.loop.time() < 1

    simulation.run(story())


@pytest.mark.parametrize(
    ("version", "topic", "topic_id", "index", "code"),
    [
        (12, "unknown", TOPIC_ID, 0, ErrorCode.unknown_topic_or_partition),
        (12, "t", TOPIC_ID, 7, ErrorCode.unknown_topic_or_partition),
        (13, "t", UNKNOWN_ID, 0, ErrorCode.unknown_topic_id),
        (13, "t", TOPIC_ID, 7, ErrorCode.unknown_topic_or_partition),
        (12, "t", TOPIC_ID, -1, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_unknown_partitions(broker, version, topic, topic_id, index, code):
    broker.create()
    response = fetch(broker, {index: 0}, version, topic=topic, topic_id=topic_id, max_wait_ms=30_000)
    row = rows(response)[index]
    assert (row.error_code, row.high_watermark, row.log_start_offset) == (code, -1, -1)
    assert row.records is not None


@pytest.mark.parametrize("version", [15, 16])
def test_the_current_leader_is_returned_from_version_16(broker, version):
    """KIP-951 adds the current leader to the response."""
    broker.metadata.image.brokers[2] = BrokerImage(
        broker_id=2,
        epoch=1,
        incarnation_id=UUID(int=1),
        endpoints={"PLAINTEXT": Endpoint("two", 9092, 0)},
        rack=None,
        is_fenced=False,
        in_controlled_shutdown=False,
        features={},
    )
    broker.create(partitions={0: image(leader=2, epoch=4, replicas=(2,)), 1: image(epoch=3)})
    response = fetch(broker, {0: 0, 1: 0}, version, epoch=2)
    assert rows(response)[0].error_code == ErrorCode.not_leader_or_follower
    assert rows(response)[1].error_code == ErrorCode.fenced_leader_epoch
    leaders = {
        index: (row.current_leader.leader_id, row.current_leader.leader_epoch)
        for index, row in rows(response).items()
    }
    if version >= 16:
        assert leaders == {0: (2, 4), 1: (1, 3)}
        assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "two")]
    else:
        assert leaders == {0: (-1, -1), 1: (-1, -1)}
        assert response.node_endpoints == []


@pytest.mark.parametrize("version", [14, 15])
def test_replicas_are_refused(broker, version):
    broker.create()
    append(broker, b"a")
    response = fetch(
        broker, {0: 0}, version, replica_id=2, replica_state=ReplicaState(replica_id=2, replica_epoch=5)
    )
    assert rows(response)[0].error_code == ErrorCode.not_leader_or_follower
    assert not rows(response)[0].records


def test_the_broker_bounds_what_a_client_asks(broker):
    broker.create()
    for _ in range(3):
        append(broker, b"x" * 1000)
    broker.replicas.fetch_max_bytes = 1
    response = fetch(broker, {0: 0}, min_bytes=10**6, max_wait_ms=30_000)
    assert values(rows(response)[0]) == [b"x" * 1000]


def test_no_partitions_at_all(broker):
    response = fetch(broker, {}, max_wait_ms=30_000)
    assert (response.error_code, response.responses) == (0, [])
