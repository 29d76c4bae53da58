"""A node of Ottla with a sampler: `python -m ottla.bench.internals.profiled_broker FOLDER ...`.

SIGUSR2 starts it, the next one stops it and writes a file into the folder: for each stack of the main thread,
at a signal of processor time (SIGPROF), the processor time of this thread since the signal before. So their
sum is what the thread has used. What other threads have used is one figure.

A handler in Python runs when the main thread executes Python the next time. A system call's time is so found
at the line that has made it, and what uvloop does between two callbacks at the first line of the next one.
"""

import json
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from ottla.command_line import run_module

#: The interval of samples, in processor time. The kernel checks it at its own ticks only, 1 to 4 ms.
_INTERVAL_S: Final = 0.002
_MOST_FRAMES: Final = 40

_Stack = tuple[tuple[CodeType, int], ...]


class Sampler:
    """Samples the stacks of the main thread by processor time; `sample` and `switch` are handlers of signals."""

    def __init__(self, folder: Path) -> None:
        #: The folder of the files, `<process>-<number>.json`.
        self._folder = folder
        self._stacks: defaultdict[_Stack, float] = defaultdict(float)
        self._is_on = False
        self._files = 0
        self._thread_s = self._began_thread_s = self._began_s = 0.0

    def sample(self, number: int, frame: FrameType | None) -> None:
        """Count the time since the sample before at this stack, innermost frame first."""
        stack: list[tuple[CodeType, int]] = []
        while frame is not None and len(stack) < _MOST_FRAMES:
            # Some instructions have no line.
            stack.append((frame.f_code, frame.f_lineno or 0))
            frame = frame.f_back
        now_s = time.thread_time()
        self._stacks[tuple(stack)] += now_s - self._thread_s
        self._thread_s = now_s

    def switch(self, number: int, frame: FrameType | None) -> None:
        """Start the sampler, or stop it and write a file."""
        self._is_on = not self._is_on
        if self._is_on:
            self._stacks.clear()
            self._began_s, self._began_thread_s = time.process_time(), time.thread_time()
            self._thread_s = self._began_thread_s
            signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        else:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._write()

    def _write(self) -> None:
        process_s, thread_s = time.process_time() - self._began_s, time.thread_time() - self._began_thread_s
        profile = {
            "others_s": max(0.0, process_s - thread_s),
            "stacks": [
                [
                    seconds,
                    [(code.co_filename, code.co_qualname, code.co_firstlineno, line) for code, line in stack],
                ]
                for stack, seconds in self._stacks.items()
            ],
        }
        self._files += 1
        path = self._folder / f"{os.getpid()}-{self._files}.json"
        written = path.with_suffix(".part")
        written.write_text(json.dumps(profile))
        written.rename(path)


def main() -> None:
    """Start the node with its command line."""
    sampler = Sampler(Path(sys.argv.pop(1)))
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.signal(signal.SIGUSR2, sampler.switch)
    run_module()


if __name__ == "__main__":
    main()
