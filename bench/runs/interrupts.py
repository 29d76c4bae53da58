"""Ctrl-C and SIGTERM: at once while nothing is measured; while something is, they end it, and what there is is aggregated."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """KeyboardInterrupt by default; within `deferred`, the first signal sets `is_asked` instead, the second one raises."""

    def __init__(self) -> None:
        self._is_deferred = False
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether the measurement is to end."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Sleep; returns early, and True, once the measurement is to end."""
        return self._asked.wait(max(0.0, timeout_s))

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Both signals are handled here; in the main thread only."""
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
        """The first signal only sets `is_asked`."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first = not self._asked.is_set()
        self._asked.set()
        if not (self._is_deferred and is_first):
            # Py4J logs the traceback of the call that ends here.
            logging.disable()
            raise KeyboardInterrupt
