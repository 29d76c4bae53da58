"""Lines of the log: one for each message, whatever a client has put into it.

Names, reasons and ids come from clients and may hold anything: a line break that is followed by a date and a level
would read like a line of ours.
"""

import logging
from types import TracebackType
from typing import Final

__all__ = ["FORMAT", "LineFormatter"]

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: Control characters (C0, DEL, C1), and the separators that Unicode takes for line breaks, too.
_UNSEEN: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
#: As Python would spell them.
_ESCAPES: Final = {code: chr(code).encode("unicode_escape").decode() for code in _UNSEEN}
_ESCAPES_BUT_BREAKS: Final = {code: text for code, text in _ESCAPES.items() if chr(code) != "\n"}

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    r"""Escapes what would break a line or move a terminal's cursor; tracebacks keep their lines, indented.

    >>> said = logging.makeLogRecord({"msg": "member left: %s", "args": ("tired\n2026 CRITICAL: disk on fire",)})
    >>> LineFormatter("INFO %(message)s").format(said)
    'INFO member left: tired\\n2026 CRITICAL: disk on fire'
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        """The line, without a traceback."""
        return super().formatMessage(record).translate(_ESCAPES)

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802
        """All lines but the first are indented: an exception may say what a client has said."""
        return super().formatException(ei).translate(_ESCAPES_BUT_BREAKS).replace("\n", "\n  ")
