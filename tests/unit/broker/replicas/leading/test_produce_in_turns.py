"""A Produce of many rows is appended in turns of the event loop, between which anything may happen."""

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict
from pathlib import Path
from random import Random
from unittest.mock import patch
from uuid import UUID

import pytest
from dispatch_support import Connection
from hypothesis import given, settings
from hypothesis import strategies as st
from replicas_support import NODE_ID, TOPIC_ID, BrokerInFolder, batch, follower_fetches, image

from ottla.broker.api import k00_produce
from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.network import NetworkServer, NetworkSettings, ReplyInTurns
from ottla.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.framing import encode_request_header, encode_response_header, framed
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.compression import Compression
from ottla.runtime import turns
from ottla.runtime.simulated import Simulation
from ottla.storage.validation import validate
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.unit.storage.storage_support import state_of

COUNT = 6
VERSION = 9
FOLDER = Path("/data")
TOPICS = {"t": TOPIC_ID, "u": UUID(int=0xB), "unknown": UUID(int=5)}


@pytest.fixture(autouse=True)
def one_row_a_turn(monkeypatch):
    monkeypatch.setattr(k00_produce, "MAX_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(k00_produce, "_FEW_ROWS", 1)
    monkeypatch.setattr(k00_produce, "ROWS_OF_STEP", 1)
    monkeypatch.setattr(turns, "MAX_STEPS", 1)


@pytest.fixture
def leader(simulation, tmp_path):
    """A broker that leads all partitions of a topic, with a follower."""
    broker = BrokerInFolder(tmp_path / "data", simulation.runtime("broker"))
    broker.create(partitions=dict.fromkeys(range(COUNT), image(replicas=(NODE_ID, 2))))
    return broker


def request(rows, *, acks=-1, timeout_ms=100):
    """Rows of (topic, index, records), of consecutive ones of a topic together."""
    topics = []
    for name, index, records in rows:
        if not topics or topics[-1].name != name:
            topics.append(TopicProduceData(name=name, topic_id=TOPICS[name]))
        topics[-1].partition_data.append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def frame_of(message, *, version=VERSION, correlation_id=1):
    return encode_request_header(0, version, correlation_id, "client") + encode_request(0, version, message)


def to_all(value=b"value", *, count=COUNT, **fields):
    return request([("t", index, bytes(batch(value))) for index in range(count)], **fields)


async def answer(dispatch, connection, frame):
    """The response; the memory of the frame is used again as soon as the request is dispatched."""
    received = memoryview(bytearray(frame))
    reply = dispatch(received, connection)
    received[:] = bytes(len(received))
    while isinstance(reply, Awaitable):
        reply = await reply
    return reply and b"".join(reply)


def send(broker, message, **fields):
    """Begin a Produce: a task of its rows, in the order of the request."""
    frame = frame_of(message, **fields)

    async def finish():
        whole = await answer(Dispatcher(broker), Connection(), frame)
        response = decode_response(0, VERSION, whole[len(encode_response_header(0, VERSION, 1)) :])
        return [row for topic in response.responses for row in topic.partition_responses]

    return asyncio.ensure_future(finish())


def end_offsets(broker):
    return [broker.replicas.partition(("t", index)).log.log_end_offset for index in range(COUNT)]


@st.composite
def batches(draw):
    """(topic, partition, records or None)"""
    topic = draw(st.sampled_from(("t", "t", "t", "u", "unknown")))
    kind = draw(st.sampled_from(("plain", "plain", "next", "next", "next", "null", "garbage", "keyless")))
    values = [b"v"] * draw(st.integers(1, 3))
    match kind:
        case "null":
            records = None
        case "garbage":
            records = b"garbage"
        case "next":
            sequence = draw(st.integers(0, 3))
            records = batch(*values, key=b"k", producer_id=7, producer_epoch=0, base_sequence=sequence)
        case _:
            records = batch(*values, key=None if kind == "keyless" else b"k")
    return topic, draw(st.integers(0, 4)), None if records is None else bytes(records)


REQUESTS = st.lists(
    st.tuples(
        st.lists(batches(), max_size=10),
        st.sampled_from((-1, -1, 1, 1, 0, 2)),
        st.sampled_from(k00_produce.API.versions),
    ),
    min_size=1,
    max_size=4,
)


def outcome(requests, *, most, rows_of_step):
    """Responses, logs and counters, of a broker that appends at most so many rows at once."""
    with (
        Simulation(seed=1) as simulation,
        patch.object(k00_produce, "MAX_ROWS_AT_ONCE", most),
        patch.object(k00_produce, "_FEW_ROWS", min(most, 10)),
        patch.object(k00_produce, "ROWS_OF_STEP", rows_of_step),
        patch("ottla.storage.validation.QUICK_RECORDS", 2),
    ):
        files = FaultyFiles(random=Random(1))
        files.make_dir(FOLDER)
        broker = BrokerInFolder(FOLDER, simulation.runtime("broker"), files=files)
        # Led alone, led with a follower, and led by another broker; those of the other topic need a thread
        # for larger batches.
        follows = image(leader=2, replicas=(2, NODE_ID))
        broker.create("t", TOPIC_ID, {0: image(), 1: image(), 2: image(replicas=(NODE_ID, 2)), 3: follows})
        broker.create("u", TOPICS["u"], 2, {"cleanup.policy": "compact"})
        dispatch, connection = Dispatcher(broker), Connection()

        async def main():
            found = []
            for number, (rows, acks, version) in enumerate(requests):
                frame = frame_of(request(rows, acks=acks), version=version, correlation_id=number)
                try:
                    found.append(await answer(dispatch, connection, frame))
                except KafkaError as error:
                    found.append((type(error), error.message))
            return found

        responses = simulation.run(main())
        logs = {str(it): state_of(it.log) for it in broker.replicas.partitions()}
        stats = {name: asdict(it) for name, it in broker.replicas.topic_stats.topics()}
        return responses, logs, stats, files.contents(), broker.replicas.purgatory.delayed_count


@pytest.mark.logs("")
@given(requests=REQUESTS, most=st.integers(0, 3), rows_of_step=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_same_as_at_once(requests, most, rows_of_step):
    """The result is the same for all rows: those named twice, refused ones, and those that are validated in a
    thread."""
    at_once = outcome(requests, most=1000, rows_of_step=4)
    assert outcome(requests, most=most, rows_of_step=rows_of_step) == at_once


def test_which_requests_are_divided(leader):
    dispatch = Dispatcher(leader)
    few = dispatch(memoryview(bytearray(frame_of(to_all(count=2, acks=1)))), Connection())
    assert isinstance(few, list)
    many = dispatch(memoryview(bytearray(frame_of(to_all(count=3, acks=1)))), Connection())
    assert isinstance(many, ReplyInTurns)
    many.work.close()
    assert end_offsets(leader) == [1, 1, 0, 0, 0, 0]


def test_small_requests_are_not_even_counted(leader, monkeypatch):
    monkeypatch.setattr(k00_produce, "_FEW_ROWS", 10)
    monkeypatch.setattr(k00_produce, "MAX_ROWS_AT_ONCE", None)
    assert Dispatcher(leader)(memoryview(bytearray(frame_of(to_all(count=2, acks=1)))), Connection())


def test_other_requests_come_between_the_rows(simulation, leader):
    async def main():
        many = send(leader, to_all(acks=1))
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < sum(end_offsets(leader)) < COUNT
        (row,) = await send(leader, request([("t", 5, bytes(batch(b"between")))], acks=1))
        assert row.base_offset == 0
        return [row.base_offset for row in await many]

    assert simulation.run(main()) == [0, 0, 0, 0, 0, 1]


def test_log_append_times_ascend(simulation, tmp_path, monkeypatch):
    """They ascend even where another batch is appended between two turns."""
    broker = BrokerInFolder(tmp_path / "log-append-time", simulation.runtime("broker"))
    broker.create("t", TOPIC_ID, COUNT, {"message.timestamp.type": "LogAppendTime"})

    async def long_turns(clock, steps):
        for _ in steps:
            await asyncio.sleep(0.02)

    monkeypatch.setattr(k00_produce, "in_turns", long_turns)

    async def main():
        many = send(broker, to_all(acks=1))
        await asyncio.sleep(0.05)
        (between,) = await send(broker, request([("t", 5, bytes(batch(b"between")))], acks=1))
        last = (await many)[5]
        assert (between.base_offset, last.base_offset) == (0, 1)
        assert between.log_append_time_ms <= last.log_append_time_ms

    simulation.run(main())


def test_what_is_committed_between_the_turns_is_not_waited_for(simulation, leader):
    """Nothing signals it again."""

    async def main():
        began_at = leader.runtime.monotonic()
        many = send(leader, to_all())
        while sum(end_offsets(leader)) < COUNT:
            for index, end in enumerate(end_offsets(leader)):
                if end:
                    follower_fetches(
                        leader.replicas.partition(("t", index)), 2, end, now_ms=leader.runtime.now_ms()
                    )
            await asyncio.sleep(0)
        follower_fetches(leader.replicas.partition(("t", 5)), 2, 1, now_ms=leader.runtime.now_ms())
        found = [row.error_code for row in await many]
        assert leader.runtime.monotonic() == began_at
        assert leader.replicas.purgatory.delayed_count == 0
        return found

    assert simulation.run(main()) == [0] * COUNT


def test_what_is_not_committed_is_waited_for(simulation, leader):
    async def main():
        return [row.error_code for row in await send(leader, to_all())]

    assert simulation.run(main()) == [ErrorCode.request_timed_out] * COUNT


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=2), None),
        (
            PartitionChangeRecord(partition_id=5, topic_id=TOPIC_ID, leader=2),
            ErrorCode.not_leader_or_follower,
        ),
        (RemoveTopicRecord(topic_id=TOPIC_ID), ErrorCode.unknown_topic_or_partition),
    ],
)
@pytest.mark.parametrize("acks", [1, -1])
def test_a_partition_that_goes_between_the_turns(simulation, leader, record, error, acks):
    """Appended batches have to be committed in the same leadership; the others find no leader."""

    async def main():
        many = send(leader, to_all(acks=acks))
        for _ in range(3):
            await asyncio.sleep(0)
        assert 0 < sum(end_offsets(leader)) < COUNT
        leader.replay(record)
        return [row.error_code for row in await many]

    first, *_, last = simulation.run(main())
    is_first_lost = acks == -1 and getattr(record, "partition_id", 0) == 0
    waits = ErrorCode.request_timed_out if acks == -1 else ErrorCode.none
    assert first == (ErrorCode.not_leader_or_follower if is_first_lost else waits)
    assert last == (waits if error is None else error)


