"""Configurations through the admin clients: described, altered in both ways, kept, and obeyed.

Every key and every value is compared with Kafka's by `test_configs.py`; here is what clients do with them.
"""

import kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kafka.admin import ConfigResource as KafkaPythonResource

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.compat.admin import (
    PATIENCE_S,
    admin_of,
    code_of,
    create_topic,
    eventually_equal,
    produce,
)
from tests.harness.blocking_wire import BlockingWire

SET, DELETE, APPEND, SUBTRACT = (
    AlterConfigOpType.SET,
    AlterConfigOpType.DELETE,
    AlterConfigOpType.APPEND,
    AlterConfigOpType.SUBTRACT,
)


def described(admin, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    return admin.describe_configs([resource])[resource].result(PATIENCE_S)


def value(admin, topic: str, key: str) -> tuple[str, ConfigSource]:
    entry = described(admin, ResourceType.TOPIC, topic)[key]
    return entry.value, ConfigSource(entry.source)


def alter(admin, kind: ResourceType, name: str, *operations) -> str | None:
    """Alter the configuration incrementally; returns the error's name."""
    entries = [
        ConfigEntry(key, value, incremental_operation=operation) for operation, key, value in operations
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    return code_of(admin.incremental_alter_configs([resource])[resource])


def alter_topic(admin, topic: str, *operations) -> str | None:
    return alter(admin, ResourceType.TOPIC, topic, *operations)


def test_a_topic_is_altered_key_by_key(server, topic):
    create_topic(server.bootstrap, topic, config={"retention.ms": "1000"})
    admin = admin_of(server.bootstrap)
    by_topic, by_default = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DEFAULT_CONFIG
    assert (
        alter_topic(admin, topic, (SET, "segment.ms", "5000"), (APPEND, "cleanup.policy", "compact")) is None
    )
    eventually_equal(lambda: value(admin, topic, "segment.ms"), ("5000", by_topic))
    assert value(admin, topic, "retention.ms") == ("1000", by_topic)
    assert value(admin, topic, "cleanup.policy") == ("delete,compact", by_topic)
    assert (
        alter_topic(admin, topic, (DELETE, "retention.ms", None), (SUBTRACT, "cleanup.policy", "delete"))
        is None
    )
    eventually_equal(lambda: value(admin, topic, "retention.ms"), ("604800000", by_default))
    assert value(admin, topic, "cleanup.policy") == ("compact", by_topic)
    for operation, expected in [
        ((SET, "nope", "1"), "INVALID_CONFIG"),
        ((SET, "segment.ms", "x"), "INVALID_CONFIG"),
        ((SET, "compression.type", "brotli"), "INVALID_CONFIG"),
        ((APPEND, "segment.ms", "1"), "INVALID_CONFIG"),
    ]:
        assert alter_topic(admin, topic, operation) == expected, operation
    assert alter_topic(admin, f"{topic}-unknown", (SET, "segment.ms", "1")) == "UNKNOWN_TOPIC_OR_PART"
    with pytest.raises(KafkaException):
        described(admin, ResourceType.TOPIC, f"{topic}-unknown")


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_the_old_way_of_altering_replaces_all(server, topic):
    create_topic(server.bootstrap, topic, config={"retention.ms": "1000"})
    admin = admin_of(server.bootstrap)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "6000"})
    assert code_of(admin.alter_configs([resource], validate_only=True)[resource]) is None
    assert value(admin, topic, "retention.ms")[0] == "1000"
    assert code_of(admin.alter_configs([resource])[resource]) is None
    eventually_equal(lambda: value(admin, topic, "segment.ms")[0], "6000")
    assert value(admin, topic, "retention.ms") == ("604800000", ConfigSource.DEFAULT_CONFIG)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "six"})
    assert code_of(admin.alter_configs([resource])[resource]) == "INVALID_CONFIG"


def test_every_entry_has_the_source_of_its_value(server, topic):
    create_topic(server.bootstrap, topic)
    entries = described(admin_of(server.bootstrap), ResourceType.TOPIC, topic)
    assert len(entries) > 30
    # The suite starts its servers with this key set.
    assert entries["max.message.bytes"].value == "12000000"
    assert ConfigSource(entries["max.message.bytes"].source) is ConfigSource.STATIC_BROKER_CONFIG
    assert "message.max.bytes" in entries["max.message.bytes"].synonyms
    assert entries["segment.bytes"].is_default


def test_max_message_bytes_takes_effect(server, topic):
    create_topic(server.bootstrap, topic, config={"max.message.bytes": "1000"})
    produce(server.bootstrap, topic, [b"x" * 800])
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        produce(server.bootstrap, topic, [b"x" * 2000])
    admin = admin_of(server.bootstrap)
    assert alter_topic(admin, topic, (SET, "max.message.bytes", "3000")) is None
    eventually_equal(lambda: value(admin, topic, "max.message.bytes")[0], "3000")
    produce(server.bootstrap, topic, [b"x" * 2000])


# KIP-226
def test_dynamic_broker_configurations_take_effect_and_survive_a_restart(own_server, topic):
    server = own_server
    admin = admin_of(server.bootstrap)
    assert alter(admin, ResourceType.BROKER, "1", (SET, "message.max.bytes", "5000")) is None
    for name, code in [("num.partitions", "INVALID_REQUEST"), ("log.dirs", "INVALID_REQUEST")]:
        assert alter(admin, ResourceType.BROKER, "1", (SET, name, "9")) == code
    with BlockingWire(server.port) as wire:  # No client library lets the cluster's defaults ("") through.
        change = AlterableConfig(name="log.retention.ms", config_operation=0, value="86400001")
        every_broker = AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[every_broker])
        (answer,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        assert answer.error_code == 0
    create_topic(server.bootstrap, topic, config={"segment.ms": "7000"})

    def seen() -> list[tuple[str, ConfigSource]]:
        return [value(admin, topic, key) for key in ("max.message.bytes", "retention.ms", "segment.ms")]

    expected = [
        ("5000", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("86400001", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("7000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
    ]
    eventually_equal(seen, expected)
    server.stop()
    server.start()
    eventually_equal(seen, expected)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        produce(server.bootstrap, topic, [b"x" * 6000])
    assert alter(admin, ResourceType.BROKER, "1", (DELETE, "message.max.bytes", None)) is None
    eventually_equal(lambda: value(admin, topic, "max.message.bytes")[0], "12000000")
    produce(server.bootstrap, topic, [b"x" * 6000])


def test_kafka_python_administers_configurations(server, topic):
    create_topic(server.bootstrap, topic)
    admin = kafka.KafkaAdminClient(bootstrap_servers=server.bootstrap)
    try:
        admin.alter_configs([KafkaPythonResource("TOPIC", topic, {"retention.ms": "123456"})])

        def modified() -> object:
            found = admin.describe_configs([KafkaPythonResource("TOPIC", topic)])
            return found["topic"][topic].get("retention.ms", {}).get("value")

        eventually_equal(modified, "123456")
        admin.reset_configs([KafkaPythonResource("TOPIC", topic, ["retention.ms"])])
        eventually_equal(modified, None)
        refused = admin.alter_configs(
            [KafkaPythonResource("TOPIC", topic, {"nope": "1"})], raise_on_unknown=False
        )
        assert "InvalidConfigurationError" in str(refused["topic"][topic])
    finally:
        admin.close()
