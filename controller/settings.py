"""The controller's configuration: the node's own properties, as values, and validators of other configurations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ottla.config.config_def import ConfigKey
from ottla.config.log_config import validate_topic_configs
from ottla.metadata.image import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The part of a node's configuration that the controller uses; names are Kafka's keys."""

    cluster_id: str
    node_id: int
    #: Whether the broker of this id runs in this process: its registration in the log when the process starts
    #: is that of a previous process, which has stopped.
    hosts_broker: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    broker_session_timeout_ms: int = 9_000
    #: metadata.max.idle.interval.ms: how often at least a record is written, so that all see that the quorum works.
    #: None: never. A single voter never writes one for this.
    max_idle_interval_ms: int | None = 500
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    unclean_leader_election_interval_ms: int = 300_000
    #: Where this controller listens, by listener name, as it registers itself; empty: it does not register.
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    #: The broker keys that were set in server.properties or on the command line, as text: where the
    #: defaults of topics derive from (min.insync.replicas, log.retention.hours, ...).
    static_configs: Mapping[str, str] = field(default_factory=dict)


#: Raises KafkaError if the resource cannot have these configurations: (name, all resulting ones, all current ones).
Validator = Callable[[str, Mapping[str, str], Mapping[str, str]], None]


def _validate_topic(name: str, configs: Mapping[str, str], existing: Mapping[str, str]) -> None:
    validate_topic_configs(configs, existing=existing)


def _accept(name: str, configs: Mapping[str, str], existing: Mapping[str, str]) -> None:
    """Accept every configuration: the default validator of a resource type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValidators:
    """Validation of configurations by resource type. The entry point supplies what this package must not import."""

    topic: Validator = _validate_topic
    group: Validator = _accept
    client_metrics: Validator = _accept
    #: Definitions of broker and group keys: APPEND and SUBTRACT need to know which ones are lists, and the broker
    #: keys that the controller itself uses are validated by theirs.
    broker_keys: Mapping[str, ConfigKey] = field(default_factory=dict)
    group_keys: Mapping[str, ConfigKey] = field(default_factory=dict)
    client_metrics_keys: Mapping[str, ConfigKey] = field(default_factory=dict)
