"""Network settings: the configurations of sockets and connections."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.config.broker_config import BrokerConfig

#: Kafka's "no limit" for numbers of connections.
NO_LIMIT = 2**31 - 1


@dataclass(slots=True, frozen=True, kw_only=True)
class ListenerLimits:
    """Limits of one listener: listener.name.X.max.connections and so on, or else the node's."""

    max_connections: int
    max_creation_rate: int


@dataclass(slots=True, kw_only=True)
class NetworkSettings:
    """The network settings of a node; `from_config` names the configuration of each field.

    The defaults are Kafka's.
    """

    request_max_bytes: int = 100 * 1024 * 1024
    #: The size of the socket's send buffer; None: the operating system's (self-tuning) size, -1 in Kafka's
    #: configuration.
    send_buffer_bytes: int | None = 100 * 1024
    receive_buffer_bytes: int | None = 100 * 1024
    backlog: int = 50
    #: The time after which an idle connection is closed; None: never.
    max_idle_ms: int | None = 600_000
    max_connections: int = NO_LIMIT
    max_connections_per_ip: int = NO_LIMIT
    #: Limits of single addresses, instead of `max_connections_per_ip`.
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    #: New connections per second, over windows of quota.window.size.seconds.
    max_creation_rate: int = NO_LIMIT
    rate_window_ms: int = 1_000
    rate_window_count: int = 11
    #: Limits of single listeners, by name; other listeners have the node's.
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    #: The listener of other brokers, which clients' connections cannot fill.
    inter_broker_listener: str | None = None
    #: Maximum number of connections that hold requests behind an earlier one.
    queued_max_requests: int = 500
    #: Maximum total size of the frames that are being received; None: no bound.
    queued_max_request_bytes: int | None = None

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "NetworkSettings":
        """The settings of a configuration; -1 (the system's choice, or never) becomes None."""
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
            # As in Kafka, 0 also means no bound.
            queued_max_request_bytes=config.queued_max_request_bytes or None
            if config.queued_max_request_bytes >= 0
            else None,
        )

    def of_listener(self, name: str) -> ListenerLimits:
        """The limits that apply to one listener."""
        return self.listener_limits.get(name) or ListenerLimits(
            max_connections=self.max_connections, max_creation_rate=self.max_creation_rate
        )


def size_or_none(value: int) -> int | None:
    """Return a size or time of the configuration; None for -1 (the system's choice, or never)."""
    return None if value < 0 else value
