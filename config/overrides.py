"""Dynamic configurations that this broker can use: the dynamic keys, their levels, and values that it can apply.

Source: DynamicBrokerConfig of Kafka 4.3.1.
"""

from collections.abc import Mapping

from ottla.config.checks import check_key_served
from ottla.config.config_def import UpdateMode
from ottla.config.definitions import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from ottla.config.names import LISTENER_KEYS, base_key, listener_of
from ottla.protocol.errors import InvalidConfig

#: Key stores and trust stores: only altered for one listener, which limits the effect of a mistake.
PER_LISTENER_ONLY = frozenset(
    name for name in BROKER_CONFIGS if name.startswith(("ssl.keystore.", "ssl.truststore.", "ssl.key."))
)

#: Keys that Kafka can change at runtime and this broker cannot: refused, not accepted without effect.
_NOT_YET_ALTERED = (
    "listeners",
    "listener.security.protocol.map",
)


def is_dynamic(name: str) -> bool:
    """Whether AlterConfigs may set a key; DescribeConfigs reports a listener's own keys as read-only, as in Kafka."""
    return name in DYNAMIC_BROKER_CONFIGS


def usable_overrides(
    overrides: Mapping[str, str], static: Mapping[str, str], *, is_per_broker: bool
) -> dict[str, str]:
    """The stored values that a broker of this version can apply, each validated alone; `static`: its properties.

    This broker has not validated all stored values: a controller accepts values without it.
    """
    refused = set(unalterable(overrides)) | PER_LISTENER_ONLY
    usable: dict[str, str] = {}
    for name, text in overrides.items():
        if name in refused or (not is_per_broker and is_per_broker_only(name)):
            continue
        try:
            check_values({name: text})
            if is_applicable(name, text, static):
                usable[name] = text
        except InvalidConfig:
            continue
    return usable


def unalterable(overrides: Mapping[str, str]) -> list[str]:
    """Return the known keys that are read-only. Unknown keys are accepted: Kafka stores them for plugins."""
    return [name for name in overrides if name in BROKER_CONFIGS and name not in DYNAMIC_BROKER_CONFIGS]


def is_per_broker_only(name: str) -> bool:
    """Whether a key may only be set for one broker, under its id."""
    if listener_of(name) is not None:
        return base_key(name) not in LISTENER_KEYS
    key = DYNAMIC_BROKER_CONFIGS.get(name)
    return key is not None and key.update_mode is UpdateMode.PER_BROKER


def check_values(overrides: Mapping[str, str]) -> None:
    """Validate each value alone. Raises InvalidConfig for one that is invalid or not served."""
    for name, text in overrides.items():
        key = DYNAMIC_BROKER_CONFIGS.get(base_key(name))
        if key is not None:
            key.parse(text)
        check_key_served(name, text)


def is_applicable(name: str, text: str, static: Mapping[str, str]) -> bool:
    """Whether a running node can apply the value; the value with which it was started is no change."""
    if listener_of(name) is not None and base_key(name) not in LISTENER_KEYS:
        return static.get(name) == text
    if name not in _NOT_YET_ALTERED:
        return True
    key = BROKER_CONFIGS[name]
    return key.parse(text) == (key.parse(static[name]) if name in static else key.default)
