"""Faults that last: of a disk, or of an object store, from the call that begins them until they are healed.

    with broker.disk.fill(): ...                       healed at the end of the `with`
    broker.disk.slow(0.5); ...; broker.disk.heal()     healed by name

As with faults of requests, one that no operation has met raises `FaultNeverStruck`: at the end of its `with`, or when
the broker is reset or stopped.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ottla.testing.faults import FaultNeverStruck


class LastingFault:
    """A fault of a disk or an object store, which operations meet from its creation until `heal`."""

    def __init__(self, faults: "LastingFaults", what: str, *, strict: bool) -> None:
        """`what` is the call that has created it, for messages."""
        self._faults = faults
        self._what = what
        self._changed = threading.Condition()
        self._is_ended = False
        self.is_strict = strict
        self._struck = 0

    @property
    def struck(self) -> int:
        """The operations that have met it."""
        return self._struck

    @property
    def is_active(self) -> bool:
        """Whether operations meet it."""
        return not self._is_ended

    def heal(self) -> None:
        """End the fault; operations that it delays go on at once."""
        self._is_ended = True
        self.wake()
        self._faults.ended(self)

    def end(self) -> None:
        """Heal it; a reset does not check it any more."""
        self.heal()
        self._faults.forget(self)

    def verify(self) -> None:
        """Raise FaultNeverStruck if no operation has met it."""
        if self.is_strict and not self.struck:
            raise FaultNeverStruck(
                f"{self._what} was never met by an operation. Pass strict=False if that may be."
            )

    def continue_from(self, *, struck: int) -> None:
        """Continue a fault of a process that has ended, which so many operations had met."""
        self._struck += struck

    def strike(self) -> None:
        """Count an operation that has met it. [any thread]"""
        self._struck += 1

    def pause(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Count an operation, and delay it, until the fault is healed or `is_over` at the latest. [any thread]"""
        self.strike()
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended or is_over(), seconds)

    def wake(self) -> None:
        """Let operations that are delayed call `is_over` again."""
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is None:
            self.verify()

    def __repr__(self) -> str:
        return f"<LastingFault {self._what}, struck {self.struck}>"


class LastingFaults:
    """All faults of one disk, or of one object store. Begun and healed in any thread."""

    def __init__(self, name: str) -> None:
        """`name` is how a test has called it, for messages: broker.disk."""
        self._name = name
        self._lock = threading.Lock()
        #: All that were begun since the last `reset`, and were not ended by a `with`.
        self._begun: dict[LastingFault, None] = {}
        self._failing: LastingFault | None = None
        self._slow: tuple[LastingFault, float] | None = None

    def slow(self, seconds: float, *, strict: bool = True) -> LastingFault:
        """Delay what the fault concerns by so many seconds, until `heal`."""
        if seconds <= 0:
            raise ValueError(f"{self._name}.slow({seconds}): the delay must be positive.")
        fault = self.begin("slow", seconds, strict=strict)
        self._slow = fault, seconds
        return fault

    def fail(self, *, strict: bool = True) -> LastingFault:
        """Let everything fail, until `heal`."""
        self._failing = self.begin("fail", strict=strict)
        return self._failing

    @property
    def begun(self) -> list[LastingFault]:
        """The faults that were begun since the last `reset`, and were not ended by a `with`."""
        with self._lock:
            return list(self._begun)

    def heal(self) -> None:
        """End all faults; operations that are delayed go on."""
        for fault in list(self._begun):
            fault.heal()

    def reset(self, *, verify: bool = True) -> None:
        """End and forget all faults. With `verify`, raises FaultNeverStruck for one that no operation has met."""
        self.heal()
        with self._lock:
            begun, self._begun = self._begun, {}
        for fault in begun if verify else ():
            fault.verify()

    def begin(self, name: str, *arguments: float, strict: bool) -> LastingFault:
        """Begin the fault of the method `name`, which was called with these arguments."""
        fault = LastingFault(self, self.text_of(name, *arguments), strict=strict)
        self.remember(fault)
        return fault

    def text_of(self, name: str, *arguments: float) -> str:
        """Return the call of a method as a test has written it."""
        return f"{self._name}.{name}({', '.join(f'{each:g}' for each in arguments)})"

    def remember(self, fault: LastingFault) -> None:
        """Check the fault at the next `reset`."""
        with self._lock:
            self._begun[fault] = None

    def ended(self, fault: LastingFault) -> None:
        """Let no further operation meet the fault. Called by `LastingFault.heal`."""
        self._failing = None if self._failing is fault else self._failing
        if self._slow is not None and self._slow[0] is fault:
            self._slow = None

    def forget(self, fault: LastingFault) -> None:
        """Do not check the fault at the next `reset`."""
        with self._lock:
            self._begun.pop(fault, None)

    # -- met by operations [any thread] -----------------------------------------------------------------

    def delay(self, is_over: Callable[[], bool]) -> None:
        """Wait, while it is slow, until `is_over` at the latest."""
        if (slow := self._slow) is not None:
            slow[0].pause(slow[1], is_over)

    def wake(self) -> None:
        """Let operations that wait call `is_over` again."""
        if (slow := self._slow) is not None:
            slow[0].wake()

    def meets_failure(self) -> bool:
        """Count an operation that fails; False: none does now."""
        if (failing := self._failing) is None:
            return False
        failing.strike()
        return True
