"""Records as lines: JSON in the shape that both commands have, or text.

    {"topic":"orders","partition":0,"offset":7,"timestamp":1700000000000,"key":"42","value":"two apples",
     "headers":[["trace","abc"]]}

A key, a value or a header is null, or a string in its format:

| format | a string is | bytes that it cannot show |
|---|---|---|
| text | UTF-8 | are {"base64": "..."} in JSON, and escaped in text |
| json | not a string but the JSON itself | are an error |
| hex, base64 | the bytes in this notation | |
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ottla.broker.cli.output import Row, text_of
from ottla.broker.cli.similar import similar
from ottla.protocol.types import MAX_OFFSET, MAX_PARTITION


class Format(Enum):
    """The notation of keys or values."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


class FormatError(ValueError):
    """A line, or a record, that is not in its format; the message is a sentence."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Record:
    """A record; None: no key, no value, the partition of the key's hash, the time of the producer."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Formats:
    """The formats of a command's keys and values; headers are text."""

    key: Format = Format.TEXT
    value: Format = Format.TEXT


#: The fields of a line of JSON. Topic and offset are for readers: `ottla produce` uses neither.
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_BASE64: Final = "base64"


def to_json(data: bytes | None, form: Format) -> object:
    r"""The value in a line of JSON. Raises FormatError.

    >>> to_json(b"a", Format.TEXT), to_json(b"\xff", Format.TEXT), to_json(b"\xff", Format.HEX)
    ('a', {'base64': '/w=='}, 'ff')
    """
    if data is None:
        return None
    match form:
        case Format.HEX:
            return data.hex()
        case Format.BASE64:
            return base64.b64encode(data).decode()
        case Format.JSON:
            try:
                return json.loads(data)
            except (ValueError, RecursionError) as error:
                raise FormatError(f"no JSON ({error}): the formats text, hex and base64 show it") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(data).decode()}


def from_json(value: object, form: Format) -> bytes | None:
    """The bytes of a value in a line of JSON. Raises FormatError."""
    if form is Format.JSON and value is not None:
        return as_json_text(value)
    if value is None:
        return None
    if form is Format.TEXT and isinstance(value, dict) and value.keys() == {_BASE64}:
        value, form = value[_BASE64], Format.BASE64
    if not isinstance(value, str):
        raise FormatError(
            f'{json.dumps(value, ensure_ascii=False)} is no string: it must be one, null, or {{"base64": "..."}}; '
            "the format json takes any JSON"
        )
    return from_text(value, form)


def from_text(text: str, form: Format) -> bytes:
    r"""The bytes that a text denotes. Raises FormatError.

    >>> from_text("a", Format.TEXT), from_text("ff00", Format.HEX), from_text('{"a": 1}', Format.JSON)
    (b'a', b'\xff\x00', b'{"a": 1}')
    """
    try:
        match form:
            case Format.HEX:
                return bytes.fromhex(text)
            case Format.BASE64:
                return base64.b64decode(text, validate=True)
            case Format.JSON:
                json.loads(text)
        return text.encode()
    except (ValueError, RecursionError, binascii.Error) as error:
        raise FormatError(f"'{text}' is not {form.value}: {error}") from None


def as_json_text(value: object) -> bytes:
    """A value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_line(data: bytes | None, form: Format) -> str:
    """The text of a key or a value in a line of text; bytes that are not UTF-8 are escaped. Raises FormatError."""
    if data is None:
        return "null"
    match form:
        case Format.JSON:
            return json.dumps(to_json(data, form), ensure_ascii=False)
        case Format.HEX | Format.BASE64:
            return str(to_json(data, form))
    try:
        return data.decode()
    except UnicodeDecodeError:
        return text_of(data) or ""


def row_of(topic: str, partition: int, offset: int, record: Record, formats: Formats) -> Row:
    """A consumed record as a line of JSON. Raises FormatError."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": record.timestamp_ms,
        "key": to_json(record.key, formats.key),
        "value": to_json(record.value, formats.value),
        "headers": [[name, to_json(value, Format.TEXT)] for name, value in record.headers],
    }


def record_of(line: str, formats: Formats, *, keeps_partition: bool) -> Record:
    """The record that a line of JSON denotes. Raises FormatError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON: {error}") from None
    if not isinstance(row, dict):
        raise FormatError('no JSON object: it must be as {"key": "42", "value": "two apples"}')
    for name in row:
        if name not in _FIELDS:
            hint = similar(name, _FIELDS) or f"The fields are {', '.join(_FIELDS)}."
            raise FormatError(f"the field {name} is unknown. {hint}")
    if "value" not in row:
        raise FormatError('the field value is missing: "value": null makes a record without value')
    return Record(
        key=_field(row, "key", formats.key),
        value=_field(row, "value", formats.value),
        headers=_headers(row.get("headers") or []),
        timestamp_ms=_number(row, "timestamp", MAX_OFFSET),
        partition=_number(row, "partition", MAX_PARTITION) if keeps_partition else None,
    )


def _field(row: Mapping[str, object], name: str, form: Format) -> bytes | None:
    try:
        return from_json(row.get(name), form)
    except FormatError as error:
        raise FormatError(f"the field {name}: {error}") from None


def _number(row: Mapping[str, object], name: str, most: int) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise FormatError(f"the field {name}: {json.dumps(value)} is no number from 0 to {most}")
    return value


def _headers(rows: object) -> list[tuple[str, bytes | None]]:
    """The headers of a line; those of other tools, an object of names and values, are known, too."""
    pairs = list(rows.items()) if isinstance(rows, dict) else rows
    if not isinstance(pairs, list):
        raise FormatError('the field headers must be as [["name", "value"]]')
    found = []
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise FormatError('the field headers must be as [["name", "value"]]')
        found.append((_header_name(pair[0]), from_json(pair[1], Format.TEXT)))
    return found


def record_of_text(text: str, formats: Formats, *, key_separator: str | None, null: str | None) -> Record:
    """The record that a line of text denotes: a value, or a key and a value. Raises FormatError.

    >>> record_of_text("42:two apples", Formats(), key_separator=":", null=None).key
    b'42'
    """
    key, value = None, text
    if key_separator is not None:
        key, separator, value = text.partition(key_separator)
        if not separator:
            raise FormatError(f"'{text}' has no '{key_separator}' between key and value (--key-separator)")
    return Record(
        key=None if key is None or key == null else from_text(key, formats.key),
        value=None if value == null else from_text(value, formats.value),
    )


def header_of(text: str) -> tuple[str, bytes]:
    """The header that an option names, as NAME=VALUE. Raises FormatError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise FormatError(f"--header {text}: it must be NAME=VALUE")
    return _header_name(name), from_text(value, Format.TEXT)


def _header_name(name: str) -> str:
    """Return the name of a header. Raises FormatError for half of a surrogate pair: the client library would crash."""
    from_text(name, Format.TEXT)
    return name
