"""Stall detection: reports turns of the event loop that take too long and so delay all else, Raft's votes included.

    thread:  post an empty callback --it runs in time--> post the next one, one interval later
                     '--it does not run within the bound--> take the stack of the loop's thread --> one WARNING

The loop's cost is that empty callback, ten times a second at the default bound, which is the interval, too: 10
us each where the loop is busy. A turn longer than the bound and the interval is always detected on an idle
machine, one shorter than the bound never. Time that the thread waited for a processor, because other processes
and threads used all of them or the host of a virtual machine has given it to another machine ("steal"), is
distinguished (Linux only) and reported at INFO: no code of the loop is its cause. Likewise a process that was
stopped (SIGSTOP, a frozen container): the watch itself wakes late, and the process has used no processor. A C
function that blocks while it holds the interpreter's lock looks the same: hence that report has the stack, too.
What cannot be distinguished is the host's time for a page of memory that the machine writes to for the first
time: it counts as running, in whatever code writes.

The stack is taken at the moment at which the bound has passed. While the loop's thread holds the interpreter's
lock - Python code up to `sys.getswitchinterval()`, a C function or a garbage collection up to its end - the
watch can neither post nor take a stack. What it has waited for the lock while that thread was running is a part
of the turn, whose stack is that of its end. Time for which the loop waits for the lock that another thread
holds is "blocked", and counts; but if the watch itself waits for a processor meanwhile, it may have the lock,
and then it does not count.
"""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import Final, NamedTuple

from ottla.runtime.processor_times import StolenTime, ThreadClock, Usage, stolen_since

log = logging.getLogger(__name__)

#: A turn above this is reported: a tenth of what a client notices, a fifth of Raft's shortest timeout.
BOUND_MS: Final = 100
#: Environment variable, for tests: a lower bound in ms; every turn above it is reported, without a rate limit.
BOUND_VARIABLE: Final = "OTTLA_LOOP_STALL_MS"
#: The minimum interval of two reports; each one has the number of turns since the previous one.
REPORT_INTERVAL_S: Final = 10.0
#: For the log's formatter: a stack keeps its lines.
_HAS_LINES: Final = {"has_lines": True}
#: A turn that lasts longer is reported before it has ended.
_PATIENCE_S: Final = 5.0
#: With a bound of `BOUND_VARIABLE`, a callback is posted so many times in each: a turn of 1.2 bounds is always
#: detected.
_POSTS_IN_BOUND: Final = 5


class _Posted(NamedTuple):
    """A callback that was posted to the loop, with the times of the threads at that moment."""

    at_s: float
    #: The time for which the turn had already lasted, as far as it is known.
    held_s: float
    #: Of the loop's thread, and of the watch's own.
    usage: Usage
    own: Usage
    #: The content of `/proc/stat`.
    stat: bytes


