"""Write `protocol/messages/` and `protocol/error_code.py` from kio's schema: `python -m ottla.protocol.generate`.

kio has one frozen class for each version of a message; a handler needs one class for all versions. This module
merges kio's versions of a message into one mutable dataclass whose fields name their versions, in the
form of `ottla.protocol.schema`, and adds the tagged fields of our own (`ottla.protocol.local_log`). The
result is checked in, so that a broker imports neither kio nor this module.

Names change in two cases. kio's durations and points in time become integers in milliseconds, and their names
end in `_ms` unless they contain `timestamp`. A nested struct of a response gets the suffix `Response` if the request
has a struct of the same name and another shape.
Source: kio, whose classes are generated from Kafka's message schemas; MessageGenerator of Kafka.
"""

import datetime
import importlib
import pkgutil
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, Final
from uuid import UUID

import kio.schema
import kio.schema.errors

from ottla.protocol.local_log import LOCAL_LOG_TAG, LocalLogState
from ottla.protocol.schema import Versions

MESSAGES = Path(__file__).with_name("messages")
ERROR_CODES = Path(__file__).with_name("error_code.py")

#: Frame headers are parsed by hand in `ottla.protocol.framing`.
_SKIPPED = {"request_header", "response_header"}
_ENTITY_KINDS = {"request": "Request", "response": "Response", "data": "Message"}
#: kio's types that are integers on the wire, and their type on the wire.
_INTEGERS = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
_ANNOTATIONS = {"float64": "float", "bool": "bool", "string": "str", "bytes": "bytes", "uuid": "UUID"}
_ZEROS = {"float": "0.0", "bool": "False", "str": '""', "bytes": 'b""', "UUID": "ZERO_UUID"}
_ZEROS["bytes | memoryview"] = 'b""'
_LINE_LENGTH = 110
_LOCAL_LOG_STATE: Final = LocalLogState.__name__
#: The structs with a tagged `local_log`, and the first version that has it.
_WITH_LOCAL_LOG: Final = {
    ("kio.schema.alter_partition", "request", "BrokerState"): 3,
    ("kio.schema.fetch", "request", "FetchPartition"): 12,
}


@dataclass(slots=True, kw_only=True)
class MergedField:
    """One field over all versions of its struct."""

    name: str
    kafka_type: str | None  # None: the struct `struct`
    struct: str | None
    is_array: bool
    default: str  # source text
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)
    tag: int | None = None
    tagged: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[object, ...]:
        """The properties of a field that must not differ between versions."""
        return self.kafka_type, self.struct, self.is_array

    @property
    def element(self) -> str:
        """The annotation of the value, or of an array's elements."""
        if self.struct is not None:
            return self.struct
        if self.kafka_type == "records":
            return "bytes | memoryview"
        return _ANNOTATIONS.get(str(self.kafka_type), "int")


@dataclass(slots=True, kw_only=True)
class MergedStruct:
    """One struct over all versions of its message, fields in the order of the wire."""

    name: str
    versions: list[int] = field(default_factory=list)
    fields: list[MergedField] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MergedMessage:
    """A request, response or data schema: its structs, inner ones first, itself last."""

    kind: str
    api_key: int | None
    flexible_from: int | None
    structs: list[MergedStruct]


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
        merged.default = _ZEROS.get(merged.element, "0")
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
    for (api_name, of_kind, struct), first in _WITH_LOCAL_LOG.items():
        if (api_name, of_kind) == (api.__name__, kind):
            structs[struct].fields.append(_local_log(structs[struct].versions, first))
    ordered = _inner_first(structs, top)
    return MergedMessage(kind=kind, api_key=api_key, flexible_from=flexible_from, structs=ordered)


def _local_log(versions: list[int], first: int) -> MergedField:
    """The tagged field `local_log` of a struct that has these versions."""
    having = [version for version in versions if version >= first]
    return MergedField(
        name="local_log",
        kafka_type=None,
        struct=_LOCAL_LOG_STATE,
        is_array=False,
        default="None",
        versions=having,
        nullable=having,
        tag=LOCAL_LOG_TAG,
        tagged=having,
    )


