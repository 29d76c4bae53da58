"""Waits for conditions, and what a process has open and running: tests compare it before and after."""

import threading
from contextlib import suppress
from pathlib import Path


def wait_for(condition):
    """Wait until the condition is true."""
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("the condition does not become true")


def what_runs():
    """The threads of this process and its open files: each descriptor, and what it is."""
    found = set(threading.enumerate())
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add((descriptor.name, str(descriptor.readlink())))
    return found


def left_since(before):
    """Threads and open files that were not there before. Others may have gone: clients of other tests."""
    return what_runs() - before
