"""HTML as nested calls: text is escaped, what a call returned is not escaped again."""

from html import escape
from typing import Final

#: Elements without content.
_VOID: Final = frozenset({"meta", "line", "path", "rect", "br"})


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Markup:
    """Make an element.

    Attributes: `class_` for `class`, `_` for `-`; None and False leave one out, True has no value.

    >>> tag("p", "1 < 2 ", tag("b", "so"), class_="note", data_at=3, hidden=None)
    '<p class="note" data-at="3">1 &lt; 2 <b>so</b></p>'
    >>> tag("path", d="M0 0", hidden=True)
    '<path d="M0 0" hidden/>'
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Join children without an element around them."""
    return Markup(
        "".join(each if isinstance(each, Markup) else escape(each, quote=False) for each in children)
    )


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'


def prose(text: str) -> Markup:
    """Make a text in which names stand in backticks.

    >>> prose("run `make <x>` & wait")
    'run <code>make &lt;x&gt;</code> &amp; wait'
    """
    parts = text.split("`")
    return join(*(tag("code", part) if at % 2 else part for at, part in enumerate(parts)))
