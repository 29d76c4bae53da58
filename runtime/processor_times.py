"""Processor times: how long threads have run, and have waited for a processor; bytes from and to disks. Linux only."""

import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

#: The times of all processors since the machine was started.
STAT: Final = Path("/proc/stat")
#: Of it: some hundred processors; what follows them is not read.
_STAT_BYTES: Final = 32 * 1024


#: The bytes that this process has read and written.
IO: Final = Path("/proc/self/io")


class DiskUsage(NamedTuple):
    """The bytes that this process has had read from disks and written to them, not those of the page cache."""

    read_bytes: int
    written_bytes: int


def disk_usage() -> DiskUsage | None:
    """The bytes of this process from and to disks up to now; None: the system does not say. Cost: 20 us."""
    try:
        fields = dict(line.split(b": ") for line in IO.read_bytes().splitlines())
        return DiskUsage(int(fields[b"read_bytes"]), int(fields[b"write_bytes"]))
    except (OSError, KeyError, ValueError):
        return None


class Usage(NamedTuple):
    """The accumulated times of a thread, in seconds; `process_s` is of the whole process."""

    running_s: float
    #: Ready to run, and waiting for a processor.
    queued_s: float
    #: Running time of all threads.
    process_s: float


class ThreadClock:
    """Reads the times of the thread that creates it, also from other threads.

    They are zero on other systems than Linux.
    """

    def __init__(self) -> None:
        try:
            # Kept open: it is read before each callback, at 2 us.
            self._fd: int | None = os.open(
                Path("/proc/self/task", str(threading.get_native_id()), "schedstat"), os.O_RDONLY
            )
            self._stat = Path("/proc/self/task", str(threading.get_native_id()), "stat")
            # The running time in schedstat is that of the last tick, up to 4 ms ago.
            self._running = time.pthread_getcpuclockid(threading.get_ident())
        except OSError:
            self._fd = None

    def read(self) -> Usage:
        """The accumulated times of the thread up to now."""
        if self._fd is None:
            return Usage(0.0, 0.0, time.process_time())
        # First: only this one releases the interpreter's lock.
        _, queued_ns, _ = os.pread(self._fd, 100, 0).split()
        return Usage(time.clock_gettime(self._running), int(queued_ns) / 1e9, time.process_time())

    def processor(self) -> int | None:
        """The processor that the thread runs on, or has run on last; None if that is not known."""
        if self._fd is None:
            return None
        try:
            # The name, in brackets, may have spaces; 36 fields are between it and the processor.
            return int(self._stat.read_bytes().rpartition(b")")[2].split()[36])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Close the file of the thread's times."""
        if self._fd is not None:
            os.close(self._fd)


class StolenTime:
    """Reads for how long the host of a virtual machine has run something else while a processor had work."""

    def __init__(self) -> None:
        try:
            # Kept open: it is read before each callback, at 10 us with two processors, and seldom parsed.
            self._fd: int | None = os.open(STAT, os.O_RDONLY)
        except OSError:
            self._fd = None

    def read(self) -> bytes:
        """The present content of `/proc/stat`, for `stolen_since`; empty if there is nothing to read."""
        try:
            return b"" if self._fd is None else os.pread(self._fd, _STAT_BYTES, 0)
        except OSError:
            return b""

    def close(self) -> None:
        """Close the file of `/proc/stat`."""
        if self._fd is not None:
            os.close(self._fd)


def stolen_since(before: bytes, after: bytes, *, processor: int | None) -> float:
    """The seconds that were stolen from one processor between two contents of `/proc/stat`, in steps of 10 ms.

    Zero if the processor is not known.
    """
    ticks = [_stolen_ticks(stat, processor) for stat in (before, after)]
    return (ticks[1] - ticks[0]) / os.sysconf("SC_CLK_TCK")


def _stolen_ticks(stat: bytes, processor: int | None) -> int:
    """The steal time of one processor, in ticks; 0 if it is not known.

    A line has: name, user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
    """
    name = b"cpu%d" % processor if processor is not None else b""
    for line in stat.splitlines():
        fields = line.split()
        if fields[:1] == [name]:
            return int(fields[8]) if len(fields) > 8 else 0
    return 0
