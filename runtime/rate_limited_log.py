"""Log lines about what a peer may cause at will: a bounded number of them."""

import logging
from collections.abc import Callable


class RateLimitedLog:
    """Rate-limited lines about frequent events: each text once in `interval_s`, with the number of omitted ones.

    Texts are distinguished by their format, before arguments are filled in. `monotonic` is in seconds.
    """

    def __init__(self, logger: logging.Logger, *, monotonic: Callable[[], float], interval_s: float) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._interval_s = interval_s
        #: When each text was last written, and how often it was omitted since.
        self._written: dict[str, list[float]] = {}

    def write(self, level: int, text: str, *arguments: object) -> None:
        """Write a line, unless one with this text was written less than `interval_s` ago."""
        now = self._monotonic()
        last = self._written.get(text)
        if last is not None and now - last[0] < self._interval_s:
            last[1] += 1
            return
        if last is not None and last[1]:
            text_with_count, arguments = f"{text} (%d more such lines since)", (*arguments, int(last[1]))
        else:
            text_with_count = text
        self._written[text] = [now, 0]
        self._logger.log(level, text_with_count, *arguments)
