"""The log lines about a node's configuration, at start and when values are altered: one for each feature, not
each key."""

import pytest

from ottla.config.broker_config import BrokerConfig
from ottla.config.load import standalone_profile
from ottla.config.notices import changed, dynamic_warnings, infos, warnings

NODE = standalone_profile()

#: What Kafka's distribution sets in config/server.properties (4.3), config/broker.properties and
#: config/controller.properties, but for the addresses.
KAFKAS_OWN = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
SERVER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,"
    "SASL_SSL:SASL_SSL",
} | KAFKAS_OWN
BROKER = SERVER | {
    "process.roles": "broker",
    "node.id": "2",
    "listeners": "PLAINTEXT://localhost:9092",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
}
CONTROLLER = {name: value for name, value in SERVER.items() if name != "inter.broker.listener.name"} | {
    "process.roles": "controller",
    "listeners": "CONTROLLER://:9093",
    "advertised.listeners": "CONTROLLER://localhost:9093",
}


def no_effect(feature, *names):
    return f"These configurations have no effect, since this broker does not serve {feature} yet: {', '.join(names)}."


SHARE = no_effect(
    "share groups (KIP-932)",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
)
TRANSACTIONS = no_effect(
    "transactions (KIP-98)", "transaction.state.log.min.isr", "transaction.state.log.replication.factor"
)
NO_MEANING = (
    "These configurations have no meaning for this broker and are ignored: num.io.threads, num.network.threads. "
    "docs/CONFIGURATION.md gives the reasons."
)


@pytest.mark.parametrize(("properties", "more"), [
    (SERVER, []),
    (BROKER, ["Configuration num.partitions is set on a broker: the controllers' value counts."]),
    (CONTROLLER, []),
], ids=["server", "broker", "controller"])  # fmt: skip
def test_the_properties_of_kafkas_distribution_start_without_a_flood(properties, more):
    config = BrokerConfig(properties)
    assert list(warnings(config)) == [SHARE, TRANSACTIONS, *more]
    assert list(infos(config)) == [NO_MEANING]


def test_no_notice_without_an_ignored_value():
    config = BrokerConfig(NODE)
    assert [*warnings(config), *infos(config), *dynamic_warnings(config)] == []


PROTOCOLS = "group.coordinator.rebalance.protocols"
OF_LISTENER = "listener.name.plaintext.num.partitions has no effect: "
WITHOUT_TIER = "These configurations have no effect, since remote.log.storage.system.enable is false: "
ONLY_DYNAMIC = "These configurations have no effect in a file, since they can only be altered dynamically: "


@pytest.mark.parametrize(("changes", "sentences"), [
    ({"num.partition": "3", "a.b": "4"},
     ["These configurations are not known and have no effect: a.b, num.partition (did you mean num.partitions?)."]),
    ({"leader.replication.throttled.rate": "5"},
     [ONLY_DYNAMIC + "leader.replication.throttled.rate."]),
    # One line for each feature, whatever its keys are called
    ({"ssl.keystore.location": "/x",
      "listener.name.plaintext.ssl.key.password": "x", "listener.name.plaintext.plain.sasl.jaas.config": "x"},
     [no_effect("SASL", "listener.name.plaintext.plain.sasl.jaas.config"),
      no_effect("SSL", "listener.name.plaintext.ssl.key.password", "ssl.keystore.location")]),
    # The remote tier is not switched on (KIP-405)
    ({"rsm.config.bucket": "b", "log.local.retention.ms": "5", "remote.log.reader.threads": "5",
      "remote.log.storage.system.enable": "false"},
     [WITHOUT_TIER + "log.local.retention.ms, remote.log.reader.threads, rsm.config.bucket."]),
    ({"rsm.config.bucket": "b", "x.bucket": "b", "rlmm.config.y": "c", "remote.log.storage.manager.impl.prefix": "x.",
      "remote.log.storage.system.enable": "true", "remote.log.storage.manager.class.name": "s3"},
     ["These configurations are not known and have no effect: rsm.config.bucket."]),
    # A value that describes this broker
    ({PROTOCOLS: "classic"}, []),
    ({PROTOCOLS: "classic,consumer"}, [no_effect("any rebalance protocol but classic", PROTOCOLS)]),
    # One listener's own
    ({"listener.name.plaintext.max.connections": "7"}, []),
    ({"listener.name.nowhere.max.connections": "7"},
     ["listener.name.nowhere.max.connections has no effect: this node has no listener NOWHERE."]),
    ({"listener.name.plaintext.num.partitions": "7"},
     [OF_LISTENER + "num.partitions cannot be set for one listener; set num.partitions itself."]),
])  # fmt: skip
def test_warnings(changes, sentences):
    assert list(warnings(BrokerConfig(NODE | changes))) == sentences


def test_dynamic_values_without_an_effect():
    altered = BrokerConfig(NODE).with_dynamic(
        {"num.io.threads": "9", "num.partitions": "3", "message.max.bytes": "5"},
        {
            "transaction.partition.verification.enable": "false",
            "listener.name.nowhere.max.connections": "5",
        },
    )
    assert list(dynamic_warnings(altered)) == [
        "Dynamic configurations that this version cannot use: num.partitions.",
        no_effect("transactions (KIP-98)", "transaction.partition.verification.enable"),
        "Dynamic configurations without a meaning for this broker: num.io.threads.",
        "listener.name.nowhere.max.connections has no effect: this node has no listener NOWHERE.",
    ]


def test_the_line_of_changed_configurations_has_no_secrets():
    config = BrokerConfig(
        SERVER
        | {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "s3",
            "rsm.config.bucket": "segments",
            "rsm.config.endpoint": "http://user:hunter2@store:9000/path",
            "rsm.config.secret.key": "hunter2",
            "sasl.jaas.config": "hunter2",
            "listener.name.plaintext.plain.sasl.jaas.config": "hunter2",
            "sasl.oauthbearer.token.endpoint.url": "https://user:hunter2@tokens/",
            "token.of.a.plugin": "hunter2",
        }
    )
    lines = list(changed(config))
    assert not [line for line in lines if "hunter2" in line]
    assert "rsm.config.endpoint=http://[hidden]@store:9000/path" in lines
    assert "rsm.config.bucket=segments" in lines
