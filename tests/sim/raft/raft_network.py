"""The network between nodes: messages are delayed, lost, and overtake each other between connections, never on one.

Each message goes through its bytes, so that what a version leaves out is lost here, too. A request ends in an
answer or, at the latest after its timeout by the sender's clock, in none; never in both.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from raft_events import MS, Events

from ottla.controller.raft.effects import Send
from ottla.controller.raft.types import Address
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.schema import Message


def through_bytes(message: Any) -> Any:
    """The message as the other side reads it, in the latest version."""
    cls: type[Message] = type(message)
    version = cls.__versions__.last or 0
    return decoder(cls, version)(encoder(cls, version)(message))


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what becomes of it; a node answers by it (its token)."""

    sender: Any
    incarnation: int
    send: Send
    #: The nodes that have received it.
    receiver: Any = None
    is_over: bool = False


@dataclass(slots=True)
class Weather:
    """The present conditions of the network."""

    min_delay_ms: float = 0.2
    max_delay_ms: float = 5
    #: Of messages.
    loss: float = 0.0
    #: Directed links that let nothing through.
    cut: set[tuple[int, int]] = field(default_factory=set)


class Network:
    """Carries exchanges between nodes, which it knows by address."""

    def __init__(self, events: Events, random: Random) -> None:
        self.events = events
        self.random = random
        self.weather = Weather()
        self.nodes: dict[Address, Any] = {}
        #: When the last message on a link arrives: the next one is later.
        self._last: dict[tuple[int, int], int] = defaultdict(int)

    def request(self, sender: Any, send: Send) -> None:
        """A node sends a request."""
        exchange = Exchange(sender, sender.incarnation, send)
        timeout = sender.global_delay(send.timeout_ms)
        self.events.after(timeout, lambda: self._end(exchange, None, "timeout"))
        receiver = self.nodes.get(send.to)
        if receiver is None or receiver is sender:
            self.events.after(MS, lambda: self._end(exchange, None, "connection refused"))
            return
        message = through_bytes(send.message)
        self._carry(sender.id, receiver.id, lambda: self._arrive(exchange, receiver, message))

    def _arrive(self, exchange: Exchange, receiver: Any, message: Any) -> None:
        if not receiver.is_running:
            # Mostly the connection is refused at once; a machine that has gone says nothing.
            if self.random.random() < 0.8:
                self._end(exchange, None, "refused")
            return
        exchange.receiver = receiver
        receiver.receive(message, exchange)

    def reply(self, exchange: Exchange, response: Any) -> None:
        """Deliver a node's response."""
        response = through_bytes(response)
        sender = exchange.sender
        self._carry(exchange.receiver.id, sender.id, lambda: self._end(exchange, response, "answer"))

    def _carry(self, source: int, target: int, arrive: Any) -> None:
        weather, link = self.weather, (source, target)
        if link in weather.cut or (weather.loss and self.random.random() < weather.loss):
            return
        delay = self.random.uniform(weather.min_delay_ms, weather.max_delay_ms) * MS
        self._last[link] = max(self._last[link] + 1, self.events.now + int(delay))

        def deliver() -> None:
            if link not in weather.cut:
                arrive()

        self.events.at(self._last[link], deliver)

    def _end(self, exchange: Exchange, response: Any, why: str) -> None:
        if not exchange.is_over:
            exchange.is_over = True
            if exchange.sender.incarnation == exchange.incarnation:
                exchange.sender.answered(exchange.send, response, why)
