"""Consuming: records of partitions, or of a group's share of them, up to their end or without end."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from ottla.broker.cli.records.client import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
    interruptible,
)
from ottla.broker.cli.records.formats import Record
from ottla.broker.cli.records.starting import Range
from ottla.broker.cluster_client.errors import ClusterError
from ottla.protocol.types import TopicPartition as Name

_BATCH: Final = 500
_POLL_S: Final = 0.2
#: The polls without a record after which a consumer that is not at the end gives up: two minutes, since a group waits
#: that long for a member that has crashed.
_PATIENCE: Final = 600
#: A connection that fails is opened again.
_TRANSIENT: Final = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
)


class Consumption:
    """A consumer that ends where the logs ended when it began, unless it follows them."""

    def __init__(self, consumer: Consumer, *, ends: Mapping[Name, int], is_following: bool) -> None:
        self._consumer = consumer
        self._ends = ends
        self._is_following = is_following
        #: The partitions that this consumer has; None before a group has assigned any.
        self._assigned: set[Name] | None = None
        self._done: set[Name] = set()

    def assign(self, ranges: Mapping[Name, Range]) -> None:
        """Consume these ranges, without a group."""
        wanted = {name: each for name, each in ranges.items() if self._is_following or each.start < each.end}
        self._assigned = set(wanted)
        self._consumer.assign(
            [TopicPartition(name.topic, name.partition, each.start) for name, each in wanted.items()]
        )

    def subscribe(self, topics: list[str]) -> None:
        """Consume what the group assigns."""

        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned = {Name(each.topic, each.partition) for each in partitions}
            self._done.clear()

        def on_revoke(_: Consumer, __: list[TopicPartition]) -> None:
            self._assigned = None

        self._consumer.subscribe(topics, on_assign=on_assign, on_revoke=on_revoke)

    @property
    def is_done(self) -> bool:
        """Whether all partitions have been consumed to their end."""
        return not self._is_following and self._assigned is not None and self._assigned <= self._done

    def batches(self) -> Iterator[list[Message]]:
        """Yield records as they come, also empty batches while none come. Raises ClusterError."""
        polls = 0
        while not self.is_done:
            found = []
            polls += 1
            if polls > _PATIENCE and not self._is_following:
                left = sorted((self._assigned or set()) - self._done)
                where = (
                    ", ".join(map(str, left[:3])) or "no partition is assigned to this member of the group"
                )
                raise ClusterError(f"No records came for {_PATIENCE * _POLL_S:g} s, before the end: {where}.")
            with interruptible():
                messages = self._consumer.consume(_BATCH, _POLL_S)
            for message in messages:
                name = Name(message.topic() or "", message.partition() or 0)
                if (error := message.error()) is not None:
                    self._on_error(error, name)
                    continue
                polls = 0
                end = self._ends.get(name)
                offset = message.offset() or 0
                if end is not None and offset + 1 >= end:
                    self._done.add(name)
                if self._is_following or end is None or offset < end:
                    found.append(message)
            yield found

    def _on_error(self, error: KafkaError, name: Name) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._done.add(name)
        elif not error.retriable() and error.code() not in _TRANSIENT:
            raise ClusterError(f"{name}: {error.str()}.")

    def commit(self, message: Message) -> None:
        """Remember that a record is consumed: the group continues after it."""
        # The group may have revoked the partition: then another member consumes the record again.
        with suppress(KafkaException):
            self._consumer.store_offsets(message)

    def close(self, *, has_group: bool) -> None:
        """Commit what is consumed, if there is a group, and leave it."""
        if has_group:
            # Nothing is consumed, or another member has the partition now and consumes it again.
            with suppress(KafkaException):
                self._consumer.commit(asynchronous=False)
        self._consumer.close()


def record_of_message(message: Message) -> Record:
    """A message of confluent-kafka as a record."""
    kind, timestamp_ms = message.timestamp()
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Record(
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=[(name, _bytes(value)) for name, value in pairs],
        timestamp_ms=timestamp_ms if kind else None,
    )


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
