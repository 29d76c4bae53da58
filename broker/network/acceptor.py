"""Acceptor: when the connections of one listener are accepted.

    ready --a connection arrives, above a creation rate--> delayed --the delay is over--> ready
    ready --a connection arrives, no slot is free--> waiting, behind other listeners --a connection closes--> ready
    ready --a connection arrives, otherwise--> accepted

At most one connection is held; those behind it stay in the listener's backlog (`Listening.resume`).
Source: kafka.network.Acceptor, ConnectionQuotas.waitForConnectionSlot of Kafka 4.3.1.
"""

import logging
from typing import Final

from ottla.broker.network.limits import ConnectionLimits
from ottla.runtime import Listening, Runtime
from ottla.runtime.rate_limited_log import RateLimitedLog

logger = logging.getLogger(__name__)

#: The minimum interval between two log lines about a full listener.
_LOG_INTERVAL_S: Final = 10.0


class Acceptor:
    """Decides when the connections of one listener are accepted, by the limits on their number and rate."""

    #: Set when the socket is open.
    listening: Listening

    def __init__(
        self, name: str, *, runtime: Runtime, limits: ConnectionLimits, waiting: "dict[Acceptor, None]"
    ) -> None:
        """Create the acceptor of one listener; `waiting` are the node's acceptors that wait for a slot, in order."""
        self._name = name
        self._runtime = runtime
        self._limits = limits
        self._waiting = waiting
        #: When the creation rates permit the held connection; None: no connection is held.
        self._due_at: float | None = None
        self._log = RateLimitedLog(logger, monotonic=runtime.monotonic, interval_s=_LOG_INTERVAL_S)
        limits.add_listener(name)

    def admits(self) -> bool:
        """Whether the connection that has arrived may be accepted; called again by `Listening.resume`."""
        now = self._runtime.monotonic()
        if self._due_at is None:
            delay_ms = self._limits.delay_ms(self._name, now_ms=round(now * 1000))
            self._due_at = now + delay_ms / 1000
            if delay_ms:
                self._runtime.call_later(delay_ms / 1000, self._resume)
        if now < self._due_at:
            return False
        if (reason := self._limits.wait_reason(self._name)) is not None:
            self._waiting.setdefault(self)
            self._log.write(
                logging.WARNING,
                "listener %s: new connections wait until others are closed: there are %s",
                self._name,
                reason,
            )
            return False
        self._due_at = None
        self._waiting.pop(self, None)
        return True

    def _resume(self) -> None:
        """Continue when the delay is over. A timer may be early by the clock's resolution."""
        self._due_at = self._runtime.monotonic()
        self.listening.resume()
