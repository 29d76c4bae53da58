"""The rows of DescribeConfigs for topics, brokers, groups and client metrics subscriptions.

Every function returns rows for all keys of a resource, with synonyms and documentation; the handler omits
those that were not requested. A row's source is that of its first synonym. Rows that depend only on the
broker's configuration are cached: a request may name ten thousand topics, with few differences.
Source: ConfigHelper of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigKey, ConfigSource, ConfigValue, text_of
from ottla.config.definitions import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    DYNAMIC_BROKER_CONFIGS,
    GROUP_CONFIGS,
)
from ottla.config.group_bounds import GROUP_SYNONYMS
from ottla.config.log_config import SERVER_SYNONYMS, TOPIC_CONFIGS
from ottla.config.names import base_key, with_listener_base
from ottla.config.overrides import is_dynamic
from ottla.config.resources import group_values

__all__ = [
    "ConfigRow", "Synonym", "describe_broker", "describe_client_metrics", "describe_cluster_defaults",
    "describe_group", "describe_topic",
]  # fmt: skip

_UNKNOWN_TYPE = 0
#: The number of broker configurations whose rows are cached: those of the nodes in this process.
_CONFIGS_KEPT: Final = 4


class Synonym(NamedTuple):
    """One level from which a configuration's value may come, as DescribeConfigs lists it."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigRow(NamedTuple):
    """One configuration of a resource, as in a DescribeConfigs response (versions 1 to 4)."""

    name: str
    value: str | None  # also None if it is sensitive
    is_read_only: bool
    source: ConfigSource
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]  # the effective one first
    config_type: int
    documentation: str | None


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigRow]:
    """The configurations of a topic with these overrides."""
    return [
        _overridden(row, TOPIC_CONFIGS[name], overrides, ConfigSource.TOPIC)
        for name, row in _topic_rows(config).items()
        if not TOPIC_CONFIGS[name].is_internal or name in overrides
    ]


@lru_cache(maxsize=_CONFIGS_KEPT)
def _topic_rows(config: BrokerConfig) -> dict[str, ConfigRow]:
    return {
        name: _inherited(key, config.topic_defaults.get(name, key.default), _server_synonyms(config, name))
        for name, key in TOPIC_CONFIGS.items()
    }


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigRow]:
    """The configurations of a group, which need not exist: its id is only a name (KIP-848)."""
    return [
        _overridden(row, GROUP_CONFIGS[name], overrides, ConfigSource.GROUP)
        for name, row in _group_rows(config).items()
    ]


@lru_cache(maxsize=_CONFIGS_KEPT)
def _group_rows(config: BrokerConfig) -> dict[str, ConfigRow]:
    defaults = group_values(config)
    rows = {}
    for name, key in GROUP_CONFIGS.items():
        if (broker_key := GROUP_SYNONYMS.get(name)) is not None:
            synonyms = _broker_synonyms(config, broker_key)
        else:
            synonyms = (Synonym(name, text_of(key.type, key.default), ConfigSource.DEFAULT),)
        rows[name] = _inherited(key, defaults[name], synonyms)
    return rows


def describe_client_metrics(overrides: Mapping[str, str]) -> list[ConfigRow]:
    """The configurations of a client metrics subscription (KIP-714)."""
    return [
        _overridden(_inherited(key, key.default, ()), key, overrides, ConfigSource.CLIENT_METRICS)
        for key in CLIENT_METRICS_CONFIGS.values()
    ]


@lru_cache(maxsize=_CONFIGS_KEPT)
def describe_broker(config: BrokerConfig) -> Sequence[ConfigRow]:
    """The configurations of this broker; internal and unknown ones only if they are set."""
    names = [name for name, key in BROKER_CONFIGS.items() if not key.is_internal]
    names += [name for name in config.texts if name not in BROKER_CONFIGS or BROKER_CONFIGS[name].is_internal]
    return tuple(_broker_row(config, name, _broker_synonyms(config, name)) for name in names)