class StallWatch:
    """The watch of one loop; created on that loop's thread. `count` and `longest_s` are for metrics."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        bound_s: float,
        interval_s: float | None = None,
        report_interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        """`interval_s` is that of the callbacks; by default the bound."""
        self._loop = loop
        self._bound_s = bound_s
        self._interval_s = bound_s if interval_s is None else interval_s
        self._report_interval_s = report_interval_s
        self._loop_thread_id = threading.get_ident()
        self._clock = ThreadClock()
        self._stolen_time = StolenTime()
        self._is_stopping = threading.Event()
        self._answered = threading.Event()
        self._answered_at_s = 0.0
        #: When turns began since the last callback was answered; empty where turns are not marked.
        self._turns_began_s: list[float] = []
        self._reported_at: float | None = None
        self._unreported_count = 0
        #: Whether turns shorter than `_PATIENCE_S` are neither counted nor reported, since no client is served yet.
        self.is_starting = False
        #: Turns above the bound.
        self.count = 0
        #: The longest of them, as far as it was watched.
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    @classmethod
    def from_environment(cls, loop: asyncio.AbstractEventLoop) -> "StallWatch":
        """A watch with the default bound, or that of `BOUND_VARIABLE`."""
        if (bound_ms := os.environ.get(BOUND_VARIABLE)) is not None:
            bound_s = float(bound_ms) / 1000
            return cls(loop, bound_s=bound_s, interval_s=bound_s / _POSTS_IN_BOUND, report_interval_s=0.0)
        return cls(loop, bound_s=BOUND_MS / 1000)

    def running_s(self) -> float:
        """For how long the loop's thread has run, in seconds of processor time. [the loop's thread]"""
        return time.thread_time()

    def start(self) -> None:
        """Start the watch.

        With a bound of `BOUND_VARIABLE` the loop also marks the begin of its turns: two turns below such a bound may be
        above it together.
        """
        if self._interval_s < self._bound_s:
            self._mark_turn()
        self._thread.start()

    def stop(self) -> None:
        """Stop the watch; the thread ends within a bound, and `join` waits for it."""
        self._is_stopping.set()

    def join(self) -> None:
        """Wait for the thread's end. Not on the loop's thread, for which the watch may be waiting."""
        self._thread.join()

    # -- in the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        own = ThreadClock()
        try:
            self._answered_at_s = time.monotonic()
            before, own_before = self._clock.read(), own.read()
            while not self._is_stopping.wait(self._interval_s):
                stat, own_usage, usage = self._stolen_time.read(), own.read(), self._clock.read()
                posted_at_s = time.monotonic()
                own_queued_s = own_usage.queued_s - own_before.queued_s
                locked_s = posted_at_s - self._answered_at_s - self._interval_s - own_queued_s
                # The part of a turn that has passed before the callback could be posted.
                held_s = max(0.0, min(locked_s, usage.running_s - before.running_s))
                self._answered.clear()
                self._loop.call_soon_threadsafe(self._answer)
                is_over = self._answered.wait(max(0.0, self._bound_s - held_s))
                if not is_over or self._answered_at_s - posted_at_s + held_s >= self._bound_s:
                    self._on_late_answer(_Posted(posted_at_s, held_s, usage, own_usage, stat), own)
                before, own_before = usage, own_usage
                self._turns_began_s = []
        except RuntimeError:
            pass  # the loop is closed
        finally:
            own.close()
            self._clock.close()
            self._stolen_time.close()

    def _answer(self) -> None:
        """Record, in the loop, that it has run the posted callback."""
        self._answered_at_s = time.monotonic()
        self._answered.set()

    def _mark_turn(self) -> None:
        """Record, in the loop, that a turn begins.

        A timer that is due comes first in a turn, and this one is due after each long turn.
        """
        self._turns_began_s.append(time.monotonic())
        if not self._is_stopping.is_set():
            self._loop.call_later(self._interval_s, self._mark_turn)

    def _on_late_answer(self, posted: _Posted, own: ThreadClock) -> None:
        was_stopped = self._has_slept_since(posted)
        frame = sys._current_frames().get(self._loop_thread_id)
        stack = "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "  (no Python code)"
        # Tests have no first start to excuse: `BOUND_VARIABLE` has no report interval.
        is_import = bool(self._report_interval_s) and is_importing(frame)
        is_over = self._answered.wait(_PATIENCE_S)
        after, own_after = self._clock.read(), own.read()
        now_s = self._answered_at_s if is_over else time.monotonic()
        duration_s = longest_turn_s(posted.at_s - posted.held_s, self._turns_began_s, now_s)
        if duration_s < (_PATIENCE_S if self.is_starting and self._report_interval_s else self._bound_s):
            return
        running_s = min(after.running_s - posted.usage.running_s + posted.held_s, duration_s)
        queued_s = after.queued_s - posted.usage.queued_s
        # While this thread waits for a processor, it may have the interpreter's lock, for which the loop waits then.
        queued_s += max(0.0, min(own_after.queued_s - posted.own.queued_s, duration_s - running_s - queued_s))
        # The kernel does not count what the host takes, neither as running nor as queued.
        stolen_s = stolen_since(posted.stat, self._stolen_time.read(), processor=self._clock.processor())
        queued_s += max(0.0, min(stolen_s, duration_s - running_s - queued_s))
        is_own = not was_stopped and duration_s - queued_s >= self._bound_s
        if is_own:
            self.count += 1
            self.longest_s = max(self.longest_s, duration_s)
        if self._reported_at is not None and now_s - self._reported_at < self._report_interval_s:
            self._unreported_count += 1
        else:
            self._report(
                f"{'has taken' if is_over else 'has not ended after'} {duration_s * 1000:.0f} ms "
                f"({running_s * 1000:.0f} ms running, {queued_s * 1000:.0f} ms waiting for a processor, "
                "the rest blocked)",
                stack if is_own or was_stopped else None,
                was_stopped=was_stopped,
                is_import=is_import,
            )
            self._reported_at, self._unreported_count = now_s, 0
        while not is_over and not self._is_stopping.is_set():
            is_over = self._answered.wait(self._bound_s)
            self.longest_s = max(self.longest_s, time.monotonic() - posted.at_s + posted.held_s)

    def _has_slept_since(self, posted: _Posted) -> bool:
        """Whether this thread woke a bound late while the process neither ran nor waited for a processor."""
        now = self._clock.read()
        late_s = time.monotonic() - posted.at_s - max(0.0, self._bound_s - posted.held_s)
        used_s = now.process_s - posted.usage.process_s + now.queued_s - posted.usage.queued_s
        return late_s >= self._bound_s and used_s < late_s

    def _report(self, what: str, stack: str | None, *, was_stopped: bool, is_import: bool) -> None:
        more = f" {self._unreported_count} more since the last report." if self._unreported_count else ""
        if stack is None:
            log.info("A turn of the event loop %s: the machine is busy with other work.%s", what, more)
        elif is_import:
            log.info(
                "A turn of the event loop %s: modules were imported, which a first start compiles.%s",
                what,
                more,
            )
        elif was_stopped:
            log.info(
                "A turn of the event loop %s: the process was stopped, or C code has blocked while it held the "
                "interpreter's lock.%s Stack afterwards:\n%s",
                what,
                more,
                stack,
                extra=_HAS_LINES,
            )
        else:
            log.warning(
                "One turn of the event loop %s; requests, heartbeats and Raft wait meanwhile.%s Stack after %d ms:\n%s",
                what,
                more,
                self._bound_s * 1000,
                stack,
                extra=_HAS_LINES,
            )


def is_importing(frame: FrameType | None) -> bool:
    """Whether the code imports a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def longest_turn_s(start_s: float, began_s: Sequence[float], end_s: float) -> float:
    """The longest turn between two times, of which the first one is in a turn.

    `began_s`: the times when other turns began, also before and afterwards.

    >>> longest_turn_s(1.0, [0.5, 3.0, 7.0, 9.0], 8.0)
    4.0
    """
    inside = [at_s for at_s in began_s if start_s < at_s < end_s]
    return max(after - before for before, after in pairwise([start_s, *inside, end_s]))
