"""Reads a table of TOML into a dataclass of `ottla.bench.workloads.model`: the fields define names, types and
defaults.

A key is a field's name without its `is_`. Two fields have a short form: a record's size is a number of bytes,
connections are their number.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from ottla.bench.workloads.model import IdleConnections, RecordSize

T = TypeVar("T")

_NEAREST: Final = 3
#: The words for TOML's types in messages.
_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    dict: "a table",
    list: "a list",
}


class WorkloadError(Exception):
    """A workload cannot be run as it is written; one sentence with the file, the key, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a key or value: the file, and the keys that lead to it."""

    file: str
    keys: tuple[str, ...] = ()

    def __truediv__(self, key: str) -> "Place":
        return Place(self.file, (*self.keys, key))

    def error(self, sentence: str) -> WorkloadError:
        """Return the error of this place, with a sentence about it.

        >>> str((Place("a.toml") / "topics 1" / "partitions").error("must be 1 or more"))
        'a.toml: topics 1, partitions: must be 1 or more'
        """
        return WorkloadError(": ".join([self.file, *([", ".join(self.keys)] if self.keys else []), sentence]))


def read_table(kind: type[T], table: object, place: Place, **known: object) -> T:
    """Read a table into an instance of `kind`, whose fields `known` are given already. Raises WorkloadError."""
    assert is_dataclass(kind)
    if not isinstance(table, dict):
        raise place.error(f"must be a table, and is {_word_of(table)}")
    types = get_type_hints(kind)
    by_key = {field.name.removeprefix("is_"): field for field in fields(kind) if field.name not in known}
    for key in table:
        if key not in by_key:
            raise place.error(_unknown(key, by_key))
    values = dict(known)
    for key, field in by_key.items():
        if key in table:
            values[field.name] = _value(types[field.name], table[key], place / key)
        elif _is_needed(field):
            raise place.error(f"`{key}` is missing: add it")
    return kind(**values)


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _unknown(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    nearest = difflib.get_close_matches(key, names, n=_NEAREST, cutoff=0.5)
    if nearest:
        return f"there is no key `{key}`; did you mean {' or '.join(f'`{name}`' for name in nearest)}?"
    return f"there is no key `{key}`; the keys here are {', '.join(f'`{name}`' for name in names)}"


def _value(kind: Any, value: object, place: Place) -> object:  # noqa: ANN401 - a type, or an alias such as X | None
    """Return a key's value as the value of a field of this type. Raises WorkloadError."""
    if isinstance(kind, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    origin = get_origin(kind)
    if origin is Sequence:
        return _list(get_args(kind)[0], value, place)
    if origin is Mapping:
        is_nested = get_origin(get_args(kind)[1]) is Mapping
        return _tables(value, place) if is_nested else _properties(value, place)
    if isinstance(kind, type) and is_dataclass(kind):
        return _short_form(kind, value) or read_table(kind, value, place)
    if issubclass(kind, Enum):
        return _choice(kind, value, place)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise place.error(f"must be {_WORDS[kind]}, and is {_word_of(value)}")
    return value


def _short_form(kind: type, value: object) -> object:
    if type(value) is not int:
        return None
    if kind is RecordSize:
        return RecordSize(mean=value, least=value, most=value)
    return IdleConnections(count=value) if kind is IdleConnections else None


def _list(kind: type, value: object, place: Place) -> list[object]:
    if not isinstance(value, list):
        raise place.error(f"must be a list of tables ([[{place.keys[-1]}]]), and is {_word_of(value)}")
    where = Place(place.file, place.keys[:-1])
    return [
        read_table(kind, each, where / _numbered(place.keys[-1], number, each))
        for number, each in enumerate(value, 1)
    ]


def _numbered(key: str, number: int, table: object) -> str:
    name = table.get("name") if isinstance(table, dict) else None
    return f"{key} {number} ({name})" if isinstance(name, str) else f"{key} {number}"


def _tables(value: object, place: Place) -> dict[str, dict[str, str]]:
    """Return configurations for each of some names."""
    if not isinstance(value, dict):
        raise place.error(f"must be a table of tables, and is {_word_of(value)}")
    return {key: _properties(each, place / key) for key, each in value.items()}


def _properties(value: object, place: Place) -> dict[str, str]:
    """Return configurations: texts, whatever they look like in the file."""
    if not isinstance(value, dict):
        raise place.error(f"must be a table, and is {_word_of(value)}")
    properties = {}
    for key, each in value.items():
        if isinstance(each, dict | list):
            raise place.error(
                f'`{key}` is {_word_of(each)}: write names with dots in quotes, as "{key}.x" = 1'
            )
        properties[key] = str(each).lower() if isinstance(each, bool) else str(each)
    return properties


def _choice(kind: type[Enum], value: object, place: Place) -> Enum:
    for each in kind:
        if each.value == value:
            return each
    known = ", ".join(f'"{each.value}"' for each in kind)
    shown = f'"{value}"' if isinstance(value, str) else _word_of(value)
    nearest = difflib.get_close_matches(str(value), [str(each.value) for each in kind], n=1)
    hint = f' (did you mean "{nearest[0]}"?)' if nearest else ""
    raise place.error(f"must be one of {known}, and is {shown}{hint}")


def _word_of(value: object) -> str:
    return _WORDS.get(type(value), f"a {type(value).__name__}")
