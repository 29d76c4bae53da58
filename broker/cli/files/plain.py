"""Messages and bytes as plain values: types that JSON has, and readable text."""

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from io import TextIOWrapper
from typing import Any, TextIO
from uuid import UUID

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


def plain(value: Any) -> Any:  # noqa: ANN401 whatever a message holds
    """A message, or a value in one, as values that JSON has."""
    if isinstance(value, UUID):
        return kafka_uuid.to_text(value)
    if isinstance(value, bytes | memoryview):
        return text_of(value)
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
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


def output() -> TextIO:
    """Return the standard output; characters that its encoding lacks are escaped."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return sys.stdout
