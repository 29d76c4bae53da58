"""Fetch by recognised requests and by layouts of rows, beside a broker that parses every request.

Both get the same frames, on connections of their own, and the same events in between. Whatever these are, the responses
are the same byte for byte, and so are sessions, followers' progress, logs and statistics. Each response is
also what the general codec writes. The general broker checks and reads each row by the general rules, too
(`LogReads._check`, `LogReader.read`).
"""

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from unittest.mock import patch
from uuid import UUID

import pytest
from dispatch_support import Connection, ForgetfulConnection
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replicas_support import (
    NODE_ID,
    NOW_MS,
    TOPIC_ID,
    BrokerInFolder,
    batch,
    follower_fetches,
    image,
    same_of_each,
)

from ottla.broker.api import k01_fetch
from ottla.broker.api.dispatch import Dispatcher
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.broker.replicas.reading.implicit_fetch_sessions import ImplicitFetchSession
from ottla.broker.replicas.reading.read_from_log import LogReads
from ottla.broker.request_stats import RequestStats
from ottla.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import KafkaError
from ottla.protocol.framing import encode_request_header
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import FetchRow
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from ottla.runtime.simulated import Simulation
from ottla.storage.appending import AppendOrigin
from ottla.storage.log_reader import LogReader
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.unit.storage.storage_support import marker, state_of

pytestmark = pytest.mark.logs("")

OTHER_ID = UUID(int=0xB)
CONNECTIONS = 5
SLOTS = 3
#: Led alone, led with a follower, and led by another broker.
PARTITIONS = {
    0: image(),
    1: image(replicas=(NODE_ID, 2)),
    2: image(replicas=(NODE_ID, 2)),
    3: image(leader=2, replicas=(2, NODE_ID)),
}
VERSIONS = (18, 18, 18, 17, 16, 15, 14, 12, 7, 4)


class Client:
    """A follower or a consumer: its fetch session, and what its requests have in common."""

    def __init__(self, *, replica_id, is_read_committed=False, rack="", has_sessions=True):
        self.replica_id = replica_id
        self.isolation_level = int(is_read_committed)
        self.rack = rack
        self.replica_epoch = -1
        self.session_id = 0
        self.has_sessions = has_sessions
        self.epoch = 0 if has_sessions else -1


class Side:
    """A broker, its connections, and their parked requests."""

    def __init__(self, simulation, folder, *, is_general):
        self.is_general = is_general
        self.files = FaultyFiles(random=Random(1))
        self.files.make_dir(folder)
        self.broker = BrokerInFolder(folder, simulation.runtime("n1"), files=self.files)
        self.broker.fetch_sessions = FetchSessionCache(slots=SLOTS, random=Random(1), eviction_ms=1000)
        self.stats = RequestStats()
        self.dispatch = Dispatcher(self.broker, self.stats)
        self.connections = [self.connect() for _ in range(CONNECTIONS)]
        self.parked = {}
        self.recognised = 0

    def connect(self):
        return ForgetfulConnection() if self.is_general else Connection()

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
        if isinstance(reply, list):
            return whole(reply)
        self.parked[number] = asyncio.ensure_future(reply)
        return "waits"

    def take_done(self):
        """Take the responses that were sent meanwhile."""
        done = [number for number, parked in self.parked.items() if parked.done()]
        return {number: whole(self.parked.pop(number).result()) for number in done}

    def state(self):
        cache, replicas = self.broker.fetch_sessions, self.broker.replicas
        return {
            "sessions": [session_state(it) for it in cache._by_use.values()],
            "cache": (cache.partition_count, cache.evictions_count, cache._evictable_by_all),
            "stats": self.stats.by_version(),
            "timed": [it.timed for it in self.connections],
            "topics": {name: asdict(it) for name, it in replicas.topic_stats.topics()},
            "delayed": replicas.purgatory.delayed_count,
            "proposals": list(map(str, self.broker.proposals)),
            "partitions": {
                str(it): (state_of(it.log), it.leader and progress_of(it.leader.state))
                for it in replicas.partitions()
            },
        }


