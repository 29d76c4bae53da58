"""How many connections there may be: in all, and from one address."""

from collections import Counter

from broker.network.settings import NetworkSettings


class ConnectionLimits:
    """Counts connections against `max.connections` and `max.connections.per.ip`.

    The settings are given anew for every connection, so a change of them is in force at once; it
    closes nobody who is already there.

    Differs from Kafka: at `max.connections` Kafka leaves new connections in the backlog (and lets
    other brokers displace an idle client); here they are closed, as Kafka does for the limit of one
    address.
    """

    def __init__(self) -> None:
        self.total = 0
        self.by_host: Counter[str] = Counter()

    def refusal(self, host: str, settings: NetworkSettings) -> str | None:
        """Why one more connection from `host` is too many, for the log; None if it is not."""
        if self.total >= settings.max_connections:
            return f"max.connections={settings.max_connections} reached"
        limit = settings.max_connections_per_ip_overrides.get(host, settings.max_connections_per_ip)
        if self.by_host[host] >= limit:
            return f"{limit} connections per address reached"
        return None

    def add(self, host: str) -> None:
        """One more connection from `host`."""
        self.total += 1
        self.by_host[host] += 1

    def remove(self, host: str) -> None:
        """One less."""
        self.total -= 1
        self.by_host[host] -= 1
        assert self.total >= 0, self.total
        assert self.by_host[host] >= 0, host
        if not self.by_host[host]:
            del self.by_host[host]
