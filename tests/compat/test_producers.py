"""Producers get what they rely on: no duplicates, no gaps, the topics' constraints on records, and clear
refusals."""

import asyncio
import time

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.compat.admin import (
    PATIENCE_S,
    admin_of,
    create_topic,
    partitions_of,
    produce,
    read,
)
from tests.compat.clients import CLIENTS, CODECS, Message
from tests.harness.kafka import run_tool

_CREATE_TIME, _LOG_APPEND_TIME = 1, 2


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "kill-9"])
def test_an_idempotent_producer_neither_loses_nor_doubles(own_server, topic, crash):
    """It produces all the while, and the server goes and comes back twice."""
    create_topic(own_server.bootstrap, topic)
    errors: list[KafkaError] = []
    delivered: list[int] = []
    producer = Producer(
        {
            "bootstrap.servers": own_server.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
        }
    )

    def on_delivery(error: KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            errors.append(error)
        delivered.append(message.offset())

    def fail_or_excuse() -> None:
        """librdkafka forgets all brokers when a Metadata response has none (its issue 5301), and sends no
        request again.

        Kafka answers so for a moment when the only broker stops; Ottla never does.
        """
        assert own_server.is_kafka, "records are not acknowledged"
        assert not crash, "records are not acknowledged"
        with pytest.raises(KafkaException, match="Failed to get metadata"):
            producer.list_topics(timeout=5)
        assert admin_of(own_server.bootstrap).list_topics(timeout=PATIENCE_S).brokers
        producer.purge()
        pytest.xfail("Kafka listed no broker while it stopped, and librdkafka has forgotten it")

    sent = 0

    def send_until(count: int) -> None:
        nonlocal sent
        ends_at = time.monotonic() + PATIENCE_S
        while len(delivered) < count:
            if time.monotonic() > ends_at:
                fail_or_excuse()
            if sent - len(delivered) < 1000:
                producer.produce(topic, value=b"%d" % sent, partition=0, on_delivery=on_delivery)
                sent += 1
            producer.poll(0)

    for round_ in (1, 2):
        send_until(round_ * 2000)
        if crash:
            own_server.kill()
        else:
            own_server.stop()
        own_server.start()
    send_until(6000)
    assert producer.flush(PATIENCE_S) == 0
    assert errors == []
    assert delivered == list(range(sent))
    taken = read(own_server.bootstrap, topic, sent)
    assert [int(message.value()) for message in taken] == list(range(sent))


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_may_ask_for_another_codec(server, topic, codec):
    """`compression.type` of the topic: the broker recompresses what comes with another codec."""
    create_topic(
        server.bootstrap, topic, config={"compression.type": "uncompressed" if codec == "none" else codec}
    )
    messages = [Message(b"%d" % number * 50, b"key", (("h", b"v"),)) for number in range(50)]
    for client in CLIENTS:
        other = "gzip" if codec != "gzip" else "lz4"
        client.produce(server.bootstrap, topic, messages, codec=other)
    for client in CLIENTS:
        assert client.consume(server.bootstrap, topic, 150) == messages * 3, client.name
    dump = run_tool(
        "kafka-dump-log", "--files", str(server.data_dir / f"{topic}-0" / "00000000000000000000.log")
    )
    assert f"compresscodec: {codec} " in dump.stdout
    assert dump.stdout.count("compresscodec: ") == dump.stdout.count(f"compresscodec: {codec} ")


def test_the_topic_decides_whose_clock_counts(server, topic):
    create_topic(server.bootstrap, topic, config={"message.timestamp.type": "LogAppendTime"})
    plain = f"{topic}-plain"
    create_topic(server.bootstrap, plain)
    old_ms = int(time.time() * 1000) - 3_600_000
    producer = Producer({"bootstrap.servers": server.bootstrap})
    reported: list[tuple[int, int]] = []
    for name in (topic, plain):
        producer.produce(
            name, b"x", timestamp=old_ms, on_delivery=lambda _, message: reported.append(message.timestamp())
        )
        assert producer.flush(PATIENCE_S) == 0
    seen = [read(server.bootstrap, name, 1)[0].timestamp() for name in (topic, plain)]
    assert seen[1] == (_CREATE_TIME, old_ms) == reported[1]
    kind, appended_ms = seen[0]
    assert kind == _LOG_APPEND_TIME
    assert abs(appended_ms - time.time() * 1000) < 1_800_000
    assert reported[0][1] == appended_ms


def test_timestamps_out_of_bounds_are_refused(server, topic):
    create_topic(server.bootstrap, topic, config={"message.timestamp.before.max.ms": "3600000"})
    producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap, retries=0)
    try:
        with pytest.raises(kafka.errors.InvalidTimestampError):
            producer.send(topic, b"x", timestamp_ms=int(time.time() * 1000) - 7_200_000).get(PATIENCE_S)
        assert producer.send(topic, b"x").get(PATIENCE_S).offset == 0
    finally:
        producer.close()


