"""Produce, Fetch and the offset APIs on Ottla and on Apache Kafka 4.3.1, side by side, in every version.

Each case is asked of both brokers on topics with the same history; the answers must be equal in all that a
client can see, but for ids that a broker draws.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from uuid import UUID

import pytest

from ottla.bench.components.processes import PATIENCE_S
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record, records
from ottla.protocol.types import ZERO_UUID
from tests.harness.kafka import KafkaServer
from tests.harness.ottla import OttlaServer
from tests.harness.wire import WireClient

NOW_MS = int(time.time() * 1000)
UNKNOWN_ID = UUID(int=12345)


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[tuple[OttlaServer, KafkaServer]]:
    ottla = OttlaServer(tmp_path_factory.mktemp("ottla")).start()
    kafka = KafkaServer(tmp_path_factory.mktemp("kafka")).start()
    yield ottla, kafka
    ottla.stop()
    kafka.stop()


async def once(ask, is_right):
    """Ask again until the answer is right."""
    while True:
        if is_right(answer := await ask()):
            return answer
        await asyncio.sleep(0.02)


class Requester:
    """One broker, its topics' ids, and answers with these taken out."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.client: WireClient | None = None
        self.ids: dict[str, UUID] = {"unknown": UNKNOWN_ID}

    async def reconnect(self) -> None:
        if self.client is not None:
            await self.client.close()
        self.client = await WireClient.connect("127.0.0.1", self.port)

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        request = CreateTopicsRequest(
            timeout_ms=60_000,
            topics=[
                CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name=key.replace("_", "."), value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
        )
        response = await self.client.request(ApiKey.CREATE_TOPICS, 7, request)
        assert response.topics[0].error_code == 0, response
        self.ids[name] = response.topics[0].topic_id
        # Kafka's handlers see the topic a little after its creation is answered.
        for index in range(partitions):
            await once(
                lambda index=index: self.list_offset(name, -1, index=index), lambda row: not row["error_code"]
            )

    async def delete(self, name: str) -> None:
        """Delete a topic, and wait until the broker does not know it. Its id is kept."""
        request = DeleteTopicsRequest(timeout_ms=60_000, topics=[DeleteTopicState(name=name)])
        response = await self.client.request(ApiKey.DELETE_TOPICS, 6, request)
        assert response.responses[0].error_code == 0, response
        gone = ErrorCode.unknown_topic_or_partition
        await once(lambda: self.list_offset(name, -1), lambda row: row["error_code"] == gone)

    async def list_offset(self, topic, timestamp, *, version=11, index=0, epoch=-1):
        asked = ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
        response = await self.client.request(ApiKey.LIST_OFFSETS, version, request)
        return asdict(response.topics[0].partitions[0])

    def id_of(self, topic: str, version: int, first: int = 13) -> UUID:
        return self.ids[topic] if version >= first else ZERO_UUID

    async def produce(self, topic, payloads, *, version=13, acks=-1, transactional_id=None):
        rows = [PartitionProduceData(index=at, records=data) for at, data in enumerate(payloads)]
        request = ProduceRequest(
            acks=acks,
            timeout_ms=60_000,
            transactional_id=transactional_id,
            topic_data=[
                TopicProduceData(name=topic, topic_id=self.id_of(topic, version), partition_data=rows)
            ],
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                response = await self.client.request(ApiKey.PRODUCE, version, request)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            await self.reconnect()
            return type(error).__name__
        answers = [asdict(row) for row in response.responses[0].partition_responses]
        for answer in answers:
            # Kafka has sentences for records' errors only, and its own.
            answer["error_message"] = None
            answer["record_errors"] = [error["batch_index"] for error in answer["record_errors"]]
        return sorted(answers, key=lambda answer: answer["index"])

    async def fetch(self, topic, offsets, *, version=18, session=(0, -1), forgotten=(), **fields):
        asked = [
            FetchPartition(partition=index, **({"fetch_offset": 0, "partition_max_bytes": 10**6} | partition))
            for index, partition in offsets.items()
        ]
        topic_id = self.id_of(topic, version)
        request = FetchRequest(
            **({"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 10**7} | fields),
            session_id=session[0],
            session_epoch=session[1],
            topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=asked)] if asked else [],
            forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forgotten))]
            if forgotten
            else [],
        )
        response = await self.client.request(ApiKey.FETCH, version, request)
        rows = {}
        for answered in response.responses:
            for row in answered.partitions:
                found = [
                    record
                    for _, part in batches(memoryview(bytes(row.records or b"")))
                    for record in records(part)
                ]
                is_null = row.records is None
                row.records = None
                rows[row.partition_index] = asdict(row) | {"records": found, "is_null": is_null}
        return response.error_code, response.session_id, rows


