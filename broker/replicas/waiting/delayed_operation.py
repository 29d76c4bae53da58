"""Delayed operation and its purgatory: a request that cannot be answered yet waits for its condition or its deadline.

An operation has watch keys (a partition, a fetch session), a condition and a deadline. Code that changes a key's
object calls `signal`; the conditions of the operations under that key are then checked.

    created --watch--> watched
    watched --signal, and the condition holds--> completed
            --the deadline---------------------> completed, whatever the condition
            --cancel---------------------------> cancelled: its connection is closed

Invariants: an operation ends once, by exactly one of the three ways. It is removed from every key first and completed
afterwards, so that its completion never finds it watched. It is checked in the turn of the loop in which it is
watched, since a signal is not repeated. An operation that waits for an offset keeps the leader epoch in which it
began, because an offset names records within one leadership only.

One event may concern thousands of operations, and thousands may have the same deadline. A few short ones are
checked in the turn of the event. More are long work (`ottla.runtime.turns`): they are checked in order, as
many in a turn as it has room for.

An operation is one object and one timer: no task, no queue entry of its own. Operations are bounded by the
connections, each of which has one request in process.

Source: Kafka's DelayedOperation and DelayedOperationPurgatory, which keeps completed operations in its lists until
they exceed a purge interval; here they are removed at once, since a single event loop needs no locks for it.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Protocol

#: So many operations are checked at once if all of them are short.
_FEW: Final = 8


class Timer(Protocol):
    """A scheduled deadline, as `call_later` returns it."""

    def cancel(self) -> None:
        """Cancel the timer: it does not fire any more."""


class Turns(Protocol):
    """The turns of the event loop, with the part of the present turn that long work has taken."""

    def charge(self, steps: int = 1) -> None:
        """Count steps of long work that are about to run in this turn."""

    @property
    def is_spent(self) -> bool:
        """Whether long work has to be put off."""

    @property
    def is_free(self) -> bool:
        """Whether long work may run at once."""

    def later(self, work: Callable[[], object]) -> None:
        """Call `work` in a later turn."""


class DelayedOperation(ABC):
    """A request that waits for its condition or its deadline. It is watched at most once."""

    __slots__ = ("_keys", "_purgatory", "_timer", "is_done")

    #: Kafka's name of its purgatory, for metrics.
    kind = "Other"
    #: Whether its check and its completion take some 30 us at most.
    is_short = True

    def __init__(self) -> None:
        #: Completed or cancelled.
        self.is_done = False
        #: While it is watched.
        self._purgatory: DelayedOperationPurgatory | None = None
        self._keys: tuple[Hashable, ...] = ()
        self._timer: Timer | None = None

    def expiry_kind(self) -> str:
        """The name under which the operation's expiry is counted."""
        return self.kind

    def watch_keys(self) -> tuple[Hashable, ...]:
        """The operation's watch keys, each once; called when it is watched.

        Without keys, `force_complete` or the deadline completes it.
        """
        return ()

    @abstractmethod
    def can_complete(self) -> bool:
        """Whether the condition holds. Must not raise."""

    @abstractmethod
    def on_complete(self) -> None:
        """Called once, when the condition holds or the deadline has passed. Must not raise."""

    def try_complete(self) -> bool:
        """Complete the operation if its condition holds; returns whether this call has completed it."""
        # The check itself may have ended the operation (unintended, but it may fail its future).
        return not self.is_done and self.can_complete() and self.force_complete()

    def force_complete(self) -> bool:
        """Complete the operation, whatever its condition; returns whether this call has completed it."""
        if self.is_done:
            return False
        self._end()
        self.on_complete()
        return True

    def expire(self) -> None:
        """The deadline has passed (the timer's callback)."""
        if (purgatory := self._purgatory) is not None:
            purgatory.expired_by_kind[self.expiry_kind()] += 1
            if purgatory.must_wait(self):
                return
        self.force_complete()

    def cancel(self) -> None:
        """End the operation without completing it, since the response is not awaited any more."""
        if not self.is_done:
            self._end()

    def _end(self) -> None:
        assert not self.is_done, "an operation ends once"
        self.is_done = True
        if (timer := self._timer) is not None:
            timer.cancel()
            self._timer = None
        if (purgatory := self._purgatory) is not None:
            purgatory.remove(self, self._keys)


