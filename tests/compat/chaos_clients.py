"""librdkafka's clients, each in a thread of its own, that write down what they did and saw."""

import json
import logging
import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ottla.bench.components.processes import PATIENCE_S, wait_until
from ottla.protocol.errors import ErrorCode
from tests.harness.history import History, Poll, Send

#: How long librdkafka tries to deliver a message: longer than any fault.
_DELIVERY_TIMEOUT_MS = 300_000
#: How long a commit may be under way before there is another one.
_COMMIT_PATIENCE_S = 10.0


class _Client(threading.Thread):
    """A thread that goes on until `is_over` is set; what ends it otherwise is raised by `finish`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.is_over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error

    def finish(self) -> None:
        self.is_over.set()
        self.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        raise NotImplementedError


class RecordingProducer(_Client):
    """Idempotent, acks=all: unique values, in bursts, to all partitions."""

    def __init__(
        self, name: str, bootstrap: str, history: History, *, topic: str, partitions: int, seed: int
    ) -> None:
        super().__init__(name)
        self._history = history
        self._topic, self._partitions = topic, partitions
        self._random = random.Random(seed)
        self._count = 0
        #: The longest time for which nothing was acknowledged: (seconds, when it was over).
        self.longest_silence = (0.0, 0.0)
        self._last_ack = time.monotonic()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "enable.idempotence": True,
                # Of a producer's last batches a snapshot keeps one, as Kafka's: a broker that was stopped and
                # is back takes an older one that comes again for a gap, which is fatal to librdkafka.
                "max.in.flight": 1,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "socket.timeout.ms": 5_000,
                "request.timeout.ms": 4_000,
                "reconnect.backoff.max.ms": 1_000,
                "retry.backoff.ms": 50,
                "compression.type": self._random.choice(("none", "lz4")),
                "error_cb": self._on_error,
                "log_level": 2,
            }
        )

    def _work(self) -> None:
        while not self.is_over.is_set():
            # Bounded, so that a cluster that is down for a while is not buried afterwards.
            if len(self._producer) < 2_000:
                for _ in range(self._random.choice((1, 3, 20))):
                    self._produce(self._random.randrange(self._partitions))
            self._producer.poll(self._random.uniform(0.005, 0.05))

    def _produce(self, partition: int) -> None:
        self._count += 1
        value = f"{self.name}-{self._count}".encode()
        send = self._history.begin(
            Send(client=self.name, topic=self._topic, partition=partition, values=[value], acks=-1),
            time.monotonic(),
        )

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            send.ended_s = time.monotonic()
            if error is None:
                send.is_ok = True
                send.base_offset = message.offset()
                self.longest_silence = max(
                    self.longest_silence, (send.ended_s - self._last_ack, send.ended_s)
                )
                self._last_ack = send.ended_s
            else:
                send.errors.append(_code(error))
                self._history.errors.append(f"{self.name}: {value!r} to {partition}: {error}")

        # Padded behind the value: segments shall roll.
        self._producer.produce(self._topic, value.ljust(200), partition=partition, on_delivery=on_delivery)

    def flush(self, timeout_s: float) -> int:
        """Wait for records in flight; how many are left. After `finish`."""
        return self._producer.flush(timeout_s)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._history.errors.append(f"{self.name}: {error}")


class RecordingConsumer(_Client):
    """Reads all partitions from their beginning, without a group; from the replica that is closest, if it has
    a rack.
    """

    def __init__(
        self, name: str, bootstrap: str, history: History, *, topic: str, partitions: int, rack: str = ""
    ) -> None:
        super().__init__(name)
        self._history = history
        self._topic = topic
        self.polls: list[Poll] = []
        #: How often a partition's records came from a broker that did not lead it, as librdkafka's statistics show.
        self.from_followers = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": name,
                "enable.auto.commit": False,
                # A position that is out of range, or behind a truncation, is an error: nothing is ever deleted here.
                "auto.offset.reset": "error",
                "check.crcs": True,
                "client.rack": rack,
                "fetch.wait.max.ms": 200,
                "fetch.error.backoff.ms": 50,
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 1_000,
                "topic.metadata.refresh.interval.ms": 2_000,
                "statistics.interval.ms": 1_000 if rack else 0,
                "stats_cb": self._on_statistics,
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def _work(self) -> None:
        while not self.is_over.is_set():
            self._poll()
        self._consumer.close()

    def read_to_the_end(self, ends: dict[int, int], *, timeout_s: float) -> list[Poll]:
        """Instead of `start`: all that is there, as polls that are not in the history."""
        left = {partition for partition, end in ends.items() if end > 0}

        def is_all_read() -> bool:
            for poll in self._poll():
                if poll.found[-1][0] >= ends[poll.partition] - 1:
                    left.discard(poll.partition)
            return not left

        wait_until(
            is_all_read,
            timeout_s=timeout_s,
            detail=lambda: f"{self.name}: partitions {left} were not read to their ends {ends}",
        )
        self._consumer.close()
        return self.polls

    def ends(self, partitions: int) -> dict[int, int]:
        """The high watermark of each partition."""
        found = {}
        for index in range(partitions):
            _, end = self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, index), timeout=PATIENCE_S
            )
            found[index] = end
        return found

    def _poll(self) -> list[Poll]:
        found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for message in self._consumer.consume(500, timeout=0.2):
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                found[_known(message.partition())].append((_known(message.offset()), value.rstrip()))
            elif not error.retriable() or error.fatal():
                self._history.errors.append(f"{self.name}: {message.partition()}: {error}")
        now = time.monotonic()
        polls = [
            Poll(
                client=self.name,
                topic=self._topic,
                partition=partition,
                found=records,
                broker_id=-1,
                high_watermark=-1,
                time_s=now,
            )
            for partition, records in found.items()
        ]
        self.polls += polls
        return polls

    def _on_statistics(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        for row in topics.get(self._topic, {}).get("partitions", {}).values():
            self.from_followers += row["leader"] >= 0 <= row["broker"] != row["leader"]


class GroupMember(_Client):
    """The only member of its group: commits what it has read, and must find that again at each new assignment.

    It never waits for a commit: as long as it polls, its group can rebalance.
    """

    def __init__(self, name: str, bootstrap: str, history: History, *, topic: str, log: Path) -> None:
        """`log` is for librdkafka's messages about the group."""
        super().__init__(name)
        self._history, self._topic = history, topic
        #: By partition: the offset of its last acknowledged commit.
        self.committed: dict[int, int] = {}
        #: How often it was given its partitions.
        self.assignments = 0
        #: By partition: where it is, since it was assigned.
        self._positions: dict[int, int] = {}
        #: When the commit was sent of which it does not know what has become.
        self._commit_sent_s: float | None = None
        self._handler = logging.FileHandler(log)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger = logging.getLogger(f"librdkafka.{name}")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self._handler)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_000,
                "socket.timeout.ms": 5_000,
                "reconnect.backoff.max.ms": 1_000,
                "on_commit": self._on_commit,
                "debug": "cgrp",
            },
            logger=logger,
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign)

    def wait_for(self, ends: dict[int, int], *, timeout_s: float) -> None:
        """Wait until everything is committed."""
        wait_until(
            lambda: self.committed == ends or not self.is_alive(),
            timeout_s=timeout_s,
            detail=lambda: f"{self.name} has committed {self.committed} of {ends}",
        )

    def _work(self) -> None:
        while not self.is_over.is_set():
            self._read()
            if self._is_commit_due:
                self._commit()
        self._consumer.close()
        self._handler.close()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        self._positions.clear()

    def _read(self) -> None:
        for message in self._consumer.consume(500, timeout=0.2):
            if message.error() is not None:
                continue
            partition, offset = _known(message.partition()), _known(message.offset())
            least = self._positions.get(partition, self.committed.get(partition, 0))
            if offset < least:
                self._history.errors.append(f"{self.name}: {partition} goes on at {offset}, not at {least}")
            self._positions[partition] = offset + 1

    @property
    def _is_commit_due(self) -> bool:
        sent_s = self._commit_sent_s
        is_one_under_way = sent_s is not None and time.monotonic() < sent_s + _COMMIT_PATIENCE_S
        return not is_one_under_way and not self._positions.items() <= self.committed.items()

    def _commit(self) -> None:
        self._commit_sent_s = time.monotonic()
        offsets = [TopicPartition(self._topic, *each) for each in self._positions.items()]
        with suppress(KafkaException):  # the group has no coordinator at the moment
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def _on_commit(self, error: KafkaError | None, rows: list[TopicPartition]) -> None:
        self._commit_sent_s = None
        for row in rows:
            # Else it is unknown whether it is committed.
            if error is None and row.error is None:
                self.committed[row.partition] = row.offset


def _known(number: int | None) -> int:
    assert number is not None
    return number


def _code(error: KafkaError) -> ErrorCode:
    try:
        return ErrorCode(error.code())
    except ValueError:
        return ErrorCode.unknown_server_error  # librdkafka's own, below zero
