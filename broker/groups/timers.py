"""Coordinator timers, by name. Most are set again before they expire: session timers, with each heartbeat.

Source: Kafka's CoordinatorTimer.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """The part of a Runtime that timers use."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> "Handle":
        """Call `callback` once, after `delay_s` seconds."""


class Handle(Protocol):
    """A scheduled call, which can be cancelled."""

    def cancel(self) -> None:
        """Cancel the scheduled call."""


#: A call that is early by up to this many seconds counts as due: the loop reads the clock before it sleeps.
_TOLERANCE_S = 0.000_5


@dataclass(slots=True)
class _Running:
    deadline: float
    callback: Callable[[], object]
    handle: Handle
    wakes_at: float


class Timers:
    """Timers by name, with at most one for each name.

    Setting a running timer to a later time only stores the new deadline: the scheduled call finds that it is
    early, and schedules another one. So a heartbeat costs no entry in the loop's queue.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[Hashable, _Running] = {}

    def set(self, name: Hashable, delay_ms: int, callback: Callable[[], object]) -> None:
        """Call `callback` once in `delay_ms`; this replaces the timer of the same name."""
        deadline = self._clock.monotonic() + delay_ms / 1000
        running = self._running.get(name)
        if running is not None and running.wakes_at <= deadline:
            running.deadline, running.callback = deadline, callback
            return
        if running is not None:
            running.handle.cancel()
        handle = self._clock.call_later(delay_ms / 1000, self._wake, name)
        self._running[name] = _Running(deadline, callback, handle, deadline)

    def cancel(self, name: Hashable) -> None:
        """Cancel the timer of this name, if there is one."""
        running = self._running.pop(name, None)
        if running is not None:
            running.handle.cancel()

    def cancel_each(self) -> Iterator[None]:
        """Cancel all timers of the shard, one per step."""
        while self._running:
            _, running = self._running.popitem()
            running.handle.cancel()
            yield

    def __len__(self) -> int:
        return len(self._running)

    def _wake(self, name: Hashable) -> None:
        running = self._running[name]
        early_s = running.deadline - self._clock.monotonic()
        if early_s > _TOLERANCE_S:
            running.wakes_at = running.deadline
            running.handle = self._clock.call_later(early_s, self._wake, name)
            return
        del self._running[name]
        running.callback()
