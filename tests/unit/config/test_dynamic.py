"""Dynamic configurations: which ones may be altered in which scope, and how unusable values are handled.

About KIP-226.
"""

import pytest

from ottla.config.broker_config import BrokerConfig
from ottla.config.dynamic import validate_broker_alter
from ottla.config.load import standalone_profile
from ottla.config.overrides import usable_overrides
from ottla.protocol.errors import ErrorCode, InvalidConfig, InvalidRequest

STATIC = standalone_profile() | {"log.retention.hours": "24", "num.network.threads": "3"}


@pytest.fixture
def config():
    return BrokerConfig(STATIC)


OWN, CLUSTER = "1", ""


@pytest.mark.parametrize(("resource", "overrides", "refused"), [
    (OWN,     {"log.retention.ms": "5000"},             None),
    (CLUSTER, {"log.retention.ms": "5000"},             None),
    (CLUSTER, {"leader.replication.throttled.rate": "9"}, None),  # exists only dynamically
    (OWN,     {"some.plugins.key": "x"},                None),    # Kafka keeps unknown keys too
    (OWN,     {"num.partitions": "4"},                  r"Cannot update these configs dynamically: \[num.partitions\]"),
    (OWN,     {"log.retention.hours": "4"},             "Cannot update these configs dynamically"),
    (CLUSTER, {"cordoned.log.dirs": "*"},               "at default cluster level, broker id must be specified"),
    (OWN,     {"cordoned.log.dirs": "*"},               None),
    (OWN,     {"cordoned.log.dirs": "/elsewhere"},      "entries of log.dirs"),
    (OWN,     {"ssl.keystore.location": "/x"},          "only per-listener using the listener prefix"),
    # Values
    (OWN,     {"log.segment.bytes": "5"},               "at least 1048576"),
    (OWN,     {"leader.replication.throttled.rate": "-1"}, "at least 0"),
    (OWN,     {"log.roll.ms": "0"},                     "log.roll.ms: it must be at least 1"),
    (OWN,     {"max.connections.per.ip.overrides": "a b"}, "host:count"),
    (OWN,     {"max.connections": "0"},                 "max.connections: it must be at least 1"),
    (OWN,     {"log.local.retention.ms": "99999999999"}, (r"log.local.retention.ms: .* and log.retention.ms "
                                                          r"\(86400000\)")),
    # Threads change in steps
    (OWN,     {"num.network.threads": "6"},             None),
    (OWN,     {"num.network.threads": "1"},             None),
    (OWN,     {"num.network.threads": "7"},             "between half and double the current value 3"),
    (OWN,     {"log.cleaner.threads": "3"},             "between half and double the current value 1"),
    # The remote tier (KIP-405)
    (OWN,     {"remote.log.reader.threads": "20"},      None),
    (OWN,     {"remote.log.reader.threads": "4"},       "between half and double the current value 10"),
    (CLUSTER, {"remote.log.manager.copier.thread.pool.size": "21"}, "between half and double the current value 10"),
    (CLUSTER, {"remote.log.manager.expiration.thread.pool.size": "5"}, None),
    (OWN,     {"remote.log.manager.follower.thread.pool.size": "4"}, None),
    (OWN,     {"remote.log.manager.follower.thread.pool.size": "5"}, "between half and double the current value 2"),
    (OWN,     {"remote.log.manager.thread.pool.size": "3"}, "Cannot update these configs dynamically"),
    (OWN,     {"remote.fetch.max.wait.ms": "0"},        "at least 1"),
    (OWN,     {"remote.log.manager.copy.max.bytes.per.second": "0"}, "at least 1"),
    (CLUSTER, {"remote.log.index.file.cache.total.size.bytes": "1"}, None),
    (OWN,     {"remote.log.storage.system.enable": "true"}, "Cannot update these configs dynamically"),
    # Elections (draft KIP-1303)
    (CLUSTER, {"leader.election.prefer.early.local.log.start.offset": "true"}, None),
    (CLUSTER, {"leader.election.local.log.start.offset.threshold": "-1"}, "at least 0"),
    (CLUSTER, {"leader.election.eligible.local.log.ms": "-1"}, None),
    (CLUSTER, {"leader.election.eligible.local.log.bytes": "-2"}, "at least -1"),
    # A listener's own
    (OWN,     {"listener.name.plaintext.max.connections": "7"},  None),
    (CLUSTER, {"listener.name.plaintext.max.connections": "7"},  None),
    (OWN,     {"listener.name.plaintext.max.connections": "x"},  "a 32-bit integer"),
    (OWN,     {"listener.name.plaintext.max.connections": "0"},
        "listener.name.plaintext.max.connections: it must be at least 1"),
    (CLUSTER, {"listener.name.plaintext.max.connection.creation.rate": "0"},
        "listener.name.plaintext.max.connection.creation.rate: it must be at least 1"),
    (CLUSTER, {"listener.name.plaintext.ssl.keystore.location": "/x"}, "at default cluster level"),
    # Kafka could, we cannot yet
    (OWN,     {"listeners": "PLAINTEXT://127.0.0.1:9099,CONTROLLER://127.0.0.1:9093"},
                                                        "restart it with other properties"),
    (OWN,     {"listener.name.plaintext.ssl.keystore.location": "/x"},
                                                        "restart it with other properties"),
    (OWN,     {"listener.name.plaintext.num.partitions": "4"},
                                                        "restart it with other properties"),
    (OWN,     {"listeners": STATIC["listeners"]},       None),    # no change
    (OWN,     {"principal.builder.class": "a.B"},       "another principal builder is not yet served"),
    (OWN,     {"config.providers": "file"},             "config providers is not yet served"),
    # Classes: Kafka refuses what it cannot load
    (OWN,     {"metric.reporters": "org.apache.kafka.common.metrics.JmxReporter"}, None),
    (OWN,     {"metric.reporters": ""},                 None),
    (OWN,     {"metric.reporters": "com.example.Reporter"}, "loads no Java classes: com.example.Reporter"),
    (CLUSTER, {"metric.reporters": "org.apache.kafka.common.metrics.JmxReporter,a.B"}, "loads no Java classes: a.B"),
    (OWN,     {"ssl.engine.factory.class": "a.B"},      "loads no Java classes: a.B"),
    (OWN,     {"ssl.engine.factory.class": ""},         "loads no Java classes"),
    # No effect, and a warning
    (OWN,     {"num.io.threads": "4"},                  None),
    (OWN,     {"sasl.enabled.mechanisms": "PLAIN"},     None),
    # Other brokers
    ("9" * 5000, {"log.retention.ms": "5000"},          f"Node id must be an integer, but it is: {'9' * 5000}"),
    ("1_0",   {"log.retention.ms": "5000"},             "Node id must be an integer, but it is: 1_0"),
    ("2",     {"log.retention.ms": "5000"},             "Unexpected broker id, expected 1, but received 2"),
    ("one",   {},                                       "Node id must be an integer, but it is: one"),
])  # fmt: skip
def test_what_may_be_altered(config, resource, overrides, refused):
    if refused is None:
        validate_broker_alter(config, resource, overrides)
    else:
        with pytest.raises(InvalidRequest, match=refused) as error:
            validate_broker_alter(config, resource, overrides)
        assert error.value.code == ErrorCode.invalid_request


