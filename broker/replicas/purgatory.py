"""Purgatory of delayed operations: requests that cannot be answered yet (delayed fetch, delayed produce).

An operation waits under one or more watch keys (a partition, a fetch session). Code that changes a key's
object calls `signal`; the conditions of the operations under that key are then checked.

    watch --is_satisfied--> complete(is_timed_out=False)
    watch --timeout-------> complete(is_timed_out=True)
    watch --abandon-------> nothing (its connection is closed)

Each operation leaves by exactly one of the three. It is removed from every key first and completed
afterwards, so that its completion never finds it waiting. An operation is one object and one timer: no
task, no queue entry of its own.

Source: Kafka's DelayedOperationPurgatory, which keeps completed operations in its lists until they
exceed a purge interval; here they are removed at once, since a single event loop needs no locks for it.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Protocol


class Timer(Protocol):
    """A scheduled timeout, as `call_later` returns it."""

    def cancel(self) -> None:
        """Cancel the timer: it does not fire any more."""


class Delayed:
    """Delayed operation; created by `Purgatory.watch`."""

    __slots__ = ("_complete", "_is_satisfied", "_purgatory", "is_done", "keys", "timer")

    def __init__(
        self,
        purgatory: "Purgatory",
        keys: tuple[Hashable, ...],
        is_satisfied: Callable[[], bool],
        complete: Callable[[bool], None],
    ) -> None:
        self._purgatory = purgatory
        self._is_satisfied = is_satisfied
        self._complete = complete
        self.keys = keys
        self.is_done = False
        self.timer: Timer | None = None

    def check(self) -> bool:
        """Complete if satisfied; whether it has left the purgatory."""
        if not self.is_done and self._is_satisfied():
            # The check itself may have ended the operation (unintended, but it may fail its future).
            self._finish(is_timed_out=False)
        return self.is_done

    def expire(self) -> None:
        """The timeout has expired."""
        self._finish(is_timed_out=True)

    def abandon(self) -> None:
        """The response is not awaited any more: leave without completing."""
        if not self.is_done:
            self._leave()

    def _finish(self, *, is_timed_out: bool) -> None:
        if self.is_done:
            return
        complete = self._complete
        self._leave()
        complete(is_timed_out)

    def _leave(self) -> None:
        self.is_done = True
        # The waiting request refers to this operation, too: the reference cycle would keep the response, perhaps
        # megabytes, until the garbage collector runs. Under 60 MB of replicated records brokers grew by as much.
        self._is_satisfied, self._complete = _is_over, _was_completed
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._purgatory.remove(self)


def _is_over() -> bool:
    """Replaces `is_satisfied` of an operation that has left."""
    return False


def _was_completed(is_timed_out: bool) -> None:
    """Replaces `complete` of an operation that has left."""


class Purgatory:
    """Waiting operations by watch key; see the module."""

    def __init__(
        self,
        *,
        call_later: Callable[[float, Callable[[], None]], Timer],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._call_later = call_later
        self._call_soon = call_soon
        self._waiting: dict[Hashable, dict[Delayed, None]] = {}
        self._signalled: dict[Hashable, None] = {}
        #: Operations that wait now.
        self.delayed_count = 0

    def watch(
        self,
        keys: Iterable[Hashable],
        *,
        timeout_ms: int,
        is_satisfied: Callable[[], bool],
        complete: Callable[[bool], None],
    ) -> Delayed:
        """Wait until `is_satisfied` after a signal for one of `keys`, or until `timeout_ms` have passed.

        `complete(is_timed_out)` is called at most once. The caller has just found the operation unsatisfied:
        on a single event loop nothing can have changed since, so the condition is not checked again here.
        """
        operation = Delayed(self, tuple(keys), is_satisfied, complete)
        for key in operation.keys:
            self._waiting.setdefault(key, {})[operation] = None
        self.delayed_count += 1
        self.arm(operation, timeout_ms)
        return operation

    def arm(self, operation: Delayed, timeout_ms: int) -> None:
        """Set the operation's timer."""
        operation.timer = self._call_later(timeout_ms / 1000, operation.expire)

    def signal(self, key: Hashable) -> None:
        """The object of `key` has changed: check its operations after the present callback.

        Not at once: the producer whose append is being handled gets its response first, and several appends
        in one socket read wake a consumer once. Cost: one dictionary look-up if no operation waits.
        """
        if key in self._waiting:
            if not self._signalled:
                self._call_soon(self._check_signalled)
            self._signalled[key] = None

    def check(self, key: Hashable) -> int:
        """Check the operations of `key` now; returns how many completed."""
        return sum([operation.check() for operation in list(self._waiting.get(key, ()))])

    def remove(self, operation: Delayed) -> None:
        """Remove an operation from its keys (called by the operation as it leaves)."""
        for key in operation.keys:
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.pop(operation, operation) is None and not waiting:
                del self._waiting[key]
        self.delayed_count -= 1

    def _check_signalled(self) -> None:
        keys, self._signalled = self._signalled, {}
        for key in keys:
            self.check(key)
