"""When brokers were last heard of, and how far they have read: state that no log holds.

    (none) --register--> tracked --no heartbeat for timeout_ms--> expired --fenced by the controller--> tracked, fenced

A controller that takes over gives every unfenced broker a whole session, because it cannot know better.
All times are in the same ms clock, a monotonic one: a step of the wall clock expires nobody.
Source: BrokerHeartbeatManager and BrokerHeartbeatTracker of Kafka 4.3.1.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from protocol.metadata.image import BrokerImage


@dataclass(slots=True, kw_only=True)
class Session:
    """One incarnation of a broker, as its heartbeats show it."""

    epoch: int
    #: None: no heartbeat yet, or it has said goodbye.
    last_contact_ms: int | None = None
    #: The last offset of the metadata log that the broker has applied; -1: none.
    metadata_offset: int = -1
    #: Once it wants to leave: the offset that all others must have applied before it may.
    shutdown_offset: int | None = None
    #: A partition (topic id, index) that it led when that was asked last.
    led: tuple[UUID, int] | None = None
    #: The log's end when it was found to lead nothing.
    leads_nothing_at: int | None = None


class Sessions:
    """The sessions of all registered brokers."""

    def __init__(self, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._by_broker: dict[int, Session] = {}

    def start_all(self, brokers: Iterable[BrokerImage], *, gone: Collection[int] = (), now_ms: int) -> None:
        """This controller becomes the active one: sessions of unfenced brokers begin now.

        Except those of `gone`: brokers that are known to have stopped, so that their successors need not
        wait for a session to expire.
        """
        self._by_broker = {
            broker.broker_id: Session(
                epoch=broker.epoch,
                last_contact_ms=None if broker.is_fenced or broker.broker_id in gone else now_ms,
            )
            for broker in brokers
        }

    def register(self, broker_id: int, epoch: int) -> None:
        """A broker registered; a new epoch ends the session of the one before."""
        session = self._by_broker.get(broker_id)
        if session is None or session.epoch != epoch:
            self._by_broker[broker_id] = Session(epoch=epoch)

    def forget(self, broker_id: int) -> None:
        """The broker is not registered any more."""
        self._by_broker.pop(broker_id, None)

    def of(self, broker_id: int) -> Session:
        """The session of a registered broker."""
        session = self._by_broker.get(broker_id)
        assert session is not None, f"broker {broker_id} has no session"
        return session

    def touch(self, broker_id: int, *, metadata_offset: int, is_fenced: bool, now_ms: int) -> None:
        """A heartbeat came. A fenced broker has left controlled shutdown: its next wish to leave is granted."""
        session = self.of(broker_id)
        session.last_contact_ms = now_ms
        session.metadata_offset = metadata_offset
        if is_fenced:
            session.shutdown_offset = None

    def end(self, broker_id: int) -> None:
        """The broker may go, and does: its successor need not wait for this session to expire. Kafka's has to."""
        session = self.of(broker_id)
        session.last_contact_ms = session.shutdown_offset = None

    def is_valid(self, broker_id: int, epoch: int, *, now_ms: int) -> bool:
        """Whether this incarnation has been heard of within the timeout."""
        session = self._by_broker.get(broker_id)
        return session is not None and session.epoch == epoch and self._is_alive(session, now_ms)

    def expired(self, brokers: Iterable[BrokerImage], *, now_ms: int) -> list[int]:
        """Those of the brokers that are unfenced, but have not been heard of for too long, the most silent first."""
        late = [
            (session.last_contact_ms, broker.broker_id)
            for broker in brokers
            if not broker.is_fenced
            and (session := self._by_broker.get(broker.broker_id)) is not None
            and session.last_contact_ms is not None
            and not self._is_alive(session, now_ms)
        ]
        return [broker_id for _, broker_id in sorted(late)]

    def lowest_active_offset(self, active: Iterable[int]) -> int | None:
        """How far the slowest of these brokers has read, those about to leave not counted; None: nobody is left."""
        offsets = [
            session.metadata_offset
            for broker_id in active
            if (session := self._by_broker.get(broker_id)) is not None and session.shutdown_offset is None
        ]
        return min(offsets, default=None)

    def _is_alive(self, session: Session, now_ms: int) -> bool:
        return session.last_contact_ms is not None and now_ms - session.last_contact_ms < self.timeout_ms
