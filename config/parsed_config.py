"""The parsed configurations of one node, each valid by itself.

`BrokerConfig` is the `ParsedConfig` whose values are valid in combination, too: `checks.py` decides that, and needs no
more than what is here.
Source: AbstractKafkaConfig of Kafka 4.3.1.
"""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ottla.config.config_def import ConfigValue
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.listeners import (
    Listener,
    advertised_controller_listeners,
    advertised_listeners,
    check_protocols,
    parse_listeners,
    parse_security_map,
)
from ottla.config.log_config import SERVER_SYNONYMS, LogConfig, default_topic_values
from ottla.config.names import base_key
from ottla.protocol.errors import InvalidConfig

__all__ = ["ParsedConfig", "absolute_path"]

_LOOPBACK = "127.0.0.1"


class ParsedConfig:
    """The parsed configurations of a node, each valid by itself.

    The attributes below are those that the code reads often; each is the key of the same name with
    dots. `get` returns any other key. Times and sizes are in the unit that ends the name.
    """

    process_roles: tuple[str, ...]
    node_id: int
    broker_rack: str | None
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    controller_listener_names: tuple[str, ...]

    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_listen_backlog_size: int
    max_connections: int
    max_connections_per_ip: int
    connections_max_idle_ms: int
    queued_max_request_bytes: int

    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int

    log_retention_check_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int

    replica_lag_time_max_ms: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int

    offsets_topic_replication_factor: int

    remote_log_storage_system_enable: bool

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Parse the effective texts by key. Raises InvalidConfigValue for an invalid value."""
        #: A key that is missing here has its default.
        self.texts = texts
        #: Every key of BROKER_CONFIGS, parsed; read only.
        self.values = _parse(texts)
        for attribute in _ATTRIBUTES:
            setattr(self, attribute, self.values[attribute.replace("_", ".")])
        self._read_listeners()

    def _read_listeners(self) -> None:
        entries = self._list("listeners")
        is_advertised = self.values["advertised.listeners"] is not None
        advertised_texts = self._list("advertised.listeners") if is_advertised else None
        #: The security protocol of each listener name.
        self.security_protocols = parse_security_map(
            str(self.values["listener.security.protocol.map"]),
            is_default="listener.security.protocol.map" not in self.texts,
            controller_names=self.controller_listener_names,
            listener_entries=entries,
        )
        check_protocols(entries, self.security_protocols)
        self._all_listeners = parse_listeners("listeners", entries, self.security_protocols)
        advertised = None
        if advertised_texts is not None:
            advertised = parse_listeners(
                "advertised.listeners", advertised_texts, self.security_protocols, are_ports_distinct=False
            )
        #: The advertised listeners for clients and brokers; `with_bound_addresses` fills in missing hosts and ports.
        self.advertised_listeners = advertised_listeners(
            self._all_listeners, advertised, self.controller_listener_names
        )
        #: The advertised listeners of this controller; empty if this node is none.
        self.advertised_controller_listeners = advertised_controller_listeners(
            self._all_listeners,
            advertised,
            self.controller_listener_names,
            voter=next((each[1:] for each in self.quorum_voters if each[0] == self.node_id), None),
        )

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners for clients and other brokers."""
        return tuple(one for one in self._all_listeners if one.name not in self._controller_names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The controller's listeners, if this node is one."""
        return tuple(one for one in self._all_listeners if one.name in self._controller_names)

    @property
    def _controller_names(self) -> frozenset[str]:
        return frozenset(name.upper() for name in self.controller_listener_names)

    @property
    def inter_broker_listener_name(self) -> str:
        """The listener that other brokers use."""
        name = self.values["inter.broker.listener.name"] or self.values["security.inter.broker.protocol"]
        return str(name).upper()

    @property
    def is_broker(self) -> bool:
        """Whether this node is a broker."""
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        """Whether this node is a controller."""
        return "controller" in self.process_roles

    @property
    def is_whole_cluster(self) -> bool:
        """Whether this node is a cluster by itself, according to its own properties.

        Such a node needs no formatting: it need not agree with other nodes on a cluster id.
        """
        if not (self.is_broker and self.is_controller):
            return False
        if self.quorum_voters:
            return [voter_id for voter_id, _, _ in self.quorum_voters] == [self.node_id]
        own_ports = {
            listener.port for listener in (*self.controller_listeners, *self.advertised_controller_listeners)
        }
        # With port 0, which the system chooses, no other node could find this controller.
        is_own = 0 in own_ports or self.quorum_bootstrap_servers[0][1] in own_ports
        return len(self.quorum_bootstrap_servers) == 1 and is_own

    @property
    def remote_log_follower_tasks(self) -> int:
        """The number of the remote tier's follower tasks that run at a time.

        It is set under the name of Kafka 4.2, or else under the former one.
        """
        if "remote.log.manager.follower.thread.pool.size" in self.texts:
            return self._int("remote.log.manager.follower.thread.pool.size")
        return self._int("remote.log.manager.thread.pool.size")

    @cached_property
    def quorum_voters(self) -> tuple[tuple[int, str, int], ...]:
        """The voters in controller.quorum.voters, as (id, host, port)."""
        voters = (voter.partition("@") for voter in self._list("controller.quorum.voters"))
        return tuple((int(voter_id), *_host_and_port(address)) for voter_id, _, address in voters)

    @cached_property
    def quorum_bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        """The addresses in controller.quorum.bootstrap.servers, as (host, port)."""
        return tuple(_host_and_port(server) for server in self._list("controller.quorum.bootstrap.servers"))

    @cached_property
    def shows_client_metrics(self) -> bool:
        """Whether the series that clients push are shown on /metrics (KIP-714)."""
        return bool(self.values["metrics.clients.max.series"]) and bool(self.metrics_listeners)

    @cached_property
    def metrics_listeners(self) -> tuple[tuple[str, int], ...]:
        """The addresses in metrics.listeners, as (host, port); without a host, this machine only."""
        addresses = (
            address.removeprefix("http://").rstrip("/") for address in self._list("metrics.listeners")
        )
        found = (_host_and_port(address) for address in addresses)
        return tuple((host or _LOOPBACK, port) for host, port in found)

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories of partitions: log.dirs, or else log.dir."""
        return self._list("log.dirs" if self.values["log.dirs"] else "log.dir")

    @property
    def metadata_log_dir(self) -> str:
        """The directory of the metadata log: metadata.log.dir, or else the first log directory."""
        return str(self.values["metadata.log.dir"] or self.log_dirs[0])

    @cached_property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """The limits that replace max.connections.per.ip, by address or host name."""
        text = str(self.values["max.connections.per.ip.overrides"])
        pairs = (part.rpartition(":") for part in text.split(",") if part.strip())
        return {host.strip(): int(count) for host, _, count in pairs}

    @cached_property
    def topic_defaults(self) -> dict[str, ConfigValue]:
        """The parsed default of every topic configuration, for topics without an override."""
        values = default_topic_values()
        for topic_key, synonyms in SERVER_SYNONYMS.items():
            for synonym in synonyms:
                value = self.values[synonym.name]
                if value is not None:
                    values[topic_key] = (
                        value * synonym.factor if isinstance(value, int) and synonym.factor > 1 else value
                    )
                    break
        if isinstance(kept := values["retention.ms"], int) and kept < 0:
            values["retention.ms"] = -1
        return values

    @cached_property
    def log_defaults(self) -> LogConfig:
        """The effective configuration of a topic without overrides."""
        return LogConfig.from_values(self.topic_defaults)

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """The effective configuration of a topic with these overrides."""
        return LogConfig.from_overrides(self.topic_defaults, overrides) if overrides else self.log_defaults

    def _list(self, name: str) -> tuple[str, ...]:
        value = self.values[name]
        assert isinstance(value, tuple), (name, value)
        return value

    def _int(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), (name, value)
        return value

    def get(self, name: str) -> Any:  # noqa: ANN401  (the key decides the type)
        """The parsed value of any key of BROKER_CONFIGS. Raises KeyError for other names."""
        return self.values[name]

    @staticmethod
    def default(name: str) -> ConfigValue:
        """The default of a key of BROKER_CONFIGS."""
        return _DEFAULTS[name]

    def listener_value(self, listener_name: str, name: str) -> Any:  # noqa: ANN401
        """The effective value for one listener: listener.name.{name}.{key}, or else that of the key."""
        text = self.texts.get(f"listener.name.{listener_name.lower()}.{name}")
        return self.values[name] if text is None else BROKER_CONFIGS.parse(name, text)


#: Attributes that are keys: every annotation of the class.
_ATTRIBUTES = tuple(ParsedConfig.__annotations__)

_DEFAULTS: dict[str, ConfigValue] = {name: key.default for name, key in BROKER_CONFIGS.items()}


def _host_and_port(address: str) -> tuple[str, int]:
    """Host and port of a validated address.

    >>> _host_and_port("[::1]:9093")
    ('::1', 9093)
    """
    host, _, port = address.strip().rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _parse(texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    values = dict(_DEFAULTS)
    for name, text in texts.items():
        key = BROKER_CONFIGS.get(name)
        if key is not None:
            values[name] = key.parse(text)
        elif (base := BROKER_CONFIGS.get(base_key(name))) is not None:
            base._replace(name=name).parse(text)  # of one listener: validated, and kept as text
    for name, key in BROKER_CONFIGS.items():
        if key.is_required and name not in texts:
            raise InvalidConfig(f"Configuration {name} is missing: {key.documentation}")
    return values


def absolute_path(path: str) -> str:
    """The path as it is compared with others: `data`, `./data` and the absolute path are one directory.

    Follows no link.
    """
    return os.path.abspath(path)  # noqa: PTH100 (`Path.absolute` leaves `..` as it is)
