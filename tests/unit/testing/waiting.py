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


def open_files():
    """The descriptors of this process, and what each of them is."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add((descriptor.name, str(descriptor.readlink())))
    return found


def what_runs():
    """The open files and the threads of this process."""
    return open_files(), set(threading.enumerate())
