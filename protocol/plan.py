"""The wire format of one version of a message: a tree from which readers and writers are compiled.

A plan is made from a message class alone (see `ottla.protocol.schema`), so the same code reads and writes the
classes generated from kio's schema and our own record schemas.
Source: Kafka's message format (clients/src/main/resources/common/message/README.md).
"""

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from typing import Any, Final

from ottla.protocol.function_source import once
from ottla.protocol.schema import Message, Versions

#: `struct` codes of the types with a fixed size, and that size.
FIXED: Final[dict[str, tuple[str, int]]] = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
#: Size in bytes of the length before a value, in versions without compact lengths.
LENGTH_BYTES: Final = {"string": 2, "bytes": 4, "records": 4}


@dataclass(slots=True, frozen=True, kw_only=True)
class FieldPlan:
    """The wire format of one field in one version of its message."""

    name: str
    #: A type of `FIXED` or `LENGTH_BYTES`, or the plan of a nested struct.
    kind: "str | StructPlan"
    is_array: bool
    is_nullable: bool
    #: None: the field is written in its place; else it is a tagged field with this number, after the other fields.
    tag: int | None
    #: Returns the field's value when it is not on the wire; a new one each time if mutable.
    default: Callable[[], Any]


@dataclass(slots=True, frozen=True, kw_only=True)
class StructPlan:
    """The wire format of one struct in one version of its message: its fields in order."""

    cls: type
    is_flexible: bool
    #: In the order of the wire.
    fields: tuple[FieldPlan, ...]
    #: In ascending order of their tags.
    tagged: tuple[FieldPlan, ...]
    #: Fields of the class that this version lacks, and their defaults.
    absent: tuple[tuple[str, Callable[[], Any]], ...]
    #: The smallest number of bytes that the struct takes.
    smallest_bytes: int
    #: Whether a field of it, or of a struct in it, holds records.
    has_records: bool


def plan_of(cls: type[Message], version: int) -> StructPlan:
    """The plan of a message; LookupError if the version is not one of `cls`."""
    if version not in cls.__versions__:
        raise LookupError(f"{cls.__name__} has no version {version}")
    flexible_from = cls.__flexible_from__
    return struct_plan(cls, version, flexible_from is not None and version >= flexible_from)


@once
def struct_plan(cls: type, version: int, is_flexible: bool) -> StructPlan:
    """The plan of a message or nested struct in one version."""
    hints = typing.get_type_hints(cls)
    in_place: list[FieldPlan] = []
    tagged: list[FieldPlan] = []
    absent: list[tuple[str, Callable[[], Any]]] = []
    for of_class in fields(cls):
        if not _holds(of_class, "versions", version, absent=True):
            absent.append((of_class.name, _default(of_class)))
            continue
        plan = _field_plan(of_class, hints[of_class.name], version, is_flexible)
        (in_place if plan.tag is None else tagged).append(plan)
    assert is_flexible or not tagged, (cls, version)
    tagged.sort(key=lambda plan: plan.tag or 0)
    return StructPlan(
        cls=cls,
        is_flexible=is_flexible,
        fields=tuple(in_place),
        tagged=tuple(tagged),
        absent=tuple(absent),
        smallest_bytes=int(is_flexible) + sum(smallest_bytes(plan, is_flexible) for plan in in_place),
        has_records=any(
            plan.kind == "records" or (isinstance(plan.kind, StructPlan) and plan.kind.has_records)
            for plan in (*in_place, *tagged)
        ),
    )


def _field_plan(of_class: "Field[Any]", hint: Any, version: int, is_flexible: bool) -> FieldPlan:  # noqa: ANN401
    metadata = of_class.metadata
    arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    inner = next(arm for arm in arms if arm is not types.NoneType)
    is_array = typing.get_origin(inner) is list
    if is_array:
        (inner,) = typing.get_args(inner)
    kafka_type = metadata.get("kafka_type")
    if kafka_type is None:
        assert is_dataclass(inner), (of_class.name, inner)
        kind: str | StructPlan = struct_plan(typing.cast(type, inner), version, is_flexible)
    else:
        assert kafka_type in FIXED or kafka_type in LENGTH_BYTES, (of_class.name, kafka_type)
        kind = kafka_type
    is_tagged = "tag" in metadata and _holds(of_class, "tag_versions", version, absent=True)
    return FieldPlan(
        name=of_class.name,
        kind=kind,
        is_array=is_array,
        is_nullable=_holds(of_class, "nullable", version, absent=False),
        tag=metadata["tag"] if is_tagged else None,
        default=_default(of_class),
    )


def _holds(of_class: "Field[Any]", key: str, version: int, *, absent: bool) -> bool:
    text = of_class.metadata.get(key)
    return absent if text is None else version in Versions.parse(text)


def _default(of_class: "Field[Any]") -> Callable[[], Any]:
    if of_class.default_factory is not MISSING:
        return of_class.default_factory
    value = of_class.default
    assert value is not MISSING, f"{of_class.name} has no default"
    return lambda: value


def element_of(plan: FieldPlan) -> FieldPlan:
    """Return the plan of one element of an array field, as a field of its own."""
    return replace(plan, is_array=False, is_nullable=False, tag=None)


def smallest_bytes(plan: FieldPlan, is_flexible: bool) -> int:
    """The smallest number of bytes that a field's value takes on the wire."""
    if plan.is_array:
        return 1 if is_flexible else 4
    if isinstance(plan.kind, StructPlan):
        return 1 if plan.is_nullable else plan.kind.smallest_bytes
    if plan.kind in FIXED:
        return FIXED[plan.kind][1]
    return 1 if is_flexible else LENGTH_BYTES[plan.kind]
