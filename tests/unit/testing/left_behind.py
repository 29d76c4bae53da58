"""The files that a process has open, and its threads: tests compare them before and after."""

import threading
from contextlib import suppress
from pathlib import Path


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
