"""The clients' operations and their results, in the order in which they ended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from ottla.protocol.errors import ErrorCode


@dataclass(slots=True, kw_only=True, eq=False)
class Transaction:
    """Several batches that readers of committed records get together, or never."""

    #: The marker that its producer sends; None: it is not decided yet.
    is_committed: bool | None = None
    #: When it was decided: before that no reader of committed records may get it.
    decided_s: float = inf


@dataclass(slots=True, kw_only=True)
class Send:
    """One batch of one producer."""

    client: str
    topic: str
    partition: int
    values: list[bytes]
    acks: int
    #: True: acknowledged; False: surely not written; None: unknown.
    is_ok: bool | None = None
    #: The offset in the response; None: it has none (a duplicate of an earlier append).
    base_offset: int | None = None
    errors: list[ErrorCode] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float | None = None
    transaction: Transaction | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Poll:
    """The result of one fetch of a consumer."""

    client: str
    topic: str
    partition: int
    #: (offset, value)
    found: list[tuple[int, bytes]]
    #: The leader epoch of each, where the consumer asks for it.
    epochs: list[int] = field(default_factory=list)
    broker_id: int
    high_watermark: int
    time_s: float
    #: The consumer's isolation level.
    is_read_committed: bool = False
    #: From where to where, exclusive, the consumer's position has moved; None: unknown.
    positions: tuple[int, int] | None = None


@dataclass(slots=True)
class History:
    """All of it. `on_poll` is called with each poll when it ends."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    #: Responses that a client must not receive under clean elections.
    errors: list[str] = field(default_factory=list)
    #: Topics whose leaders may be elected uncleanly: acknowledged records may be lost after they were read.
    unclean: set[str] = field(default_factory=set)
    #: Topics whose first records are deleted, by retention or by DeleteRecords.
    trimmed: set[str] = field(default_factory=set)
    #: Topics that keep the last value of each key.
    compacted: set[str] = field(default_factory=set)
    on_poll: Callable[[Poll], None] = lambda poll: None

    def begin(self, send: Send, now_s: float) -> Send:
        """A batch is in flight."""
        send.began_s = now_s
        self.sends.append(send)
        return send

    def polled(self, poll: Poll) -> None:
        """A fetch has returned batches; perhaps none of their records is for the reader."""
        if poll.found:
            self.polls.append(poll)
        self.on_poll(poll)
