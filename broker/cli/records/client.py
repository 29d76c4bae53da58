"""confluent-kafka, the client library of `ottla produce` and `ottla consume`. Raises CannotBeDone if it is missing."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ottla.broker.cli.bootstrap import CannotBeDone
from ottla.config.extras import missing_extra

try:
    from confluent_kafka import (
        OFFSET_INVALID,
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicPartition,
    )
except ModuleNotFoundError as error:
    raise CannotBeDone(f"This command {missing_extra('client', error)}.") from None

__all__ = [
    "OFFSET_INVALID",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicPartition",
    "interruptible",
    "new_consumer",
    "new_producer",
]

#: A line of librdkafka's log would be one more sentence about an error that a command reports itself.
_SILENT: Final = logging.getLogger("ottla.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where a signal has interrupted a call of the library.

    confluent-kafka 2.16 drops the exception of the signal's handler, and returns NULL without one.
    """
    try:
        yield
    except SystemError as error:
        raise KeyboardInterrupt from error


Settings = Mapping[str, str | int | bool]


def new_producer(bootstrap: str, settings: Settings) -> Producer:
    """A producer with these settings of librdkafka."""
    return Producer({"bootstrap.servers": bootstrap, **settings}, logger=_SILENT)


def new_consumer(bootstrap: str, settings: Settings) -> Consumer:
    """A consumer with these settings of librdkafka."""
    return Consumer({"bootstrap.servers": bootstrap, **settings}, logger=_SILENT)
