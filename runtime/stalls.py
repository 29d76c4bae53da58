"""Stall detection: reports turns of the event loop that take too long and so delay all else, Raft's votes included.

    thread:  post an empty callback --it runs in time--> post the next one, one bound later
                     '--it does not run within the bound--> take the stack of the loop's thread --> one WARNING

The loop's cost is that empty callback, ten times a second at the default bound: 10 us each. A turn longer than two
bounds is always detected, one shorter than the bound never. Time that the thread waited for a processor, because other
processes and threads used all of them, is distinguished (Linux only) and reported at INFO: no code of the loop is its
cause. Likewise a process that was stopped (SIGSTOP, a frozen container): the watch itself wakes late, and the process
has used no processor. A C function that blocks while it holds the interpreter's lock looks the same: hence that report
has the stack, too.

The stack is taken at the moment at which the bound has passed. A C function that holds the interpreter's lock is
detected after its return, at the line of its call.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

#: A turn above this is reported: a tenth of what a client notices, a fifth of Raft's shortest timeout.
BOUND_MS: Final = 100
#: Environment variable, for tests: a lower bound in ms; every turn above it is reported, without a rate limit.
BOUND_VARIABLE: Final = "OTTLA_LOOP_STALL_MS"
#: The minimum interval of two reports; each one has the number of turns since the previous one.
REPORT_INTERVAL_S: Final = 10.0
#: A turn that lasts longer is reported before it has ended.
_PATIENCE_S: Final = 5.0


class _Usage(NamedTuple):
    """The accumulated times of a thread, in seconds; `process_s` is of the whole process."""

    running_s: float
    #: Ready to run, and waiting for a processor.
    queued_s: float
    #: Running time of all threads.
    process_s: float


class _ThreadClock:
    """Reads a thread's times from Linux's schedstat; on other systems they are zero."""

    def __init__(self, thread_id: int) -> None:
        try:
            # Kept open: it is read before each callback, at 2 us.
            self._fd: int | None = os.open(
                Path("/proc/self/task") / str(thread_id) / "schedstat", os.O_RDONLY
            )
        except OSError:
            self._fd = None

    def read(self) -> _Usage:
        if self._fd is None:
            return _Usage(0.0, 0.0, time.process_time())
        running_ns, queued_ns, _ = os.pread(self._fd, 100, 0).split()
        return _Usage(int(running_ns) / 1e9, int(queued_ns) / 1e9, time.process_time())

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


class StallWatch:
    """The watch of one loop; created on that loop's thread. `count` and `longest_s` are for metrics."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, bound_s: float, report_interval_s: float = REPORT_INTERVAL_S
    ) -> None:
        self._loop = loop
        self._bound_s = bound_s
        self._report_interval_s = report_interval_s
        self._loop_thread_id = threading.get_ident()
        self._clock = _ThreadClock(threading.get_native_id())
        self._is_stopping = threading.Event()
        self._answered = threading.Event()
        self._reported_at: float | None = None
        self._unreported_count = 0
        #: Turns above the bound.
        self.count = 0
        #: The longest of them, as far as it was watched.
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    @classmethod
    def from_environment(cls, loop: asyncio.AbstractEventLoop) -> "StallWatch":
        """A watch with the default bound, or that of `BOUND_VARIABLE`."""
        if (bound_ms := os.environ.get(BOUND_VARIABLE)) is not None:
            return cls(loop, bound_s=float(bound_ms) / 1000, report_interval_s=0.0)
        return cls(loop, bound_s=BOUND_MS / 1000)

    def start(self) -> None:
        """Start the watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the watch; the thread ends within a bound, and `join` waits for it."""
        self._is_stopping.set()

    def join(self) -> None:
        """Wait for the thread's end. Not on the loop's thread, for which the watch may be waiting."""
        self._thread.join()

    # -- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping.wait(self._bound_s):
                posted_at, before = time.monotonic(), self._clock.read()
                self._answered.clear()
                self._loop.call_soon_threadsafe(self._answered.set)
                if not self._answered.wait(self._bound_s):
                    self._on_late_answer(posted_at, before)
        except RuntimeError:
            pass  # the loop is closed
        finally:
            self._clock.close()

    def _on_late_answer(self, posted_at: float, before: _Usage) -> None:
        was_stopped = self._has_slept_in(posted_at, before)
        frame = sys._current_frames().get(self._loop_thread_id)
        stack = "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "  (no Python code)"
        is_over = self._answered.wait(_PATIENCE_S)
        now, after = time.monotonic(), self._clock.read()
        duration_s, queued_s = now - posted_at, after.queued_s - before.queued_s
        is_own = not was_stopped and duration_s - queued_s >= self._bound_s
        if is_own:
            self.count += 1
            self.longest_s = max(self.longest_s, duration_s)
        if self._reported_at is not None and now - self._reported_at < self._report_interval_s:
            self._unreported_count += 1
        else:
            self._report(
                f"{'has taken' if is_over else 'has not ended after'} {duration_s * 1000:.0f} ms "
                f"({(after.running_s - before.running_s) * 1000:.0f} ms running, {queued_s * 1000:.0f} ms waiting for a "
                f"processor, the rest blocked)",
                stack if is_own or was_stopped else None,
                was_stopped=was_stopped,
            )
            self._reported_at, self._unreported_count = now, 0
        while not is_over and not self._is_stopping.is_set():
            is_over = self._answered.wait(self._bound_s)
            self.longest_s = max(self.longest_s, time.monotonic() - posted_at)

    def _has_slept_in(self, posted_at: float, before: _Usage) -> bool:
        """Whether this thread woke a bound late while the process neither ran nor waited for a processor."""
        late_s, now = time.monotonic() - posted_at - self._bound_s, self._clock.read()
        used_s = now.process_s - before.process_s + now.queued_s - before.queued_s
        return late_s >= self._bound_s and used_s < late_s

    def _report(self, what: str, stack: str | None, *, was_stopped: bool) -> None:
        more = f" {self._unreported_count} more since the last report." if self._unreported_count else ""
        if stack is None:
            log.info("A turn of the event loop %s: the machine is busy with other work.%s", what, more)
        elif was_stopped:
            log.info(
                "A turn of the event loop %s: the process was stopped, or C code has blocked while it held the "
                "interpreter's lock.%s Stack afterwards:\n%s",
                what,
                more,
                stack,
            )
        else:
            log.warning(
                "One turn of the event loop %s; requests, heartbeats and Raft wait meanwhile.%s Stack after %d ms:\n%s",
                what,
                more,
                self._bound_s * 1000,
                stack,
            )