def _inner_first(structs: dict[str, MergedStruct], top: str) -> list[MergedStruct]:
    """Depth first from `top`, so that each class follows those that it uses."""
    done: dict[str, MergedStruct] = {}

    def visit(name: str) -> None:
        for merged in structs[name].fields:
            if merged.struct not in (None, _LOCAL_LOG_STATE) and merged.struct not in done:
                visit(merged.struct)
        done[name] = structs[name]

    visit(top)
    assert done.keys() == structs.keys(), (top, structs.keys() - done.keys())
    return list(done.values())


def _rename_clashes(request: MergedMessage, response: MergedMessage) -> list[str]:
    """Rename response structs that have the name of a request struct and another shape.

    Inner structs come first, so a struct that uses a renamed one differs in shape, too.
    """
    mine = {struct.name: _struct_source(struct, request) for struct in request.structs}
    renamed: dict[str, str] = {}
    for struct in response.structs:
        for merged in struct.fields:
            if merged.struct in renamed:
                old, merged.struct = merged.struct, renamed[merged.struct]
                merged.default = merged.default.replace(f"{old}()", f"{merged.struct}()")
        if struct.name in mine and mine[struct.name] != _struct_source(struct, response):
            renamed[struct.name] = f"{struct.name}Response"
            struct.name = renamed[struct.name]
    return sorted(renamed.values())


def _range(versions: list[int], last: int) -> str:
    assert versions == list(range(versions[0], versions[-1] + 1)), versions
    return str(Versions(versions[0], None if versions[-1] == last else versions[-1]))


def _field_source(merged: MergedField, struct: MergedStruct, last: int) -> list[str]:
    metadata: list[str] = []
    doc = f"Versions {_range(merged.versions, last)}"
    if merged.kafka_type is not None:
        metadata.append(f'"kafka_type": "{merged.kafka_type}"')
    if merged.versions != struct.versions:
        metadata.append(f'"versions": "{_range(merged.versions, last)}"')
    if merged.nullable:
        metadata.append(f'"nullable": "{_range(merged.nullable, last)}"')
        doc += "; may be null" + (
            "" if merged.nullable == merged.versions else f" in {_range(merged.nullable, last)}"
        )
    if merged.tag is not None:
        metadata.append(f'"tag": {merged.tag}')
        doc += f"; tag {merged.tag}"
        if merged.tagged != merged.versions:
            metadata.append(f'"tag_versions": "{_range(merged.tagged, last)}"')
            doc += f" in {_range(merged.tagged, last)}"
    annotation = f"list[{merged.element}]" if merged.is_array else merged.element
    if merged.nullable:
        annotation += " | None"
    if merged.default == "[]":
        default = "default_factory=list"
    elif merged.default.endswith("()"):
        default = f"default_factory={merged.default[:-2]}"
    else:
        default = f"default={merged.default}"
    arguments = [default] + ([f"metadata={{{', '.join(metadata)}}}"] if metadata else [])
    line = f"    {merged.name}: {annotation} = field({', '.join(arguments)})"
    lines = [line]
    if len(line) > _LINE_LENGTH:
        lines = [f"    {merged.name}: {annotation} = field(", f"        {', '.join(arguments)}", "    )"]
    return [*lines, f'    """{doc}."""']


