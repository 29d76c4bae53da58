"""Messages merged from kio's schema, which has one frozen class for each version of a message.

Names change in one case: kio's durations and points in time become integers in milliseconds, and their names
end in `_ms` unless they contain `timestamp`.
Source: kio, whose classes are generated from Kafka's message schemas; MessageGenerator of Kafka.
"""

import datetime
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from types import ModuleType, NoneType
from typing import Any, Final
from uuid import UUID

import kio.schema

from ottla.protocol.schemas.merged import (
    ZEROS,
    MergedField,
    MergedMessage,
    MergedStruct,
    add_local_logs,
    inner_first,
)

#: kio's types that are integers on the wire, and their type on the wire.
_INTEGERS: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}


def modules() -> dict[str, ModuleType]:
    """The packages of kio's messages by their names, as "api_versions"."""
    names = [module.name for module in pkgutil.iter_modules(kio.schema.__path__) if module.ispkg]
    return {name: importlib.import_module(f"kio.schema.{name}") for name in names}


def kinds_of(api: ModuleType) -> list[str]:
    """Return what a package of kio has: "request" and "response", or "data"."""
    first = next(iter(pkgutil.iter_modules(api.__path__))).name
    version = importlib.import_module(f"{api.__name__}.{first}")
    found = {module.name for module in pkgutil.iter_modules(version.__path__)}
    return [kind for kind in ("request", "response", "data") if kind in found]


def last_version(api: ModuleType) -> int:
    """The newest version that kio has of this message."""
    return max(int(module.name[1:]) for module in pkgutil.iter_modules(api.__path__))


def _entities(module: ModuleType) -> list[type]:
    return [
        c  # type: ignore[misc]
        for c in vars(module).values()
        if is_dataclass(c) and c.__module__ == module.__name__
    ]


def _version_modules(api: ModuleType, kind: str) -> Iterator[tuple[int, ModuleType]]:
    numbers = sorted(int(m.name[1:]) for m in pkgutil.iter_modules(api.__path__) if m.name[0] == "v")
    for number in numbers:
        yield number, importlib.import_module(f"{api.__name__}.v{number}.{kind}")


def _our_name(name: str, kio_type: str | None) -> str:
    is_duration = kio_type in {"timedelta_i32", "timedelta_i64"}
    is_instant = kio_type == "datetime_i64" and "timestamp" not in name
    return f"{name}_ms" if (is_duration or is_instant) and not name.endswith("_ms") else name


def _default(kio_field: "Field[Any]", annotation: str, kio_type: str | None, *, is_array: bool) -> str:
    """The default as source text: Kafka's, or the zero of the type if the schema has none."""
    value = kio_field.default
    nothing = value is MISSING or value is None
    if is_array:
        # An array's default is empty, or null where the schema says so.
        return "None" if value is None else "[]"
    if nothing and kio_type == "uuid":
        return "ZERO_UUID"
    if nothing and kio_type == "datetime_i64":
        return "-1" if value is None else "0"
    if kio_type == "records":
        return "None" if "None" in annotation else 'b""'
    if value is None:
        return "None"
    if value is MISSING:
        return "0"  # replaced by the type's zero
    if isinstance(value, datetime.timedelta):
        return str(value // datetime.timedelta(milliseconds=1))
    if isinstance(value, str | bytes | bool | float):
        return repr(value).replace("'", '"')
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, UUID):
        return "ZERO_UUID" if value.int == 0 else repr(value)
    assert is_dataclass(value), value
    return f"{type(value).__name__}()"


def _merge_field(kio_field: "Field[Any]", annotation: Any) -> MergedField:  # noqa: ANN401 a type expression
    kio_type = kio_field.metadata.get("kafka_type")
    arms = [arm for arm in typing.get_args(annotation) if arm not in (NoneType, ...)]
    is_optional = NoneType in typing.get_args(annotation)
    inner = arms[0] if is_optional else annotation
    is_array = typing.get_origin(inner) is tuple
    if is_array:
        inner = typing.get_args(inner)[0]
    struct = inner.__name__ if kio_type is None else None
    kafka_type = _INTEGERS.get(kio_type, kio_type) if kio_type else None
    merged = MergedField(
        name=_our_name(kio_field.name, kio_type),
        kafka_type=kafka_type,
        struct=struct,
        is_array=is_array,
        default=_default(kio_field, str(annotation), kio_type, is_array=is_array),
        tag=kio_field.metadata.get("tag"),
    )
    if merged.default == "0" and struct is None:
        merged.default = ZEROS.get(merged.element, "0")
    elif merged.default == "0":
        merged.default = f"{struct}()"
    # kio uses None for "no id" and "no time"; on the wire they are ordinary values.
    if is_optional and (is_array or kio_type not in ("uuid", "datetime_i64")):
        merged.nullable = [0]
    return merged


def _add_version(struct: MergedStruct, version: int, cls: type) -> None:
    """Merge one version's class into `struct`; a new field is inserted after its predecessor in that version."""
    struct.versions.append(version)
    known = {f.name: f for f in struct.fields}
    hints = typing.get_type_hints(cls)
    at = 0
    for kio_field in fields(cls):
        new = _merge_field(kio_field, hints[kio_field.name])
        old = known.get(new.name)
        if old is None:
            struct.fields.insert(at, new)
            old, was_nullable = new, bool(new.nullable)
            old.nullable = []
        else:
            assert old.shape == new.shape, (cls, old, new)
            was_nullable = bool(new.nullable)
            if new.tag is not None:
                old.tag = new.tag
            if old.default != new.default:
                # A default of null does not apply to the versions in which the field is not nullable.
                assert "None" in (old.default, new.default), (cls, old, new)
                old.default = "None"
        position = struct.fields.index(old)
        assert position >= at or new.tag is not None, (cls, new.name)
        at = max(at, position + 1)
        old.versions.append(version)
        if was_nullable:
            old.nullable.append(version)
        if new.tag is not None:
            old.tagged.append(version)


def merge(api: ModuleType, kind: str) -> MergedMessage:
    """One schema, merged from all of kio's versions of it."""
    structs: dict[str, MergedStruct] = {}
    flexible_from = api_key = None
    top = ""
    for version, module in _version_modules(api, kind):
        for cls in _entities(module):
            _add_version(structs.setdefault(cls.__name__, MergedStruct(name=cls.__name__)), version, cls)
            top = cls.__name__
        last = _entities(module)[-1]
        api_key = getattr(last, "__api_key__", None)
        if last.__flexible__ and flexible_from is None:  # type: ignore[attr-defined]
            flexible_from = version
    add_local_logs(api.__name__.rpartition(".")[2], kind, structs)
    ordered = inner_first(structs, top)
    return MergedMessage(kind=kind, api_key=api_key, flexible_from=flexible_from, structs=ordered)
