"""Broker sessions: the last heartbeat and the metadata offset of each broker, which are not in the log.

    (none) --register--> tracked --no heartbeat for timeout_ms--> expired --fenced by the controller--> tracked, fenced

A new active controller starts a full session for every unfenced broker, because it does not know their heartbeats.
All times are in ms of the same monotonic clock: a step of the wall clock expires no session.
Source: BrokerHeartbeatManager and BrokerHeartbeatTracker of Kafka 4.3.1.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata.image import BrokerImage


@dataclass(slots=True, kw_only=True)
class Session:
    """The session of one incarnation of a broker."""

    epoch: int
    #: None: no heartbeat yet, or its shutdown was granted.
    last_contact_ms: int | None = None
    #: The last offset of the metadata log that the broker has applied; -1: none.
    metadata_offset: int = -1
    #: In controlled shutdown: the offset that all others must have applied before it may stop.
    shutdown_offset: int | None = None
    #: A partition (topic id, index) that it led at the last check.
    led_partition: tuple[UUID, int] | None = None
    #: The log's end when it was found to lead nothing.
    leads_none_at_offset: int | None = None


class Sessions:
    """The sessions of all registered brokers."""

    def __init__(self, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._by_broker: dict[int, Session] = {}

    def start_all(
        self, brokers: Iterable[BrokerImage], *, stopped: Collection[int] = (), now_ms: int
    ) -> None:
        """This controller becomes the active one: sessions of unfenced brokers begin now.

        Except those of `stopped`: brokers that are known to have stopped, so that their next incarnations can
        register without waiting for a session to expire.
        """
        self._by_broker = {
            broker.broker_id: Session(
                epoch=broker.epoch,
                last_contact_ms=None if broker.is_fenced or broker.broker_id in stopped else now_ms,
            )
            for broker in brokers
        }

    def register(self, broker_id: int, epoch: int) -> None:
        """A broker registered; a new broker epoch ends the session of the previous one."""
        session = self._by_broker.get(broker_id)
        if session is None or session.epoch != epoch:
            self._by_broker[broker_id] = Session(epoch=epoch)

    def remove(self, broker_id: int) -> None:
        """Remove the session of a broker that is not registered any more."""
        self._by_broker.pop(broker_id, None)

    def of(self, broker_id: int) -> Session:
        """The session of a registered broker."""
        session = self._by_broker.get(broker_id)
        assert session is not None, f"broker {broker_id} has no session"
        return session

    def touch(self, broker_id: int, *, metadata_offset: int, is_fenced: bool, now_ms: int) -> None:
        """A heartbeat arrived. A fenced broker has left controlled shutdown: its next request to stop is granted."""
        session = self.of(broker_id)
        session.last_contact_ms = now_ms
        session.metadata_offset = metadata_offset
        if is_fenced:
            session.shutdown_offset = None

    def end(self, broker_id: int) -> None:
        """The broker may stop, and does: its next incarnation can register at once. In Kafka it has to wait until
        the session expires.
        """
        session = self.of(broker_id)
        session.last_contact_ms = session.shutdown_offset = None

    def expire(self, broker_id: int, *, now_ms: int) -> None:
        """Treat the session as if no heartbeat had arrived within the timeout; one that has ended stays as it is."""
        session = self._by_broker.get(broker_id)
        if session is not None and session.last_contact_ms is not None:
            session.last_contact_ms = min(session.last_contact_ms, now_ms - self.timeout_ms)

    def is_valid(self, broker_id: int, epoch: int, *, now_ms: int) -> bool:
        """Whether this incarnation has sent a heartbeat within the timeout."""
        session = self._by_broker.get(broker_id)
        return session is not None and session.epoch == epoch and self._is_session_valid(session, now_ms)

    def expired(self, brokers: Iterable[BrokerImage], *, now_ms: int) -> list[int]:
        """The unfenced ones of these brokers whose session has expired, the one with the oldest heartbeat first."""
        late = [
            (session.last_contact_ms, broker.broker_id)
            for broker in brokers
            if not broker.is_fenced
            and (session := self._by_broker.get(broker.broker_id)) is not None
            and session.last_contact_ms is not None
            and not self._is_session_valid(session, now_ms)
        ]
        return [broker_id for _, broker_id in sorted(late)]

    def lowest_active_offset(self, active: Iterable[int]) -> int | None:
        """The lowest metadata offset of these brokers, those in controlled shutdown not counted; None: no broker."""
        offsets = [
            session.metadata_offset
            for broker_id in active
            if (session := self._by_broker.get(broker_id)) is not None and session.shutdown_offset is None
        ]
        return min(offsets, default=None)

    def _is_session_valid(self, session: Session, now_ms: int) -> bool:
        return session.last_contact_ms is not None and now_ms - session.last_contact_ms < self.timeout_ms
