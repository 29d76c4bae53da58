"""The events of a phase, in a thread of their own: one after the other, at their times."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ottla.bench.figures import LoadFailed
from ottla.bench.runs.interrupts import Interrupts
from ottla.bench.targets.events import carry_out
from ottla.bench.targets.target import Target, TargetError
from ottla.bench.workloads.model import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An event that was carried out."""

    name: str
    action: str
    #: The seconds from the start of the phase.
    at_s: float
    until: str | None
    #: The seconds from the action until the condition held; None without a condition.
    took_s: float | None

    def words(self) -> str:
        """
        >>> Happened(name="kill", action="kill", at_s=2.0, until="led", took_s=3.25).words()
        '2.0 s  kill: led after 3.25 s'
        """
        waited = "" if self.took_s is None else f": {self.until} after {self.took_s:.2f} s"
        return f"{self.at_s:.1f} s  {self.name}{waited}"


class Events:
    """The events of one phase; an interrupt ends their waits."""

    def __init__(
        self, events: Sequence[Event], target: Target, topics: Mapping[str, str], interrupts: Interrupts
    ) -> None:
        self.happened: list[Happened] = []
        #: The reason why one of them could not be carried out; the later ones are not.
        self.failure: LoadFailed | None = None
        #: The start of the phase in seconds since the epoch; until `start` is called, that of the
        #: preparations.
        self.phase_began_at_s = time.time()
        self._events = events
        self._target = target
        self._topics = topics
        self._interrupts = interrupts
        self._thread: threading.Thread | None = None

    @property
    def are_over(self) -> bool:
        """Whether all events have happened, or one has failed."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self, phase_began_at_s: float, *, at_end: Callable[[], None] = lambda: None) -> None:
        """Begin; the phase's start is in seconds since the epoch.

        `at_end` is called by the thread, also after a failure.
        """
        self.phase_began_at_s = phase_began_at_s

        def carry_out_all() -> None:
            try:
                self._carry_out_all()
            finally:
                at_end()

        self._thread = threading.Thread(target=carry_out_all, name="bench-events", daemon=True)
        self._thread.start()

    def _carry_out_all(self) -> None:
        for event in self._events:
            if self._interrupts.wait(self.phase_began_at_s + event.at_s - time.time()):
                return
            at_s = time.time() - self.phase_began_at_s
            try:
                took_s = carry_out(
                    event, self._target, self._topics, is_over=lambda: self._interrupts.is_asked
                )
            except TargetError as error:
                self.failure = LoadFailed(str(error))
                return
            self.happened.append(
                Happened(
                    name=event.name,
                    action=event.action.value,
                    at_s=at_s,
                    until=None if event.until is None else event.until.value,
                    took_s=took_s,
                )
            )