def whole(reply):
    return b"".join(reply)


def request_of(row):
    return row.to_message() if isinstance(row, FetchRow) else row


def session_state(session):
    def keys(partitions):
        return [it.key for it in partitions]

    return (
        session.session_id, session.epoch, session.is_privileged, session.uses_topic_ids, session.is_read_committed,
        session.last_used_ms, session.cached_size, keys(session.dirty), keys(session.overtaken),
        [
            (
                key, it.key, request_of(it.request), it.session is session, it.high_watermark, it.log_start_offset,
                it.topic_name, str(it.partition), str(it.watched),
            )
            for key, it in session.partitions.items()
        ],
    )  # fmt: skip


def progress_of(state):
    fields = (
        "log_end_offset", "log_start_offset", "local_log", "broker_epoch", "caught_up_ms", "fetched_ms",
        "leader_end_offset",
    )  # fmt: skip
    return {
        replica: ([getattr(it, name) for name in fields], it.session and it.session.session_id)
        for replica, it in state.followers.items()
    }


#: (topic, partition, offset from the log end, leader epoch, last fetched epoch, bytes, high watermark, field)
ROWS = st.tuples(
    st.sampled_from(("t", "t", "t", "u", "unknown")),
    st.sampled_from((0, 0, 1, 1, 1, 2, 2, 3, 9)),
    st.sampled_from((0, 0, 0, 0, -1, -2, 1)),
    st.sampled_from(("current", "current", "current", "none", "old", "new")),
    st.sampled_from(("latest", "latest", "latest", -1, 0, 7)),
    st.sampled_from((10**6, 10**6, 100)),
    st.sampled_from(("known", "known", "old", "none")),
    st.sampled_from((None,) * 9 + ("local log", "directory")),
)


