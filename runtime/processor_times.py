"""For how long threads have run, and have waited for a processor: Linux only, zero elsewhere."""

import os
import threading
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

#: The times of all processors since the machine was started.
STAT: Final = Path("/proc/stat")
#: Of it: some hundred processors; what follows them is not read.
_STAT_BYTES: Final = 32 * 1024


class Usage(NamedTuple):
    """The accumulated times of a thread, in seconds; `process_s` is of the whole process."""

    running_s: float
    #: Ready to run, and waiting for a processor.
    queued_s: float
    #: Running time of all threads.
    process_s: float


class ThreadClock:
    """Reads the times of the thread that creates it, also from other threads; they are zero on other systems than Linux."""

    def __init__(self) -> None:
        try:
            # Kept open: it is read before each callback, at 2 us.
            self._fd: int | None = os.open(
                Path("/proc/self/task") / str(threading.get_native_id()) / "schedstat", os.O_RDONLY
            )
            # The running time in schedstat is that of the last tick, up to 4 ms ago.
            self._running = time.pthread_getcpuclockid(threading.get_ident())
        except OSError:
            self._fd = None

    def read(self) -> Usage:
        """The present times."""
        if self._fd is None:
            return Usage(0.0, 0.0, time.process_time())
        # First: only this one releases the interpreter's lock.
        _, queued_ns, _ = os.pread(self._fd, 100, 0).split()
        return Usage(time.clock_gettime(self._running), int(queued_ns) / 1e9, time.process_time())

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)


class StolenTime:
    """Reads for how long the host of a virtual machine has run something else while a processor had work; zero elsewhere.

    Its unit is 10 ms. Which processor a thread used is not known: the most of any of them is an upper bound for each thread.
    """

    def __init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        try:
            # Kept open: it is read before each callback, at 12 us with two processors.
            self._fd: int | None = os.open(STAT, os.O_RDONLY)
        except OSError:
            self._fd = None

    def read(self) -> list[int]:
        """Ticks, of each processor."""
        return [] if self._fd is None else stolen_ticks(os.pread(self._fd, _STAT_BYTES, 0))

    def since(self, before: Sequence[int]) -> float:
        """Seconds, of the processor that has lost most."""
        ticks = (now - then for now, then in zip(self.read(), before, strict=False))
        return max(ticks, default=0) / self._ticks_per_s

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)


def stolen_ticks(stat: bytes) -> list[int]:
    """Of each processor, from the beginning of `/proc/stat`, whose last line may be incomplete.

    A line has: name, user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice. The first one is the sum.
    """
    lines = takewhile(lambda line: line.startswith(b"cpu"), stat.splitlines()[1:-1])
    return [int(line.split()[8]) for line in lines]