@pytest.mark.logs("")
def test_a_disk_that_fails_between_the_turns(simulation):
    files = FaultyFiles(random=Random(1))
    files.make_dir(FOLDER)
    broker = BrokerInFolder(FOLDER, simulation.runtime("broker"), files=files)
    broker.create(partitions=COUNT)

    async def main():
        many = send(broker, to_all(acks=1))
        for _ in range(3):
            await asyncio.sleep(0)
        broker.replicas.handle_log_dir_failure(FOLDER)
        return [row.error_code for row in await many]

    found = simulation.run(main())
    assert found[0] == 0
    assert found[-1] == ErrorCode.kafka_storage_error


class Server:
    """A broker behind a network."""

    def __init__(self, simulation, broker):
        self.broker = broker
        self.simulation = simulation
        self.server = NetworkServer(broker.runtime, Dispatcher(broker), NetworkSettings())

    async def connect(self, host):
        if not hasattr(self, "port"):
            self.port = (await self.server.listen("PLAINTEXT", "broker", 0)).port
        client = Client()
        transport, _ = await self.simulation.runtime(host).connect("broker", self.port, lambda: client)
        return transport, client


class Client(asyncio.Protocol):
    def __init__(self):
        self.received = b""

    def data_received(self, data):
        self.received += data

    def correlation_ids(self):
        found, at = [], 0
        while at < len(self.received):
            found.append(int.from_bytes(self.received[at + 4 : at + 8], "big"))
            at += 4 + int.from_bytes(self.received[at : at + 4], "big")
        return found


