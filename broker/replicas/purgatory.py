"""Requests that cannot be answered yet: a Fetch without data, a Produce that its followers lack.

An operation waits under one or more watch keys (a partition, a fetch session). Whoever changes what a
key stands for calls `signal`; the operations under it are then asked whether they are satisfied now.

    watch --is_satisfied--> complete(is_timed_out=False)
    watch --timeout-------> complete(is_timed_out=True)
    watch --abandon-------> nothing (its connection is gone)

Each operation leaves by exactly one of the three. It is taken out of every key first and completed
afterwards, so that nothing it does can find it waiting. An operation is one object and one timer: no
task, no queue entry of its own.

Source: Kafka's DelayedOperationPurgatory, which keeps completed operations in its lists until they
exceed a purge interval; here they leave at once, since one loop needs no locks to take them out.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Protocol


class Timer(Protocol):
    """What arms a timeout hands back."""

    def cancel(self) -> None:
        """Never fire."""


class Delayed:
    """An operation that waits; made by `Purgatory.watch`."""

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
            # Asking may have ended the operation (it is not meant to, but it may fail its future).
            self._finish(is_timed_out=False)
        return self.is_done

    def expire(self) -> None:
        """The time is over."""
        self._finish(is_timed_out=True)

    def abandon(self) -> None:
        """Nobody waits for the answer any more: leave without completing."""
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
        # Who waits here knows this operation, too: as a cycle they would keep the answer, megabytes perhaps, until
        # the collector comes by. Under 60 MB of replicated records brokers grew by as much.
        self._is_satisfied, self._complete = _is_over, _was_completed
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._purgatory.remove(self)


def _is_over() -> bool:
    """In place of the question whether an operation is satisfied that has left."""
    return False


def _was_completed(is_timed_out: bool) -> None:
    """In place of the completion of an operation that has left."""


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
        #: Operations that wait at the moment.
        self.delayed_count = 0

    def watch(
        self,
        keys: Iterable[Hashable],
        *,
        timeout_ms: int,
        is_satisfied: Callable[[], bool],
        complete: Callable[[bool], None],
    ) -> Delayed:
        """Wait until `is_satisfied` after a signal for one of `keys`, or until `timeout_ms` are over.

        `complete(is_timed_out)` is called at most once. The caller has found the operation unsatisfied
        just before: nothing can have changed since, on one loop, so it is not asked again here.
        """
        operation = Delayed(self, tuple(keys), is_satisfied, complete)
        for key in operation.keys:
            self._waiting.setdefault(key, {})[operation] = None
        self.delayed_count += 1
        self.arm(operation, timeout_ms)
        return operation

    def arm(self, operation: Delayed, timeout_ms: int) -> None:
        """Let it expire after so long."""
        operation.timer = self._call_later(timeout_ms / 1000, operation.expire)

    def signal(self, key: Hashable) -> None:
        """What `key` stands for has changed: ask its operations, after the present callback.

        Later rather than now: the producer whose append is being handled gets its answer first, and
        several appends found in one read wake a consumer once. Costs a dictionary look-up if nobody waits.
        """
        if key in self._waiting:
            if not self._signalled:
                self._call_soon(self._check_signalled)
            self._signalled[key] = None

    def check(self, key: Hashable) -> int:
        """Ask the operations of `key` now; how many completed."""
        return sum([operation.check() for operation in list(self._waiting.get(key, ()))])

    def remove(self, operation: Delayed) -> None:
        """Take an operation out of its keys (called by the operation as it leaves)."""
        for key in operation.keys:
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.pop(operation, operation) is None and not waiting:
                del self._waiting[key]
        self.delayed_count -= 1

    def _check_signalled(self) -> None:
        keys, self._signalled = self._signalled, {}
        for key in keys:
            self.check(key)
