"""Members of one consumer group, each from another client library, each in a thread of its own."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import ClassVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from ottla.bench.components.processes import PATIENCE_S, Child
from tests.harness.kafka import tool_command

_COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
#: A thread that does not run for a while is not to lose its place.
_SESSION_MS = 120_000
_HEARTBEAT_MS = 300


class Member:
    """Consumes in a group until it is stopped; commits what it has consumed; reports its assignment."""

    _running: ClassVar[set["Member"]] = set()

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.taken: list[tuple[int, int, bytes]] = []  # partition, offset, value
        self.assigned: frozenset[int] = frozenset()
        self.error: BaseException | None = None
        self._bootstrap, self._group, self._topic = bootstrap, group, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Member":
        self._thread.start()
        self._running.add(self)
        return self

    @classmethod
    def end_all(cls) -> None:
        """End those that a failed test has left behind: they would knock at a stopped broker's door in later tests."""
        for member in cls._running:
            member._stopping.set()
        while cls._running:
            cls._running.pop()._thread.join(PATIENCE_S)

    def stop(self) -> None:
        """Commit, leave the group and end."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        self._running.discard(self)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._consume()
        except BaseException as error:  # noqa: BLE001 raised by stop()
            self.error = error

    def _consume(self) -> None:
        raise NotImplementedError


class ConfluentMember(Member):
    """A group member of confluent-kafka, which is librdkafka."""

    strategy = "range"

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": self.strategy,
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _HEARTBEAT_MS,
            }
        )
        consumer.subscribe([self._topic])
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    self.taken.append((message.partition(), message.offset(), message.value()))
                self.assigned = frozenset(held.partition for held in consumer.assignment())
                self._commit(consumer)
        finally:
            consumer.close()

    @staticmethod
    def _commit(consumer: confluent_kafka.Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            # Nothing new to commit; or a rebalance is under way, and what was taken is given again; or the
            # broker stops or has just started, and it is committed the next time.
            allowed = {
                confluent_kafka.KafkaError._NO_OFFSET,
                confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
                confluent_kafka.KafkaError.ILLEGAL_GENERATION,
                confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID,
                confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
                confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
                confluent_kafka.KafkaError.NOT_COORDINATOR,
                confluent_kafka.KafkaError._WAIT_COORD,
            }
            if error.args[0].code() not in allowed:
                raise


class CooperativeMember(ConfluentMember):
    """librdkafka, which keeps what it holds while it rebalances (KIP-429)."""

    strategy = "cooperative-sticky"


class AiokafkaMember(Member):
    """aiokafka, on a loop of its own."""

    def _consume(self) -> None:
        asyncio.run(self._consume_async())

    async def _consume_async(self) -> None:
        async with aiokafka.AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        ) as consumer:
            while not self._stopping.is_set():
                batches = await consumer.getmany(timeout_ms=100)
                for records in batches.values():
                    self.taken += [(record.partition, record.offset, record.value) for record in records]
                self.assigned = frozenset(held.partition for held in consumer.assignment())
                if batches:
                    await self._commit(consumer)

    @staticmethod
    async def _commit(consumer: aiokafka.AIOKafkaConsumer) -> None:
        # A rebalance is under way: what was taken is given again.
        with contextlib.suppress(aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
            await consumer.commit()


class KafkaPythonMember(Member):
    """A group member of kafka-python."""

    def _consume(self) -> None:
        consumer = kafka.KafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_HEARTBEAT_MS,
        )
        # A member that first learns of its topic's partitions after it has joined joins once more, and
        # kafka-python (3.0.12) loses what that gives it if a poll() ends meanwhile: it would stay without
        # partitions.
        consumer.partitions_for_topic(self._topic)
        try:
            while not self._stopping.is_set():
                batches = consumer.poll(timeout_ms=100)
                for records in batches.values():
                    self.taken += [(record.partition, record.offset, record.value) for record in records]
                self.assigned = frozenset(held.partition for held in consumer.assignment())
                if batches:
                    with contextlib.suppress(kafka.errors.CommitFailedError):  # as above
                        consumer.commit()
        finally:
            consumer.close()


class JavaMember:
    """Kafka's own consumer, as the console consumer in a process of its own: cooperative and static."""

    def __init__(self, bootstrap: str, group: str, topic: str, *, instance: str, log: Path) -> None:
        self._command = tool_command(
            "kafka-console-consumer",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group, "--from-beginning"),
            *("--command-property", "partition.assignment.strategy=" + _COOPERATIVE),
            *("--command-property", f"group.instance.id={instance}"),
            *("--command-property", "auto.commit.interval.ms=100"),
            *("--command-property", f"session.timeout.ms={_SESSION_MS}"),
            *("--command-property", f"heartbeat.interval.ms={_HEARTBEAT_MS}"),
        )
        self._log = log
        self.child: Child

    def start(self) -> "JavaMember":
        self.child = Child(self._command, log=self._log)
        return self

    @property
    def taken(self) -> list[bytes]:
        """All values that it, and those before it with this log, printed."""
        return [line.encode() for line in self.child.output().splitlines() if line.isdecimal()]


MEMBERS = (ConfluentMember, AiokafkaMember, KafkaPythonMember)
