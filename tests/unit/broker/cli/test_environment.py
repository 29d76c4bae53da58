"""The variables of Apache Kafka's image as a node's properties."""

import pytest

from ottla.broker.cli.environment import property_name, read_environment, variable_name
from ottla.config.broker_config import BrokerConfig
from ottla.config.definitions import BROKER_CONFIGS
from ottla.protocol.errors import InvalidConfig

#: What the compose files of Apache Kafka's repository set in each container (docker/examples, 3.9 and 4).
OF_ALL = {
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
}
SINGLE = {
    **OF_ALL,
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
    "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
}
CONTROLLER = {
    **OF_ALL,
    "KAFKA_NODE_ID": "2",
    "KAFKA_PROCESS_ROLES": "controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@controller-1:9093,2@controller-2:9093",
    "KAFKA_LISTENERS": "CONTROLLER://:9093",
}
BROKER = {
    **OF_ALL,
    "KAFKA_NODE_ID": "4",
    "KAFKA_PROCESS_ROLES": "broker",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@controller-1:9093,2@controller-2:9093",
    "KAFKA_LISTENERS": "PLAINTEXT://:19092,PLAINTEXT_HOST://:9092",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:19092,PLAINTEXT_HOST://localhost:29092",
}


def read(variables, mounted=None):
    return read_environment(variables, mounted=mounted, hostname="box", data_dir="/data")


def config(variables, mounted=None):
    return BrokerConfig(read(variables, mounted).properties)


def shown(listeners):
    return [f"{each.name}://{each.host}:{each.port}" for each in listeners]


def test_every_configuration_has_a_variable():
    assert [name for name in BROKER_CONFIGS if property_name(variable_name(name)) != name] == []


@pytest.mark.parametrize(("variables", "bound", "advertised"), [
    (SINGLE,     ["PLAINTEXT_HOST://:9092", "PLAINTEXT://:19092"],
                 ["PLAINTEXT_HOST://localhost:9092", "PLAINTEXT://broker:19092"]),
    (CONTROLLER, [], []),
    (BROKER,     ["PLAINTEXT://:19092", "PLAINTEXT_HOST://:9092"],
                 ["PLAINTEXT://kafka-1:19092", "PLAINTEXT_HOST://localhost:29092"]),
])  # fmt: skip
def test_compose_files_of_apache_kafka(variables, bound, advertised):
    found = config(variables)
    assert str(found.node_id) == variables["KAFKA_NODE_ID"]
    assert (shown(found.listeners), shown(found.advertised_listeners)) == (bound, advertised)
    assert found.log_dirs == ("/tmp/kraft-combined-logs",)
    assert read(variables).cluster_id == variables["CLUSTER_ID"]


def test_a_node_without_any_variable_is_a_cluster_by_itself_with_two_listeners():
    found = config({})
    assert found.is_whole_cluster
    assert shown(found.listeners) == ["HOST://0.0.0.0:9092", "PLAINTEXT://0.0.0.0:19092"]
    assert shown(found.advertised_listeners) == ["HOST://localhost:9092", "PLAINTEXT://box:19092"]
    assert (found.inter_broker_listener_name, found.log_dirs) == ("PLAINTEXT", ("/data",))
    assert found.metrics_listeners == (("0.0.0.0", 9404),)


@pytest.mark.parametrize(("variables", "advertised"), [
    ({"ADVERTISED_HOST": "kafka.example"}, ["HOST://kafka.example:9092", "PLAINTEXT://box:19092"]),
    ({"KAFKA_ADVERTISED_LISTENERS": "OUT://a.example:9, IN://box:8"}, ["OUT://a.example:9", "IN://box:8"]),
    ({"KAFKA_ADVERTISED_LISTENERS": "", "KAFKA_NODE_ID": "7"}, ["HOST://localhost:9092", "PLAINTEXT://box:19092"]),
])  # fmt: skip
def test_a_cluster_by_itself_with_other_addresses(variables, advertised):
    found = config(variables)
    assert shown(found.advertised_listeners) == advertised
    assert [each.port for each in found.listeners] == [each.port for each in found.advertised_listeners]
    assert found.is_whole_cluster


