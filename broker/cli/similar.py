"""Similar names, for messages about unknown ones."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

#: The number of names that a message suggests.
_NEAR: Final = 3


def similar(name: str, known: Iterable[str]) -> str:
    """Return the question whether a similar name was meant; empty if none is similar.

    >>> similar("retention.mss", ["retention.ms", "retention.bytes", "segment.ms"])
    'Did you mean retention.ms, retention.bytes or segment.ms?'
    """
    near = get_close_matches(name, sorted(known), n=_NEAR)
    if not near:
        return ""
    *others, last = near
    return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"
