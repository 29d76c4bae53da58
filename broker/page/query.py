r"""Query: the parameters of a view, from the part of a request's target behind the question mark.

A parameter that the view does not know, or a value that is no number, is refused with a sentence: a link that is
mistyped does not show something else.
"""

from typing import Final
from urllib.parse import parse_qsl

_MAX_PARAMETERS: Final = 16
_MAX_DIGITS: Final = 19


class CannotShow(Exception):
    """A view that cannot be shown: the HTTP status, and a sentence for the reader of the page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Query:
    """The parameters of one view."""

    def __init__(self, text: str) -> None:
        """Parse `text`. Raises CannotShow.

        >>> Query("search=a%20b&page=2").number("page", 0)
        2
        """
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="strict")
        except ValueError:
            raise CannotShow(400, "The parameters of the address cannot be read.") from None
        self._values = dict(pairs)
        self._read: set[str] = set()

    def text(self, name: str, default: str = "") -> str:
        """The text of a parameter."""
        self._read.add(name)
        return self._values.get(name, default)

    def required(self, name: str) -> str:
        """The text of a parameter without a default. Raises CannotShow."""
        text = self.text(name)
        if not text:
            raise CannotShow(400, f"The parameter {name} is missing.")
        return text

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """The number of a parameter; without one the default. Raises CannotShow."""
        found = self.optional_number(name, least=least, most=most)
        return default if found is None else found

    def optional_number(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """The number of a parameter; None without one. Raises CannotShow."""
        text = self.text(name)
        if not text:
            return None
        digits = text.removeprefix("-")
        if (
            digits.isascii()
            and digits.isdigit()
            and len(digits) <= _MAX_DIGITS
            and least <= int(text) <= most
        ):
            return int(text)
        raise CannotShow(400, f"{name} must be a number from {least} to {most}.")

    def is_set(self, name: str) -> bool:
        """Whether a parameter is 1."""
        return self.text(name) == "1"

    def check_all_read(self) -> None:
        """Raise CannotShow for a parameter that no view has asked for."""
        if unknown := sorted(self._values.keys() - self._read):
            raise CannotShow(400, f"The view has no parameter {unknown[0][:40]!a}.")