def _pairs(ottla, kafka):
    """(what was asked, answer, answer), as far as a case asks several things."""
    if isinstance(ottla, dict):
        return [(name, ottla[name], kafka[name]) for name in ottla]
    if isinstance(ottla, (list, tuple)):
        return [(at, *answers) for at, answers in enumerate(zip(ottla, kafka, strict=True))]
    return []


def compare(servers, case):
    """The answers to `case(requester)` of both."""

    async def ask(server):
        requester = Requester(server.port)
        await requester.reconnect()
        try:
            return await case(requester)
        finally:
            await requester.client.close()

    ottla, kafka = (asyncio.run(ask(server)) for server in servers)
    for name, ours, theirs in _pairs(ottla, kafka):
        assert ours == theirs, f"{name}:\n Ottla {ours}\n Kafka {theirs}"
    assert ottla == kafka
    return ottla


def batch(*values: bytes, key: bytes | None = None, timestamp: int = NOW_MS, **fields) -> bytes:
    rows = [Record(at, timestamp + at, key, value, ()) for at, value in enumerate(values)]
    return bytes(build_batch(rows, **fields))


def changed(position: int, value: int, data: bytes | None = None) -> bytes:
    data = bytearray(data or batch(b"a"))
    data[position] = value
    return bytes(data)


#: Offsets of records that contradict the header, which has two records from 0 to 1.
CONTRADICTING = bytes(build_batch([Record(at, NOW_MS, b"k", b"v", ()) for at in (0, 5)], last_offset=1))

PAYLOADS = {
    "good": batch(b"a", b"b"),
    "empty": b"",
    "cut": batch(b"a")[:40],
    "two": batch(b"a") + batch(b"b"),
    "bad crc": changed(20, 1),
    "magic 1": changed(16, 1),
    "magic 9": changed(16, 9),
    "base offset": changed(7, 1),
    "negative length": changed(8, 255),
    "zstd": batch(b"a", compression=Compression.ZSTD),
    "too large": batch(b"x" * 1_100_000),
    "future": batch(b"a", timestamp=NOW_MS + 86_400_000),
    "control": batch(b"a", key=b"\0\0\0\0", is_control=True),
    "idempotent": batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0),
    "again": batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0),
    "gap": batch(b"a", producer_id=9, producer_epoch=0, base_sequence=7),
    "new epoch": batch(b"a", producer_id=9, producer_epoch=1, base_sequence=0),
    "old epoch": batch(b"a", producer_id=9, producer_epoch=0, base_sequence=1),
}


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.PRODUCE])
def test_produce(servers, version):
    async def case(requester):
        await requester.create(f"p{version}")
        return {
            name: await requester.produce(f"p{version}", [payload], version=version)
            for name, payload in PAYLOADS.items()
        }

    compare(servers, case)


@pytest.mark.parametrize(
    ("configs", "payload"),
    [
        ({"cleanup_policy": "compact"}, batch(b"a", b"b")),
        ({"cleanup_policy": "compact"}, batch(b"a", b"b", key=b"k")),
        ({"message_timestamp_before_max_ms": "1000"}, batch(b"a", timestamp=1000)),
        ({"max_message_bytes": "100"}, batch(b"x" * 100)),
        ({"segment_bytes": "1048576", "max_message_bytes": "3000000"}, batch(b"x" * 1_500_000)),
        ({"compression_type": "gzip"}, batch(b"a", b"b")),
        ({"min_insync_replicas": "2"}, batch(b"a")),
        ({}, CONTRADICTING),
        ({"cleanup_policy": "compact"}, CONTRADICTING),
        ({"compression_type": "gzip"}, CONTRADICTING),
    ],
    # Not of the batches: they hold the time of day, and every worker must name the same tests.
    ids=[
        "no key",
        "key",
        "too old",
        "too large",
        "larger than a segment",
        "other codec",
        "too few replicas",
        "offsets",
        "offsets, compacted",
        "offsets, other codec",
    ],
)
def test_what_topics_refuse(servers, configs, payload):
    name = f"refuses-{abs(hash((str(configs), payload)))}"

    async def case(requester):
        await requester.create(name, **configs)
        produced = await requester.produce(name, [payload])
        return produced, await requester.fetch(name, {0: {}})

    compare(servers, case)


@pytest.mark.parametrize(
    ("topic", "partitions", "acks"), [("unknown", 1, -1), ("known", 2, -1), ("known", 2, 1), ("known", 1, 7)]
)
@pytest.mark.parametrize("version", [9, 12, 13])
def test_produce_where_nothing_is(servers, version, topic, partitions, acks):
    name = f"known-{version}-{topic}-{partitions}-{acks}"

    async def case(requester):
        await requester.create(name)
        payloads = [batch(b"a")] * partitions
        return await requester.produce(
            name if topic == "known" else topic, payloads, version=version, acks=acks
        )

    compare(servers, case)