@pytest.mark.parametrize(("size", "is_allowed"), [("16", True), ("17", False), ("4", True), ("3", False)])
def test_the_follower_pools_size_under_its_former_name(size, is_allowed):
    """The former name counts as the current value, so that an unrelated change is not judged by it."""
    config = BrokerConfig(STATIC | {"remote.log.manager.thread.pool.size": "8"})
    validate_broker_alter(config, CLUSTER, {"log.retention.ms": "5000"})
    overrides = {"remote.log.manager.follower.thread.pool.size": size}
    if is_allowed:
        validate_broker_alter(config, CLUSTER, overrides)
    else:
        with pytest.raises(InvalidRequest, match="between half and double the current value 8"):
            validate_broker_alter(config, CLUSTER, overrides)


def test_classes_that_were_set_before_are_no_change():
    """Another version, or a Kafka broker, may have accepted them, and a file is loaded as it is."""
    config = BrokerConfig(STATIC | {"metric.reporters": "a.B"}).with_dynamic(
        {}, {"ssl.engine.factory.class": "c.D"}
    )
    validate_broker_alter(config, OWN, {"log.retention.ms": "5000", "ssl.engine.factory.class": "c.D"})
    validate_broker_alter(config, OWN, {"metric.reporters": "a.B"})
    with pytest.raises(InvalidRequest, match="loads no Java classes"):
        validate_broker_alter(config, OWN, {"metric.reporters": "c.D"})