def describe_cluster_defaults(config: BrokerConfig) -> list[ConfigRow]:
    """The dynamic defaults of the cluster: the resource type BROKER with the empty name."""
    return [
        _broker_row(
            config,
            name,
            tuple(
                one
                for one in _broker_synonyms(config, name)
                if one.source is ConfigSource.DYNAMIC_DEFAULT_BROKER
            ),
            text,
        )
        for name, text in config.cluster_overrides.items()
    ]


def _inherited(key: ConfigKey, default: ConfigValue, synonyms: tuple[Synonym, ...]) -> ConfigRow:
    """The row of a key that a resource may override and does not; never read-only."""
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    value = text_of(key.type, default)
    return ConfigRow(key.name, value, False, source, False, synonyms, key.type, key.documentation)


def _overridden(
    row: ConfigRow, key: ConfigKey, overrides: Mapping[str, str], source: ConfigSource
) -> ConfigRow:
    """The row of a key with the resource's override, if it has one, before the inherited values."""
    override = overrides.get(key.name)
    if override is None:
        return row
    value = text_of(key.type, key.parse(override))
    synonyms = (Synonym(key.name, value, source), *row.synonyms)
    return row._replace(value=value, source=source, synonyms=synonyms)


def _broker_row(
    config: BrokerConfig, name: str, synonyms: tuple[Synonym, ...], text: str | None = None
) -> ConfigRow:
    key = _broker_key(name)
    is_sensitive = key is None or key.is_sensitive
    if is_sensitive:
        value = None
    elif text is not None:
        value = text
    else:
        value = text_of(key.type, config.get(name)) if name in BROKER_CONFIGS and key else config.texts[name]
    return ConfigRow(
        name,
        value,
        not is_dynamic(name),
        synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_sensitive,
        synonyms,
        _UNKNOWN_TYPE if key is None else key.type,
        None if key is None else key.documentation,
    )


def _broker_key(name: str) -> ConfigKey | None:
    """The definition of a name, or of the base key of a listener's own key; None if unknown."""
    for candidate in (name, base_key(name)):
        key = BROKER_CONFIGS.get(candidate) or DYNAMIC_BROKER_CONFIGS.get(candidate)
        if key is not None:
            return key
    return None


def _server_synonyms(config: BrokerConfig, topic_key: str) -> tuple[Synonym, ...]:
    server = SERVER_SYNONYMS.get(topic_key)
    return () if server is None else _broker_synonyms(config, server[0].name)


def _broker_synonyms(config: BrokerConfig, name: str) -> tuple[Synonym, ...]:
    """The levels from which a broker's value may come, in order of precedence.

    Entries before the first one with exactly this name are omitted, as by Kafka. So a retention that is
    set by log.retention.hours alone has the source DEFAULT, for log.retention.ms and for topics: the
    entries are log.retention.hours 24 (STATIC_BROKER) and log.retention.hours 168 (DEFAULT), none of which
    has the requested name log.retention.ms.
    """
    key = _broker_key(name)
    is_sensitive = key is None or key.is_sensitive
    found = [
        Synonym(synonym, None if is_sensitive else text, source)
        for source, texts in _levels(config)
        for synonym in with_listener_base(name)
        if (text := texts(synonym)) is not None
    ]
    first = next((at for at, one in enumerate(found) if one.name == name), len(found))
    return tuple(found[first:])


def _default_text(name: str) -> str | None:
    key = BROKER_CONFIGS.get(name)
    return None if key is None else text_of(key.type, key.default)


def _levels(config: BrokerConfig) -> Iterator[tuple[ConfigSource, Callable[[str], str | None]]]:
    yield ConfigSource.DYNAMIC_BROKER, config.broker_overrides.get
    yield ConfigSource.DYNAMIC_DEFAULT_BROKER, config.cluster_overrides.get
    yield ConfigSource.STATIC_BROKER, config.static.get
    yield ConfigSource.DEFAULT, _default_text
