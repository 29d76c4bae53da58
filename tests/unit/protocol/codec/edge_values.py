"""Entities of kio in which every field takes every edge value of its type, in arrays of every edge length.

`entities_at_the_edges` gives a fixed list for one class, in two series:

- *Values*: all arrays hold two elements, and every optional field is present. All fields step through the edge values
  of their types together, each from its own starting point, so that neighbours differ, until each has taken all.
- *Lengths*: one field at a time, at any depth, is null, left at its default, or an array of each edge length. All
  other arrays hold one element.

Source: KIP-482 for the lengths. A compact length or tag of 127 is the first that takes two bytes.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio_entities import EPOCH, MILLISECOND, parts_of, type_hints

#: The edge values of kio's types.
EDGES: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "int8": (0, 1, -1, -(2**7), 2**7 - 1),
    "int16": (0, 1, -1, -(2**15), 2**15 - 1),
    "uint16": (0, 1, 2**15, 2**16 - 1),
    "int32": (0, 1, -1, -(2**31), 2**31 - 1),
    "int64": (0, 1, -1, -(2**63), 2**63 - 1, 2**31, -(2**31) - 1),
    "float64": (0.0, -0.0, -1.5, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf")),
    # 126 bytes are the most whose compact length takes one byte; 32,767 are the most that a length of int16 allows.
    "string": ("", "a", "x" * 126, "x" * 127, "ü" * 64, "\U0001f600\0", "y" * 32767),
    "bytes": (b"", b"\0", b"\xff\x80", b"z" * 126, b"z" * 127, b"z" * 16383, b"z" * 16384),
    "uuid": (None, UUID(int=1), UUID(int=2**128 - 1), UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")),
    "error_code": (ErrorCode.none, min(ErrorCode), max(ErrorCode)),
    "timedelta_i32": tuple(value * MILLISECOND for value in (0, 1, -1, -(2**31), 2**31 - 1)),
    # kio's own timedelta ends before int64 does.
    "timedelta_i64": tuple(value * MILLISECOND for value in (0, 1, -1, 2**31, -(2**31) - 1, 2**46)),
    # kio reads a datetime by floating point, which is exact for whole seconds; its calendar ends with the year 9999.
    "datetime_i64": tuple(EPOCH + datetime.timedelta(seconds=value) for value in (0, 1, 2**31, 253402300799)),
}
EDGES["records"] = EDGES["bytes"]

#: Edge lengths of arrays, of structs or of primitives: compact ones, and those of 32 bits.
COMPACT_LENGTHS, LENGTHS = (0, 1, 126, 127), (0, 1)

Path = tuple[str, ...]


def entities_at_the_edges(cls: type) -> Iterator[Any]:
    """A fixed list of kio's entities of `cls`; see the module."""
    for turn in range(max([len(EDGES[kafka_type]) for _, kafka_type in leaves(cls)], default=1)):
        yield _entity(cls, turn, length=2)
    for path, shape in _shapes(cls):
        yield _entity(cls, 1, length=1, special={path: shape})


def leaves(cls: type, above: Path = ()) -> Iterator[tuple[Path, str]]:
    """(path, type) of every field of `cls` that is no struct, at any depth."""
    for field, _, _, inner in _fields(cls):
        kafka_type = field.metadata.get("kafka_type")
        if kafka_type is None:
            yield from leaves(inner, (*above, field.name))
        else:
            yield (*above, field.name), kafka_type


#: A field's value in the series of lengths: null, its default, or an array of so many elements.
_NULL, _DEFAULT = "null", "default"
Shape = str | int


def _shapes(cls: Any, above: Path = ()) -> Iterator[tuple[Path, Shape]]:
    for field, is_optional, is_array, inner in _fields(cls):
        path = (*above, field.name)
        if _has_default(field):
            yield path, _DEFAULT
        if is_optional:
            yield path, _NULL
        if is_array:
            yield from ((path, length) for length in (COMPACT_LENGTHS if cls.__flexible__ else LENGTHS))
        if field.metadata.get("kafka_type") is None:
            yield from _shapes(inner, path)


def _entity(
    cls: type, turn: int, *, length: int, special: Mapping[Path, Shape] = {}, above: Path = ()
) -> Any:
    """An entity whose fields take the `turn`-th edge value and the following ones.

    Arrays have `length` elements; `special` has the fields of another shape.
    """
    values = {}
    for place, (field, _, is_array, inner) in enumerate(_fields(cls)):
        path = (*above, field.name)
        kafka_type = field.metadata.get("kafka_type")
        shape = special.get(path, length)
        elements = tuple(
            _entity(inner, turn + place + number, length=length, special=special, above=path)
            if kafka_type is None
            else EDGES[kafka_type][(turn + place + number) % len(EDGES[kafka_type])]
            for number in range(shape if isinstance(shape, int) and is_array else 1)
        )
        if shape == _NULL:
            values[field.name] = None
        elif shape == _DEFAULT:
            values[field.name] = field.default
        else:
            values[field.name] = elements if is_array else elements[0]
    return cls(**values)


@cache
def _fields(cls: type) -> list[tuple[dataclasses.Field[Any], bool, bool, type]]:
    """(field, may be null, is an array, type of it or of its elements)."""
    hints = type_hints(cls)
    return [(field, *parts_of(hints[field.name])) for field in dataclasses.fields(cls)]


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return "tag" in field.metadata and field.default is not dataclasses.MISSING
