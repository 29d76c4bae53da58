"""Messages with a value in each field of one version, made from their plans: valid inputs to begin with."""

from typing import Any, TypeVar
from uuid import UUID

from ottla.protocol.plan import FieldPlan, StructPlan, plan_of
from ottla.protocol.schema import Message

_M = TypeVar("_M", bound=Message)
_VALUES: dict[str, Any] = {
    "bool": True,
    "int8": 1,
    "int16": 2,
    "uint16": 3,
    "int32": 4,
    "uint32": 5,
    "int64": 6,
    "float64": 0.5,
    "uuid": UUID(int=7),
    "string": "abc",
    "bytes": b"\0\1",
}


def filled(cls: type[_M], version: int, *, batch: bytes = b"") -> _M:
    """Arrays have one element; `batch` stands for records."""
    found: _M = _struct(plan_of(cls, version), batch)
    return found


def _struct(plan: StructPlan, batch: bytes) -> Any:
    values = {field.name: _field(field, batch) for field in (*plan.fields, *plan.tagged)}
    return plan.cls(**values)


def _field(field: FieldPlan, batch: bytes) -> Any:
    if isinstance(field.kind, StructPlan):
        value = _struct(field.kind, batch)
    else:
        value = batch if field.kind == "records" else _VALUES[field.kind]
    return [value] if field.is_array else value
