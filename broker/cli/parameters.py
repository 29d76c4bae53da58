"""Types of the options that several commands have."""

from datetime import UTC, datetime
from typing import Final

import click

from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION

_MS: Final = 1000
#: The numbers that requests have room for: a larger one is refused here, with the option's name.
PARTITION: Final = click.IntRange(0, MAX_PARTITION)
PARTITION_COUNT: Final = click.IntRange(1, MAX_PARTITION)
BROKER_ID: Final = click.IntRange(0, MAX_PARTITION)
OFFSET: Final = click.IntRange(0, MAX_OFFSET)


def time_ms(text: str) -> int:
    """The milliseconds since 1970 of a date and time, or of a number that is that already. Raises BadParameter.

    A date without a time zone is in UTC, as in Kafka's tools. One before 1970 is refused: timestamps below 0 mean the
    start and the end of a log.

    >>> time_ms("1970-01-01T00:00:01.5"), time_ms("1970-01-01T01:00+01:00"), time_ms("7")
    (1500, 0, 7)
    """
    try:
        found = _time_ms(text)
    except (ValueError, OverflowError):
        found = -1
    if not 0 <= found <= MAX_OFFSET:
        raise click.BadParameter(
            f"{text!r} is no time: it must be as 2026-11-26T08:00 (UTC), 2026-11-26T08:00+01:00, "
            "or milliseconds since 1970."
        )
    return found


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    found = datetime.fromisoformat(text)
    return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * _MS)
