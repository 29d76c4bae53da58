"""Requests and waits through librdkafka's admin client that many tests share."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components.processes import PATIENCE_S, wait_until

R = TypeVar("R")


def admin_of(bootstrap: str) -> AdminClient:
    """A client that must be kept until the last of its futures is done."""
    return AdminClient({"bootstrap.servers": bootstrap})


def code_of(future: "Future[Any]") -> str | None:
    """The name of the error that it failed with, in librdkafka's spelling; None if all went well."""
    try:
        future.result(PATIENCE_S)
    except KafkaException as error:
        return error.args[0].name()
    return None


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic and return when clients can use it."""
    admin = admin_of(bootstrap)
    new = NewTopic(topic, partitions, 1, config=dict(config or {}))
    admin.create_topics([new])[topic].result(PATIENCE_S)
    # Kafka answers as soon as its metadata log has the topic; the broker's own view comes a moment later.
    wait_until(lambda: len(partitions_of(admin, topic)) == partitions)


def partitions_of(admin: AdminClient, topic: str) -> list[int]:
    """The partitions that have a leader; none if there is no such topic."""
    found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    if found.error is not None:
        return []
    return sorted(index for index, partition in found.partitions.items() if partition.leader >= 0)


def produce(bootstrap: str, topic: str, values: "list[bytes]", *, partition: int = 0, **config: Any) -> None:
    """Produce and wait for every acknowledgement; keys with underscores are librdkafka's with dots.

    Raises KafkaException for the first record that was refused.
    """
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **settings})
    errors = []
    for value in values:
        producer.produce(
            topic,
            value=value,
            partition=partition,
            on_delivery=lambda error, _: error is not None and errors.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0
    if errors:
        raise KafkaException(errors[0])


def read(
    bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0, **config: Any
) -> list[Message]:
    """The first `count` records from `offset` on, without a group."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        return take(consumer, count)
    finally:
        consumer.close()


def take(consumer: Consumer, count: int) -> list[Message]:
    """The next records of a consumer that has partitions, or will be given some."""
    taken: list[Message] = []

    def has_all() -> bool:
        for message in consumer.consume(count - len(taken), 0.2):
            assert message.error() is None, message.error()
            taken.append(message)
        return len(taken) == count

    wait_until(has_all, detail=lambda: f"{len(taken)} of {count} records came")
    return taken


def once(ask: Callable[[], R], is_right: Callable[[R], object]) -> R:
    """Ask again until the answer is right: a broker learns of a change a moment after it is acknowledged."""
    last: list[R] = []

    def is_so() -> object:
        last[:] = [ask()]
        return is_right(last[0])

    wait_until(is_so, detail=lambda: f"still {last[0]}")
    return last[0]


def eventually_equal(ask: Callable[[], R], expected: R) -> None:
    """Ask again until the answer is this one, as `once`."""
    last: list[R] = []

    def is_equal() -> bool:
        last[:] = [ask()]
        return last == [expected]

    wait_until(is_equal, detail=lambda: f"{last[0]!r} is not {expected!r}")
