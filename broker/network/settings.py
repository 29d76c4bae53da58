"""What of the configuration concerns sockets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Kafka's "no limit" for numbers of connections.
NO_LIMIT = 2**31 - 1


class _Config(Protocol):
    """A parsed configuration, by Kafka's names."""

    def get(self, name: str, /) -> Any:  # noqa: ANN401 (each key has its own type)
        """The value of `name`."""


@dataclass(slots=True, kw_only=True)
class NetworkSettings:
    """See the Kafka keys in `from_config`; the defaults are Kafka's."""

    request_max_bytes: int = 100 * 1024 * 1024
    #: None: the operating system's (self-tuning) size, -1 in Kafka's configuration.
    send_buffer_bytes: int | None = 100 * 1024
    receive_buffer_bytes: int | None = 100 * 1024
    backlog: int = 50
    #: None: never.
    max_idle_ms: int | None = 600_000
    max_connections: int = NO_LIMIT
    max_connections_per_ip: int = NO_LIMIT
    #: Limits of single addresses, instead of `max_connections_per_ip`.
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: _Config) -> "NetworkSettings":
        """The settings that a broker's configuration asks for."""
        idle_ms = config.get("connections.max.idle.ms")
        return cls(
            request_max_bytes=config.get("socket.request.max.bytes"),
            send_buffer_bytes=_unless_negative(config.get("socket.send.buffer.bytes")),
            receive_buffer_bytes=_unless_negative(config.get("socket.receive.buffer.bytes")),
            backlog=config.get("socket.listen.backlog.size"),
            max_idle_ms=_unless_negative(idle_ms),
            max_connections=config.get("max.connections"),
            max_connections_per_ip=config.get("max.connections.per.ip"),
            max_connections_per_ip_overrides=parse_overrides(config.get("max.connections.per.ip.overrides")),
        )


def parse_overrides(text: str) -> dict[str, int]:
    """`host:count,host:count` as a mapping; the host may be an IPv6 address in brackets or without.

    Raises ValueError for anything else.

    >>> parse_overrides("127.0.0.1:200, ::1:5")
    {'127.0.0.1': 200, '::1': 5}
    >>> parse_overrides("")
    {}
    """
    overrides = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        host, colon, count = entry.rpartition(":")
        if not colon or not host or not count.strip().isdecimal():
            raise ValueError(f"{entry!r} is not host:count")
        overrides[host.strip().strip("[]")] = int(count)
    return overrides


def _unless_negative(value: int) -> int | None:
    return None if value < 0 else value