def test_transactional_batches_without_a_transactional_id(servers):
    async def case(requester):
        await requester.create("no-transaction")
        data = batch(b"a", producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
        return await requester.produce("no-transaction", [data])

    compare(servers, case)


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.FETCH])
def test_fetch(servers, version):
    name = f"f{version}"

    async def case(requester):
        await requester.create(name, partitions=3)
        for values in ([b"a", b"b"], [b"c"], [b"d" * 500]):
            await requester.produce(name, [batch(*values), batch(*values)])
        asked = {
            "start": {0: {}},
            "inside a batch": {0: {"fetch_offset": 1}},
            "end": {0: {"fetch_offset": 4}},
            "after the end": {0: {"fetch_offset": 5}},
            "negative": {0: {"fetch_offset": -1}},
            "no such partition": {7: {}},
            "some": {0: {"fetch_offset": 2}, 1: {"fetch_offset": 4}, 2: {}, 7: {}},
            "little": {0: {"partition_max_bytes": 1}, 1: {"partition_max_bytes": 1}},
        }
        if version >= 9:
            asked["epoch ahead"] = {0: {"current_leader_epoch": 99}}
            asked["epoch"] = {0: {"current_leader_epoch": 0}}
        if version >= 12:
            asked["last epoch"] = {0: {"fetch_offset": 2, "last_fetched_epoch": 0}}
            asked["last epoch diverges"] = {0: {"fetch_offset": 9, "last_fetched_epoch": 0}}
            asked["last epoch unknown"] = {0: {"last_fetched_epoch": 9}}
        answers = {}
        for isolation_level in (0, 1):
            for title, offsets in asked.items():
                key = title, isolation_level
                answers[key] = await requester.fetch(
                    name, offsets, version=version, isolation_level=isolation_level
                )
        answers["max bytes"] = await requester.fetch(name, {0: {}, 1: {}}, version=version, max_bytes=100)
        answers["unknown"] = await requester.fetch("unknown", {0: {}}, version=version)
        return answers

    compare(servers, case)


# KIP-227
@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_fetch_sessions(servers, version):
    name = f"s{version}"

    async def case(requester):
        await requester.create(name, partitions=3)
        answers = []
        session = 0

        async def fetch(offsets, epoch, **fields):
            nonlocal session
            use = fields.pop("use", session)
            code, answered, rows = await requester.fetch(
                name, offsets, version=version, session=(use, epoch), **fields
            )
            if answered:
                session = answered
            answers.append((code, bool(answered), rows))

        await fetch({0: {}, 1: {}}, 0)
        await fetch({}, 1)
        await requester.produce(name, [batch(b"a"), batch(b"b"), batch(b"c")])
        await fetch({}, 2)
        await fetch({0: {"fetch_offset": 1}}, 3)
        await fetch({2: {}}, 4)
        await fetch({1: {"fetch_offset": 1}, 2: {"fetch_offset": 1}}, 5)
        await fetch({}, 6)
        await fetch({7: {}}, 7)
        await fetch({}, 8)
        await fetch({}, 9, forgotten=[7])
        await fetch({}, 5)  # out of order
        await fetch({}, 10)
        await fetch({0: {"fetch_offset": 9}}, 11)
        await fetch({0: {"fetch_offset": 1}}, 12)
        await fetch({}, 13, forgotten=[0, 1, 2])
        await fetch({}, 14)  # closed by then
        await fetch({0: {}}, -1)
        await fetch({}, 1, use=4242)
        await fetch({0: {}}, 0, use=4242)
        return answers

    compare(servers, case)


@pytest.mark.parametrize("version", range(7, 19))
def test_a_topic_that_goes_and_comes_back_within_a_fetch_session(servers, version):
    """A session keeps the name that an id stood for, and what is fetched outside of it does not."""
    name = f"g{version}"

    async def case(requester):
        await requester.create(name)
        await requester.produce(name, [batch(b"old")])
        old_id, answers, session = requester.ids[name], [], 0

        async def fetch(offsets, epoch):
            nonlocal session
            code, answered, rows = await requester.fetch(
                name, offsets, version=version, session=(session, epoch)
            )
            session = session or answered
            answers.append((code, bool(answered), rows))

        await fetch({0: {}}, 0)
        await requester.delete(name)
        await fetch({}, 1)
        await fetch({0: {}}, 2)
        answers.append((await requester.fetch(name, {0: {}}, version=version))[2])
        await requester.create(name)
        await requester.produce(name, [batch(b"new")])
        requester.ids[name] = old_id
        await fetch({}, 3)
        await fetch({0: {}}, 4)
        answers.append((await requester.fetch(name, {0: {}}, version=version))[2])
        return answers

    compare(servers, case)


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.LIST_OFFSETS])
def test_list_offsets(servers, version):
    name = f"l{version}"

    async def case(requester):
        # So old, they would be gone as soon as one of the two thinks of retention.
        await requester.create(name, partitions=3, retention_ms="-1")
        for at in (1_000, 3_000, 2_000):
            data = batch(b"a", b"b", timestamp=at)
            await requester.produce(name, [data])
        answers = {}
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, 1000, 1001, 1002, 2500, 3001, 3002):
            for index, epoch in ((0, -1), (1, -1), (0, 0), (0, 9), (7, -1)):
                if epoch >= 0 and version < 4:
                    continue
                answers[timestamp, index, epoch] = await requester.list_offset(
                    name, timestamp, version=version, index=index, epoch=epoch
                )
        return answers

    compare(servers, case)


