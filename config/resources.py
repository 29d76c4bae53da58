"""Validation of configurations of groups and of client metrics subscriptions.

A group's values must be within the broker's bounds for all groups of its type.
Source: GroupConfig.validate and ClientMetricsConfigs.validate of Kafka 4.3.1.
"""

import re
from collections.abc import Iterable, Mapping

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigDef, ConfigValue
from ottla.config.definitions import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from ottla.config.group_bounds import GROUP_SYNONYMS, check_group_bounds
from ottla.protocol.errors import InvalidConfig, InvalidRequest

__all__ = ["group_values", "match_patterns", "validate_client_metrics_alter", "validate_group_alter"]

#: Shortest and longest push interval: 100 ms and one hour (KIP-714).
_PUSH_INTERVAL_MS = range(100, 3_600_001)

_MATCH_PARAMETERS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def group_values(config: BrokerConfig) -> dict[str, ConfigValue]:
    """The parsed default of every group configuration, for groups without an override."""
    return {
        name: config.get(GROUP_SYNONYMS[name]) if name in GROUP_SYNONYMS else key.default
        for name, key in GROUP_CONFIGS.items()
    }


def validate_group_alter(config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Validate all overrides that a group has after the change. Raises InvalidConfig."""
    values = group_values(config) | _parse(GROUP_CONFIGS, overrides, "group")
    check_group_bounds(values, overrides, config.values)


def validate_client_metrics_alter(subscription: str, overrides: Mapping[str, str]) -> None:
    """Validate the overrides of a subscription. Raises InvalidRequest, or InvalidConfig for a match entry."""
    if not subscription:
        raise InvalidRequest("Subscription name can't be empty")
    if unknown := [name for name in overrides if name not in CLIENT_METRICS_CONFIGS]:
        raise InvalidRequest(f"Unknown client metrics configuration: {unknown[0]}")
    values = _parse(CLIENT_METRICS_CONFIGS, overrides, "client metrics")
    interval_ms = values.get("interval.ms")
    if isinstance(interval_ms, int) and interval_ms not in _PUSH_INTERVAL_MS:
        raise InvalidRequest(
            f"Invalid value {interval_ms} for configuration interval.ms: it must be between 100 and 3600000."
        )
    entries = values.get("match", ())
    assert isinstance(entries, tuple), entries
    match_patterns(entries)


def match_patterns(entries: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Return the patterns of a subscription's `match`, by the property of the client that they match.

    Raises InvalidConfig. Of several entries for one property the last one counts, as in Kafka.
    """
    patterns = {}
    for entry in entries:
        parameter, _, text = (each.strip() for each in entry.partition("="))
        if parameter not in _MATCH_PARAMETERS or not text or "=" in text:
            raise InvalidConfig(f"Illegal client matching pattern: {entry}")
        try:
            patterns[parameter] = re.compile(text)
        except re.error as error:
            raise InvalidConfig(f"Illegal client matching pattern: {entry}: {error}") from error
    return patterns


def _parse(definition: ConfigDef, overrides: Mapping[str, str], kind: str) -> dict[str, ConfigValue]:
    for name in overrides:
        if name not in definition:
            raise InvalidConfig(f"Unknown {kind} config name: {name}")
    return {name: definition.parse(name, text) for name, text in overrides.items()}
