"""Which connections of one listener are accepted, and when.

    ready --a connection arrives, the rates do not allow it yet--> delayed --the delay is over--> ready
    ready --a connection arrives, there is no slot--> waiting, behind other listeners' --one has gone--> ready
    ready --a connection arrives, otherwise--> accepted

One connection is held in this way; those behind it stay in the listener's backlog (`Listening.resume`).
Source: kafka.network.Acceptor, ConnectionQuotas.waitForConnectionSlot of Kafka 4.3.1.
"""

import logging
from typing import Final

from broker.log_lines import SeldomLog
from broker.network.limits import ConnectionLimits
from broker.runtime import Listening, Runtime

logger = logging.getLogger(__name__)

#: The least time between two log lines that say that a listener is full.
_LOG_INTERVAL_S: Final = 10.0


class Acceptor:
    """See the module; one for each listener."""

    #: Set when the socket is open.
    listening: Listening

    def __init__(
        self, name: str, *, runtime: Runtime, limits: ConnectionLimits, waiting: "dict[Acceptor, None]"
    ) -> None:
        """`waiting` are the node's acceptors that wait for a slot, in this order."""
        self._name = name
        self._runtime = runtime
        self._limits = limits
        self._waiting = waiting
        #: When the connection that is held may be accepted, by the rates; None: none is held.
        self._due_at: float | None = None
        self._log = SeldomLog(logger, monotonic=runtime.monotonic, interval_s=_LOG_INTERVAL_S)
        limits.add_listener(name)

    def admits(self) -> bool:
        """Whether the connection that has arrived may be accepted; asked again by `Listening.resume`."""
        now = self._runtime.monotonic()
        if self._due_at is None:
            delay_ms = self._limits.delay_ms(self._name, now_ms=round(now * 1000))
            self._due_at = now + delay_ms / 1000
            if delay_ms:
                self._runtime.call_later(delay_ms / 1000, self._resume)
        if now < self._due_at:
            return False
        if (reason := self._limits.full_because(self._name)) is not None:
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
        """The delay is over. A timer may be early by the clock's resolution."""
        self._due_at = self._runtime.monotonic()
        self.listening.resume()
