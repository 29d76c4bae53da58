"""Turns of an event loop that took longer than OTTLA_LOOP_STALL_MS: in this process, and in the children's logs."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.bench.components.processes import Child
from ottla.runtime.stalls import StallWatch

#: As `StallWatch` writes it: a line, and a stack that is indented.
_REPORT = re.compile(r"^.*One turn of the event loop .*\n(?:  .*\n)*", re.MULTILINE)

#: How much of each child's log has been searched; a server may serve several tests.
_searched: dict[Path, int] = {}


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if _REPORT.match(message := record.getMessage() + "\n"):
            self.messages.append(message)


@contextmanager
def collected() -> Iterator[list[str]]:
    """The reports that come while this is open; filled at its end."""
    found: list[str] = []
    kept, logger = _Kept(), logging.getLogger(StallWatch.__module__)
    logger.addHandler(kept)
    try:
        yield found
    finally:
        logger.removeHandler(kept)
        found += kept.messages
        for log in Child.logs:
            text = log.read_text(errors="replace") if log.exists() else ""
            found += _REPORT.findall(text, _searched.get(log, 0))
            _searched[log] = len(text)
