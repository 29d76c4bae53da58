"""The three Python client libraries behind one small face, so that a test is written once for all.

Blocking calls: aiokafka runs on a loop of its own for each call, the others as they are.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka
from kafka.structs import TopicPartition as KafkaPythonPartition

from ottla.bench.components.processes import PATIENCE_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Message(NamedTuple):
    """A record as a client gives and gets it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Client(Protocol):
    """The interface that the tests use of every client library."""

    name: str

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: int | str = "all",
    ) -> list[int]:
        """Send to partition 0, wait for all, and return the offsets."""

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        """The first `count` records of partition 0."""


class Confluent:
    """The client of confluent-kafka, which is librdkafka."""

    name = "confluent-kafka"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: int | str = "all",
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": acks,
                "message.max.bytes": 20_000_000,
                "enable.idempotence": acks == "all",
            }
        )
        offsets: list[int] = []

        def on_delivery(error, message) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for message in messages:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=0,
                on_delivery=on_delivery,
            )
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        return offsets

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.message.max.bytes": 20_000_000}
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
            taken: list[Message] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(taken) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(taken), 0.5):
                    assert message.error() is None, message.error()
                    taken.append(Message(message.value(), message.key(), tuple(message.headers() or ())))
            return taken
        finally:
            consumer.close()


class Aiokafka:
    """aiokafka: pure Python on asyncio."""

    name = "aiokafka"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: int | str = "all",
    ) -> list[int]:
        async def send() -> list[int]:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks,
                max_request_size=20_000_000,
                enable_idempotence=acks == "all",
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        value=message.value,
                        key=message.key,
                        headers=list(message.headers),
                        partition=0,
                    )
                    for message in messages
                ]
                delivered = [await future for future in futures]
                return [metadata.offset for metadata in delivered if metadata is not None]  # None: acks=0

        return asyncio.run(send())

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        async def read() -> list[Message]:
            async with aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                max_partition_fetch_bytes=20_000_000,
                auto_offset_reset="earliest",
            ) as consumer:
                partition = aiokafka.TopicPartition(topic, 0)
                consumer.assign([partition])
                await consumer.seek_to_beginning(partition)
                taken: list[Message] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(taken) < count:
                        record = await consumer.getone()
                        taken.append(Message(record.value, record.key, tuple(record.headers)))
                return taken

        return asyncio.run(read())


class KafkaPython:
    """kafka-python: pure Python with threads."""

    name = "kafka-python"

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: int | str = "all",
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            max_request_size=20_000_000,
            enable_idempotence=acks == "all",
        )
        try:
            futures = [
                producer.send(
                    topic, value=message.value, key=message.key, headers=list(message.headers), partition=0
                )
                for message in messages
            ]
            return [future.get(PATIENCE_S).offset for future in futures]
        finally:
            producer.close()

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            max_partition_fetch_bytes=20_000_000,
            auto_offset_reset="earliest",
            consumer_timeout_ms=int(PATIENCE_S * 1000),
        )
        try:
            consumer.assign([KafkaPythonPartition(topic, 0)])
            taken: list[Message] = []
            for record in consumer:
                taken.append(Message(record.value, record.key, tuple(record.headers)))
                if len(taken) == count:
                    break
            return taken
        finally:
            consumer.close()


CLIENTS: tuple[Client, ...] = (Confluent(), Aiokafka(), KafkaPython())
