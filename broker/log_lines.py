"""Log lines: exactly one line for each message, also if it contains text from clients.

    text   2026-11-26T15:52:37.123Z INFO ottla.broker.node: ...; the lines of a traceback follow, indented
    json   {"time": ..., "level": ..., "logger": ..., "message": ..., "stack": ...}, on one line

Times are UTC in both. Names, reasons and ids come from clients and may contain anything: a line break followed by a
date and a level would look like a log line of the broker.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

__all__ = ["FORMAT", "JsonFormatter", "LineFormatter", "LineLimit", "OutageLog"]

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: The loggers of Python's whose messages have lines of their own: reports about callbacks that have failed.
_WITH_LINES: Final = frozenset({"asyncio", "concurrent.futures"})

#: Control characters (C0, DEL, C1), and the separators that Unicode also treats as line breaks.
_CONTROL_CHARACTERS: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
#: The escapes of control characters, as Python spells them.
_ESCAPES: Final = {code: chr(code).encode("unicode_escape").decode() for code in _CONTROL_CHARACTERS}
#: The characters among them that JSON allows in a text, and a terminal or a reader of lines does not.
_ESCAPES_IN_JSON: Final = {code: f"\\u{code:04x}" for code in _CONTROL_CHARACTERS if code >= 0x7F}
_ESCAPES_BUT_BREAKS: Final = {code: text for code, text in _ESCAPES.items() if chr(code) != "\n"}

#: The maximum length of a line, and of a traceback, which may contain a client's text, too; characters.
MAX_LINE: Final = 2_000
MAX_TRACEBACK: Final = 16_000
#: The number of lines that one place in the code writes at once; then it writes one in each
#: `LINE_INTERVAL_S`.
LINES_AT_ONCE: Final = 100
LINE_INTERVAL_S: Final = 1.0
#: The number of lines that a traceback counts as.
LINES_OF_TRACEBACK: Final = 10

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


class LineLimit(logging.Filter):
    """Bounds the log lines that one place in the code writes, however many errors clients cause.

    The filter of the process's log handler.

    What is omitted is counted, in the next line of that place. Lines below INFO are not bounded, as they are written
    for an operator who has raised the level, nor are CRITICAL ones, as the node stops. Cost: 1 us for each line.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Place -> how many lines it may write, as of when, and how many were omitted since its last one.
        self._places: dict[tuple[str, int], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if not logging.INFO <= record.levelno < logging.CRITICAL:
            return True
        place = self._places.setdefault((record.pathname, record.lineno), [LINES_AT_ONCE, record.created, 0])
        left, since, omitted = place
        left += max(0.0, record.created - since) / LINE_INTERVAL_S  # the clock may be set back
        cost = LINES_OF_TRACEBACK if record.exc_info else 1
        if left < cost:
            place[:] = left, record.created, omitted + 1
            return False
        place[:] = min(left, LINES_AT_ONCE) - cost, record.created, 0
        if omitted:
            # Written by `LineFormatter`: what a filter raises, as for a wrong format, is raised by the call that logs.
            record.omitted_lines = round(omitted)
        return True


class LineFormatter(logging.Formatter):
    r"""Escapes characters that break a line or move a terminal's cursor; tracebacks keep their lines, indented.

    So do messages with the attribute `has_lines`, which have no text of clients: a stack.

    Messages of asyncio do, too: each of their lines names a callback or a task.

    >>> said = logging.makeLogRecord({"msg": "member left: %s", "args": ("tired\n2026 CRITICAL: disk on fire",)})
    >>> LineFormatter("INFO %(message)s").format(said)
    'INFO member left: tired\\n2026 CRITICAL: disk on fire'
    """

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Format the time of the line, in UTC."""
        return _time_of(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format the line, without a traceback."""
        text = super().formatMessage(record)
        if _has_lines(record):
            text = _indented(_cut(text, MAX_TRACEBACK))
        else:
            text = _cut(_cut(text, MAX_LINE).translate(_ESCAPES), MAX_LINE)
        omitted = getattr(record, "omitted_lines", 0)
        return f"{text} ({omitted} more such lines were omitted before)" if omitted else text

    def formatException(self, ei: _ExceptionInfo) -> str:
        """Format a traceback with all lines but the first indented: an exception may contain a client's text."""
        return _indented(_cut(super().formatException(ei), MAX_TRACEBACK))

    def formatStack(self, stack_info: str) -> str:
        """Format a stack as a traceback."""
        return _indented(_cut(stack_info, MAX_TRACEBACK))


class JsonFormatter(logging.Formatter):
    """Writes each message as one JSON object on one line, with a stack in a field of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the whole message."""
        fields: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage(), MAX_TRACEBACK if _has_lines(record) else MAX_LINE),
        }
        if record.exc_info:
            fields["stack"] = _cut(self.formatException(record.exc_info), MAX_TRACEBACK)
        elif record.stack_info:
            fields["stack"] = _cut(record.stack_info, MAX_TRACEBACK)
        if omitted := getattr(record, "omitted_lines", 0):
            fields["omitted"] = omitted
        return json.dumps(fields, ensure_ascii=False).translate(_ESCAPES_IN_JSON)


def _time_of(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def _has_lines(record: logging.LogRecord) -> bool:
    return record.name in _WITH_LINES or getattr(record, "has_lines", False)


def _indented(text: str) -> str:
    return text.translate(_ESCAPES_BUT_BREAKS).replace("\n", "\n  ")


class OutageLog:
    """Lines about peers that do not respond: after `patience_s` without a response, then once in `interval_s` at most.

    Shorter outages are not logged: in each election and each restart some peers are unreachable for a moment.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        monotonic: Callable[[], float],
        patience_s: float = 3.0,
        interval_s: float = 10.0,
    ) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._interval_s = interval_s
        #: Peer -> the time since which it does not respond, and the time when that is logged next.
        self._since: dict[str, list[float]] = {}
        #: Peer that does not respond -> the reason of its last failure.
        self.reasons: dict[str, str] = {}

    def failed(self, peer: str, reason: object) -> None:
        """Record that a request to `peer` has failed; the failure is logged when it is due."""
        now = self._monotonic()
        outage = self._since.setdefault(peer, [now, now + self._patience_s])
        self.reasons[peer] = str(reason)
        if now >= outage[1]:
            outage[1] = now + self._interval_s
            self._logger.warning(
                "%s has not responded for %.0f s: %s; retrying", peer, now - outage[0], reason
            )

    def answered(self, peer: str) -> None:
        """Record that `peer` has responded; a logged outage ends with a line."""
        if not self._since or (outage := self._since.pop(peer, None)) is None:
            return
        del self.reasons[peer]
        now = self._monotonic()
        if now - outage[0] >= self._patience_s:
            self._logger.info("%s works again, after %.0f s", peer, now - outage[0])