class DelayedOperationPurgatory:
    """The operations that wait for their condition or deadline, by watch key (a purgatory)."""

    __slots__ = (
        "_call_later",
        "_call_soon",
        "_due",
        "_is_waiting",
        "_signalled",
        "_turns",
        "_watched",
        "delayed_by_kind",
        "delayed_count",
        "expired_by_kind",
    )

    def __init__(
        self,
        *,
        call_later: Callable[[float, Callable[[], None]], Timer],
        call_soon: Callable[[Callable[[], None]], object],
        turns: Turns,
    ) -> None:
        self._call_later = call_later
        self._call_soon = call_soon
        self._turns = turns
        #: Operations to check, or (True) to complete, in this order; and whether that continues in a later turn.
        self._due: dict[DelayedOperation, bool] = {}
        self._is_waiting = False
        self._watched: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._signalled: dict[Hashable, None] = {}
        #: Operations that wait now.
        self.delayed_count = 0
        #: Watched operations by `kind`; by `expiry_kind` those that have ended at their deadline since the start.
        self.delayed_by_kind: Counter[str] = Counter()
        self.expired_by_kind: Counter[str] = Counter()

    def watch(self, operation: DelayedOperation, *, timeout_ms: int) -> None:
        """Watch the operation until its condition holds after a signal for one of its keys, or for `timeout_ms`.

        Precondition: the caller has checked the condition, or has read what it depends on, in this turn of
        the loop; else it calls `try_complete` then.
        """
        assert operation._purgatory is None, "an operation is watched once"
        assert not operation.is_done, "an operation that has ended does not wait"
        operation._purgatory = self
        operation._timer = self._call_later(timeout_ms / 1000, operation.expire)
        operation._keys = keys = operation.watch_keys()
        watched = self._watched
        for key in keys:
            if (operations := watched.get(key)) is None:
                watched[key] = {operation: None}
            else:
                operations[operation] = None
        self.delayed_count += 1
        self.delayed_by_kind[operation.kind] += 1

    def signal(self, key: Hashable) -> None:
        """The object of `key` has changed: check its operations after the present callback (Kafka's ActionQueue).

        Not at once: the producer whose append is being handled gets its response first, and after several appends in
        one socket read a consumer's fetch is checked once. Cost: one dictionary look-up if no operation waits.
        """
        if key in self._watched:
            if not self._signalled:
                self._call_soon(self._check_signalled)
            self._signalled[key] = None

    def remove(self, operation: DelayedOperation, keys: tuple[Hashable, ...]) -> None:
        """Remove an operation from its keys (called by the operation as it ends)."""
        watched = self._watched
        for key in keys:
            operations = watched[key]
            del operations[operation]
            if not operations:
                del watched[key]
        self.delayed_count -= 1
        self.delayed_by_kind[operation.kind] -= 1
        assert self.delayed_count >= 0, self.delayed_count

    def _check_signalled(self) -> None:
        # Each operation once: a Produce waits under each of its partitions, and one Fetch of a follower
        # signals all of them. Checked for each signal, a Produce of 1,000 partitions would take a million
        # checks of a partition.
        keys, self._signalled = self._signalled, {}
        operations: dict[DelayedOperation, None] = {}
        for key in keys:
            if (watching := self._watched.get(key)) is not None:
                operations.update(watching)
        if not self._is_waiting and len(operations) <= _FEW and all(each.is_short for each in operations):
            for operation in operations:
                operation.try_complete()
            return
        for operation in operations:
            self._due.setdefault(operation, False)
        if not self._is_waiting:
            self._check_due()

    def must_wait(self, operation: DelayedOperation) -> bool:
        """Whether an operation whose deadline has passed completes in a later turn: others have used up this one."""
        if operation.is_done:
            return False
        if self._turns.is_free and not self._is_waiting:
            # Also a short one: thousands may have the same deadline.
            self._turns.charge()
            return False
        self._due[operation] = True
        self._continue_later()
        return True

    def _continue_later(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._turns.later(self._check_due)

    def _check_due(self) -> None:
        """Check or complete the operations that are due, as many as this turn has room for, at least one."""
        self._is_waiting = False
        due, turns = self._due, self._turns
        try:
            while due:
                operation = next(iter(due))
                has_expired = due.pop(operation)
                turns.charge()
                if has_expired:
                    operation.force_complete()
                else:
                    operation.try_complete()
                if turns.is_spent:
                    break
        finally:
            if due:  # also behind a bug of one: the deadlines of the others do not pass again
                self._continue_later()
