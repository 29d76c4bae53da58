"""The same configurations, alterations and refusals on Ottla and on Apache Kafka 4.3.1, side by side.

Rows of DescribeConfigs must be equal in everything but the documentation: value, source, synonyms, type,
read-only and sensitive flags. Refusals must have the same error code.

About KIP-133, KIP-339, KIP-569.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.bench.components.processes import comes_true, wait_until
from ottla.config.config_def import AlterOperation
from ottla.config.topic_configs import LEADER_PREFERENCE_CONFIGS
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.harness.blocking_wire import BlockingWire
from tests.harness.kafka import KafkaServer
from tests.harness.ottla import OttlaServer

SETTINGS = {
    "log.roll.ms": "86400000",
    "log.retention.hours": "24",
    "log.cleaner.min.cleanable.ratio": "0.0001",
    "message.max.bytes": "2000000",
    "num.partitions": "3",
    "some.unknown.key": "7",
    "ssl.keystore.password": "secret",
    "unstable.api.versions.enable": "false",
    "listener.name.plaintext.max.connections": "1000",
    "group.initial.rebalance.delay.ms": "0",
    # Whatever Ottla's standalone profile says beyond what the harness gives Kafka:
    "inter.broker.listener.name": "PLAINTEXT",
    "socket.send.buffer.bytes": "-1",
    "socket.receive.buffer.bytes": "-1",
    "replica.socket.receive.buffer.bytes": "-1",
    # And what the harness gives Kafka:
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

#: Configurations that Kafka 4.3.1 does not have.
OF_KAFKA_4_4 = {
    # Not served: the dead letter queues of share groups, and what else is new in groups.
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.topic.name.prefix",
    "max.decompressed.message.bytes",
    "log.remote.copy.lag.ms",
    "log.remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "remote.copy.lag.bytes",
}

#: Set by the way the two are started, to different values; and what Kafka does not have.
OF_THE_START = {
    "metrics.listeners",
    "metrics.names",
    "metrics.clients.max.series",
    "metrics.groups.max.rows",
    "remote.log.manager.transfer.deadline.ms",
    "remote.log.storage.manager.process.enable",
    *LEADER_PREFERENCE_CONFIGS,
    *OF_KAFKA_4_4,
    "listeners",
    "log.dirs",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
}

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = AlterOperation


class Admin(BlockingWire):
    """A connection that speaks the admin requests of this test."""

    def create_topic(self, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        response = self.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert response.topics[0].error_code == 0, response
        wait_until(lambda: self._ask(TOPIC, name).error_code == 0)

    def _ask(self, kind: int, name: str) -> DescribeConfigsResult:
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        (result,) = self.call(ApiKey.DESCRIBE_CONFIGS, 4, request).results
        return result

    def describe(self, kind: int, name: str) -> dict[str, tuple[Any, ...]]:
        result = self._ask(kind, name)
        assert result.error_code == 0, result
        return {
            row.name: (
                row.value,
                row.read_only,
                row.config_source,
                row.is_sensitive,
                row.config_type,
                [(one.name, one.value, one.source) for one in row.synonyms],
            )
            for row in result.configs
        }

    def alter(self, kind: int, name: str, *operations: tuple[str, AlterOperation, str | None]) -> int:
        resource = AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                AlterableConfig(name=key, config_operation=op, value=text) for key, op, text in operations
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        (result,) = self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        return int(result.error_code)


class Both:
    """Ottla and Kafka, asked the same."""

    def __init__(self, ottla: Admin, kafka: Admin) -> None:
        self.ottla = ottla
        self.kafka = kafka

    def alter(
        self, kind: int, name: str, *operations: tuple[str, AlterOperation, str | None]
    ) -> tuple[int, int]:
        return self.ottla.alter(kind, name, *operations), self.kafka.alter(kind, name, *operations)

    def assert_equal(self, kind: int, name: str) -> None:
        """Both apply alterations a moment after they answer them: wait until they agree."""
        ours: dict[str, tuple[Any, ...]] = {}
        theirs: dict[str, tuple[Any, ...]] = {}

        def are_equal() -> bool:
            for found, admin in ((ours, self.ottla), (theirs, self.kafka)):
                found.clear()
                found.update(admin.describe(kind, name))
                for key in OF_THE_START:
                    found.pop(key, None)
            return ours == theirs

        if not comes_true(are_equal):
            assert ours == theirs


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder: Path = tmp_path_factory.mktemp("configs")
    ottla = OttlaServer(folder / "ottla", settings=SETTINGS).start()
    kafka = KafkaServer(folder / "kafka", settings=SETTINGS).start()
    with Admin(ottla.port) as of_ottla, Admin(kafka.port) as of_kafka:
        for admin in (of_ottla, of_kafka):
            admin.create_topic("t")
        connected = Both(of_ottla, of_kafka)
        # A Kafka with eligible leader replicas keeps this one in the metadata log from the start.
        assert connected.alter(BROKER, "", ("min.insync.replicas", SET, "1")) == (0, 0)
        yield connected
    ottla.stop()
    kafka.stop()


RESOURCES = [(TOPIC, "t"), (BROKER, "1"), (BROKER, ""), (GROUP, "g"), (CLIENT_METRICS, "m")]


@pytest.mark.parametrize(("kind", "name"), RESOURCES)
def test_descriptions(both, kind, name):
    both.assert_equal(kind, name)


ALTERATIONS = [
    # kind, name, operations, error code
    (TOPIC, "t", [("retention.ms", SET, "1000"), ("cleanup.policy", APPEND, "compact")], 0),
    (TOPIC, "t", [("min.cleanable.dirty.ratio", SET, "0.00001"), ("local.retention.ms", SET, "-2")], 0),
    (TOPIC, "t", [("internal.segment.bytes", SET, "1000")], 0),
    (TOPIC, "t", [("segment.ms", SET, " +8 "), ("preallocate", SET, "TRUE")], 0),
    (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete,compact")], 0),
    (TOPIC, "t", [("leader.replication.throttled.replicas", SET, "*")], 0),
    (TOPIC, "t", [("segment.ms", SET, "0")], 40),
    (TOPIC, "t", [("segment.ms", SET, "x")], 40),
    (TOPIC, "t", [("segment.ms", APPEND, "1")], 40),
    (TOPIC, "t", [("nope", SET, "1")], 40),
    (TOPIC, "t", [("nope", APPEND, "1")], 40),
    (TOPIC, "t", [("cleanup.policy", SET, "keep")], 40),
    (TOPIC, "t", [("compression.type", SET, "ZSTD")], 40),
    (TOPIC, "t", [("compression.gzip.level", SET, "0")], 40),
    (TOPIC, "t", [("min.compaction.lag.ms", SET, "5"), ("max.compaction.lag.ms", SET, "4")], 40),
    (TOPIC, "t", [("remote.storage.enable", SET, "true")], 40),
    (TOPIC, "t", [("segment.ms", SET, "9"), ("segment.ms", SET, "10")], 42),
    (TOPIC, "t", [("segment.ms", SET, None)], 42),
    (TOPIC, "nowhere", [("segment.ms", SET, "9")], 3),
    (BROKER, "1", [("log.retention.ms", SET, "5000")], 0),
    (BROKER, "", [("log.retention.ms", SET, "6000"), ("message.max.bytes", SET, "3000000")], 0),
    (BROKER, "", [("leader.replication.throttled.rate", SET, "1000")], 0),
    (BROKER, "1", [("listener.name.plaintext.max.connections", SET, "77")], 0),
    (BROKER, "1", [("some.other.key", SET, "1")], 0),
    (BROKER, "1", [("log.cleanup.policy", APPEND, "compact")], 0),
    (BROKER, "1", [("num.io.threads", SET, "100")], 42),
    (BROKER, "1", [("num.partitions", SET, "4")], 42),
    (BROKER, "", [("cordoned.log.dirs", SET, "*")], 42),
    (BROKER, "1", [("ssl.keystore.location", SET, "/x")], 42),
    (BROKER, "1", [("ssl.engine.factory.class", SET, "com.example.Missing")], 42),
    (BROKER, "", [("metric.reporters", SET, "com.example.Missing")], 42),
    (BROKER, "1", [("metric.reporters", APPEND, "com.example.Missing")], 42),
    (BROKER, "1", [("log.roll.ms", SET, "0")], 42),
    (BROKER, "1", [("log.local.retention.ms", SET, "99999999")], 42),
    (BROKER, "1", [("unknown.list", APPEND, "9")], 40),
    (BROKER, "2", [("log.retention.ms", SET, "1")], 42),
    (GROUP, "g", [("consumer.session.timeout.ms", SET, "50000")], 0),
    (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], 40),
    (GROUP, "g", [("nope", SET, "1")], 40),
    (CLIENT_METRICS, "m", [("interval.ms", SET, "1000"), ("match", SET, "client_id=x.*")], 0),
    (CLIENT_METRICS, "m", [("interval.ms", SET, "10")], 42),
    (CLIENT_METRICS, "m", [("match", SET, "colour=red")], 40),
]


def test_alterations_and_what_they_leave(both):
    """One story, since each step starts from what the ones before left."""
    for kind, name, operations, code in ALTERATIONS:
        assert both.alter(kind, name, *operations) == (code, code), (kind, name, operations)
        if code == 0:
            both.assert_equal(kind, name)
    for kind, name in RESOURCES:
        both.assert_equal(kind, name)


def test_deleting_gives_back_what_was_before(both):
    assert both.alter(TOPIC, "t", ("retention.ms", DELETE, None)) == (0, 0)
    assert both.alter(BROKER, "1", ("log.retention.ms", DELETE, None)) == (0, 0)
    both.assert_equal(TOPIC, "t")
    both.assert_equal(BROKER, "1")