def transaction(partition, producer_id, *, end, now_ms=NOW_MS):
    """A record, and "commit", "abort" or nothing."""
    data = batch(
        b"value",
        timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    partition.leader.append_records(data, required_acks=1, now_ms=now_ms)
    if end is not None:
        data = marker(producer_id=producer_id, commit=end == "commit", timestamp=now_ms)
        partition.leader.append_records(data, required_acks=1, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)


def without_high_watermark(row):
    """A consumer's requests, of which nearly all rows have no tagged fields."""
    return (*row[:-2], "none", row[-1])


class BothSides(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.simulation = Simulation(seed=1)
        self.simulation.__enter__()
        folder = Path("/data")
        self.sides = [
            Side(self.simulation, folder, is_general=True),
            Side(self.simulation, folder, is_general=False),
        ]
        self.clients = [
            Client(replica_id=2),
            Client(replica_id=-1),
            Client(replica_id=-1, is_read_committed=True, rack="r"),
            Client(replica_id=2),
            Client(replica_id=-1, has_sessions=False),
            Client(replica_id=-1, is_read_committed=True, has_sessions=False),
        ]
        self.correlation_id = self.count = self.producer_id = 0
        #: By connection with a parked request: its version, and its client.
        self.waiting = {}
        self.patches = ExitStack()
        self.read_generally(self.sides[0])
        self.topic_ids = {"t": TOPIC_ID, "u": OTHER_ID, "unknown": UUID(int=5)}
        for name, partitions in (("t", PARTITIONS), ("u", 1)):
            self.each(
                lambda side, name=name, of=partitions: side.broker.create(name, self.topic_ids[name], of)
            )

    def teardown(self):
        if hasattr(self, "simulation"):
            self.patches.close()
            event(f"recognised: {self.sides[1].recognised > 0}")
            for way, count in self.fast_counts.items():
                event(f"{way}: {count > 0}")
            self.simulation.__exit__(None, None, None)

    def read_generally(self, side):
        """Nothing that a row of this side has takes the fast path."""
        self.fast_counts = Counter()

        def switch(owner, name, general, *, is_of_side, is_fast):
            original = getattr(owner, name)

            def either(self_of_call, *args, **options):
                if is_of_side(self_of_call):
                    return general(self_of_call, *args, **options)
                found = original(self_of_call, *args, **options)
                self.fast_counts[name] += is_fast(found)
                return found

            self.patches.enter_context(patch.object(owner, name, either))

        def is_read_of_side(reads):
            return reads._replicas is side.broker.replicas

        def is_log_of_side(reader):
            return reader._files.file_system is side.files

        switch(
            LogReads, "_check_fast", LogReads._check, is_of_side=is_read_of_side, is_fast=lambda found: True
        )
        switch(LogReads, "_has_nothing_new", lambda *_: False, is_of_side=is_read_of_side, is_fast=bool)
        switch(ImplicitFetchSession, "context", None, is_of_side=lambda _: False, is_fast=bool)
        switch(LogReader, "read_newest", lambda *_, **__: None, is_of_side=is_log_of_side, is_fast=bool)

    def each(self, act):
        return same_of_each(self.simulation, self.sides, act)

    def partition(self, topic, index):
        return self.sides[0].broker.replicas.hosted.get((topic, index))

    def row_of(self, row):
        topic, index, distance, epoch, last_epoch, most, high_watermark, field = row
        partition = self.partition(topic, index)
        end = 0 if partition is None else partition.log.log_end_offset
        leader_epoch = 0 if partition is None else partition.leader_epoch
        message = FetchPartition(
            partition=index,
            fetch_offset=max(0, end + distance),
            current_leader_epoch={"current": 0, "old": -1, "new": 1}.get(epoch, 0) + leader_epoch,
            last_fetched_epoch=-1 if last_epoch == "latest" else last_epoch,
            log_start_offset=0,
            partition_max_bytes=most,
        )
        if last_epoch == "latest":
            known = None if partition is None else partition.log.latest_epoch
            message.last_fetched_epoch = -1 if known is None else known
        if epoch == "none":
            message.current_leader_epoch = -1
        if partition is not None and high_watermark != "none":
            message.high_watermark = partition.log.high_watermark if high_watermark == "known" else 0
        if field == "local log":
            message.local_log = LocalLogState(local_log_start_offset=1)
        elif field == "directory":
            message.replica_directory_id = UUID(int=9)
        return message

    def topics_of(self, rows):
        topics = {}
        for row in rows:
            named = FetchTopic(topic=row[0], topic_id=self.topic_ids[row[0]])
            topics.setdefault(row[0], named).partitions.append(self.row_of(row))
        return list(topics.values())

    def topics_without_sessions(self, rows, random):
        """Topics in librdkafka's order, which begins with another row each time, so that a topic may be in
        two pieces."""
        begin = random % len(rows) if rows else 0
        pieces = [list(piece) for _, piece in groupby([*rows[begin:], *rows[:begin]], itemgetter(0))]
        return [topic for piece in pieces for topic in self.topics_of(map(without_high_watermark, piece))]

    @rule(
        who=st.integers(0, 5),
        connection=st.integers(0, CONNECTIONS - 1),
        version=st.sampled_from(VERSIONS),
        max_wait_ms=st.sampled_from((0, 0, 0, 30, 30, 500)),
        min_bytes=st.sampled_from((1, 1, 1, 200)),
        requests=st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=6),
        strangeness=st.sampled_from(
            ("",) * 12
            + ("full", "final", "early", "late", "other session", "forget", "epoch", "broken", "more")
        ),
        random=st.integers(0, 2**16),
    )
    def fetch(self, who, connection, version, max_wait_ms, min_bytes, requests, strangeness, random):
        """Requests of one client; the last of them may be a strange one."""
        client = self.clients[who]
        for number, rows in enumerate(requests):
            what = strangeness if number == len(requests) - 1 else ""
            if connection in self.waiting:
                self.settle(0.05)
            if connection in self.waiting:
                return
            if what == "epoch":
                client.replica_epoch += 1
            topics = (
                self.topics_of(rows) if client.has_sessions else self.topics_without_sessions(rows, random)
            )
            epoch = {"full": 0, "final": -1, "early": client.epoch - 1, "late": client.epoch + 1}
            message = FetchRequest(
                replica_id=client.replica_id,
                replica_state=ReplicaState(replica_id=client.replica_id, replica_epoch=client.replica_epoch),
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=10**6,
                isolation_level=client.isolation_level,
                session_id=client.session_id + (what == "other session"),
                session_epoch=epoch.get(what, client.epoch),
                topics=topics,
                rack_id=client.rack,
            )
            if what == "forget":
                message.forgotten_topics_data = [
                    ForgottenTopic(topic="t", topic_id=self.topic_ids["t"], partitions=[0, 1])
                ]
            self.correlation_id += 1
            body = bytearray(encode_request(1, version, message))
            if what == "broken":
                body = body[: random % len(body)]
            elif what == "more":
                body += b"more"
            frame = encode_request_header(1, version, self.correlation_id, "client") + body
            found = self.each(lambda side, frame=frame: side.send(connection, frame))
            if found == "waits":
                self.waiting[connection] = version, client
            elif isinstance(found, bytes):
                self.take(version, client, found)

    def take(self, version, client, reply):
        """Process a response as the client does."""
        body = memoryview(reply)[5 if version >= 12 else 4 :]
        response = codec.decode_response(version, body)
        correlation_id = int.from_bytes(reply[:4], "big", signed=True)
        assert b"".join(codec.encode_response(version, correlation_id, response)) == reply
        if not client.has_sessions:
            return
        if response.error_code:
            client.epoch = 0
        elif version >= 7:
            client.session_id = response.session_id
            client.epoch = client.epoch + 1 if response.session_id else 0

    def probe(self, distance=0):
        """Fast requests, after whatever has just happened; first so far from the end, and then at the end."""
        self.count += 1
        for connection, who in enumerate((0, 1, 2, 4, 5)):
            before, rows = (
                [
                    ("t", index, end, "current", "latest" if who == 0 else -1, 10**6, "known", None)
                    for index in range(3)
                ]
                for end in (distance, 0)
            )
            requests = [before, rows, rows[1:2], rows, before, rows]
            self.fetch(who, connection, 18, 0, 1, requests, "", self.count)

    @rule(distances=st.lists(st.sampled_from((0, -1, -1, -2, -5)), min_size=1, max_size=3))
    def fetch_usually(self, distances):
        for distance in distances:
            self.probe(distance)

    @rule(
        topic=st.sampled_from(("t", "t", "t", "u")),
        index=st.integers(0, 2),
        count=st.sampled_from((1, 1, 1, 2, 5)),
        is_read=st.booleans(),
    )
    def append(self, topic, index, count, is_read):
        def act(side):
            partition = side.broker.replicas.hosted.get((topic, index))
            if partition is None or partition.leader is None:
                return None
            data = batch(*[b"value"] * count, timestamp=side.broker.runtime.now_ms())
            info = partition.leader.append_records(data, required_acks=1, now_ms=side.broker.runtime.now_ms())
            return info.first_offset

        self.each(act)
        if is_read:
            self.probe(-count)

    @rule(
        index=st.integers(0, 2),
        end=st.sampled_from(("commit", "abort", "abort", None)),
        is_read=st.booleans(),
    )
    def transact(self, index, end, is_read):
        """A transaction of one record, which may stay open."""
        self.producer_id += 1

        def act(side):
            partition = side.broker.replicas.hosted.get(("t", index))
            if partition is not None and partition.leader is not None:
                transaction(partition, self.producer_id, end=end, now_ms=side.broker.runtime.now_ms())

        self.each(act)
        if is_read:
            self.probe(-2)

    @rule(index=st.integers(0, 2), distance=st.integers(0, 3))
    def delete_records(self, index, distance):
        def act(side):
            partition = side.broker.replicas.hosted.get(("t", index))
            if partition is None or partition.leader is None:
                return None
            return partition.leader.delete_records(max(0, partition.log.high_watermark - distance))

        self.each(act)
        self.probe()

    @rule(pause_s=st.sampled_from((0.001, 0.02, 2.0)))
    def settle(self, pause_s):
        self.simulation.run(asyncio.sleep(pause_s))
        self.both_are_the_same()

    @rule(index=st.integers(0, 3), leader=st.sampled_from((-1, NODE_ID, NODE_ID, 2)))
    def elect(self, index, leader):
        if self.exists("t"):
            record = PartitionChangeRecord(partition_id=index, topic_id=self.topic_ids["t"], leader=leader)
            self.each(lambda side: side.broker.replay(record))
            self.probe()

    @rule(index=st.integers(1, 2), isr=st.sampled_from(([NODE_ID], [NODE_ID, 2])))
    def change_isr(self, index, isr):
        if self.exists("t"):
            record = PartitionChangeRecord(partition_id=index, topic_id=self.topic_ids["t"], isr=isr)
            self.each(lambda side: side.broker.replay(record))
            self.probe()

    @rule(index=st.integers(1, 2))
    def follower_is_at_the_end(self, index):
        def act(side):
            partition = side.broker.replicas.hosted.get(("t", index))
            if partition is not None and partition.leader is not None:
                now_ms = side.broker.runtime.now_ms()
                follower_fetches(partition, 2, partition.log.log_end_offset, now_ms=now_ms)

        self.each(act)

    @rule(is_same_id=st.booleans(), is_meant=st.sampled_from((True, False, False, False)))
    def delete_topic(self, is_same_id, is_meant):
        """It is created again in the next step, or later."""
        if self.exists("t"):
            if not is_meant:
                return
            self.each(lambda side: side.broker.replay(RemoveTopicRecord(topic_id=self.topic_ids["t"])))
        else:
            if not is_same_id:
                self.topic_ids["t"] = UUID(int=self.topic_ids["t"].int + 100)
            self.each(lambda side: side.broker.create("t", self.topic_ids["t"], PARTITIONS))
        self.probe()

    def exists(self, topic):
        return topic in self.sides[0].broker.metadata.image.topics_by_name

    @rule(who=st.integers(0, 3))
    def close_session(self, who):
        """Close the session, as an eviction does."""

        def act(side):
            cache = side.broker.fetch_sessions
            session = cache.get(self.clients[who].session_id)
            if session is not None:
                cache.remove(session)

        self.each(act)
        self.probe()

    @rule(number=st.integers(0, CONNECTIONS - 1))
    def reconnect(self, number):
        """A parked request is cancelled, as by a connection that is lost."""
        self.waiting.pop(number, None)
        for side in self.sides:
            parked = side.parked.pop(number, None)
            if parked is not None:
                parked.cancel()
            side.connections[number] = side.connect()

    @invariant()
    def both_are_the_same(self):
        if not hasattr(self, "simulation"):
            return
        general, fast = self.sides
        done, others = general.take_done(), fast.take_done()
        assert done == others
        for number, reply in done.items():
            self.take(*self.waiting.pop(number), reply)
        assert general.parked.keys() == fast.parked.keys()
        assert general.state() == fast.state()


def frame_of(
    *rows, version=18, epoch=1, session_id=0, correlation_id=5, replica_epoch=3, high_watermark=0, **fields
):
    partitions = [
        FetchPartition(
            partition=index, fetch_offset=offset, current_leader_epoch=0, last_fetched_epoch=-1,
            log_start_offset=0, partition_max_bytes=10**6, high_watermark=high_watermark,
        )
        for index, offset in rows
    ]  # fmt: skip
    message = FetchRequest(
        **{
            "replica_state": ReplicaState(replica_id=2, replica_epoch=replica_epoch),
            "max_wait_ms": 0,
            "min_bytes": 1,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": [FetchTopic(topic_id=TOPIC_ID, partitions=partitions)] if rows else [],
            **fields,
        }
    )
    return memoryview(
        bytearray(
            encode_request_header(1, version, correlation_id, "broker-2")
            + encode_request(1, version, message)
        )
    )


def open_session(broker, dispatch, connection, count, **options):
    """The session's id, after a first request in it, which is parsed."""
    broker.create(partitions=dict.fromkeys(range(count), image(replicas=(NODE_ID, 2))))
    rows = [(index, 0) for index in range(count)]
    reply = whole(dispatch(frame_of(*rows, epoch=0, **options), connection))
    session_id = codec.decode_response(18, memoryview(reply)[5:]).session_id
    assert connection.session is None
    assert dispatch(frame_of(session_id=session_id, **options), connection)
    return session_id


@pytest.mark.parametrize("version", [15, 16, 17, 18])
@pytest.mark.parametrize("replica_id", [2, -1])
def test_the_fast_path_is_taken(broker, monkeypatch, version, replica_id):
    """Without a parser, and without the general encoder; from the third request of a session on."""
    dispatch, connection = Dispatcher(broker), Connection()
    options = {"version": version, "replica_state": ReplicaState(replica_id=replica_id)}
    session_id = open_session(broker, dispatch, connection, 3, **options)
    for index in (0, 2):
        partition = broker.replicas.partition(("t", index))
        partition.leader.append_records(batch(b"value"), required_acks=1, now_ms=NOW_MS)
        partition.log.maybe_increment_high_watermark(1)
    dispatch(frame_of(session_id=session_id, epoch=2, **options), connection)  # another end of the request
    monkeypatch.setattr(codec, "decode", None)
    monkeypatch.setattr(codec, "encode_response", None)
    rows = [(0, 0), (1, 0), (2, 0)]
    reply = whole(
        dispatch(frame_of(*rows, session_id=session_id, epoch=3, correlation_id=6, **options), connection)
    )
    assert reply[:4] == bytes((0, 0, 0, 6))
    response = codec.decode_response(version, memoryview(reply)[5:])
    assert response.session_id == session_id
    found = {row.partition_index: bool(row.records) for row in response.responses[0].partitions}
    assert found == {0: True, 2: True}


def test_what_is_recognised(broker):
    dispatch, connection = Dispatcher(broker), Connection()
    session_id = open_session(broker, dispatch, connection, 1)
    head = connection.session
    assert head.correlation_id(frame_of((0, 5), session_id=session_id, epoch=9, correlation_id=-7)) == -7
    for other in (
        {"session_id": session_id + 1},
        {"max_wait_ms": 1},
        {"version": 17},
        {"isolation_level": 1},
    ):
        assert head.correlation_id(frame_of((0, 5), **({"session_id": session_id} | other))) is None, other


def test_a_replica_that_has_changed_is_read_once(broker, monkeypatch):
    """The broker epoch is at the end of its requests, behind the rows."""
    dispatch, connection = Dispatcher(broker), Connection()
    session_id = open_session(broker, dispatch, connection, 1)
    head, decode, decoded = connection.session, codec.decode, []
    monkeypatch.setattr(codec, "decode", lambda *args: decoded.append(args) or decode(*args))
    for epoch, replica_epoch in enumerate((3, 3, 4, 4, 4), 2):
        frame = frame_of((0, 0), session_id=session_id, epoch=epoch, replica_epoch=replica_epoch)
        dispatch(frame, connection)
        assert broker.replicas.partition(("t", 0)).leader.state.followers[2].broker_epoch == replica_epoch
    assert len(decoded) == 2
    assert connection.session is head


@pytest.mark.parametrize("fields", [{"epoch": 0}, {"epoch": -1, "version": 14}, {"version": 14}])
def test_what_is_parsed_each_time(broker, fields):
    broker.create()
    dispatch, connection = Dispatcher(broker), Connection()
    assert dispatch(frame_of((0, 0), **fields), connection)
    assert connection.session is None


def test_each_version_is_on_the_fast_path_or_not():
    assert set(VERSIONS) <= set(k01_fetch.API.versions)
    assert {version for version in VERSIONS if version >= codec.FAST_REQUESTS_SINCE} == {15, 16, 17, 18}


TestBothSides = BothSides.TestCase
TestBothSides.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
