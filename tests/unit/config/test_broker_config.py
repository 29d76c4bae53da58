"""A node's own properties: where they come from, what they mean, and which ones do not start."""

from pathlib import Path

import pytest

from ottla.broker.membership.cordoning import cordoned_paths
from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigSource
from ottla.config.listeners import Listener, SecurityProtocol, with_bound_addresses
from ottla.config.load import load_config, parse_settings, read_properties, standalone_profile
from ottla.config.notices import infos, warnings
from ottla.protocol.errors import InvalidConfig

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "log.dirs": "/a,/b",
}


def config(**changes):
    """NODE with changes; names have underscores for dots, None takes a property away."""
    settings = NODE | {name.replace("_", "."): value for name, value in changes.items()}
    return BrokerConfig({name: value for name, value in settings.items() if value is not None})


@pytest.mark.parametrize(("changes", "refused"), [
    # A node and its roles
    ({"node_id": "-1"},                       "node.id: it must be at least 0"),
    ({"node_id": None},                       "node.id is missing"),
    ({"broker_id": "2"},                      r"broker.id: it must be the same as node.id \(1\)"),
    ({"process_roles": None},                 "process.roles is missing"),
    ({"process_roles": "broker,cook"},        "process.roles: .* broker, controller"),
    ({"process_roles": "broker", "listeners": "PLAINTEXT://:9092", "controller_quorum_voters": "1@h:1"},
                                              r"a list without node.id \(1\)"),
    ({"process_roles": "broker", "listeners": "PLAINTEXT://:9092", "controller_quorum_auto_join_enable": "true"},
                                              "false where process.roles lacks controller"),
    ({"process_roles": "controller", "listeners": "CONTROLLER://:9093", "inter_broker_listener_name": "CONTROLLER"},
                                              "without an explicit inter.broker.listener.name"),
    ({"process_roles": "controller", "listeners": "CONTROLLER://:9093",
      "advertised_listeners": "CONTROLLER://0.0.0.0:1"},
                                              "0.0.0.0"),
    ({"process_roles": "broker"},             "names that are not in listeners"),
    ({"process_roles": "controller"},         "must only hold controller.listener.names"),
    ({"controller_quorum_bootstrap_servers": None}, "must say where the controllers are"),
    ({"controller_quorum_voters": "2@h:1"},   r"a list that includes node.id \(1\)"),
    ({"process_roles": "controller", "listeners": "CONTROLLER://:9093", "controller_quorum_voters": "2@h:1,3@h:2"},
                                              r"a list that includes node.id \(1\)"),
    ({"controller_quorum_voters": "h:1"},     "{id}@{host}:{port}"),
    ({"controller_listener_names": None},     "controller.listener.names is missing"),
    ({"listeners": "PLAINTEXT://:9092"},      "listeners, which lacks CONTROLLER"),
    ({"listeners": "CONTROLLER://:9093"},     "at least one listener that is not in controller.listener.names"),
    # Listeners
    ({"listeners": "PLAINTEXT:9092"},                              "NAME://host:port"),
    ({"listeners": "PLAINTEXT://h:99999,CONTROLLER://:1"},         "ports up to 65535"),
    ({"listeners": ""},                                            "listeners: it must be a non-empty list"),
    ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2,CONTROLLER://:3"}, "listeners with different names"),
    ({"listeners": "PLAINTEXT://:1,CONTROLLER://:1"},              "listeners with different ports"),
    ({"listeners": "IN://:1,CONTROLLER://:2"},                     "that listener.security.protocol.map knows"),
    ({"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT"},    "that listener.security.protocol.map knows"),
    ({"listener_security_protocol_map": "PLAINTEXT:NONE,CONTROLLER:PLAINTEXT"},
                                                                   "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ({"advertised_listeners": "PLAINTEXT://0.0.0.0:1"},            "wildcard address"),
    ({"listeners": "PLAINTEXT://0.0.0.0:1,CONTROLLER://:2"},       "wildcard address"),
    ({"advertised_listeners": "SSL://h:1"},                        "names SSL, but listeners only has"),
    ({"advertised_listeners": ""},                                 "advertised.listeners"),
    ({"inter_broker_listener_name": "SSL"},                        r"an advertised listener \(PLAINTEXT\)"),
    ({"inter_broker_listener_name": "PLAINTEXT", "security_inter_broker_protocol": "PLAINTEXT"}, "Only one of"),
    ({"early_start_listeners": "NOPE"},                            "early.start.listeners"),
    # Connections
    ({"socket_request_max_bytes": "0"},                            "socket.request.max.bytes: it must be at least 1"),
    ({"queued_max_request_bytes": "5"},                            r"at least socket.request.max.bytes \(104857600\)"),
    ({"max_connections_per_ip": "0"},                              "0 together with max.connections.per.ip.overrides"),
    ({"max_connections_per_ip_overrides": "127.0.0.1:x"},          "host:count"),
    ({"max_connections_per_ip_overrides": "a b:1"},                "host:count"),
    ({"connections_max_idle_ms": "50"},                            "less than connections.max.idle.ms"),
    # Logs
    ({"num_partitions": "0"},                 ("Invalid value '0' for configuration num.partitions: "
                                               "it must be at least 1")),
    ({"num_partitions": "1.5"},               "a 32-bit integer"),
    ({"auto_create_topics_enable": "no"},     "true or false"),
    ({"compression_type": "none"},            "uncompressed, zstd, lz4, snappy, gzip, producer"),
    ({"log_dirs": ""},                        "log.dirs: it must be a non-empty list"),
    ({"log_roll_ms": "0"},                    "Invalid value 0 for configuration log.roll.ms: it must be at least 1"),
    ({"log_retention_ms": "0"},               "log.retention.ms: it must be at least 1, or -1"),
    ({"log_retention_hours": "0"},            "log.retention.hours: it must be at least 1, or -1"),
    ({"log_cleaner_threads": "0"},            "log.cleaner.threads: it must be at least 1"),
    ({"log_cleaner_threads": "200"},          "log.cleaner.dedupe.buffer.size"),
    ({"log_cleaner_min_compaction_lag_ms": "5", "log_cleaner_max_compaction_lag_ms": "4"}, "must not be above"),
    ({"cordoned_log_dirs": "/c"},             "entries of log.dirs"),
    ({"cordoned_log_dirs": "*,/a"},           "alone"),
    ({"log_dirs": "a,b", "cordoned_log_dirs": "/a"}, "entries of log.dirs"),
    # Replication and groups
    ({"replica_fetch_wait_max_ms": "50000"},  r"at most replica.socket.timeout.ms \(30000\)"),
    ({"replica_lag_time_max_ms": "100"},      r"at most replica.lag.time.max.ms \(100\)"),
    ({"group_coordinator_rebalance_protocols": "consumer"}, "a list that includes classic"),
    ({"group_consumer_heartbeat_interval_ms": "1"}, "group.consumer.heartbeat.interval.ms: it must be at least"),
    ({"group_consumer_assignors": "some.Class"},    "uniform, range"),
    ({"group_share_max_share_sessions": "5"}, r"at least group.share.max.size \(200\)"),
    # Valid in Kafka, not served here yet
    ({"listener_security_protocol_map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
      "inter_broker_listener_name": "PLAINTEXT"},
                                              "SASL_SSL listeners are not yet served"),
    ({"listeners": "SSL://:9092,CONTROLLER://:9093"},
                                              "SSL listeners are not yet served.* a proxy that terminates TLS"),
    ({"listeners": "SASL_SSL://:9092,CONTROLLER://:9093",
      "listener_security_protocol_map": "A:PLAINTEXT,CONTROLLER:PLAINTEXT"},
                                              "SASL_SSL listeners are not yet served"),
    ({"security_inter_broker_protocol": "SASL_PLAINTEXT"},
                                              ("security.inter.broker.protocol: .* SASL_PLAINTEXT listeners "
                                               "are not yet")),
    ({"listener_name_plaintext_principal_builder_class": "a.B"}, "another principal builder is not yet served"),
    ({"client_quota_callback_class": "a.B"},                "client quotas is not yet served"),
    ({"transaction_two_phase_commit_enable": "true"},       "two-phase commit"),
    ({"authorizer_class_name": "some.Authorizer"},           "authorization is not yet served"),
    ({"create_topic_policy_class_name": "some.Policy"},      "a policy on creating topics is not yet served"),
    ({"config_providers": "file"},                           "config providers is not yet served"),
    # The remote tier (KIP-405)
    ({"remote_log_storage_system_enable": "true"},
                                              ("remote.log.storage.manager.class.name is not set: "
                                               "set it to directory, s3")),
    ({"remote_log_storage_system_enable": "true", "remote_log_storage_manager_class_name": "s3",
      "remote_log_metadata_manager_listener_name": "other"},
                                              r"the name of an advertised listener \(PLAINTEXT\), or not set"),
    ({"remote_log_storage_system_enable": "true", "remote_log_storage_manager_class_name": "s3",
      "log_retention_ms": "5", "log_local_retention_ms": "6"},
                                              r"log.local.retention.ms: it must be between 0 and log.retention.ms"),
])  # fmt: skip
def test_what_does_not_start(changes, refused):
    with pytest.raises(InvalidConfig, match=refused):
        config(**changes)


@pytest.mark.parametrize("changes", [
    {},
    {"node_id": None, "broker_id": "1"},
    {"controller_quorum_voters": "1@localhost:9093"},
    {"listeners": "plaintext://:9092,Controller://:9093"},
    {"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://:0"},
    {"listener_security_protocol_map": "plaintext:plaintext,controller:PLAINTEXT"},
    {"advertised_listeners": "PLAINTEXT://h:1,CONTROLLER://h:2"},
    {"max_connections_per_ip": "0", "max_connections_per_ip_overrides": "127.0.0.1:5"},
    {"connections_max_idle_ms": "-1"},
    {"log_retention_ms": "-5"},
    {"log_dirs": "/a,/a"},
    {"cordoned_log_dirs": "*"},
    {"message_max_bytes": " 5 "},
    {"remote_log_storage_system_enable": "true", "remote_log_storage_manager_class_name": "s3",
     "remote_log_metadata_manager_listener_name": "plaintext"},
    {"log_retention_ms": "5", "log_local_retention_ms": "6"},
])  # fmt: skip
def test_what_starts(changes):
    assert config(**changes).node_id == 1


def test_a_refusal_hides_nothing_but_secrets():
    with pytest.raises(InvalidConfig) as refused:
        config(ssl_keystore_password="geheim", num_partitions="0")
    assert "geheim" not in str(refused.value)


class TestListeners:
    def test_names_hosts_and_ports(self):
        many = config(
            listeners="PLAINTEXT://:9092,IN://10.0.0.1:9094,SIX://[fe80::1]:9095,CONTROLLER://localhost:9093",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,IN:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT",
        )
        plain = SecurityProtocol.PLAINTEXT
        assert many.listeners == (
            Listener("PLAINTEXT", "", 9092, plain),
            Listener("IN", "10.0.0.1", 9094, plain),
            Listener("SIX", "fe80::1", 9095, plain),
        )
        assert many.controller_listeners == (Listener("CONTROLLER", "localhost", 9093, plain),)
        assert many.advertised_listeners == many.listeners
        assert [str(one) for one in many.listeners] == [
            "PLAINTEXT://:9092",
            "IN://10.0.0.1:9094",
            "SIX://[fe80::1]:9095",
        ]

    def test_one_port_may_serve_both_ip_versions(self):
        both = config(
            listeners="PLAINTEXT://127.0.0.1:9092,SIX://[::1]:9092,CONTROLLER://:9093",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT",
        )
        assert [one.port for one in both.listeners] == [9092, 9092]

    def test_clients_get_the_advertised_listeners_and_never_the_controllers(self):
        described = config(
            advertised_listeners="PLAINTEXT://public:19092,CONTROLLER://public:19093"
        ).advertised_listeners
        assert described == (Listener("PLAINTEXT", "public", 19092, SecurityProtocol.PLAINTEXT),)

    def test_what_is_open_is_filled_in_once_sockets_are_bound(self):
        described = config(listeners="PLAINTEXT://:0,CONTROLLER://:0").advertised_listeners
        (one,) = with_bound_addresses(described, {"PLAINTEXT": 40001, "CONTROLLER": 40002}, lambda: "myhost")
        assert (one.host, one.port) == ("myhost", 40001)

    def test_no_name_server_is_asked_for_a_host_that_is_configured(self):
        described = config(listeners="PLAINTEXT://127.0.0.1:0,CONTROLLER://:0").advertised_listeners
        (one,) = with_bound_addresses(described, {"PLAINTEXT": 40001}, lambda: pytest.fail("asked"))
        assert (one.host, one.port) == ("127.0.0.1", 40001)

    def test_the_inter_broker_listener_is_the_protocols_unless_named(self):
        assert config().inter_broker_listener_name == "PLAINTEXT"
        named = config(
            listeners="A://:1,B://:2,CONTROLLER://:3",
            listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT,CONTROLLER:PLAINTEXT",
            inter_broker_listener_name="b",
        )
        assert named.inter_broker_listener_name == "B"

    def test_a_listeners_own_value_goes_before_the_brokers(self):
        own = BrokerConfig(NODE | {"listener.name.plaintext.max.connections": "7", "max.connections": "9"})
        assert own.listener_value("PLAINTEXT", "max.connections") == 7
        assert own.listener_value("OTHER", "max.connections") == 9

    def test_a_listeners_own_value_is_checked(self):
        with pytest.raises(
            InvalidConfig, match=r"listener.name.plaintext.max.connections: it must be a 32-bit"
        ):
            BrokerConfig(NODE | {"listener.name.plaintext.max.connections": "many"})


class TestTopicDefaults:
    @pytest.mark.parametrize(("changes", "topic_key", "value"), [
        ({}, "retention.ms", 7 * 24 * 3_600_000),
        ({"log_retention_hours": "2"}, "retention.ms", 7_200_000),
        ({"log_retention_hours": "2", "log_retention_minutes": "3"}, "retention.ms", 180_000),
        ({"log_retention_minutes": "3", "log_retention_ms": "4"}, "retention.ms", 4),
        ({"log_retention_ms": "-1"}, "retention.ms", -1),
        ({"log_retention_hours": "-1"}, "retention.ms", -1),
        ({"log_roll_hours": "1"}, "segment.ms", 3_600_000),
        ({"log_roll_jitter_hours": "1"}, "segment.jitter.ms", 3_600_000),
        ({"log_flush_scheduler_interval_ms": "8"}, "flush.ms", 8),
        ({"log_flush_scheduler_interval_ms": "8", "log_flush_interval_ms": "9"}, "flush.ms", 9),
        ({"message_max_bytes": "77"}, "max.message.bytes", 77),
        ({"log_cleanup_policy": "compact"}, "cleanup.policy", ("compact",)),
        ({"log_cleaner_min_cleanable_ratio": "0.1"}, "min.cleanable.dirty.ratio", 0.1),
    ])  # fmt: skip
    def test_they_come_from_the_first_synonym_that_is_set(self, changes, topic_key, value):
        assert config(**changes).topic_defaults[topic_key] == value

    def test_log_config_of_a_topic(self):
        broker = config(log_retention_hours="-1", min_insync_replicas="2")
        assert broker.log_defaults.retention_ms is None
        assert broker.log_config({}) is broker.log_defaults
        assert broker.log_config({"retention.ms": "5"}).min_insync_replicas == 2


class TestLoading:
    def test_the_standalone_profile_is_a_whole_cluster_on_loopback(self):
        alone = load_config()
        assert [str(one) for one in alone.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
        assert alone.node_id == 1
        assert alone.offsets_topic_replication_factor == 1
        assert list(warnings(alone)) == []

    def test_port_and_data_folder(self, tmp_path):
        alone = load_config(port=0, data_dir=tmp_path)
        assert [one.port for one in (*alone.listeners, *alone.controller_listeners)] == [0, 0]
        assert alone.log_dirs == (str(tmp_path),)
        assert alone.metadata_log_dir == str(tmp_path)
        assert load_config(port=19092).controller_listeners[0].port == 0

    def test_settings_go_over_the_profile(self):
        chosen = load_config(overrides=["num.partitions=6", "listeners=PLAINTEXT://[::1]:0"])
        assert chosen.num_partitions == 6
        assert [str(one) for one in chosen.listeners] == ["PLAINTEXT://[::1]:0"]
        assert [one.name for one in chosen.controller_listeners] == ["CONTROLLER"]  # the profile's stays

    def test_settings_take_precedence_over_the_file(self, tmp_path):
        file = tmp_path / "server.properties"
        file.write_text("# a comment\n" + "\n".join(f"{name}={value}" for name, value in NODE.items()) + "\n"
                        "num.partitions : 3\nlog.retention.hours=\\\n   5\n")  # fmt: skip
        loaded = load_config(file, overrides=["num.partitions=4"], port=0)
        assert loaded.num_partitions == 4
        assert loaded.get("log.retention.hours") == 5
        assert (
            loaded.offsets_topic_replication_factor == 3
        )  # Kafka's default: the profile is not beneath a file
        assert [str(one) for one in loaded.listeners] == ["PLAINTEXT://127.0.0.1:0"]

    def test_later_files_go_over_earlier_ones(self, tmp_path):
        (tmp_path / "one").write_text("\n".join(f"{name}={value}" for name, value in NODE.items()))
        (tmp_path / "two").write_text("node.id=7")
        assert load_config([tmp_path / "one", tmp_path / "two"]).node_id == 7

    def test_properties_are_java_properties(self, tmp_path):
        file = tmp_path / "p"
        file.write_bytes(b"! comment\na = b\\u0041\nlong = one,\\\n    two\nname=\xe9\nempty=\n")
        assert read_properties(file) == {"a": "bA", "long": "one,two", "name": "é", "empty": ""}

    def test_files_that_are_none(self, tmp_path):
        with pytest.raises(InvalidConfig, match="Cannot read"):
            read_properties(tmp_path / "missing")
        bad = tmp_path / "bad"
        bad.write_text("a=\\u00zz")
        with pytest.raises(InvalidConfig, match="not a properties file"):
            read_properties(bad)

    def test_settings(self):
        assert parse_settings(["a=b", "c = d=e ", "f="]) == {"a": "b", "c": "d=e", "f": ""}
        for bad in ("a", "=b"):
            with pytest.raises(InvalidConfig, match="KEY=VALUE"):
                parse_settings([bad])

    def test_the_profile_sets_only_what_has_an_effect(self):
        profile = BrokerConfig(standalone_profile())
        assert [*warnings(profile), *infos(profile)] == []


class TestSourcesAndWarnings:
    def test_sources(self):
        dynamic = config(num_partitions="2").with_dynamic(
            {"message.max.bytes": "5"}, {"log.retention.ms": "6"}
        )
        assert dynamic.source("num.partitions") is ConfigSource.STATIC_BROKER
        assert dynamic.source("message.max.bytes") is ConfigSource.DYNAMIC_DEFAULT_BROKER
        assert dynamic.source("log.retention.ms") is ConfigSource.DYNAMIC_BROKER
        assert dynamic.source("fetch.max.bytes") is ConfigSource.DEFAULT

    def test_heartbeats_that_leave_no_second_chance_warn(self):
        (warning,) = warnings(config(broker_session_timeout_ms="3000"))
        assert "broker.heartbeat.interval.ms" in warning

    def test_only_known_keys_can_be_had(self):
        with pytest.raises(KeyError):
            config().get("nope")
        assert config(log_dirs=None).log_dirs == ("/tmp/kafka-logs",)


def test_a_controller_alone():
    node = config(
        process_roles="controller",
        listeners="CONTROLLER://10.0.0.1:9093",
        controller_quorum_voters="1@h:1,2@h:2",
    )
    assert (node.is_broker, node.is_controller, node.is_whole_cluster) == (False, True, False)
    assert node.listeners == node.advertised_listeners == ()
    assert node.quorum_voters == ((1, "h", 1), (2, "h", 2))
    assert [str(one) for one in node.advertised_controller_listeners] == ["CONTROLLER://10.0.0.1:9093"]


def test_a_broker_alone():
    node = config(process_roles="broker", listeners="PLAINTEXT://:9092", num_partitions="3")
    assert (node.is_broker, node.is_controller, node.is_whole_cluster) == (True, False, False)
    assert node.quorum_bootstrap_servers == (("localhost", 9093),)
    assert node.advertised_controller_listeners == ()
    assert any("num.partitions" in warning for warning in warnings(node))


@pytest.mark.parametrize(("changes", "is_whole"), [
    ({}, True),
    ({"controller_quorum_voters": "1@localhost:9093"}, True),
    ({"controller_quorum_voters": "1@localhost:9093,2@other:9093"}, False),
    ({"controller_quorum_bootstrap_servers": "localhost:9093,other:9093"}, False),
    ({"controller_quorum_bootstrap_servers": "other:19093"}, False),
    ({"listeners": "PLAINTEXT://:9092,CONTROLLER://:0"}, True),
])  # fmt: skip
def test_who_is_a_cluster_by_itself(changes, is_whole):
    assert config(**changes).is_whole_cluster is is_whole


@pytest.mark.parametrize(("changes", "described"), [
    ({}, "CONTROLLER://:9093"),
    ({"controller_quorum_voters": "1@here:19093"}, "CONTROLLER://here:19093"),
    ({"advertised_listeners": "PLAINTEXT://h:1,CONTROLLER://c:2", "controller_quorum_voters": "1@here:19093"},
     "CONTROLLER://c:2"),
    ({"listeners": "PLAINTEXT://:9092,CONTROLLER://[::]:9093"}, "CONTROLLER://:9093"),
])  # fmt: skip
def test_where_others_find_a_controller(changes, described):
    assert [str(one) for one in config(**changes).advertised_controller_listeners] == [described]


def test_acls_may_be_stored():
    node = config(authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    assert any("not enforced" in warning for warning in warnings(node))


@pytest.mark.parametrize(("log_dirs", "cordoned", "paths"), [
    ("/a,/b",        "/a",          {"/a"}),
    ("/a,/b",        "/b/,/x/../a", {"/a", "/b"}),
    ("/a,/b",        "*",           {"/a", "/b"}),
    ("/a/,/b",       "/a",          {"/a"}),
    ("a,./b,../c",   "a",           {"a"}),
    ("a,./b,../c",   "./a,b",       {"a", "b"}),
    ("a,./b,../c",   "{cwd}/b",     {"b"}),
    ("a,./b,../c",   "{cwd}/../c",  {"../c"}),
    ("{cwd}/a,/b",   "a",           {"{cwd}/a"}),
    ("a,b",          "",            set()),
])  # fmt: skip
def test_cordoned_directories_are_compared_as_paths(log_dirs, cordoned, paths):
    """DescribeLogDirs shows the absolute path of an entry of log.dirs, whatever that is written like."""
    cwd = str(Path.cwd())
    texts = {"log_dirs": log_dirs.format(cwd=cwd)}
    if cordoned:
        texts["cordoned_log_dirs"] = cordoned.format(cwd=cwd)
    assert cordoned_paths(config(**texts)) == {Path(each.format(cwd=cwd)) for each in paths}
