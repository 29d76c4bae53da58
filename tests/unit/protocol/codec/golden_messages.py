"""Messages in the versions that kio lacks, filled from Kafka's schemas, for GoldenMessages.java and its test.

Run as a program it prints "NAME version json" for each.
"""

import importlib
import itertools
import json
import sys
import uuid
from base64 import b64encode

from kio_entities import draw, kio_request, kio_response, kio_versions, to_ours

from ottla.protocol.generate import schemas_ahead_of_kio
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.messages import request_class, response_class
from ottla.protocol.schemas import from_kafka, from_kio, kafka_schemas

SCHEMAS = kafka_schemas.load().schemas


def cases():
    """Each (schema, version) that kio lacks."""
    known = from_kio.modules()
    for module, schemas in sorted(schemas_ahead_of_kio().items()):
        first = from_kio.last_version(known[module]) + 1 if module in known else 0
        for schema in schemas:
            for version in range(first, schema.versions[-1] + 1):
                yield module, schema, version


def message_class(module, schema):
    return getattr(importlib.import_module(f"ottla.protocol.messages.{module}"), schema.name)


def filled(module, schema, version):
    """Our message and its JSON, in which neighbours differ."""
    numbers = itertools.count(1)
    shared = {struct.name: struct.fields for struct in schema.structs}
    classes = importlib.import_module(f"ottla.protocol.messages.{module}")

    def struct(name, fields):
        cls = getattr(classes, name)
        if schema.kind == "response":
            cls = getattr(classes, f"{name}Response", cls)
        ours, theirs = cls(), {}
        for each in fields:
            if version not in each.versions:
                continue
            pairs = [value(each) for _ in range(2 if each.is_array else 1)]
            mine, json_values = [list(side) for side in zip(*pairs, strict=True)]
            setattr(ours, from_kafka.field_name(each.name), mine if each.is_array else mine[0])
            theirs[each.name[0].lower() + each.name[1:]] = json_values if each.is_array else json_values[0]
        return ours, theirs

    def value(each):
        number = next(numbers) % 100 + 1
        match each.kafka_type:
            case "bool":
                return True, True
            case "string":
                return f"text {number}", f"text {number}"
            case "bytes":
                return bytes([number]), b64encode(bytes([number])).decode()
            case "uuid":
                return uuid.UUID(int=number), to_text(uuid.UUID(int=number))
            case "int8" | "int16" | "uint16" | "int32" | "int64":
                return number, number
            case name:
                return struct(name, each.fields or shared[name])

    return struct(schema.name, schema.fields)


def sample(key, version, kind, rng):
    """Our message of an API: drawn from kio's entities, and filled where kio lacks the version."""
    cls = {"request": request_class, "response": response_class}[kind](key)
    if version in kio_versions(key):
        return to_ours(draw({"request": kio_request, "response": kio_response}[kind](key, version), rng), cls)
    return filled(from_kafka.module_of(SCHEMAS[cls.__name__]), SCHEMAS[cls.__name__], version)[0]


if __name__ == "__main__":
    for module, schema, version in cases():
        text = json.dumps(filled(module, schema, version)[1])
        sys.stdout.write(f"{schema.name} {version} {text}\n")
