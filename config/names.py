"""Synonyms of broker configurations, and the names of a listener's own configurations.

Source: DynamicBrokerConfig.brokerConfigSynonyms of Kafka 4.3.1.
"""

import re

from ottla.protocol.errors import InvalidRequest

__all__ = ["LISTENER_KEYS", "base_key", "listener_of", "node_id_of", "synonyms_of", "with_listener_base"]

_GROUPS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_SYNONYMS = {name: group for group in _GROUPS for name in group} | {
    # In one direction only: the scheduler's interval is a configuration of its own, and the default of the other.
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
}

#: Keys that may be set for one listener, and for the whole broker. (Those of SSL and SASL may, too; none is served.)
LISTENER_KEYS = ("max.connections", "max.connection.creation.rate", "num.network.threads")

#: Keys that may have the prefix of a SASL mechanism: listener.name.{listener}.{mechanism}.{key}.
_OF_MECHANISMS = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)

_OF_LISTENER = r"listener\.name\.(?P<listener>[^.]*)\.(?P<key>.*)"


def synonyms_of(name: str) -> tuple[str, ...]:
    """The names of one configuration, in order of precedence."""
    return _SYNONYMS.get(name, (name,))


def base_key(name: str) -> str:
    """The base key of a listener's own key: max.connections for listener.name.internal.max.connections."""
    match = re.fullmatch(_OF_LISTENER, name)
    if match is None:
        return name
    return next((key for key in _OF_MECHANISMS if match["key"].endswith(key)), match["key"])


def listener_of(name: str) -> str | None:
    """The listener of a key; None for the node's own keys."""
    match = re.fullmatch(_OF_LISTENER, name)
    return None if match is None else match["listener"].upper()


def with_listener_base(name: str) -> tuple[str, ...]:
    """Return the names of one configuration, in order of precedence: a listener's own key, then its base key.

    The names of any other key are those of `synonyms_of`.
    """
    base = base_key(name)
    return synonyms_of(name) if base == name else (name, base)


def node_id_of(resource_name: str, *, what: str = "Node id") -> int:
    """The node id in the name of a BROKER or BROKER_LOGGER resource. Raises InvalidRequest: `what` must be an int32."""
    if (
        re.fullmatch(r"[+-]?[0-9]{1,20}", resource_name)
        and -(2**31) <= (node_id := int(resource_name)) < 2**31
    ):
        return node_id
    raise InvalidRequest(f"{what} must be an integer, but it is: {resource_name}")
