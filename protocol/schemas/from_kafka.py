"""Messages merged from Kafka's own schemas, where Kafka is ahead of kio.

A schema of Kafka covers all versions already. Names follow those that `ottla.protocol.schemas.from_kio` gives: words
with underscores; a point in time that is called a timestamp has no unit in its name, and `id` and `type`, which are
functions of Python, end in an underscore.
Source: MessageGenerator of Kafka.
"""

import re
from typing import Final

from ottla.protocol.schema import Versions
from ottla.protocol.schemas.kafka_schemas import KafkaField, KafkaSchema
from ottla.protocol.schemas.merged import (
    ZEROS,
    MergedField,
    MergedMessage,
    MergedStruct,
    add_local_logs,
    inner_first,
)

_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")
_PRIMITIVES: Final = {
    "bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "string", "bytes", "uuid", "records",
}  # fmt: skip


def snake_case(name: str) -> str:
    """Kafka's name as one of Python.

    >>> snake_case("KRaftVersionRecord"), snake_case("ThrottleTimeMs")
    ('k_raft_version_record', 'throttle_time_ms')
    """
    return _WORD.sub("_", name).lower()


def module_of(schema: KafkaSchema) -> str:
    """The module that a schema belongs to: request and response share one."""
    return snake_case(schema.name.removesuffix("Request").removesuffix("Response"))


def field_name(name: str) -> str:
    """The name of a field in a message.

    >>> field_name("MaxTimestampMs"), field_name("Id")
    ('max_timestamp', 'id_')
    """
    ours = snake_case(name)
    if ours in {"id", "type"}:
        return f"{ours}_"
    return ours.removesuffix("_ms") if "timestamp" in ours else ours


def merge(schema: KafkaSchema, versions: range | None = None) -> MergedMessage:
    """The message of a schema, in all of its versions or in these."""
    having = list(schema.versions if versions is None else versions)
    structs: dict[str, MergedStruct] = {}
    shared = {struct.name: struct.fields for struct in schema.structs}
    _add_struct(schema.name, schema.fields, having, structs, shared)
    kind = schema.kind if schema.kind in {"request", "response"} else "data"
    add_local_logs(module_of(schema), kind, structs)
    first = schema.flexible_from
    return MergedMessage(
        kind=kind,
        api_key=schema.api_key,
        flexible_from=None if first is None or first > having[-1] else max(first, having[0]),
        structs=inner_first(structs, schema.name),
    )


def _add_struct(
    name: str,
    fields: list[KafkaField],
    versions: list[int],
    structs: dict[str, MergedStruct],
    shared: dict[str, list[KafkaField]],
) -> None:
    """Add a struct with its inner ones; one that several fields share has the versions of all of them."""
    known = structs.get(name)
    if known is not None:
        versions = sorted({*known.versions, *versions})
        if versions == known.versions:
            return
    merged = structs[name] = MergedStruct(name=name, versions=versions)
    for each in fields:
        having = [version for version in versions if version in each.versions]
        if not having:
            continue
        merged.fields.append(_merged_field(each, having))
        if each.kafka_type not in _PRIMITIVES:
            _add_struct(each.kafka_type, each.fields or shared[each.kafka_type], having, structs, shared)


def _merged_field(each: KafkaField, versions: list[int]) -> MergedField:
    is_struct = each.kafka_type not in _PRIMITIVES
    merged = MergedField(
        name=field_name(each.name),
        kafka_type=None if is_struct else each.kafka_type,
        struct=each.kafka_type if is_struct else None,
        is_array=each.is_array,
        default="",
        versions=versions,
        nullable=_within(versions, each.nullable),
        tag=each.tag if _within(versions, each.tagged) else None,
        tagged=_within(versions, each.tagged),
    )
    merged.default = _default(each, merged)
    return merged


def _within(versions: list[int], limits: Versions | None) -> list[int]:
    return [] if limits is None else [version for version in versions if version in limits]


def _default(each: KafkaField, merged: MergedField) -> str:
    """The default as source text: Kafka's, or the zero of the type if the schema has none."""
    if each.default == "null":
        return "None"
    if each.is_array:
        return "[]"
    if merged.struct is not None:
        return f"{merged.struct}()"
    if each.kafka_type == "records" and merged.nullable:
        return "None"
    if each.kafka_type == "uuid" or each.default is None:
        return ZEROS.get(merged.element, "0")
    match merged.element:
        case "str":
            return f'"{each.default}"'
        case "bool":
            return each.default.capitalize()
        case "float":
            return str(float(each.default))
        case _:
            return str(int(each.default, 0))
