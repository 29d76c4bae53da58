"""`broker.disk`: the disk of a broker, which a test fills, slows down or breaks.

    fill     writes fail with ENOSPC; reads, deletions and flushes succeed
    slow     each write and each flush takes so many seconds more
    fail     everything fails with EIO

The broker does what it does with a real disk: a log directory that fails is taken offline, as in Kafka, and a node ends
whose metadata log is in it; `Broker.failure` then has the reason.
"""

import errno
import os
from pathlib import Path

from ottla.testing.lasting_faults import LastingFault, LastingFaults


class Disk(LastingFaults):
    """The faults of one broker's disk. They stay over a restart of the broker, until `heal`."""

    def __init__(self, name: str = "broker.disk") -> None:
        super().__init__(name)
        self._full: LastingFault | None = None

    def fill(self, *, strict: bool = True) -> LastingFault:
        """Let writes fail with ENOSPC, until `heal`."""
        self._full = self.begin("fill", strict=strict)
        return self._full

    def slow(self, seconds: float, *, strict: bool = True) -> LastingFault:
        """Delay each write and each flush by so many seconds, until `heal`.

        Writes of records delay the whole broker, as they do on a real disk that is slow.
        """
        return super().slow(seconds, strict=strict)

    def fail(self, *, strict: bool = True) -> LastingFault:
        """Let all operations fail with EIO, until `heal`."""
        return super().fail(strict=strict)

    def ended(self, fault: LastingFault) -> None:
        """Let no further operation meet the fault."""
        super().ended(fault)
        self._full = None if self._full is fault else self._full

    # -- met by operations of MortalFiles [any thread] --------------------------------------------------

    def meet_any(self, path: Path | None) -> None:
        """Meet the faults of any operation, before it. Raises OSError while the disk fails."""
        if self.meets_failure():
            raise _error(errno.EIO, path)

    def meet_write(self, path: Path | None = None) -> None:
        """Meet the faults of a write, before it. Raises OSError while the disk is full or fails."""
        self.meet_any(path)
        if (full := self._full) is not None:
            full.strike()
            raise _error(errno.ENOSPC, path)


def _error(number: int, path: Path | None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
