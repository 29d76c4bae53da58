"""Connection quotas: the number of connections and the rate of new ones, for a node and for each of its listeners.

    max.connections, listener.name.X.max.connections   a new connection waits until another one closes
    max.connection.creation.rate, listener.name.X...   a new connection waits until the rate permits it
    max.connections.per.ip and its overrides           a new connection is closed

The inter-broker listener is protected if there are other listeners: connections to it neither wait for
`max.connections` nor count in the node's rate, so that clients cannot cut replication off; for each excess
connection the least recently used connection of another listener is closed. A listener without limits of its own
has the node's. The broker and the controller of one process are counted separately.

Pure: times are in ms of any one clock. Source: kafka.network.ConnectionQuotas of Kafka 4.3.1.
"""

from collections import Counter, deque

from ottla.broker.network.settings import NetworkSettings


class CreationRate:
    """Connections per second over the last windows; Kafka's Rate.

    While fewer windows have passed than are kept, the missing ones count as empty: after a pause, a burst
    of some seconds' connections is accepted at once.

    Kafka has another rule, too, its SimpleRate, which is `ottla.replication.byte_quota.ByteQuota`: the time of a rate
    is there that since the first record, and at least one window.
    """

    def __init__(self) -> None:
        #: [start in ms, number of connections], the oldest first; at most one more than quota.window.num.
        self._windows: deque[list[int]] = deque()

    def record(self, limit: int, *, settings: NetworkSettings, now_ms: int) -> int:
        """Record one more connection; returns its delay in ms, at most one window."""
        window_ms, kept = settings.rate_window_ms, settings.rate_window_count
        windows = self._windows
        while windows and now_ms - windows[0][0] >= (kept + 1) * window_ms:
            windows.popleft()
        if not windows or now_ms - windows[-1][0] >= window_ms:
            windows.append([now_ms, 0])
        windows[-1][1] += 1
        elapsed_ms = now_ms - windows[0][0]
        elapsed_ms += max(kept - 1 - elapsed_ms // window_ms, 0) * window_ms
        count = sum(each for _, each in windows)
        if count * 1000 <= limit * elapsed_ms:
            return 0
        if limit <= 0:
            return window_ms
        return min(count * 1000 // limit - elapsed_ms, window_ms)


class ConnectionLimits:
    """The counts of all connections, and the limits of `settings`, which may be replaced at any time."""

    def __init__(self, settings: NetworkSettings) -> None:
        self.settings = settings
        #: max.connections.per.ip.overrides by address; host names, too, until they are resolved.
        self.overrides = settings.max_connections_per_ip_overrides
        self.total = 0
        self.by_listener: Counter[str] = Counter()
        #: Listener -> the connections accepted since the start, for metrics.
        self.accepted_by_listener: Counter[str] = Counter()
        self.by_host: Counter[str] = Counter()
        self._rate = CreationRate()
        self._rates: dict[str, CreationRate] = {}

    def change(self, settings: NetworkSettings) -> None:
        """Replace the limits, which apply from now on."""
        if settings.max_connections_per_ip_overrides != self.settings.max_connections_per_ip_overrides:
            self.overrides = settings.max_connections_per_ip_overrides
        self.settings = settings

    def add_listener(self, name: str) -> None:
        """Add a listener, before the first connection to it arrives."""
        self._rates[name] = CreationRate()

    def is_protected(self, listener: str) -> bool:
        """Whether the listener is the inter-broker listener and not the only one."""
        return listener == self.settings.inter_broker_listener and len(self._rates) > 1

    @property
    def excess(self) -> int:
        """The number of connections to unprotected listeners that have to be closed."""
        return max(self.total - self.settings.max_connections, 0)

    def delay_ms(self, listener: str, *, now_ms: int) -> int:
        """Record a connection that has arrived at a listener; returns its delay by the creation rates, in ms."""
        settings = self.settings
        of_listener = settings.of_listener(listener).max_creation_rate
        delay_ms = self._rates[listener].record(of_listener, settings=settings, now_ms=now_ms)
        if self.is_protected(listener):
            return delay_ms
        of_node = settings.max_creation_rate
        return max(delay_ms, self._rate.record(of_node, settings=settings, now_ms=now_ms))

    def wait_reason(self, listener: str) -> str | None:
        """The reason why a connection that has arrived must wait until another one closes; None if it may be
        accepted.
        """
        limit = self.settings.of_listener(listener).max_connections
        if self.by_listener[listener] >= limit:
            return f"{limit} connections to this listener (max.connections)"
        if not self.is_protected(listener) and self.total >= self.settings.max_connections:
            return f"{self.total} connections in all (max.connections={self.settings.max_connections})"
        return None

    def refusal(self, host: str) -> str | None:
        """The reason, for the log, why one more connection from `host` is refused; None if it is not."""
        limit = self.overrides.get(host, self.settings.max_connections_per_ip)
        if self.by_host[host] >= limit:
            return f"{limit} connections per address reached"
        return None

    def add(self, listener: str) -> None:
        """Count a connection to a listener that was accepted."""
        self.total += 1
        self.by_listener[listener] += 1
        self.accepted_by_listener[listener] += 1

    def add_host(self, host: str) -> None:
        """Count a connection from this address that was admitted."""
        self.by_host[host] += 1

    def remove(self, listener: str) -> None:
        """Subtract a closed connection from the counts."""
        self.total -= 1
        self.by_listener[listener] -= 1
        assert self.by_listener[listener] >= 0, listener

    def remove_host(self, host: str) -> None:
        """Subtract a closed connection, which `add_host` has counted, from the count of its address."""
        self.by_host[host] -= 1
        assert self.by_host[host] >= 0, host
        if not self.by_host[host]:
            del self.by_host[host]