@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.DELETE_RECORDS])
def test_delete_records(servers, version):
    name = f"d{version}"

    async def case(requester):
        await requester.create(name)
        await requester.create(name + "c", cleanup_policy="compact")
        await requester.produce(name, [batch(b"a", b"b", b"c", b"d")])
        answers = []
        for topic, index, offset in [
            (name, 0, 1), (name, 0, 0), (name, 0, 9), (name, 0, -2), (name, 7, 0), (name + "c", 0, 0),
            ("unknown", 0, 0), (name, 0, -1), (name, 0, 4),
        ]:  # fmt: skip
            partition = DeleteRecordsPartition(partition_index=index, offset=offset)
            request = DeleteRecordsRequest(
                timeout_ms=60_000, topics=[DeleteRecordsTopic(name=topic, partitions=[partition])]
            )
            response = await requester.client.request(ApiKey.DELETE_RECORDS, version, request)
            answers.append(asdict(response.topics[0]))
        return (
            answers,
            await requester.fetch(name, {0: {}}),
            await requester.fetch(name, {0: {"fetch_offset": 4}}),
        )

    compare(servers, case)


# KIP-101
@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.OFFSET_FOR_LEADER_EPOCH])
def test_offset_for_leader_epoch(servers, version):
    name = f"e{version}"

    async def case(requester):
        await requester.create(name)
        await requester.produce(name, [batch(b"a", b"b")])
        answers = []
        for topic, index, current, epoch in [
            (name, 0, -1, 0), (name, 0, 0, 0), (name, 0, 9, 0), (name, 0, -1, 5), (name, 0, -1, -1),
            (name, 7, -1, 0), ("unknown", 0, -1, 0),
        ]:  # fmt: skip
            partition = OffsetForLeaderPartition(
                partition=index, current_leader_epoch=current, leader_epoch=epoch
            )
            request = OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
            )
            response = await requester.client.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)
            answers.append(asdict(response.topics[0]))
        return answers

    compare(servers, case)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(servers, version):
    async def case(requester):
        answers = []
        for fields in [
            {},
            {"producer_id": 5},
            {"producer_epoch": 5},
            {"producer_id": 5, "producer_epoch": 3},
        ]:
            if fields and version < 3:
                continue
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000, **fields)
            response = await once(
                lambda request=request: requester.client.request(ApiKey.INIT_PRODUCER_ID, version, request),
                lambda response: response.error_code != 14,  # Kafka has no block of ids yet
            )
            answers.append((response.error_code, response.producer_id >= 0, response.producer_epoch))
        request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
        response = await requester.client.request(ApiKey.INIT_PRODUCER_ID, version, request)
        answers.append((response.error_code, response.producer_id, response.producer_epoch))
        return answers

    compare(servers, case)


# KIP-113
@pytest.mark.parametrize("version", KAFKA_VERSIONS[ApiKey.DESCRIBE_LOG_DIRS])
def test_describe_log_dirs(servers, version):
    name = f"dirs{version}"

    async def case(requester):
        await requester.create(name, partitions=2)
        await requester.produce(name, [batch(b"a", b"b")])
        request = DescribeLogDirsRequest(
            topics=[
                DescribableLogDirTopic(topic=name, partitions=[0, 1, 7]),
                DescribableLogDirTopic(topic="unknown", partitions=[0]),
            ]
        )
        response = await requester.client.request(ApiKey.DESCRIBE_LOG_DIRS, version, request)
        (result,) = response.results
        answer = asdict(result)
        for topic in answer["topics"]:
            topic["partitions"].sort(key=lambda row: row["partition_index"])
        del answer["log_dir"]
        # One volume, which others write to.
        answer["total_bytes"] = answer["total_bytes"] > 0
        answer["usable_bytes"] = answer["usable_bytes"] > 0
        return response.error_code, answer

    compare(servers, case)
