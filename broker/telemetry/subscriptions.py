"""Subscriptions of client metrics: resources of type CLIENT_METRICS, the clients that they match, and what these send.

    match        each pattern must match the client's whole property; a subscription without patterns is for all clients
    metrics      the union over all matching subscriptions; "*" in one of them is all metrics
    interval     the shortest of theirs, at most five minutes

Source: KIP-714, ClientMetricsConfigs and ClientMetricsInstanceMetadata of Kafka 4.3.1.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from ottla.config.config_values import ConfigValue
from ottla.config.definitions import CLIENT_METRICS_CONFIGS
from ottla.config.resources import match_patterns
from ottla.protocol import kafka_uuid
from ottla.protocol.checksum import crc32c

#: The push interval of clients that no subscription matches, and the longest one of others: Kafka's.
DEFAULT_INTERVAL_MS: Final = 5 * 60 * 1000
_ALL: Final = "*"


class Client(NamedTuple):
    """The properties of a client that subscriptions match; None where a property is not known."""

    instance_id: UUID
    client_id: str | None
    software_name: str
    software_version: str
    source_address: str
    source_port: int

    def properties(self) -> Mapping[str, str | None]:
        """Return the properties by the names that `match` has for them."""
        return {
            "client_instance_id": kafka_uuid.to_text(self.instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.source_address,
            "client_source_port": str(self.source_port),
        }


class Subscription(NamedTuple):
    """One resource of type CLIENT_METRICS, parsed."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, re.Pattern[str]]

    @classmethod
    def from_configs(cls, overrides: Mapping[str, str]) -> "Subscription":
        """Parse the configurations of a resource. Raises InvalidConfig."""

        def get(name: str) -> ConfigValue:
            key = CLIENT_METRICS_CONFIGS[name]
            return key.parse(overrides[name]) if name in overrides else key.default

        metrics, interval_ms, match = get("metrics"), get("interval.ms"), get("match")
        assert isinstance(metrics, tuple), metrics
        assert isinstance(interval_ms, int), interval_ms
        assert isinstance(match, tuple), match
        return cls(metrics, interval_ms, match_patterns(match))

    def matches(self, properties: Mapping[str, str | None]) -> bool:
        """Whether the subscription is for a client with these properties."""
        for name, pattern in self.match.items():
            text = properties[name]
            if text is None or pattern.fullmatch(text) is None:
                return False
        return True


class Wanted(NamedTuple):
    """The metrics that one client is asked to send."""

    subscription_id: int
    #: Prefixes of names, sorted; ("*",) is all metrics, () none.
    metrics: tuple[str, ...]
    interval_ms: int


def wanted_of(client: Client, subscriptions: Collection[Subscription]) -> Wanted:
    """Return what a client is asked to send."""
    properties = client.properties()
    names: set[str] = set()
    interval_ms = DEFAULT_INTERVAL_MS
    for each in subscriptions:
        if each.matches(properties):
            names.update(each.metrics)
            interval_ms = min(interval_ms, each.interval_ms)
    metrics = (_ALL,) if _ALL in names else tuple(sorted(names))
    return Wanted(_subscription_id(metrics, interval_ms, client.instance_id), metrics, interval_ms)


def _subscription_id(metrics: Collection[str], interval_ms: int, instance_id: UUID) -> int:
    """Return an id that changes with what a client is asked for: a signed CRC32C of it, xor a hash of the instance.

    Equal for all brokers, so that a client may push to any of them.
    """
    crc = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    halves = (instance_id.int >> 64) ^ instance_id.int
    unsigned = (crc ^ (halves >> 32) ^ halves) & 0xFFFFFFFF
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned
