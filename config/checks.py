"""Validation of combinations of configurations, and of features that this broker does not serve yet.

A node that could not behave as its configuration requires does not start: above all, security settings
are never ignored silently.
Source: KafkaConfig.validateValues of Kafka 4.3.1.
"""

import re

from ottla.config.config_def import InvalidConfigValue, NotServed
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.group_bounds import check_group_defaults
from ottla.config.listeners import SecurityProtocol, not_served
from ottla.config.log_config import SERVER_SYNONYMS, check_copy_lag, check_local_retention, check_topic_values
from ottla.config.names import base_key
from ottla.config.parsed_config import ParsedConfig, absolute_path
from ottla.protocol.errors import InvalidConfig

#: Its ACLs are stored in the metadata log, described and altered, but not enforced yet.
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

#: A permissive pattern of host names and addresses.
_HOST = r"[0-9a-zA-Z\-%._:]*"

_MIN_DEDUPE_BYTES_PER_THREAD = 1024 * 1024


def check_config(config: ParsedConfig) -> None:
    """Check that valid values are valid in combination, too. Raises InvalidConfig."""
    _check_node(config)
    _check_roles(config)
    _check_listeners(config)
    _check_connections(config)
    _check_logs(config)
    _check_replication(config)
    _check_remote_tier(config)
    check_group_defaults(config.values)


def _check_node(config: ParsedConfig) -> None:
    if config.get("broker.id") != config.node_id:
        raise InvalidConfigValue(
            "broker.id", config.get("broker.id"), f"the same as node.id ({config.node_id})"
        )
    if "classic" not in config.get("group.coordinator.rebalance.protocols"):
        protocols = ",".join(config.get("group.coordinator.rebalance.protocols"))
        raise InvalidConfigValue(
            "group.coordinator.rebalance.protocols", protocols, "a list that includes classic"
        )


def _check_roles(config: ParsedConfig) -> None:
    voters = config.get("controller.quorum.voters")
    voter_ids = {int(voter.partition("@")[0]) for voter in voters}
    bootstrap = config.get("controller.quorum.bootstrap.servers")
    if not voters and not bootstrap:
        raise InvalidConfig(
            "Either controller.quorum.bootstrap.servers or controller.quorum.voters must say where the controllers are."
        )
    names = ",".join(config.controller_listener_names)
    if config.is_controller:
        if voter_ids and config.node_id not in voter_ids:
            raise InvalidConfigValue(
                "controller.quorum.voters",
                ",".join(voters),
                f"a list that includes node.id ({config.node_id}), since process.roles includes controller",
            )
        bound = {listener.name for listener in (*config.listeners, *config.controller_listeners)}
        if missing := [name for name in config.controller_listener_names if name.upper() not in bound]:
            raise InvalidConfigValue(
                "controller.listener.names",
                names,
                f"names out of listeners, which lacks {', '.join(missing)}",
            )
    elif config.node_id in voter_ids:
        raise InvalidConfigValue(
            "controller.quorum.voters",
            ",".join(voters),
            f"a list without node.id ({config.node_id}), since process.roles lacks controller",
        )
    elif config.controller_listeners:
        raise InvalidConfigValue(
            "controller.listener.names",
            names,
            "names that are not in listeners, since process.roles lacks controller",
        )
    elif unmapped := [
        name for name in config.controller_listener_names if name.upper() not in config.security_protocols
    ]:
        raise InvalidConfig(
            f"listener.security.protocol.map lacks controller listeners: {', '.join(unmapped)}."
        )
    if not config.is_controller and config.get("controller.quorum.auto.join.enable"):
        raise InvalidConfigValue(
            "controller.quorum.auto.join.enable", "true", "false where process.roles lacks controller"
        )
    if not config.is_broker:
        if config.listeners:
            raise InvalidConfig(
                f"listeners must only hold controller.listener.names ({names}) where process.roles is controller."
            )
        # As in Kafka, these names are compared case-sensitively.
        if config.texts.get("inter.broker.listener.name") in config.controller_listener_names:
            raise InvalidConfigValue(
                "controller.listener.names", names, "a list without an explicit inter.broker.listener.name"
            )


def _check_listeners(config: ParsedConfig) -> None:
    if "inter.broker.listener.name" in config.texts and "security.inter.broker.protocol" in config.texts:
        raise InvalidConfig(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol must be set."
        )
    between_brokers = SecurityProtocol[config.get("security.inter.broker.protocol")]
    if between_brokers is not SecurityProtocol.PLAINTEXT:
        raise not_served("security.inter.broker.protocol", between_brokers.name, between_brokers)
    bound = {listener.name for listener in (*config.listeners, *config.controller_listeners)}
    if early := [name for name in config.get("early.start.listeners") or () if name.upper() not in bound]:
        raise InvalidConfigValue(
            "early.start.listeners", ",".join(early), f"names out of listeners ({', '.join(bound)})"
        )
    if not config.is_broker:
        return
    advertised = [listener.name for listener in config.advertised_listeners]
    if not advertised:
        raise InvalidConfig(
            "A broker needs at least one listener that is not in controller.listener.names "
            f"({','.join(config.controller_listener_names)})."
        )
    if config.inter_broker_listener_name not in advertised:
        raise InvalidConfigValue(
            "inter.broker.listener.name",
            config.inter_broker_listener_name,
            f"the name of an advertised listener ({', '.join(advertised)})",
        )


