"""Ctrl-C and SIGTERM: they end a measurement, whose results so far are aggregated, or else the run at once."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: `timeout` and service managers send a signal to a process, and then to its group: it comes twice at once.
_SAME_S: Final = 1.0


class Interrupts:
    """The effect of Ctrl-C and SIGTERM: KeyboardInterrupt by default.

    Within `deferred`, the first signal sets `is_asked` instead, the second one raises.
    """

    def __init__(self) -> None:
        self._is_deferred = False
        self._asked = threading.Event()
        self._asked_at_s = 0.0

    @property
    def is_asked(self) -> bool:
        """Whether the measurement is to end."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Sleep; returns early, and True, once the measurement is to end."""
        return self._asked.wait(max(0.0, timeout_s))

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle both signals while the block runs; in the main thread only."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the first signal only set `is_asked` while the block runs."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if not self._asked.is_set():
            self._asked_at_s = now_s
            self._asked.set()
        if not self._is_deferred or now_s - self._asked_at_s > _SAME_S:
            # Py4J logs the traceback of the call that ends here.
            logging.disable()
            raise KeyboardInterrupt
