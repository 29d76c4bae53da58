"""Notices for the operator about a configuration: keys that have no effect, and questionable combinations.

A definition has the reason why no code reads its key (`ConfigKey.unread`); this module makes sentences of these
reasons, one for each feature that is not served, not one for each key.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigKey, InvalidConfigValue, NoMeaning, NotServed
from ottla.config.definitions import BROKER_CONFIGS, DYNAMIC_BROKER_CONFIGS
from ottla.config.names import LISTENER_KEYS, base_key, listener_of

__all__ = [
    "WITHOUT_CLIENT_SERIES",
    "WITHOUT_TIER",
    "changed",
    "dynamic_warnings",
    "infos",
    "is_tiered",
    "unread_names",
    "unserved_warnings",
    "warnings",
]

_SYSTEM_ENABLE: Final = "remote.log.storage.system.enable"
#: Of a topic with remote.storage.enable=true on a broker without remote tier; Kafka stops with an exception.
WITHOUT_TIER: Final = (
    f"remote.storage.enable is true, but {_SYSTEM_ENABLE} is false on this broker: nothing is copied to the "
    "remote tier, and what is there cannot be read. Start the broker with the remote tier (--tier), or disable "
    "tiering of the topic."
)
_CLIENT_SERIES: Final = "metrics.clients.max.series"
#: Of a subscription of client metrics on a broker that does not show them; Kafka ignores it without a plug-in.
WITHOUT_CLIENT_SERIES: Final = (
    f"clients push these metrics, but this broker does not show them: set {_CLIENT_SERIES} and metrics.listeners, "
    "or delete the subscription."
)
#: The settings of a remote store that its operator wants to read, and that are no secrets.
_SHOWN: Final = (".dir", ".bucket", ".prefix", ".endpoint", ".region")
#: The user and the password of a URL.
_USER_OF_URL: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_BROKER_KEYS = {**BROKER_CONFIGS, **DYNAMIC_BROKER_CONFIGS}


def warnings(config: BrokerConfig) -> Iterator[str]:
    """The warnings that are logged when a node starts with this configuration."""
    yield from _unknown(config)
    yield from unserved_warnings(_broker_keys_of(config.static))
    yield from _of_listeners(config, config.static)
    yield from _of_roles(config)
    yield from _of_remote_tier(config, config.static)
    if config.get(_CLIENT_SERIES) and not config.metrics_listeners:
        yield f"{_CLIENT_SERIES} has no effect without metrics.listeners, where the series of clients are shown."
    if config.get("authorizer.class.name"):
        yield "authorizer.class.name is set: ACLs are stored and described, but not enforced yet."
    if config.broker_heartbeat_interval_ms * 2 > config.broker_session_timeout_ms:
        yield (
            f"broker.heartbeat.interval.ms ({config.broker_heartbeat_interval_ms}) should be at most half of "
            f"broker.session.timeout.ms ({config.broker_session_timeout_ms}): one lost heartbeat fences the broker."
        )


def infos(config: BrokerConfig) -> Iterator[str]:
    """The INFO lines that are logged when a node starts: one line with the keys that have no meaning here, if any."""
    if ignored := unread_names(_broker_keys_of(config.static), NoMeaning):
        yield (
            f"These configurations have no meaning for this broker and are ignored: {', '.join(ignored)}. "
            "docs/CONFIGURATION.md gives the reasons."
        )


def changed(config: BrokerConfig) -> Iterator[str]:
    """Yield `key=value` for each configuration of the file or the command line that is not its default.

    Secrets are hidden.
    """
    for name, text in sorted(config.static.items()):
        key = _BROKER_KEYS.get(base_key(name))
        is_default = (
            key is not None and not (key.is_sensitive or key.is_required) and key.parse(text) == key.default
        )
        if not is_default:
            yield f"{name}={shown(config, name, text)}"


def shown(config: BrokerConfig, name: str, text: str) -> str:
    """The value of a configuration for a log or a terminal.

    Secrets are hidden, users and passwords of URLs among them, and so are the values of keys that only a plugin knows,
    which may be secrets.
    """
    key = _BROKER_KEYS.get(base_key(name))
    is_shown = (
        name.startswith(_plugin_prefixes(config)) and name.endswith(_SHOWN)
        if key is None
        else not key.is_sensitive
    )
    return _USER_OF_URL.sub("[hidden]@", text) if is_shown else "[hidden]"


def unread_names(
    keys: Iterable[tuple[str, str, ConfigKey]], why: type[NoMeaning] | type[NotServed]
) -> list[str]:
    """The names of keys that are set and not read for this kind of reason, sorted.

    `keys` are (name as set, text, definition).
    """
    return sorted(
        name
        for name, text, key in keys
        if isinstance(key.unread, why) and not (isinstance(key.unread, NotServed) and _is_harmless(key, text))
    )


def unserved_warnings(keys: Iterable[tuple[str, str, ConfigKey]]) -> Iterator[str]:
    """Yield one sentence for each unserved feature whose keys are set; `keys` as for `unread_names`."""
    by_feature: dict[str, list[tuple[str, str, ConfigKey]]] = {}
    for name, text, key in keys:
        if isinstance(key.unread, NotServed):
            by_feature.setdefault(key.unread.feature, []).append((name, text, key))
    for feature, rows in sorted(by_feature.items()):
        if names := unread_names(rows, NotServed):
            yield (
                f"These configurations have no effect, since this broker does not serve {feature} yet: "
                f"{', '.join(names)}."
            )


def dynamic_warnings(config: BrokerConfig) -> Iterator[str]:
    """The warnings that are logged when dynamic values change: the values without effect, with the reasons."""
    altered = {**config.cluster_overrides, **config.broker_overrides}
    if config.ignored_overrides:
        yield f"Dynamic configurations that this version cannot use: {', '.join(config.ignored_overrides)}."
    yield from unserved_warnings(_broker_keys_of(altered))
    if ignored := unread_names(_broker_keys_of(altered), NoMeaning):
        yield f"Dynamic configurations without a meaning for this broker: {', '.join(ignored)}."
    yield from _of_listeners(config, altered)
    yield from _of_remote_tier(config, altered)


def _broker_keys_of(texts: Mapping[str, str]) -> list[tuple[str, str, ConfigKey]]:
    """Return every known name of `texts`, with its text and its definition."""
    rows = []
    for name, text in texts.items():
        if (key := _BROKER_KEYS.get(base_key(name))) is not None:
            rows.append((name, text, key))
    return rows


def _plugin_prefixes(config: BrokerConfig) -> tuple[str, str]:
    """The prefixes of properties for the managers of tiered storage."""
    values = config.values
    return (
        str(values["remote.log.storage.manager.impl.prefix"]),
        str(values["remote.log.metadata.manager.impl.prefix"]),
    )


def _is_harmless(key: ConfigKey, text: str) -> bool:
    """Whether this broker behaves according to the value although no code reads it."""
    assert isinstance(key.unread, NotServed), key
    try:
        return key.unread.harmless is not None and key.parse(text) == key.unread.harmless
    except InvalidConfigValue:  # of a resource that another version has accepted
        return False


def _unknown(config: BrokerConfig) -> Iterator[str]:
    names = [
        name
        for name in config.static
        if base_key(name) not in BROKER_CONFIGS and not name.startswith(_plugin_prefixes(config))
    ]
    if dynamic := sorted(name for name in names if name in DYNAMIC_BROKER_CONFIGS):
        yield (
            "These configurations have no effect in a file, since they can only be altered dynamically: "
            f"{', '.join(dynamic)}."
        )
    if unknown := sorted(set(names) - set(dynamic)):
        yield f"These configurations are not known and have no effect: {', '.join(map(_with_near_key, unknown))}."


def _with_near_key(name: str) -> str:
    """The unknown name, and the known one that was probably meant."""
    from difflib import get_close_matches  # imported here: a start without a mistake does not need it

    near = get_close_matches(base_key(name), BROKER_CONFIGS, n=1, cutoff=0.85)
    return f"{name} (did you mean {near[0]}?)" if near else name


def _of_listeners(config: BrokerConfig, names: Iterable[str]) -> Iterator[str]:
    """Yield a notice for each listener's own value without effect.

    Its listener does not exist, or its key is for the whole node only.
    """
    listeners = {each.name for each in (*config.listeners, *config.controller_listeners)}
    for name in names:
        listener = listener_of(name)
        key = BROKER_CONFIGS.get(base_key(name))
        if listener is None or key is None or key.unread is not None:
            continue
        if key.name not in LISTENER_KEYS:
            yield f"{name} has no effect: {key.name} cannot be set for one listener; set {key.name} itself."
        elif listener not in listeners:
            yield f"{name} has no effect: this node has no listener {listener}."


def _of_remote_tier(config: BrokerConfig, names: Iterable[str]) -> Iterator[str]:
    """Yield a notice of the remote tier's settings that are set while the tier is disabled."""
    if config.remote_log_storage_system_enable:
        return
    prefixes = (*_plugin_prefixes(config), "remote.", "log.local.retention.", "log.remote.copy.lag.")
    if idle := sorted(name for name in names if name.startswith(prefixes) and name != _SYSTEM_ENABLE):
        yield f"These configurations have no effect, since {_SYSTEM_ENABLE} is false: {', '.join(idle)}."


def is_tiered(overrides: Mapping[str, str]) -> bool:
    """Whether a topic with these overrides is tiered."""
    return overrides.get("remote.storage.enable", "").strip().lower() == "true"


def _of_roles(config: BrokerConfig) -> Iterator[str]:
    """Yield a notice for each property that does not apply to the node's roles (Kafka's own list)."""
    if config.is_controller:
        return
    if len(config.controller_listener_names) > 1:
        names = ",".join(config.controller_listener_names)
        yield f"controller.listener.names is {names}: a broker uses the first one only."
    for name in ("num.partitions", "default.replication.factor"):
        if name in config.static:
            yield f"Configuration {name} is set on a broker: the controllers' value counts."
