"""A node whose disk becomes slow while a file exists: `python -m tests.harness.slow_disk SWITCH broker
server.properties`.

SWITCH is a path. While it names a file, that file holds a number of seconds, and the node's disk behaves like one whose
queue is full: each flush takes up to so long, in whichever thread it is called; each read that a thread makes takes up
to a tenth of it, and half of what is cached counts as not cached, so that it is read by a thread.

The node is the real one, with its real files: only `ottla.storage.files.Files` waits first.
Reads and writes on the event loop's thread do not wait, since they are made for pages that are in memory.
"""

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ottla.command_line import main
from ottla.storage.files import Files

#: The share of a flush that a read takes.
_READ_SHARE = 0.1


def install(switch: Path) -> None:
    """Make `Files` slow while `switch` exists."""
    chance = random.Random()

    def seconds() -> float:
        try:
            return float(switch.read_text() or 0)
        except FileNotFoundError:
            return 0.0

    def delayed(method: Callable[..., Any], *, share: float, is_for_threads: bool) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not is_for_threads or threading.current_thread() is not threading.main_thread():
                time.sleep(chance.uniform(0, seconds() * share))
            return method(*args, **options)

        return call

    is_cached = Files.is_cached

    def is_rarely_cached(self: Files, *args: Any, **options: Any) -> bool:
        return is_cached(self, *args, **options) and not (seconds() and chance.random() < 0.5)

    patch.multiple(
        Files,
        fsync=delayed(Files.fsync, share=1, is_for_threads=False),
        pread=delayed(Files.pread, share=_READ_SHARE, is_for_threads=True),
        is_cached=is_rarely_cached,
    ).start()


def make_slow(switch: Path, seconds: float) -> None:
    """Switch it on, in one step."""
    temporary = switch.with_suffix(".tmp")
    temporary.write_text(str(seconds))
    temporary.replace(switch)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    main(sys.argv[2:])
