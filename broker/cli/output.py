"""Output of the commands: messages and bytes as JSON or text, and tables, sizes and times for a reader."""

import json
import os
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from io import TextIOWrapper
from typing import Any, TextIO
from uuid import UUID

import click

from ottla.protocol import kafka_uuid

#: One row of a dump: its kind under "kind", its file under "file".
Row = dict[str, Any]


def text_of(data: bytes | memoryview | None) -> str | None:
    r"""Return bytes as text: printable UTF-8 as it is, else with every byte escaped that is not printable ASCII.

    A backslash is escaped, too, so that the text is unambiguous.

    >>> text_of("Zoë".encode()), text_of(b"a\x00\xff")
    ('Zoë', 'a\\x00\\xff')
    """
    if data is None:
        return None
    raw = bytes(data)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        pass
    else:
        if text.isprintable() and "\\" not in text:
            return text
    return "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte != ord("\\") else f"\\x{byte:02x}" for byte in raw
    )


def json_value(value: Any) -> Any:  # noqa: ANN401 whatever a message holds
    """A message, or a value in one, as values that JSON has."""
    if isinstance(value, UUID):
        return kafka_uuid.to_text(value)
    if isinstance(value, bytes | memoryview):
        return text_of(value)
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {each.name: json_value(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    return value


def as_json(row: Row) -> str:
    """The row as one line of JSON."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def as_text(row: Row) -> str:
    """The row as one line of text: its kind, then name=value; records are indented.

    >>> as_text({"kind": "record", "file": "f", "offset": 3, "key": "a b", "value": None})
    '  record offset=3 key="a b" value=null'
    """
    kind = row["kind"]
    if kind == "file":
        return f"{row['file']}: {row['type']}"
    words = [
        f"{name}={value if _is_bare(value) else json.dumps(value, ensure_ascii=False)}"
        for name, value in row.items()
        if name not in ("kind", "file")
    ]
    indent = "  " if kind in ("record", "control") else ""
    return f"{indent}{kind} {' '.join(words)}"


def _is_bare(value: object) -> bool:
    """Whether the value needs no quotes: numbers, and words of unambiguous characters."""
    if isinstance(value, str):
        return bool(value) and value.isascii() and all(each.isalnum() or each in "-_.:/" for each in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def standard_output() -> TextIO:
    """Return the standard output; characters that its encoding lacks are escaped."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return sys.stdout


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: int | None = None,
    numbers: Container[int] | None = None,
) -> list[str]:
    """Return the lines of a table. Columns of `numbers`, or all behind the first `words`, are aligned right.

    >>> table(("log", "bytes"), [("orders-0", "7")], words=1)
    ['log       bytes', 'orders-0      7']
    """
    rows = [[terminal_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    if numbers is None:
        numbers = range(len(head) if words is None else words, len(head))
    return [
        "  ".join(
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def sentence(text: str) -> str:
    """A text that ends like a sentence.

    >>> sentence("It is so"), sentence("Is it so?")
    ('It is so.', 'Is it so?')
    """
    return text if text.endswith((".", "?")) else f"{text}."


def time_text(time_ms: int) -> str:
    """Return a timestamp in ms as UTC date and time, to the second."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def terminal_text(text: str) -> str:
    r"""The text for a terminal: a record may have characters that would control it, and these are escaped.

    >>> terminal_text("Zoë\t\x1b[2J")
    'Zoë\t\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def show(lines: Iterable[str | Row]) -> None:
    """Write lines of text and rows of JSON to the standard output.

    Colours stay on a terminal only, and not if the environment has NO_COLOR (no-color.org).
    """
    out = standard_output()
    color = False if os.environ.get("NO_COLOR") else None
    for line in lines:
        click.echo(line if isinstance(line, str) else as_json(line), file=out, color=color)


def confirm(question: str) -> None:
    """Ask for a confirmation if a terminal is there to give it. Raises Abort if it is not given."""
    if sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)
