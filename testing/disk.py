"""`broker.disk`: the disk of a broker, which a test fills, slows down or breaks.

    fill     writes fail with ENOSPC; reads, deletions and flushes succeed
    slow     each write and each flush takes so many seconds more
    fail     everything fails with EIO

The broker does what it does with a real disk: a log directory that fails is taken offline, as in Kafka, and a node ends
whose metadata log is in it; `Broker.failure` then has the reason.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from ottla.testing.lasting_faults import LastingFault, LastingFaults


class Disk(LastingFaults):
    """The faults of one broker's disk. They stay over a restart of the broker, until `heal`."""

    def __init__(self, name: str = "broker.disk") -> None:
        super().__init__(name)
        self._full: LastingFault | None = None
        self._failing: LastingFault | None = None
        self._slow: tuple[LastingFault, float] | None = None

    def fill(self, *, strict: bool = True) -> LastingFault:
        """Let writes fail with ENOSPC, until `heal`."""
        self._full = self.begin("fill", strict=strict)
        return self._full

    def slow(self, seconds: float, *, strict: bool = True) -> LastingFault:
        """Delay each write and each flush by so many seconds, until `heal`.

        Writes of records delay the whole broker, as they do on a real disk that is slow.
        """
        if seconds <= 0:
            raise ValueError(f"{self._name}.slow({seconds}): the delay must be positive.")
        fault = self.begin("slow", seconds, strict=strict)
        self._slow = fault, seconds
        return fault

    def fail(self, *, strict: bool = True) -> LastingFault:
        """Let all operations fail with EIO, until `heal`."""
        self._failing = self.begin("fail", strict=strict)
        return self._failing

    def ended(self, fault: LastingFault) -> None:
        """Let no further operation meet the fault."""
        self._full = None if self._full is fault else self._full
        self._failing = None if self._failing is fault else self._failing
        if self._slow is not None and self._slow[0] is fault:
            self._slow = None

    # -- met by operations of MortalFiles [any thread] --------------------------------------------------

    def meet_any(self, path: Path | None) -> None:
        """Meet the faults of any operation, before it. Raises OSError while the disk fails."""
        if (failing := self._failing) is not None:
            failing.strike()
            raise _error(errno.EIO, path)

    def meet_write(self, path: Path | None = None) -> None:
        """Meet the faults of a write, before it. Raises OSError while the disk is full or fails."""
        self.meet_any(path)
        if (full := self._full) is not None:
            full.strike()
            raise _error(errno.ENOSPC, path)

    def delay(self, is_over: Callable[[], bool]) -> None:
        """Wait, before a write or a flush, while the disk is slow, until `is_over` at the latest."""
        if (slow := self._slow) is not None:
            slow[0].pause(slow[1], is_over)

    def wake(self) -> None:
        """Let operations that wait call `is_over` again."""
        if (slow := self._slow) is not None:
            slow[0].wake()


def _error(number: int, path: Path | None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
