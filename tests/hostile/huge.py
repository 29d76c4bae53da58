"""Valid requests with an array of any number of elements, made from the schemas: one array at a time."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from ottla.protocol.codec import encode_struct
from ottla.protocol.framing import encode_request_header
from ottla.protocol.messages import request_class
from ottla.protocol.plan import FieldPlan, StructPlan, plan_of

#: The array whose elements are many: the names of the fields that lead to it.
Path = tuple[str, ...]

#: Numbers that a request of any length may have; 1 elsewhere. All indexes are different, and so are all
#: numbers of an array.
_INDEXES = {"partition", "partition_index", "index", "broker_id", "partition_id"}
#: A topic's configurations; those of other kinds are refused before they are read.
_TYPES = {"resource_type": 2}
#: Nothing waits for long.
_TIMES = {"timeout_ms": 1000, "max_wait_ms": 10}


def arrays(key: int, version: int) -> list[Path]:
    """All arrays of this request, also those within others."""
    return list(_arrays(plan_of(request_class(key), version)))


def _arrays(plan: StructPlan, path: Path = ()) -> Iterator[Path]:
    for field in plan.fields:
        if field.is_array:
            yield (*path, field.name)
            if isinstance(field.kind, StructPlan):
                yield from _arrays(field.kind, (*path, field.name))


def huge(key: int, version: int, path: Path, count: int, *, outer: int = 1, **fields: object) -> bytes:
    """A request with so many elements in one array, `outer` in those that lead to it, and none in others.

    With more than one in the others, the one has its share in each of them. `fields` are those of the request itself.
    """
    cls = request_class(key)
    counts = [1] * (len(path) - 1) + [count]
    if len(path) > 1:
        counts[-2:] = outer, count // outer
    message = _struct(plan_of(cls, version), path, counts)
    for name, value in fields.items():
        setattr(message, name, value)
    return encode_request_header(key, version, 1, "huge") + encode_struct(cls, version, message)


def _struct(plan: StructPlan, path: Path, counts: list[int], number: int = 0) -> Any:
    fields = {}
    for field in plan.fields:
        if field.is_array:
            length = counts[0] if path[:1] == (field.name,) else 0
            fields[field.name] = [
                _struct(field.kind, path[1:], counts[1:], at)
                if isinstance(field.kind, StructPlan)
                else _value(field, at)
                for at in range(length)
            ]
        elif isinstance(field.kind, StructPlan):
            fields[field.name] = None if field.is_nullable else _struct(field.kind, (), [])
        else:
            fields[field.name] = _value(field, number)
    return plan.cls(**fields)


def _value(field: FieldPlan, number: int) -> Any:
    match field.kind:
        case "string":
            return f"n{number}"
        case "bytes" | "records":
            return b""
        case "bool":
            return False
        case "uuid":
            return UUID(int=number + 1)
        case "float64":
            return 1.0
    is_number = field.is_array and field.kind not in ("int8", "uint8")
    is_index = field.name in _INDEXES or is_number
    return _TIMES.get(field.name, _TYPES.get(field.name, number if is_index else 1))
