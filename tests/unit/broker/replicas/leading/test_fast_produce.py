"""Produce by recognised heads and fast appends, beside a broker that parses every request and knows only the
general append.

Both get the same frames, on connections of their own, and the same events in between. Whatever these are, the responses
are the same byte for byte, and so are logs and statistics.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from dispatch_support import Connection, ForgetfulConnection
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replicas_support import NODE_ID, TOPIC_ID, BrokerInFolder, batch, follower_fetches, image, same_of_each

from ottla.broker.api import k00_produce
from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.request_stats import RequestStats
from ottla.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import KafkaError
from ottla.protocol.framing import encode_request_header
from ottla.protocol.hot import produce as codec
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.compression import Compression
from ottla.runtime.simulated import Simulation
from ottla.storage.log import Log
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.unit.storage.storage_support import state_of

pytestmark = pytest.mark.logs("")

FOLDER = Path("/data")
OTHER_ID = UUID(int=0xB)
CONNECTIONS = 3
#: Led alone, led with a follower, and led by another broker.
PARTITIONS = {
    0: image(),
    1: image(),
    2: image(replicas=(NODE_ID, 2)),
    3: image(leader=2, replicas=(2, NODE_ID)),
}
CONFIGS = [
    {},
    {},
    {"segment.bytes": "1048576", "max.message.bytes": "150"},
    {"cleanup.policy": "compact"},
    {"message.timestamp.type": "LogAppendTime"},
    {"compression.type": "lz4"},
    {"min.insync.replicas": "2"},
    {"flush.messages": "2"},
]


class NothingIsFast:
    def append_as_leader(self, records, *, leader_epoch, now_ms):
        return None


class Side:
    """A broker, its connections, and their parked requests."""

    def __init__(self, simulation, *, is_general):
        self.is_general = is_general
        self.files = FaultyFiles(random=Random(1))
        self.files.make_dir(FOLDER)
        self.broker = BrokerInFolder(FOLDER, simulation.runtime("n1"), files=self.files)
        self.stats = RequestStats()
        self.dispatch = Dispatcher(self.broker, self.stats)
        self.connections = [self.connect() for _ in range(CONNECTIONS)]
        self.parked = {}
        self.recognised = 0

    def connect(self):
        return ForgetfulConnection() if self.is_general else Connection()

    def change(self, act):
        act(self.broker)
        if self.is_general:
            for partition in self.broker.replicas.partitions():
                partition.log.fast = NothingIsFast()

    def send(self, number, frame):
        """The response, why the connection is closed, or that the request waits."""
        connection = self.connections[number]
        sent = memoryview(bytearray(frame))
        if connection.session is not None and connection.session.correlation_id(sent) is not None:
            self.recognised += 1
        try:
            reply = self.dispatch(sent, connection)
        except KafkaError as error:
            self.connections[number] = self.connect()
            return type(error), error.message
        if reply is None or isinstance(reply, list):
            return reply and b"".join(reply)
        self.parked[number] = asyncio.ensure_future(reply)
        return "waits"

    def take_done(self):
        """Take the responses that were sent meanwhile."""
        found = {}
        for number, parked in list(self.parked.items()):
            if parked.done():
                del self.parked[number]
                try:
                    reply = parked.result()
                    found[number] = reply and b"".join(reply)
                except KafkaError as error:
                    self.connections[number] = self.connect()
                    found[number] = (type(error), error.message)
        return found


@st.composite
def rows(draw):
    """(topic, partition, kind of batch, records, codec)"""
    return draw(
        st.tuples(
            st.sampled_from(("t", "t", "t", "u", "unknown", "__consumer_offsets")),
            st.sampled_from((0, 0, 0, 1, 1, 2, 2, 3, 9)),
            st.sampled_from(
                ("next", "next", "next", "next", "plain", "plain", "again", "gap", "null", "empty", "garbage",
                 "large", "two", "transactional", "bad crc")
            ),
            st.integers(1, 3),
            st.sampled_from((0, 0, 0, 3, 4)),
        )
    )  # fmt: skip


class BothSides(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.simulation = Simulation(seed=1)
        self.simulation.__enter__()
        self.sides = [Side(self.simulation, is_general=True), Side(self.simulation, is_general=False)]
        self.correlation_id = 0
        self.topic_ids = {
            "t": TOPIC_ID,
            "u": OTHER_ID,
            "unknown": UUID(int=5),
            "__consumer_offsets": UUID(int=6),
        }
        for name, partitions in (("t", PARTITIONS), ("u", 1), ("__consumer_offsets", 1)):
            self.change(
                lambda broker, name=name, of=partitions: broker.create(name, self.topic_ids[name], of)
            )

    def teardown(self):
        if hasattr(self, "simulation"):
            event(f"recognised: {self.sides[1].recognised > 0}")
            self.simulation.__exit__(None, None, None)

    def change(self, act):
        self.each(lambda side: side.change(act))

    def each(self, act):
        return same_of_each(self.simulation, self.sides, act)

    def records_of(self, topic, index, kind, count, codec):
        """Records as its client would send them, or as it should not."""
        runtime = self.sides[0].broker.runtime
        values = [b"v%d" % number for number in range(count)]
        fields = {"timestamp": runtime.now_ms(), "compression": Compression(codec)}
        partition = self.sides[0].broker.replicas.hosted.get((topic, index))
        known = {} if partition is None else partition.log.producers.producers
        sequence = 0 if 7 not in known else known[7].last_sequence + 1
        match kind:
            case "null":
                return None
            case "empty":
                return b""
            case "garbage":
                return b"garbage" * count
            case "large":
                return bytes(batch(b"x" * 150, **fields))
            case "two":
                return bytes(batch(*values, **fields) * 2)
            case "plain":
                return bytes(batch(*values, **fields))
            case "bad crc":
                data = batch(*values, **fields)
                data[20] ^= 1
                return bytes(data)
        sequence += {"next": 0, "again": -count, "gap": 1, "transactional": 0}[kind]
        return bytes(
            batch(
                *values,
                producer_id=7,
                producer_epoch=0,
                base_sequence=max(sequence, 0),
                is_transactional=kind == "transactional",
                **fields,
            )
        )

    @rule(
        connection=st.integers(0, CONNECTIONS - 1),
        version=st.sampled_from(k00_produce.API.versions),
        acks=st.sampled_from((-1, -1, -1, 1, 1, 0, 2)),
        timeout_ms=st.sampled_from((10, 10, 1000)),
        client_id=st.sampled_from(
            ("client", "client", "client", None, k00_produce.ADMIN_CLIENT_ID, "x" * 600)
        ),
        transactional_id=st.sampled_from((None, None, None, None, "tx")),
        requests=st.lists(st.lists(rows(), max_size=4), min_size=1, max_size=6),
    )
    def produce(self, connection, version, acks, timeout_ms, client_id, transactional_id, requests):
        """Requests of one client; those behind one that waits are not sent."""
        for request in requests:
            if connection in self.sides[0].parked:
                self.settle(0.05)
            if connection in self.sides[0].parked:
                return
            topics = {}
            for topic, index, kind, count, compression in request:
                data = PartitionProduceData(
                    index=index, records=self.records_of(topic, index, kind, count, compression)
                )
                named = TopicProduceData(name=topic, topic_id=self.topic_ids[topic])
                topics.setdefault(topic, named).partition_data.append(data)
            message = ProduceRequest(
                acks=acks,
                timeout_ms=timeout_ms,
                transactional_id=transactional_id,
                topic_data=list(topics.values()),
            )
            self.correlation_id += 1
            frame = encode_request_header(0, version, self.correlation_id, client_id) + encode_request(
                0, version, message
            )
            self.each(lambda side, frame=frame: side.send(connection, frame))

    def probe(self, *, acks=-1):
        """Requests of a known head, after whatever has just happened."""
        rows = [
            [("t", 0, "next", 1, 0), ("t", 1, "plain", 1, 0)],
            [("t", 2, "next", 2, 0)],
            [("u", 0, "plain", 1, 3)],
        ]
        self.produce(0, 9, acks, 10, "client", None, rows)

    @rule(acks=st.sampled_from((-1, -1, 0, 1, 2)), times=st.integers(1, 4))
    def produce_usually(self, acks, times):
        for _ in range(times):
            self.probe(acks=acks)

    @rule(connection=st.integers(0, CONNECTIONS - 1), size=st.integers(0, 80), last=st.integers(0, 255))
    def send_a_part(self, connection, size, last):
        """A frame that ends too early, or has another last byte."""
        if connection in self.sides[0].parked:
            return
        message = ProduceRequest(
            acks=1,
            timeout_ms=10,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"records")])
            ],
        )
        frame = bytearray(encode_request_header(0, 9, 1, "client") + encode_request(0, 9, message))[:size]
        if frame:
            frame[-1] = last
        self.each(lambda side: side.send(connection, frame))

    @rule(pause_s=st.sampled_from((0.001, 0.02, 2.0)))
    def settle(self, pause_s):
        self.simulation.run(asyncio.sleep(pause_s))

    @rule(part=st.sampled_from((0.0, 0.5, 1.0, 1.0)))
    def follower_fetches(self, part):
        def act(broker):
            partition = broker.replicas.hosted.get(("t", 2))
            if (
                partition is not None
                and partition.leader is not None
                and 2 in partition.leader.state.followers
            ):
                progress = partition.leader.state.followers[2].log_end_offset or 0
                end = max(int(partition.log.log_end_offset * part), progress)
                follower_fetches(partition, 2, end, now_ms=broker.runtime.now_ms())

        self.change(act)

    @rule(index=st.integers(0, 3), leader=st.sampled_from((-1, NODE_ID, NODE_ID, 2)))
    def elect(self, index, leader):
        if self.exists("t"):
            record = PartitionChangeRecord(partition_id=index, topic_id=self.topic_ids["t"], leader=leader)
            self.change(lambda broker: broker.replay(record))
            self.probe()

    @rule(isr=st.sampled_from(([NODE_ID], [NODE_ID, 2])))
    def change_isr(self, isr):
        if self.exists("t"):
            record = PartitionChangeRecord(partition_id=2, topic_id=self.topic_ids["t"], isr=isr)
            self.change(lambda broker: broker.replay(record))
            self.probe()

    @rule(topic=st.sampled_from(("t", "u")), config=st.sampled_from(CONFIGS))
    def alter_configs(self, topic, config):
        def act(broker):
            broker.configs[topic] = config
            broker.replicas.change_defaults(broker.topic_config)

        self.change(act)
        self.probe()

    @rule()
    def too_few_replicas(self):
        self.elect(2, NODE_ID)
        self.change_isr([NODE_ID])
        self.alter_configs("t", {"min.insync.replicas": "2"})

    @rule(is_same_id=st.booleans())
    def delete_topic(self, is_same_id):
        """It is created again in the next step, or later."""
        if self.exists("t"):
            self.change(lambda broker: broker.replay(RemoveTopicRecord(topic_id=self.topic_ids["t"])))
        else:
            if not is_same_id:
                self.topic_ids["t"] = UUID(int=self.topic_ids["t"].int + 100)
            self.change(lambda broker: broker.create("t", self.topic_ids["t"], PARTITIONS))
        self.probe()

    def exists(self, topic):
        return topic in self.sides[0].broker.metadata.image.topics_by_name

    @rule(nth=st.integers(1, 4), is_taken_offline=st.booleans(), unlikely=st.integers(0, 3))
    def the_disk_fails(self, nth, is_taken_offline, unlikely):
        """Make the disk fail; the manager of all logs may be notified."""
        if unlikely:
            return
        for side in self.sides:
            side.files.fail("write", nth=nth, errno=5, under=FOLDER / "t-0")
        if is_taken_offline:
            self.produce(0, 8, 1, 10, "client", None, [[("t", 0, "plain", 1, 0)]] * nth)
            self.change(lambda broker: broker.replicas.handle_log_dir_failure(FOLDER))

    @invariant()
    def both_are_the_same(self):
        if not hasattr(self, "simulation"):
            return
        general, fast = self.sides
        done = [side.take_done() for side in self.sides]
        assert done[0] == done[1]
        assert general.parked.keys() == fast.parked.keys()
        assert general.stats.by_version() == fast.stats.by_version()
        assert [it.timed for it in general.connections] == [it.timed for it in fast.connections]
        topics = [dict(it.broker.replicas.topic_stats.topics()) for it in self.sides]
        assert [{name: asdict(it) for name, it in each.items()} for each in topics[:1]] == [
            {name: asdict(it) for name, it in each.items()} for each in topics[1:]
        ]
        assert general.broker.replicas.purgatory.delayed_count == fast.broker.replicas.purgatory.delayed_count
        logs = [
            {str(it): state_of(it.log) for it in side.broker.replicas.partitions()} for side in self.sides
        ]
        assert logs[0] == logs[1]
        assert general.files.contents() == fast.files.contents()


def frame_of(
    *batches, version=9, client_id="client", transactional_id=None, correlation_id=5, acks=-1, timeout_ms=10
):
    rows = [PartitionProduceData(index=index, records=bytes(data)) for index, data in enumerate(batches)]
    topic = TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=rows)
    message = ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, transactional_id=transactional_id, topic_data=[topic]
    )
    header = encode_request_header(0, version, correlation_id, client_id)
    return memoryview(bytearray(header + encode_request(0, version, message)))


@pytest.mark.parametrize("version", [version for version in k00_produce.API.versions if version >= 7])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_the_fast_path_is_taken(broker, monkeypatch, version, acks):
    """Without a parser, and without the general append; for the second request of a connection."""
    broker.create(partitions=2)
    dispatch, connection = Dispatcher(broker), Connection()
    first = frame_of(batch(b"a"), batch(b"b"), version=version, acks=acks)
    expected = dispatch(first, connection)
    monkeypatch.setattr(codec, "decode", None)
    monkeypatch.setattr(codec, "encode_response", None)
    monkeypatch.setattr(Log, "append_as_leader", None)
    again = frame_of(batch(b"c"), batch(b"d"), version=version, acks=acks, correlation_id=6)
    reply = dispatch(again, connection)
    assert (reply is None) == (expected is None) == (acks == 0)
    if reply:
        assert b"".join(reply)[:4] == bytes((0, 0, 0, 6))
        assert len(b"".join(reply)) == len(b"".join(expected))
    assert [broker.replicas.partition(("t", index)).log.log_end_offset for index in range(2)] == [2, 2]


def test_what_a_head_recognises(broker):
    broker.create()
    dispatch, connection = Dispatcher(broker), Connection()
    dispatch(frame_of(batch(b"a")), connection)
    head = connection.session
    assert head.correlation_id(frame_of(batch(b"b", b"c"), correlation_id=-7)) == -7
    assert head.correlation_id(frame_of(batch(b"b"))[:20]) is None
    for other in (
        {"acks": 1},
        {"timeout_ms": 11},
        {"version": 8},
        {"client_id": "Client"},
        {"client_id": None},
    ):
        assert head.correlation_id(frame_of(batch(b"b"), **other)) is None, other
    dispatch(frame_of(batch(b"b"), acks=1), connection)
    assert connection.session is not head
    assert connection.session.correlation_id(frame_of(batch(b"b"), acks=1)) == 5


@pytest.mark.parametrize("fields", [{"client_id": "x" * 500}, {"transactional_id": "tx"}])
def test_what_is_parsed_each_time(broker, fields):
    broker.create()
    dispatch, connection = Dispatcher(broker), Connection()
    assert dispatch(frame_of(batch(b"a"), **fields), connection)
    assert connection.session is None


TestBothSides = BothSides.TestCase
TestBothSides.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