def test_what_is_altered_is_judged_together_with_what_holds(config):
    held = config.with_dynamic({"log.cleaner.max.compaction.lag.ms": "10"}, {})
    with pytest.raises(InvalidRequest, match="must not be above"):
        validate_broker_alter(held, OWN, {"log.cleaner.min.compaction.lag.ms": "11"})
    validate_broker_alter(config, OWN, {"log.cleaner.min.compaction.lag.ms": "11"})


def test_an_override_beats_every_synonym_below_it(config):
    dynamic = config.with_dynamic({"log.retention.ms": "7000"}, {})
    assert dynamic.log_defaults.retention_ms == 7000
    assert "log.retention.hours" not in dynamic.texts
    assert dynamic.static == config.static
    assert config.log_defaults.retention_ms == 24 * 3_600_000  # the old one is as it was


def test_a_brokers_own_value_beats_the_clusters(config):
    both = config.with_dynamic(
        {"message.max.bytes": "1", "log.segment.bytes": "2097152"}, {"message.max.bytes": "2"}
    )
    assert both.get("message.max.bytes") == 2
    assert both.log_defaults.segment_bytes == 2**21
    assert both.with_dynamic({}, {}).get("message.max.bytes") == 1048588


def test_rates_that_exist_only_dynamically(config):
    rate = "follower.replication.throttled.rate"
    assert config.dynamic_value(rate) == 2**63 - 1
    of_cluster = config.with_dynamic({rate: "9"}, {})
    assert of_cluster.dynamic_value(rate) == 9
    assert of_cluster.with_dynamic({rate: "9"}, {rate: "7"}).dynamic_value(rate) == 7


def test_stored_values_that_cannot_be_used_are_left_out():
    stored = {
        "log.retention.ms": "soon",
        "num.partitions": "3",
        "ssl.keystore.location": "/x",
        "sasl.enabled.mechanisms": "PLAIN",
        "message.max.bytes": "5",
        "some.plugins.key": "x",
        # What a controller has taken, which asks no broker:
        "listeners": "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        "config.providers": "file",
        "listener.name.plaintext.ssl.keystore.location": "/x",
    }
    fine = {"message.max.bytes": "5", "some.plugins.key": "x"}
    assert usable_overrides(stored, STATIC, is_per_broker=False) == fine
    assert usable_overrides(stored, STATIC, is_per_broker=True) == fine | {"sasl.enabled.mechanisms": "PLAIN"}


def test_what_is_left_out_is_logged(config):
    assert config.with_dynamic({"num.partitions": "3"}, {"message.max.bytes": "5"}).ignored_overrides == (
        "num.partitions",
    )
    assert config.ignored_overrides == ()


def test_stored_values_that_contradict_each_other_are_logged(config):
    with pytest.raises(InvalidConfig):
        config.with_dynamic(
            {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"}, {}
        )