def _struct_source(struct: MergedStruct, message: MergedMessage) -> str:
    is_top = struct is message.structs[-1]
    last = message.structs[-1].versions[-1]
    versions = message.structs[-1].versions
    base = f"({_ENTITY_KINDS[message.kind]})" if is_top else ""
    lines = ["@schema_class", f"class {struct.name}{base}:"]
    if is_top:
        lines += [f'    """Versions {Versions(versions[0], last)}."""', ""]
        if message.api_key is not None:
            lines.append(f"    __api_key__: ClassVar[int] = {message.api_key}")
        lines.append(f"    __versions__: ClassVar[Versions] = Versions({versions[0]}, {last})")
        if message.flexible_from is not None:
            lines.append(f"    __flexible_from__: ClassVar[int | None] = {message.flexible_from}")
    else:
        lines.append(f'    """Versions {_range(struct.versions, last)}."""')
    if struct.fields:
        lines.append("")
    for merged in struct.fields:
        lines += _field_source(merged, struct, last)
    return "\n".join(lines) + "\n"


def module_source(api: ModuleType) -> str:
    """The whole text of `protocol/messages/<api>.py`."""
    kinds = [m.name for m in pkgutil.iter_modules(next(_version_packages(api)).__path__)]
    messages = [merge(api, kind) for kind in ("request", "response", "data") if kind in kinds]
    renamed = _rename_clashes(*messages) if len(messages) == 2 else []
    bodies = {s.name: _struct_source(s, m) for m in messages for s in m.structs}
    body = "\n\n".join(bodies.values())
    title = " and ".join(message.structs[-1].name for message in messages)
    key = f" (key {messages[0].api_key})" if messages[0].api_key is not None else ""
    note = ""
    if renamed:
        names = ", ".join(renamed)
        note = f"Renamed, since the request has a struct of the same name: {names}.\n"
    bases = sorted({_ENTITY_KINDS[m.kind] for m in messages})
    imports = ["from dataclasses import field"] if "field(" in body else []
    imports.append("from typing import ClassVar")
    imports += ["from uuid import UUID"] if "UUID" in body.replace("ZERO_UUID", "") else []
    imports += [""]
    if _LOCAL_LOG_STATE in body:
        imports.append(f"from {LocalLogState.__module__} import {_LOCAL_LOG_STATE}")
    imports += [f"from ottla.protocol.schema import {', '.join([*bases, 'Versions'])}"]
    imports += ["from ottla.protocol.schema_class import schema_class"]
    imports += ["from ottla.protocol.types import ZERO_UUID"] if "ZERO_UUID" in body else []
    doc = (
        f'"""{title}{key}.\n\n'
        f"Generated by `python -m ottla.protocol.generate` from kio's schema: do not edit.\n"
        f'{note}"""\n\n'
    )
    return doc + "\n".join(imports) + "\n\n\n" + body


def _version_packages(api: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(api.__path__):
        yield importlib.import_module(f"{api.__name__}.{found.name}")


def sources() -> dict[str, str]:
    """Module name -> text of every generated module."""
    names = [m.name for m in pkgutil.iter_modules(kio.schema.__path__) if m.ispkg]
    return {
        name: module_source(importlib.import_module(f"kio.schema.{name}"))
        for name in names
        if name not in _SKIPPED
    }


_ERROR_CODES_HEAD: Final = '''"""Kafka's error codes.

Generated by `python -m ottla.protocol.generate` from kio's schema: do not edit.
"""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Error codes of responses. A code of a newer peer that is not known here counts as unknown_server_error."""

'''

_ERROR_CODES_TAIL: Final = """

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode | None":
        return cls.unknown_server_error if isinstance(value, int) else None
"""


def error_codes_source() -> str:
    """The text of `protocol/error_code.py`: kio's names and numbers, without kio's import."""
    lines = [f"    {code.name} = {code.value}" for code in kio.schema.errors.ErrorCode]
    return _ERROR_CODES_HEAD + "\n".join(lines) + _ERROR_CODES_TAIL


def main() -> None:
    """Write the modules; delete those that are not generated any more, except the package's `__init__`."""
    generated = sources()
    for stale in MESSAGES.glob("*.py"):
        if stale.stem not in generated and stale.stem != "__init__":
            stale.unlink()
    for name, text in generated.items():
        (MESSAGES / f"{name}.py").write_text(text)
    ERROR_CODES.write_text(error_codes_source())


if __name__ == "__main__":
    main()
