"""Dynamic broker configurations, altered while the broker runs (KIP-226).

The metadata log stores them at two levels: for one broker, under its id, and for the whole cluster, under
the empty name. Most keys are valid at both levels; those of listeners and security only under an id.
Source: DynamicBrokerConfig and its reconfigurables of Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.config.checks import check_key_served
from broker.config.definitions import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from broker.config.names import LISTENER_KEYS, base_key, listener_of, node_id_of
from protocol.config_def import UpdateMode
from protocol.errors import InvalidConfig, InvalidRequest
from storage.log_config import check_local_retention

if TYPE_CHECKING:
    from broker.config.broker_config import BrokerConfig

__all__ = ["is_dynamic", "usable_overrides", "validate_broker_alter"]

#: Key stores and trust stores: only altered for one listener, which limits the effect of a mistake.
_ONLY_WITH_LISTENER = frozenset(
    name for name in BROKER_CONFIGS if name.startswith(("ssl.keystore.", "ssl.truststore.", "ssl.key."))
)

#: Numbers of threads, which one change may at most halve or double: a typing error stays harmless.
_RESIZED_IN_STEPS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
)

#: Keys that Kafka can change at runtime and this broker cannot: refused, not accepted without effect.
_NOT_YET_ALTERED = (
    "listeners",
    "listener.security.protocol.map",
)


def is_dynamic(name: str) -> bool:
    """Whether AlterConfigs may set a key; DescribeConfigs reports a listener's own keys as read-only, as in Kafka."""
    return name in DYNAMIC_BROKER_CONFIGS


def validate_broker_alter(config: BrokerConfig, resource_name: str, overrides: Mapping[str, str]) -> None:
    """Refuse dynamic values that this broker cannot use.

    `overrides` are all overrides of the resource after the change: of this broker if `resource_name` is
    its id, of the cluster if it is empty. Raises InvalidRequest: for broker resources Kafka returns that
    and not INVALID_CONFIG (KAFKA-13609).
    """
    is_per_broker = resource_name != ""
    if is_per_broker:
        _check_name(config, resource_name)
    _refuse(_unalterable(overrides), "Cannot update these configs dynamically")
    _refuse(
        [name for name in overrides if name in _ONLY_WITH_LISTENER],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    if not is_per_broker:
        _refuse(
            [name for name in overrides if _is_per_broker_only(name)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    try:
        _check_values(overrides)
        altered = (
            config.with_dynamic(config.cluster_overrides, overrides)
            if is_per_broker
            else config.with_dynamic(overrides, config.broker_overrides)
        )
        check_local_retention(altered.topic_defaults, prefix="log.")
    except InvalidConfig as error:
        raise InvalidRequest(error.message) from None
    _refuse(
        [name for name, text in overrides.items() if not _is_followed(name, text, config.static)],
        "This broker does not yet change these configs while it runs; restart it with other properties",
    )
    _check_steps(config, altered)
    _check_connection_limits(config, altered)


def usable_overrides(
    overrides: Mapping[str, str], static: Mapping[str, str], *, is_per_broker: bool
) -> dict[str, str]:
    """The stored values that a broker of this version can apply, each validated alone; `static`: its properties.

    This broker has not validated all stored values: a controller accepts values without it.
    """
    refused = set(_unalterable(overrides)) | _ONLY_WITH_LISTENER
    usable: dict[str, str] = {}
    for name, text in overrides.items():
        if name in refused or (not is_per_broker and _is_per_broker_only(name)):
            continue
        try:
            _check_values({name: text})
            if _is_followed(name, text, static):
                usable[name] = text
        except InvalidConfig:
            continue
    return usable


def _check_name(config: BrokerConfig, resource_name: str) -> None:
    if node_id_of(resource_name) != config.node_id:
        raise InvalidRequest(f"Unexpected broker id, expected {config.node_id}, but received {resource_name}")


def _refuse(names: list[str], sentence: str) -> None:
    if names:
        raise InvalidRequest(f"{sentence}: [{', '.join(sorted(names))}]")


def _unalterable(overrides: Mapping[str, str]) -> list[str]:
    """Known keys that are read-only. Unknown keys are accepted: Kafka stores them for plugins."""
    return [name for name in overrides if name in BROKER_CONFIGS and name not in DYNAMIC_BROKER_CONFIGS]


def _is_per_broker_only(name: str) -> bool:
    if listener_of(name) is not None:
        return base_key(name) not in LISTENER_KEYS
    key = DYNAMIC_BROKER_CONFIGS.get(name)
    return key is not None and key.update_mode is UpdateMode.PER_BROKER


def _check_values(overrides: Mapping[str, str]) -> None:
    for name, text in overrides.items():
        key = DYNAMIC_BROKER_CONFIGS.get(base_key(name))
        if key is not None:
            key.parse(text)
        check_key_served(name, text)


def _is_followed(name: str, text: str, static: Mapping[str, str]) -> bool:
    """Whether a running node can apply the value; the value with which it was started is no change."""
    if listener_of(name) is not None and base_key(name) not in LISTENER_KEYS:
        return static.get(name) == text
    if name not in _NOT_YET_ALTERED:
        return True
    key = BROKER_CONFIGS[name]
    return key.parse(text) == (key.parse(static[name]) if name in static else key.default)


def _check_connection_limits(config: BrokerConfig, altered: BrokerConfig) -> None:
    """Refuse a limit of zero connections, which a file may have: no connection could alter it back."""
    for key in ("max.connections", "max.connection.creation.rate"):
        of_listeners = [name for name in altered.texts if listener_of(name) and base_key(name) == key]
        for name in (key, *of_listeners):
            value = altered.get(key) if name == key else BROKER_CONFIGS.parse(key, altered.texts[name])
            if altered.texts.get(name) != config.texts.get(name) and isinstance(value, int) and value < 1:
                raise InvalidRequest(
                    f"Invalid value {value} for configuration {name}: it must be at least 1."
                )


def _check_steps(config: BrokerConfig, altered: BrokerConfig) -> None:
    for name in _RESIZED_IN_STEPS:
        current, asked = config.get(name), altered.get(name)
        if asked != current and not max(1, current // 2) <= asked <= current * 2:
            raise InvalidRequest(
                f"Invalid value {asked} for configuration {name}: it must be between half and double "
                f"the current value {current}, and at least 1."
            )
