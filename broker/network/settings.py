"""What of the configuration concerns sockets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.config import BrokerConfig

#: Kafka's "no limit" for numbers of connections.
NO_LIMIT = 2**31 - 1


@dataclass(slots=True, frozen=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener: listener.name.X.max.connections, or else the node's, and so on."""

    max_connections: int
    max_creation_rate: int


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
    #: New connections per second, over windows of quota.window.size.seconds.
    max_creation_rate: int = NO_LIMIT
    rate_window_ms: int = 1_000
    rate_window_count: int = 11
    #: Limits of single listeners, by name; one that is not here has the node's.
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    #: What other brokers use: never full for clients' sake.
    inter_broker_listener: str | None = None
    #: Connections that may hold requests which wait for an earlier one.
    queued_max_requests: int = 500
    #: What the frames that are being received may take together; None: no bound.
    queued_max_request_bytes: int | None = None

    @classmethod
    def from_config(cls, config: "BrokerConfig") -> "NetworkSettings":
        """What a broker's configuration asks for; -1 (the system's choice, or never) becomes None."""
        return cls(
            request_max_bytes=config.socket_request_max_bytes,
            send_buffer_bytes=size_or_none(config.socket_send_buffer_bytes),
            receive_buffer_bytes=size_or_none(config.socket_receive_buffer_bytes),
            backlog=config.socket_listen_backlog_size,
            max_idle_ms=size_or_none(config.connections_max_idle_ms),
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            max_connections_per_ip_overrides=config.max_connections_per_ip_overrides,
            max_creation_rate=config.get("max.connection.creation.rate"),
            rate_window_ms=config.get("quota.window.size.seconds") * 1000,
            rate_window_count=config.get("quota.window.num"),
            listener_limits={
                listener.name: ListenerLimits(
                    max_connections=config.listener_value(listener.name, "max.connections"),
                    max_creation_rate=config.listener_value(listener.name, "max.connection.creation.rate"),
                )
                for listener in (*config.listeners, *config.controller_listeners)
            },
            inter_broker_listener=config.inter_broker_listener_name,
            queued_max_requests=config.get("queued.max.requests"),
            # As in Kafka 0 is no bound, either.
            queued_max_request_bytes=config.queued_max_request_bytes or None
            if config.queued_max_request_bytes >= 0
            else None,
        )

    def of_listener(self, name: str) -> ListenerLimits:
        """The limits that hold for one listener."""
        return self.listener_limits.get(name) or ListenerLimits(
            max_connections=self.max_connections, max_creation_rate=self.max_creation_rate
        )


def size_or_none(value: int) -> int | None:
    """A size or time of the configuration; None for -1: the system's choice, or never."""
    return None if value < 0 else value