def test_a_cluster_by_itself_with_the_listeners_of_testcontainers():
    """Its variables name no listener for controllers, at whose port it has clients; `broker.id` is ZooKeeper's."""
    found = config({
        "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9093,BROKER://0.0.0.0:9092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:32768,BROKER://box:9092",
        "KAFKA_BROKER_ID": "4",
    })  # fmt: skip
    assert found.is_whole_cluster
    assert found.node_id == 4
    assert shown(found.listeners) == ["PLAINTEXT://0.0.0.0:9093", "BROKER://0.0.0.0:9092"]
    assert shown(found.controller_listeners) == ["CONTROLLER://127.0.0.1:9094"]


def test_variables_override_a_mounted_file_and_defaults_fill_it_up():
    mounted = {name: value for name, value in read(SINGLE).properties.items() if name != "log.dirs"}
    found = config({"KAFKA_NODE_ID": "1", "KAFKA_NUM_PARTITIONS": "5"}, mounted | {"num.partitions": "3"})
    assert (found.get("num.partitions"), found.log_dirs) == (5, ("/data",))
    with pytest.raises(InvalidConfig, match=r"process\.roles"):
        config({}, {"node.id": "1"})


def test_keys_of_a_remote_tier_and_of_a_listener_and_the_images_own_variables():
    found = read({
        "KAFKA_RSM_CONFIG_PATH_STYLE": "true", "KAFKA_LISTENER_NAME_HOST_MAX_CONNECTIONS": "9", "METRICS_PORT": "7",
        "TIER": "/tier", "INITIAL_CONTROLLERS": "1@a:1:x", "HOME": "/root", "KAFKA": "is no prefix",
    })  # fmt: skip
    assert found.properties["rsm.config.path.style"] == "true"
    assert found.properties["listener.name.host.max.connections"] == "9"
    assert found.properties["metrics.listeners"] == "http://0.0.0.0:7"
    assert (found.tier, found.initial_controllers, found.metrics_port) == ("/tier", "1@a:1:x", 7)


@pytest.mark.parametrize("variables", [
    {"KAFKA_HEAP_OPTS": "-Xmx1G", "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN"},
    {"KAFKA_SERVICE_HOST": "10.0.0.1", "KAFKA_PORT": "tcp://10.0.0.1:9092", "KAFKA_PORT_9092_TCP_PORT": "9092"},
    {"KAFKA_BROKER_SERVICE_PORT_HTTP": "80"},
])  # fmt: skip
def test_variables_without_effect_are_named_in_one_warning(variables):
    [warning] = read({**SINGLE, **variables}).warnings
    assert "have no effect" in warning
    assert all(name in warning for name in variables)


@pytest.mark.parametrize(("variables", "message"), [
    ({"KAFKA_LOG_RETENTION_HUORS": "1"},
     r"no configuration log\.retention\.huors\. Did you mean KAFKA_LOG_RETENTION_HOURS,"),
    ({"KAFKA_ZZZ": "secret"},
     r"^KAFKA_ZZZ is set, but there is no configuration zzz\. Remove the variable\.$"),
    ({"KAFKA_BROKER_PORT": "9092"},
     r"KAFKA_BROKER_PORT is set"),
    ({"METRICS_PORT": "http"},
     r"METRICS_PORT=http is no port"),
    ({"ADVERTISED_HOST": "a", "KAFKA_PROCESS_ROLES": "broker"},
     r"ADVERTISED_HOST=a has no effect"),
    ({"INITIAL_CONTROLLERS": "1@a:1:x", "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:1"},
     r"INITIAL_CONTROLLERS=1@a:1:x has no effect"),
])  # fmt: skip
def test_what_is_refused(variables, message):
    with pytest.raises(InvalidConfig, match=message):
        read(variables)
