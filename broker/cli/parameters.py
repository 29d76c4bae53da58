"""Types of the options that several commands have."""

from datetime import UTC, datetime
from typing import Final

import click

_MS: Final = 1000


def time_ms(text: str) -> int:
    """The milliseconds since 1970 of a date and time, or of a number that is that already. Raises BadParameter.

    A date without a time zone is in UTC, as in Kafka's tools.

    >>> time_ms("1970-01-01T00:00:01.5"), time_ms("1970-01-01T01:00+01:00"), time_ms("7")
    (1500, 0, 7)
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time: it must be as 2026-11-26T08:00 (UTC), 2026-11-26T08:00+01:00, "
            "or milliseconds since 1970."
        ) from None
    return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * _MS)