def test_a_record_without_key_has_no_place_in_a_compacted_topic(server, topic):
    create_topic(server.bootstrap, topic, config={"cleanup.policy": "compact"})
    with pytest.raises(KafkaException, match="INVALID_RECORD"):
        produce(server.bootstrap, topic, [b"no key"])
    producer = kafka.KafkaProducer(
        bootstrap_servers=server.bootstrap, linger_ms=30_000, enable_idempotence=False
    )
    try:
        futures = [producer.send(topic, b"value", key=key) for key in (b"key", None)]
        producer.flush(PATIENCE_S)
        with pytest.raises(kafka.errors.InvalidRecordError):
            futures[1].get(PATIENCE_S)
        with pytest.raises(kafka.errors.KafkaError, match="part of a batch"):  # which went down with it
            futures[0].get(PATIENCE_S)
        alone = producer.send(topic, b"value", key=b"key")
        producer.flush(PATIENCE_S)
        assert alone.get(PATIENCE_S).offset == 0
    finally:
        producer.close()


def test_topics_are_made_on_the_way(server, topic):
    admin = admin_of(server.bootstrap)
    produce(server.bootstrap, topic, [b"first"])
    assert partitions_of(admin, topic) == [0]
    with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
        produce(server.bootstrap, "bad name", [b"x"])
    CLIENTS[1].produce(server.bootstrap, f"{topic}-aiokafka", [Message(b"1")])
    CLIENTS[2].produce(server.bootstrap, f"{topic}-python", [Message(b"1")])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": topic})
    consumer.list_topics(f"{topic}-never", timeout=PATIENCE_S)  # consumers make none
    consumer.close()
    assert f"{topic}-never" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_read_committed_sees_plain_records(server, topic):
    produce(server.bootstrap, topic, [b"1", b"2"], enable_idempotence=True)
    taken = read(server.bootstrap, topic, 2, isolation_level="read_committed")
    assert [message.value() for message in taken] == [b"1", b"2"]
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=server.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    try:
        assert [next(consumer).value, next(consumer).value] == [b"1", b"2"]
    finally:
        consumer.close()


class TestTransactionalProducers:
    """Differs from Kafka: Ottla has no transactions yet, and returns a fatal error at once."""

    def test_librdkafka(self, server, topic):
        producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": topic})
        if server.is_kafka:
            producer.init_transactions(PATIENCE_S)
            return
        with pytest.raises(KafkaException, match="Transactions are not served") as refused:
            producer.init_transactions(PATIENCE_S)
        assert refused.value.args[0].fatal()

    def test_aiokafka(self, server, topic):
        async def start() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=server.bootstrap, transactional_id=topic)
            try:
                await asyncio.wait_for(producer.start(), PATIENCE_S)
            finally:
                await producer.stop()

        if server.is_kafka:
            asyncio.run(start())
            return
        with pytest.raises(aiokafka.errors.TransactionalIdAuthorizationFailed):
            asyncio.run(start())

    def test_kafka_python(self, server, topic):
        producer = kafka.KafkaProducer(bootstrap_servers=server.bootstrap, transactional_id=topic)
        try:
            if server.is_kafka:
                producer.init_transactions()
                return
            with pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
                producer.init_transactions()
        finally:
            producer.close(timeout=1)

    def test_java(self, server, topic):
        create_topic(server.bootstrap, topic)
        done = run_tool(
            "kafka-producer-perf-test",
            *("--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", "1"),
            *("--record-size", "10", "--throughput", "-1", "--transactional-id", topic),
        )
        if server.is_kafka:
            assert done.returncode == 0
        else:
            assert done.returncode == 1
            assert "TransactionalIdAuthorizationException" in done.stderr + done.stdout
