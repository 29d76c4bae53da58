"""Produce: what is appended, and what every kind of refusal looks like to its producer."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from uuid import UUID

import pytest
from crc32c import crc32c
from replicas_support import NODE_ID, NOW_MS, TOPIC_ID, batch, follower_fetches, image

from ottla.broker.api import k00_produce, produce_rows
from ottla.broker.replicas.leading.delayed_produce import PartitionStatus
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.broker.request_context import RequestContext
from ottla.metadata.image import BrokerImage, Endpoint
from ottla.metadata.records import RemoveTopicRecord
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import ErrorCode, KafkaStorageError
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.batch import crc_is_valid, read_header
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import records
from ottla.runtime import Pool
from ottla.stories.partition.replicas import turns

VERSIONS = k00_produce.API.versions


def request(*batches, acks=-1, topic="t", topic_id=TOPIC_ID, timeout_ms=1000, transactional_id=None):
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
        topic_data=[
            TopicProduceData(
                name=topic,
                topic_id=topic_id,
                partition_data=[
                    PartitionProduceData(index=index, records=None if data is None else bytes(data))
                    for index, data in enumerate(batches)
                ],
            )
        ],
    )


def rows(response):
    return response.responses[0].partition_responses


def produce(broker, *batches, version=9, **fields):
    return rows(broker.raw(k00_produce, request(*batches, **fields), version))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_appends(broker, version, acks):
    broker.create(partitions=2)
    for count in (0, 2):
        response = broker.raw(k00_produce, request(batch(b"a", b"b"), batch(b"c"), acks=acks), version)
        assert [row.error_code for row in rows(response)] == [0, 0]
        assert [row.base_offset for row in rows(response)] == [count, count // 2]
        assert {row.log_append_time_ms for row in rows(response)} == {-1}
        topic = response.responses[0]
        assert (topic.topic_id == TOPIC_ID) == (version >= 13)
    assert broker.replicas.partition(("t", 0)).log.high_watermark == 4


def test_acks_0_is_not_answered(broker):
    broker.create()
    assert broker.raw(k00_produce, request(batch(b"a"), acks=0), 9) is None
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == 1


def test_an_error_with_acks_0_closes_the_connection(broker):
    broker.create()
    with pytest.raises(produce_rows.UnansweredError, match="unknown_topic_or_partition"):
        broker.raw(k00_produce, request(batch(b"a"), b"", acks=0), 9)
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == 1  # the other partition was served


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(broker, acks):
    broker.create()
    (row,) = produce(broker, batch(b"a"), acks=acks)
    assert (row.error_code, row.base_offset) == (ErrorCode.invalid_required_acks, -1)
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == 0


def bad_crc():
    data = batch(b"a")
    data[20] ^= 1
    return data


def magic(number):
    data = batch(b"a")
    data[16] = number
    return data


def base_offset_1():
    data = batch(b"a")
    data[7] = 1
    return data


# KIP-110
@pytest.mark.parametrize(
    ("make", "version", "code"),
    [
        (lambda: None, 9, ErrorCode.invalid_record),
        (lambda: b"", 9, ErrorCode.invalid_record),
        (lambda: batch(b"a")[:40], 9, ErrorCode.invalid_record),
        (lambda: batch(b"a") + batch(b"b"), 9, ErrorCode.invalid_record),
        (bad_crc, 9, ErrorCode.corrupt_message),
        (lambda: magic(1), 9, ErrorCode.invalid_record),
        (base_offset_1, 9, ErrorCode.invalid_record),
        (lambda: batch(b"x" * 2_000_000), 9, ErrorCode.message_too_large),
        (lambda: batch(b"a", compression=Compression.ZSTD), 6, ErrorCode.unsupported_compression_type),
        (lambda: batch(b"a", compression=Compression.ZSTD), 7, ErrorCode.none),
        (lambda: batch(b"a", timestamp=NOW_MS * 2), 9, ErrorCode.invalid_timestamp),
    ],
)  # fmt: skip
def test_a_bad_batch_leaves_the_others_alone(broker, make, version, code):
    broker.create(partitions=2)
    bad, good = produce(broker, make(), batch(b"good"), version=version)
    assert bad.error_code == code
    assert (good.error_code, good.base_offset) == (0, 0)
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == (code == ErrorCode.none)


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [(None, ErrorCode.transactional_id_authorization_failed), ("tx", ErrorCode.invalid_txn_state)],
)
def test_transactional_batches_are_refused(broker, transactional_id, code):
    broker.create()
    data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    (row,) = produce(broker, data, transactional_id=transactional_id)
    assert row.error_code == code
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == 0


# KIP-467
def test_records_without_keys_on_a_compacted_topic(broker):
    broker.create(config={"cleanup.policy": "compact"})
    (row,) = produce(broker, batch(b"a", b"b"))
    assert row.error_code == ErrorCode.invalid_record
    assert [error.batch_index for error in row.record_errors] == [0, 1]
    assert row.error_message


def test_log_append_time_is_returned(broker):
    broker.create(config={"message.timestamp.type": "LogAppendTime"})
    (row,) = produce(broker, batch(b"a"))
    assert row.log_append_time_ms == broker.runtime.now_ms()


@pytest.mark.parametrize(
    ("version", "topic", "topic_id", "code"),
    [
        (12, "unknown", TOPIC_ID, ErrorCode.unknown_topic_or_partition),
        (13, "t", UUID(int=1), ErrorCode.unknown_topic_id),
        (13, "t", UUID(int=0), ErrorCode.unknown_topic_id),
    ],
)
def test_unknown_topics(broker, version, topic, topic_id, code):
    broker.create()
    (row,) = produce(broker, batch(b"a"), version=version, topic=topic, topic_id=topic_id)
    assert row.error_code == code


@pytest.mark.parametrize("client_id", ["client", k00_produce.ADMIN_CLIENT_ID])
def test_internal_topics_are_for_coordinators_and_the_admin_client(broker, client_id):
    broker.create("__consumer_offsets")
    reply = broker.raw(k00_produce, request(batch(b"a"), topic="__consumer_offsets"), 9, client_id=client_id)
    expected = ErrorCode.none if client_id != "client" else ErrorCode.invalid_topic_exception
    assert rows(reply)[0].error_code == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_the_current_leader_is_returned_from_version_10(broker, version):
    """KIP-951 adds the current leader to the response."""
    broker.metadata.image.brokers[2] = _registration(2)
    broker.create(partitions={0: image(leader=2, epoch=4, replicas=(2,)), 1: image()})
    response = broker.raw(k00_produce, request(batch(b"a"), batch(b"b")), version)
    elsewhere, here = rows(response)
    assert elsewhere.error_code == ErrorCode.not_leader_or_follower
    assert here.error_code == 0
    if version >= 10:
        assert (elsewhere.current_leader.leader_id, elsewhere.current_leader.leader_epoch) == (2, 4)
        (node,) = response.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (2, "two", 9092, "r2")
    else:
        assert not response.node_endpoints


def _registration(broker_id):
    return BrokerImage(
        broker_id=broker_id,
        epoch=1,
        incarnation_id=UUID(int=1),
        endpoints={"PLAINTEXT": Endpoint("two", 9092, 0)},
        rack="r2",
        is_fenced=False,
        in_controlled_shutdown=False,
        features={},
    )


# KIP-98
def test_idempotent_producers(broker):
    broker.create()

    def send(sequence, *values, epoch=0):
        data = batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        (row,) = produce(broker, data)
        return row.error_code, row.base_offset

    assert send(0, b"a", b"b") == (0, 0)
    assert send(2, b"c") == (0, 2)
    assert send(0, b"a", b"b") == (0, 0)  # again: the original offset
    assert send(2, b"c") == (0, 2)
    assert send(4, b"e")[0] == ErrorCode.out_of_order_sequence_number
    assert send(0, b"f", epoch=1) == (0, 3)
    assert send(3, b"d")[0] == ErrorCode.invalid_producer_epoch
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == 4


# -- acks=all with followers (whose offsets are set by hand until brokers replicate) ---------------------


def replicated(broker, **config):
    broker.create(partitions={0: image(replicas=(NODE_ID, 2))}, config=config)
    return broker.replicas.partition(("t", 0))


def test_acks_all_waits_for_the_isr(simulation, broker):
    partition = replicated(broker)

    async def main():
        waiting = broker.raw(k00_produce, request(batch(b"a")), 9)
        follower_fetches(partition, 2, 1)
        partition.on_config_changed()
        (row,) = rows(await waiting)
        assert (row.error_code, row.base_offset) == (0, 0)
        assert broker.replicas.purgatory.delayed_count == 0

    simulation.run(main())


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (lambda partition: None, ErrorCode.request_timed_out),
        (
            lambda partition: partition.apply(image(leader=2, epoch=1, replicas=(NODE_ID, 2))),
            ErrorCode.not_leader_or_follower,
        ),
        (lambda partition: partition.resign(), ErrorCode.not_leader_or_follower),
    ],
    ids=["time over", "another leader", "deleted"],
)
def test_how_waiting_ends_badly(simulation, broker, event, code):
    partition = replicated(broker)

    async def main():
        waiting = broker.raw(k00_produce, request(batch(b"a"), timeout_ms=700), 9)
        event(partition)
        (row,) = rows(await waiting)
        assert row.error_code == code
        assert broker.replicas.purgatory.delayed_count == 0

    simulation.run(main())
    assert partition.log.log_end_offset == 1  # the record stays


def test_the_isr_shrinks_while_waiting(simulation, broker):
    partition = replicated(broker, **{"min.insync.replicas": "2"})

    async def main():
        waiting = broker.raw(k00_produce, request(batch(b"a")), 9)
        follower_fetches(partition, 2, 1)
        partition.on_config_changed()
        partition.apply(image(partition_epoch=1, replicas=(NODE_ID, 2), isr=(NODE_ID,)))
        (row,) = rows(await waiting)
        assert row.error_code == ErrorCode.not_enough_replicas_after_append
        (row,) = produce(broker, batch(b"b"))
        assert row.error_code == ErrorCode.not_enough_replicas
        (row,) = produce(broker, batch(b"b"), acks=1)
        assert row.error_code == 0

    simulation.run(main())


def test_what_needs_no_waiting_is_answered_with_what_does(simulation, broker):
    broker.create(partitions={0: image(), 1: image(replicas=(NODE_ID, 2))})
    waits = broker.replicas.partition(("t", 1))

    async def main():
        waiting = broker.raw(k00_produce, request(batch(b"a"), batch(b"b"), None), 9)
        follower_fetches(waits, 2, 1)
        waits.on_config_changed()
        codes = [row.error_code for row in rows(await waiting)]
        assert codes == [0, 0, ErrorCode.unknown_topic_or_partition]

    simulation.run(main())


def test_each_partition_is_checked_once_in_a_turn(simulation, broker, monkeypatch):
    """It is not checked when all of them have just been appended, nor for the signal of each of the others."""
    broker.create(partitions=dict.fromkeys(range(4), image(replicas=(NODE_ID, 2))))
    partitions = [broker.replicas.partition(("t", index)) for index in range(4)]
    checked = []

    def check(status):
        checked.append(status.partition)
        return is_complete(status)

    is_complete = PartitionStatus.is_complete
    monkeypatch.setattr(PartitionStatus, "is_complete", check)

    async def main():
        waiting = broker.raw(k00_produce, request(*[batch(b"a")] * 4), 9)
        assert checked == []
        for partition in partitions[:3]:
            follower_fetches(partition, 2, 1)
        await turns()
        assert checked == partitions
        follower_fetches(partitions[3], 2, 1)
        assert [row.error_code for row in rows(await waiting)] == [0] * 4
        assert checked == [*partitions, partitions[3]]

    simulation.run(main())


def test_what_the_next_row_ends_does_not_wait(simulation, broker, monkeypatch):
    """Its append fails with the disk of both, which takes the partition of the first row offline, too."""
    broker.create(partitions=dict.fromkeys((0, 1), image(replicas=(NODE_ID, 2))))
    first, second = (broker.replicas.partition(("t", index)) for index in (0, 1))

    def append(leader, records, **how):
        if leader is not second.leader:
            return append_fast(leader, records, **how)
        first.resign()
        raise KafkaStorageError("the disk fails")

    append_fast = PartitionLeader.append_fast
    monkeypatch.setattr(PartitionLeader, "append_fast", append)
    codes = [row.error_code for row in produce(broker, batch(b"a"), batch(b"b"))]
    assert codes == [ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error]
    assert broker.replicas.purgatory.delayed_count == 0


# -- batches that are validated in a thread ----------------------------------------------------------------


def large(first=b"", count=3000, **fields):
    fields = {"key": b"k", "compression": Compression.ZSTD, **fields}
    return batch(first, *[b"x" * 100] * (count - 1), **fields)


def later(simulation, broker, *requests, version=9):
    """All requests at once, as of several connections: their rows, and which of them had to wait."""
    replies = [broker.raw(k00_produce, one, version) for one in requests]
    waited = [isinstance(reply, Coroutine) for reply in replies]

    async def main():
        return [rows(await reply) if isinstance(reply, Coroutine) else rows(reply) for reply in replies]

    return simulation.run(main()), waited


def values_of(broker, index=0):
    log = broker.replicas.partition(("t", index)).log
    return [next(records(data)).value for _, data in log.reader.records_since(0)]


@pytest.mark.parametrize(
    ("sent", "config"),
    [
        (large(), {"cleanup.policy": "compact"}),
        (large(compression=Compression.NONE), {"cleanup.policy": "compact"}),
        (large(count=2000, compression=Compression.GZIP), {"compression.type": "lz4"}),
        (large(b"y" * 1_000_000, count=1), {"cleanup.policy": "compact"}),  # small until it is opened
        (large(), {"message.timestamp.before.max.ms": "3600000", "cleanup.policy": "compact"}),
        (large(), {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"}),
    ],
)
def test_a_large_batch_that_must_be_decompressed_does_not_block_the_loop(simulation, broker, sent, config):
    broker.runtime.now_ms = lambda: NOW_MS
    broker.create(config=config)
    small = batch(b"small", key=b"k")
    [[late], [quick]], waited = later(simulation, broker, request(sent), request(small))
    assert waited == [True, False]
    count = read_header(memoryview(sent)).records_count
    assert [late.error_code, quick.error_code] == [0, 0]
    assert [quick.base_offset, late.base_offset] == [0, 1]
    log = broker.replicas.partition(("t", 0)).log
    assert log.log_end_offset == count + 1
    found = list(log.reader.records_since(0))
    assert [header.base_offset for header, _ in found] == [0, 1]
    for header, data in found:
        assert crc_is_valid(data)
        assert header.partition_leader_epoch == 0
        assert [it.offset for it in records(data)] == list(range(header.base_offset, header.next_offset))


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
def test_log_append_time_is_that_of_the_append(simulation, broker, compression):
    """Others append while a batch waits for its validation: the times of the log ascend."""
    broker.create(config={"message.timestamp.type": "LogAppendTime", "compression.type": compression})
    broker.runtime.pools[Pool.VALIDATION].blocking_s = lambda: 5  # before it, and after it
    sent = request(large(b"waits"))
    small = batch(b"small")

    async def main():
        waiting = broker.runtime.create_task(broker.raw(k00_produce, sent, 9), name="a request")
        await asyncio.sleep(7)
        quick = broker.raw(k00_produce, request(small), 9)
        return [rows(await waiting), rows(quick if not isinstance(quick, Coroutine) else await quick)]

    began_ms = broker.runtime.now_ms()
    [late], [quick] = simulation.run(main())
    assert [late.error_code, quick.error_code] == [0, 0]
    log = broker.replicas.partition(("t", 0)).log
    found = list(log.reader.records_since(0))
    times = [header.max_timestamp for header, _ in found]
    assert times == sorted(times)
    assert times[-1] >= began_ms + 10_000
    answered = {row.base_offset: row.log_append_time_ms for row in (late, quick)}
    assert answered == {header.base_offset: header.max_timestamp for header, _ in found}
    for header, data in found:
        assert crc_is_valid(data)
        assert {record.timestamp for record in records(data)} == {header.max_timestamp}


def test_a_batch_is_appended_by_the_configuration_of_then(simulation, broker):
    broker.create(config={"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"})
    broker.runtime.pools[Pool.VALIDATION].blocking_s = lambda: 5
    log = broker.replicas.partition(("t", 0)).log
    now_ms = broker.runtime.now_ms()

    async def main():
        sent = request(large(b"v", compression=Compression.GZIP, timestamp=now_ms))
        waiting = broker.runtime.create_task(broker.raw(k00_produce, sent, 9), name="a request")
        await asyncio.sleep(7)
        config = replace(log.config, message_timestamp_type="CreateTime", compression_type="zstd")
        log.update_config(config)
        return rows(await waiting)

    [row] = simulation.run(main())
    assert (row.error_code, row.log_append_time_ms) == (0, -1)
    ((header, data),) = log.reader.records_since(0)
    assert header.compression is Compression.ZSTD
    assert not header.is_log_append_time
    assert {record.timestamp for record in records(data)} == {now_ms}


@pytest.mark.parametrize(
    ("sent", "config"),
    [
        (batch(b"x" * 50_000, compression=Compression.GZIP), {}),
        (batch(b"x" * 50_000, key=b"k", compression=Compression.ZSTD), {"cleanup.policy": "compact"}),
        (large(count=300), {"cleanup.policy": "compact"}),
        (large(count=300, compression=Compression.NONE), {"cleanup.policy": "compact"}),
        (batch(b"x" * 50_000), {"compression.type": "lz4"}),
    ],
)
def test_batches_that_are_opened_share_a_turn(simulation, broker, sent, config):
    """However many requests arrive at the same time: the others' batches are validated in a thread.

    Short ones do not wait.
    """
    broker.runtime.now_ms = lambda: NOW_MS
    broker.create(config=config)
    short = batch(b"x" * 100, key=b"k", compression=Compression.GZIP)
    answers, waited = later(simulation, broker, *[request(sent)] * 50, request(short))
    assert waited == [*sorted(waited[:50]), False]
    assert 1 <= waited.index(True) <= 20
    assert [row.error_code for (row,) in answers] == [0] * len(answers)


def test_what_must_not_be_opened_does_not_wait(simulation, broker):
    broker.create(config={"cleanup.policy": "delete"})
    _, waited = later(simulation, broker, request(large(timestamp=broker.runtime.now_ms())))
    assert waited == [False]


def test_rows_and_batches_of_one_request_keep_their_order(simulation, broker):
    broker.create(
        partitions=2, config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    )
    asked = request(large(b"first"), batch(b"other", key=b"k"))
    data = asked.topic_data[0].partition_data
    data.append(PartitionProduceData(index=0, records=bytes(batch(b"second", key=b"k"))))
    data.append(PartitionProduceData(index=0, records=bytes(large(b"third", key=None))))
    [found], _ = later(simulation, broker, asked)
    assert [(row.index, row.error_code) for row in found] == [
        (0, 0), (1, 0), (0, 0), (0, ErrorCode.invalid_record),
    ]  # fmt: skip
    assert len(found[3].record_errors) == 1000
    assert [row.base_offset for row in found] == [0, 0, 3000, -1]
    assert values_of(broker) == [b"first", b"second"]


def test_a_batch_of_the_fast_path_does_not_pass_a_deferred_one(simulation, broker):
    """Both are of one partition, and the second batch has the topic's codec already."""
    broker.create(config={"compression.type": "lz4"})
    now_ms = broker.runtime.now_ms()
    broker.raw(
        k00_produce, request(batch(b"before", timestamp=now_ms)), 9
    )  # else the leader epoch is not assigned
    asked = request(large(b"first", compression=Compression.GZIP, timestamp=now_ms))
    small = batch(b"second", compression=Compression.LZ4, timestamp=now_ms)
    asked.topic_data[0].partition_data.append(PartitionProduceData(index=0, records=bytes(small)))
    [found], waited = later(simulation, broker, asked)
    assert waited == [True]
    assert [row.base_offset for row in found] == [1, 3001]
    assert values_of(broker) == [b"before", b"first", b"second"]