def test_the_requests_of_a_connection_keep_their_order(simulation, leader):
    """Idempotent producers need it: the next request would be out of order before this one."""
    served = Server(simulation, leader)

    def numbered(sequence):
        data = bytes(batch(b"value", producer_id=7, producer_epoch=0, base_sequence=sequence))
        count = COUNT if sequence % 2 == 0 else 1  # in turns, and at once
        rows = [("t", 5 - index, data) for index in reversed(range(count))]
        return framed(frame_of(request(rows, acks=1), correlation_id=sequence))

    async def main():
        transport, client = await served.connect("client")
        transport.write(b"".join(map(numbered, range(2))))
        await asyncio.sleep(1)
        assert client.correlation_ids() == [0, 1]
        assert served.server.memory.reserved_bytes == 0
        return end_offsets(leader)

    assert simulation.run(main()) == [1, 1, 1, 1, 1, 2]


def test_a_connection_that_is_lost_between_the_turns(simulation, leader, monkeypatch):
    """Its request is appended, and holds its memory until then; the replicas are not waited for."""
    served = Server(simulation, leader)
    frame = frame_of(to_all(timeout_ms=2**31 - 1))
    reserved = []
    append_rows = k00_produce._append_rows

    def append_and_abort(*args):
        reserved.append(served.server.memory.reserved_bytes)
        if len(reserved) == 3:
            (connection,) = served.server.connections
            connection.abort()
        return append_rows(*args)

    monkeypatch.setattr(k00_produce, "_append_rows", append_and_abort)

    async def main():
        transport, _ = await served.connect("client")
        transport.write(framed(frame))
        await asyncio.sleep(1)
        assert not served.server.connections
        assert reserved == [len(frame)] * COUNT
        assert served.server.memory.reserved_bytes == 0
        assert leader.replicas.purgatory.delayed_count == 0
        return end_offsets(leader)

    assert simulation.run(main()) == [1] * COUNT


def test_a_batch_that_is_validated_in_a_thread_holds_its_memory_and_not_while_it_waits_for_replicas(
    simulation, leader, monkeypatch
):
    served = Server(simulation, leader)
    leader.create(
        "u", TOPICS["u"], partitions={0: image(replicas=(NODE_ID, 2))}, config={"compression.type": "gzip"}
    )
    large = bytes(
        batch(*[b"x" * 100] * 3000, timestamp=leader.runtime.now_ms(), compression=Compression.ZSTD)
    )
    frame = frame_of(request([("u", 0, large)], timeout_ms=2_000))
    reserved = []

    def validate_and_look(*args, **others):
        reserved.append(served.server.memory.reserved_bytes)
        return validate(*args, **others)

    monkeypatch.setattr(k00_produce, "validate", validate_and_look)

    async def main():
        transport, client = await served.connect("client")
        transport.write(framed(frame))
        await asyncio.sleep(1)
        assert (reserved, client.received) == ([len(frame)], b"")
        assert served.server.memory.reserved_bytes == 0
        await asyncio.sleep(2)
        assert client.correlation_ids() == [1]

    simulation.run(main())
