"""Rows of DescribeConfigs, as a Kafka 4.3.1 with the same properties answers them.

About KIP-133.
"""

import pytest

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigSource, ConfigType
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.describe import (
    Synonym,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from ottla.config.load import standalone_profile
from ottla.config.log_config import TOPIC_CONFIGS

TOPIC, OWN, CLUSTER, STATIC, DEFAULT = (
    ConfigSource.TOPIC,
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
    ConfigSource.DEFAULT,
)


def config(**static):
    return BrokerConfig(
        standalone_profile() | {name.replace("_", "."): value for name, value in static.items()}
    )


def row(rows, name):
    (found,) = [one for one in rows if one.name == name]
    return found


class TestTopics:
    def test_every_key_but_internal_ones(self):
        rows = describe_topic(config(), {})
        assert [one.name for one in rows] == [
            name for name, key in TOPIC_CONFIGS.items() if not key.is_internal
        ]
        assert not any(one.is_read_only or one.is_sensitive for one in rows)
        assert (
            row(describe_topic(config(), {"internal.segment.bytes": "9"}), "internal.segment.bytes").value
            == "9"
        )

    def test_synonyms_in_order(self):
        broker = config(log_retention_ms="4").with_dynamic(
            {"log.retention.ms": "3"}, {"log.retention.ms": "2"}
        )
        described = row(describe_topic(broker, {"retention.ms": "1"}), "retention.ms")
        assert (described.value, described.source, described.config_type) == ("1", TOPIC, ConfigType.LONG)
        assert described.synonyms == (
            Synonym("retention.ms", "1", TOPIC),
            Synonym("log.retention.ms", "2", OWN),
            Synonym("log.retention.ms", "3", CLUSTER),
            Synonym("log.retention.ms", "4", STATIC),
            Synonym("log.retention.hours", "168", DEFAULT),
        )

    def test_a_retention_in_hours_alone_has_no_source_of_its_own(self):
        """Kafka's odd corner: the value is right, but the synonyms of log.retention.ms hold no log.retention.ms."""
        described = row(describe_topic(config(log_retention_hours="24"), {}), "retention.ms")
        assert (described.value, described.source, described.synonyms) == ("86400000", DEFAULT, ())

    def test_values_are_normalized_and_synonyms_are_as_given(self):
        described = row(
            describe_topic(config(log_cleaner_min_cleanable_ratio="0.0001"), {}), "min.cleanable.dirty.ratio"
        )
        assert described.value == "1.0E-4"
        assert described.synonyms[0] == Synonym("log.cleaner.min.cleanable.ratio", "0.0001", STATIC)
        assert row(describe_topic(config(), {"segment.ms": " +7 "}), "segment.ms").value == "7"

    def test_a_key_without_a_brokers_one(self):
        described = row(describe_topic(config(), {}), "remote.storage.enable")
        assert (described.value, described.source, described.synonyms) == ("false", DEFAULT, ())


class TestBroker:
    def test_every_key_but_internal_ones_and_whatever_was_set(self):
        rows = describe_broker(config(some_key="x", unstable_api_versions_enable="false"))
        shown = {one.name for one in rows}
        assert shown >= {name for name, key in BROKER_CONFIGS.items() if not key.is_internal}
        assert shown >= {"some.key", "unstable.api.versions.enable"}
        assert "log.initial.task.delay.ms" not in shown

    @pytest.mark.parametrize(("name", "value", "source", "is_read_only", "config_type"), [
        ("num.partitions",   "1",       DEFAULT, True,  ConfigType.INT),
        ("message.max.bytes", "2000000", STATIC, False, ConfigType.INT),
        ("node.id",          "1",       STATIC,  True,  ConfigType.INT),
        ("broker.id",        "1",       STATIC,  True,  ConfigType.INT),  # follows node.id
        ("log.cleanup.policy", "delete", DEFAULT, False, ConfigType.LIST),
        ("log.roll.ms",      None,      DEFAULT, False, ConfigType.LONG),
        ("auto.create.topics.enable", "true", DEFAULT, True, ConfigType.BOOLEAN),
        ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308", DEFAULT, False, ConfigType.DOUBLE),
        ("listener.name.plaintext.max.connections", "9", STATIC, True, ConfigType.INT),
    ])  # fmt: skip
    def test_rows(self, name, value, source, is_read_only, config_type):
        broker = BrokerConfig(
            standalone_profile()
            | {"message.max.bytes": "2000000", "listener.name.plaintext.max.connections": "9"}
        )
        described = row(describe_broker(broker), name)
        assert (described.value, described.source, described.is_read_only, described.config_type) == (
            value, source, is_read_only, config_type,
        )  # fmt: skip
        assert not described.is_sensitive

    @pytest.mark.parametrize(
        ("name", "config_type"), [("ssl.keystore.password", ConfigType.PASSWORD), ("some.key", 0)]
    )
    def test_secrets_and_what_may_be_one_are_not_shown(self, name, config_type):
        described = row(describe_broker(BrokerConfig(standalone_profile() | {name: "geheim"})), name)
        assert (described.value, described.is_sensitive, described.config_type) == (None, True, config_type)
        assert "geheim" not in repr(described)

    def test_a_listeners_own_falls_back_to_the_brokers(self):
        name = "listener.name.plaintext.max.connections"
        described = row(describe_broker(BrokerConfig(standalone_profile() | {name: "9"})), name)
        assert described.synonyms == (
            Synonym(name, "9", STATIC),
            Synonym("max.connections", "2147483647", DEFAULT),
        )

    def test_cluster_defaults_are_only_what_was_altered(self):
        broker = config(message_max_bytes="3").with_dynamic(
            {"message.max.bytes": "4"}, {"message.max.bytes": "5"}
        )
        (described,) = describe_cluster_defaults(broker)
        assert (described.name, described.value, described.source) == ("message.max.bytes", "4", CLUSTER)
        assert described.synonyms == (Synonym("message.max.bytes", "4", CLUSTER),)
        assert describe_cluster_defaults(config()) == []

    # KIP-569
    def test_every_described_key_is_documented(self):
        assert [one.name for one in describe_broker(config()) if not one.documentation] == []


class TestGroupsAndClientMetrics:
    def test_groups(self):
        rows = describe_group(
            config(group_consumer_session_timeout_ms="50000"), {"share.isolation.level": "read_committed"}
        )
        assert len(rows) == 17
        described = row(rows, "consumer.session.timeout.ms")
        assert (described.value, described.source) == ("50000", STATIC)
        assert described.synonyms[-1] == Synonym("group.consumer.session.timeout.ms", "45000", DEFAULT)
        described = row(rows, "share.isolation.level")
        assert (described.value, described.source) == ("read_committed", ConfigSource.GROUP)
        assert described.synonyms[-1] == Synonym("share.isolation.level", "read_uncommitted", DEFAULT)

    def test_client_metrics(self):
        rows = describe_client_metrics({"interval.ms": "1000"})
        assert [(one.name, one.value, one.source) for one in rows] == [
            ("metrics", "", DEFAULT),
            ("interval.ms", "1000", ConfigSource.CLIENT_METRICS),
            ("match", "", DEFAULT),
        ]
