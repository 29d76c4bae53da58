"""What of the configuration concerns sockets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.config import BrokerConfig

#: Kafka's "no limit" for numbers of connections.
NO_LIMIT = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class NetworkSettings:
    """The keys are in `from_config`; the defaults are Kafka's."""

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
    def from_config(cls, config: "BrokerConfig") -> "NetworkSettings":
        """What a broker's configuration asks for; -1 (the system's choice, or never) becomes None."""
        return cls(
            request_max_bytes=config.socket_request_max_bytes,
            send_buffer_bytes=_unless_negative(config.socket_send_buffer_bytes),
            receive_buffer_bytes=_unless_negative(config.socket_receive_buffer_bytes),
            backlog=config.socket_listen_backlog_size,
            max_idle_ms=_unless_negative(config.connections_max_idle_ms),
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            max_connections_per_ip_overrides=config.max_connections_per_ip_overrides,
        )


def _unless_negative(value: int) -> int | None:
    return None if value < 0 else value
