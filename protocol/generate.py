"""Write `protocol/messages/` and `protocol/error_code.py`: `python -m ottla.protocol.generate`.

A handler needs one class for all versions of a message. This module writes it as a mutable dataclass whose fields
name their versions, in the form of `ottla.protocol.schema`, with the tagged fields of our own
(`ottla.protocol.local_log`). The source of a message is kio, which has one class for each version; where Kafka has a
version that kio lacks, it is Kafka's own schema (`ottla.protocol.schemas`). The result is checked in, so that a broker
imports neither kio nor this module.

A nested struct of a response gets the suffix `Response` if the request has a struct of the same name and another
shape.
Source: kio, whose classes are generated from Kafka's message schemas; MessageGenerator of Kafka.
"""

from pathlib import Path
from typing import Final

import kio.schema.errors

from ottla.protocol.local_log import LocalLogState
from ottla.protocol.schema import Versions
from ottla.protocol.schemas import from_kafka, from_kio, kafka_schemas
from ottla.protocol.schemas.kafka_schemas import KafkaSchema
from ottla.protocol.schemas.merged import LOCAL_LOG_STATE, MergedField, MergedMessage, MergedStruct

MESSAGES = Path(__file__).with_name("messages")
ERROR_CODES = Path(__file__).with_name("error_code.py")

#: Frame headers are parsed by hand in `ottla.protocol.framing`.
_SKIPPED = {"request_header", "response_header"}
_ENTITY_KINDS = {"request": "Request", "response": "Response", "data": "Message"}
_LINE_LENGTH = 110


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


def module_source(messages: list[MergedMessage], source: str) -> str:
    """The whole text of a module of `protocol/messages/`: a request and its response, or a piece of data."""
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
    if LOCAL_LOG_STATE in body:
        imports.append(f"from {LocalLogState.__module__} import {LOCAL_LOG_STATE}")
    imports += [f"from ottla.protocol.schema import {', '.join([*bases, 'Versions'])}"]
    imports += ["from ottla.protocol.schema_class import schema_class"]
    imports += ["from ottla.protocol.types import ZERO_UUID"] if "ZERO_UUID" in body else []
    doc = (
        f'"""{title}{key}.\n\n'
        f"Generated by `python -m ottla.protocol.generate` from {source}: do not edit.\n"
        f'{note}"""\n\n'
    )
    return doc + "\n".join(imports) + "\n\n\n" + body


def schemas_ahead_of_kio() -> dict[str, list[KafkaSchema]]:
    """Module name -> Kafka's schemas, request before response, where kio lacks a version or the whole API."""
    by_module: dict[str, list[KafkaSchema]] = {}
    for schema in kafka_schemas.load().schemas.values():
        by_module.setdefault(from_kafka.module_of(schema), []).append(schema)
    kio_modules = from_kio.modules()
    return {
        name: schemas
        for name, schemas in by_module.items()
        if (
            schemas[0].versions[-1] > from_kio.last_version(kio_modules[name])
            if name in kio_modules
            else schemas[0].kind in {"request", "response"}
        )
    }


def sources() -> dict[str, str]:
    """Module name -> text of every generated module."""
    ahead = schemas_ahead_of_kio()
    texts = {
        name: module_source([from_kio.merge(api, kind) for kind in from_kio.kinds_of(api)], "kio's schema")
        for name, api in from_kio.modules().items()
        if name not in _SKIPPED and name not in ahead
    }
    for name, schemas in ahead.items():
        texts[name] = module_source([from_kafka.merge(schema) for schema in schemas], "Kafka's schemas")
    return texts


_ERROR_CODES_HEAD: Final = '''"""Kafka's error codes.

Generated by `python -m ottla.protocol.generate` from kio's schema, and Kafka's where it has more: do not edit.
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
    """The text of `protocol/error_code.py`: kio's names and numbers, then those that only Kafka has."""
    codes = {int(code): code.name for code in kio.schema.errors.ErrorCode}
    for name, code in kafka_schemas.load().errors.items():
        codes.setdefault(code, name.lower())
    lines = [f"    {name} = {code}" for code, name in codes.items()]
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