def test_the_receive_buffer_may_be_used_again_meanwhile(simulation, broker):
    broker.create(config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    context = RequestContext(0, 9, 1, "client", "127.0.0.1", "PLAINTEXT")
    frame = memoryview(bytearray(encode_request(0, 9, request(large(b"first")))))
    waiting = k00_produce.handle_raw(frame, context, broker)
    frame[:] = bytes(len(frame))
    simulation.run(waiting.work)
    assert values_of(broker) == [b"first"]


def test_late_refusals(simulation, broker):
    broker.create(config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    damaged = build_damaged(large())
    [[row], [keyless]], _ = later(simulation, broker, request(damaged), request(large(key=None)))
    assert (row.error_code, keyless.error_code) == (ErrorCode.invalid_record, ErrorCode.invalid_record)
    assert (row.log_start_offset, keyless.log_start_offset) == (0, 0)
    assert simulation.run(broker.raw(k00_produce, request(large(), acks=0), 9)) is None
    with pytest.raises(produce_rows.UnansweredError):
        simulation.run(broker.raw(k00_produce, request(large(key=None), acks=0), 9))
    assert broker.replicas.partition(("t", 0)).log.log_end_offset == 3000


def test_a_topic_that_is_deleted_while_its_batch_is_validated(simulation, broker):
    broker.create(config={"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
    waiting = broker.raw(k00_produce, request(large()), 9)
    broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert rows(simulation.run(waiting))[0].error_code == ErrorCode.not_leader_or_follower


def build_damaged(good):
    """A sound checksum over a payload that its codec cannot read."""
    damaged = bytearray(good)
    damaged[-20:] = b"\xff" * 20
    damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4, "big")
    return damaged