def _check_connections(config: ParsedConfig) -> None:
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise InvalidConfigValue(
            "queued.max.request.bytes",
            config.queued_max_request_bytes,
            f"at least socket.request.max.bytes ({config.socket_request_max_bytes}), or -1",
        )
    try:
        overrides = config.max_connections_per_ip_overrides
        well_formed = all(re.fullmatch(_HOST, host) for host in overrides)
    except ValueError:
        well_formed = False
    if not well_formed:
        text = config.get("max.connections.per.ip.overrides")
        raise InvalidConfigValue(
            "max.connections.per.ip.overrides", text, "a list of host:count entries"
        ) from None
    if config.max_connections_per_ip == 0 and not overrides:
        raise InvalidConfigValue(
            "max.connections.per.ip", 0, "at least 1, or 0 together with max.connections.per.ip.overrides"
        )
    delay_ms = config.get("connection.failed.authentication.delay.ms")
    if 0 <= config.connections_max_idle_ms <= delay_ms:
        raise InvalidConfigValue(
            "connection.failed.authentication.delay.ms",
            delay_ms,
            f"less than connections.max.idle.ms ({config.connections_max_idle_ms})",
        )


def _check_logs(config: ParsedConfig) -> None:
    for topic_key, least, besides in (
        ("segment.ms", 1, ()),
        ("segment.jitter.ms", 0, ()),
        ("retention.ms", 1, (-1,)),
    ):
        value = config.topic_defaults[topic_key]
        assert isinstance(value, int), (topic_key, value)
        if value < least and value not in besides:
            name = next(one.name for one in SERVER_SYNONYMS[topic_key] if config.get(one.name) is not None)
            allowed = f"at least {least}" + "".join(f", or {other}" for other in besides)
            raise InvalidConfigValue(name, config.get(name), allowed)
    threads, dedupe_bytes = config.log_cleaner_threads, config.log_cleaner_dedupe_buffer_size
    if threads < 1:
        raise InvalidConfigValue("log.cleaner.threads", threads, "at least 1")
    if dedupe_bytes // threads <= _MIN_DEDUPE_BYTES_PER_THREAD:
        raise InvalidConfigValue(
            "log.cleaner.dedupe.buffer.size",
            dedupe_bytes,
            f"more than {_MIN_DEDUPE_BYTES_PER_THREAD} for each of log.cleaner.threads ({threads})",
        )
    cordoned = config.get("cordoned.log.dirs") or ()
    known = set(map(absolute_path, config.log_dirs))
    if set(cordoned) != {"*"} and not set(map(absolute_path, cordoned)) <= known:
        raise InvalidConfigValue(
            "cordoned.log.dirs", ",".join(cordoned), "* alone, or a list of entries of log.dirs"
        )
    check_topic_values(config.topic_defaults)


def _check_replication(config: ParsedConfig) -> None:
    wait_ms = config.replica_fetch_wait_max_ms
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if wait_ms > config.get(name):
            raise InvalidConfigValue(
                "replica.fetch.wait.max.ms", wait_ms, f"at most {name} ({config.get(name)})"
            )


def _check_remote_tier(config: ParsedConfig) -> None:
    """Check the keys that the remote tier needs, if it is enabled (KIP-405). Raises InvalidConfig.

    The tier's managers check their own settings when they are created.
    """
    if not config.remote_log_storage_system_enable:
        return
    check_local_retention(config.topic_defaults, prefix="log.")
    check_copy_lag(config.topic_defaults, prefix="log.")
    if not config.is_broker:
        return
    if config.get("remote.log.storage.manager.class.name") is None:
        raise InvalidConfig(
            "remote.log.storage.system.enable is true, but remote.log.storage.manager.class.name is not set: "
            "set it to directory, s3, minio or the dotted path of a class, or start the broker with --tier."
        )
    listener = config.get("remote.log.metadata.manager.listener.name")
    advertised = [each.name for each in config.advertised_listeners]
    if listener is not None and listener.upper() not in advertised:
        raise InvalidConfigValue(
            "remote.log.metadata.manager.listener.name",
            listener,
            f"the name of an advertised listener ({', '.join(advertised)}), or not set",
        )


def check_served(config: ParsedConfig) -> None:
    """Refuse settings that are valid in Kafka, not served here, and must not be ignored. Raises InvalidConfig."""
    authorizer = config.get("authorizer.class.name")
    if authorizer not in ("", STANDARD_AUTHORIZER):
        raise InvalidConfigValue(
            "authorizer.class.name",
            authorizer,
            f"left at its default, or {STANDARD_AUTHORIZER}: authorization is not yet served",
        )
    for name, text in config.texts.items():
        check_key_served(name, text)


def check_key_served(name: str, text: str) -> None:
    """Raises InvalidConfigValue for a value of one key that is valid in Kafka, not served, and must not be ignored."""
    key = BROKER_CONFIGS.get(base_key(name))
    if key is None or not isinstance(key.unread, NotServed) or not key.unread.is_refused:
        return
    if key.parse(text) not in (key.default, key.unread.harmless):
        raise InvalidConfigValue(name, text, f"left at its default: {key.unread.feature} is not yet served")
