"""Kafka's own schemas of messages and records, as facts: `protocol/schemas/kafka_schemas.txt`.

`ottla.bench.components.kafka_schemas` writes the file from Kafka's jars: the changes of a release are its diff. It
holds names, types, versions and defaults, and none of the text of Kafka's schemas:

    kafka 4.4.0
    error 134 GROUP_DELETION_FAILED
    request 18 ApiVersionsRequest 0-5 flexible=3+ listeners=broker,controller
      ClusterId string 5+ nullable=5+ default=null

A line that is indented is a field of the line above it that is indented less; `struct NAME VERSIONS` is a struct that
several fields share. A schema without valid versions is one that Kafka has removed, and is left out.

`ottla.protocol.generate` makes messages of them where Kafka is ahead of kio; tests hold kio's schemas, the records
that are written by hand and `ottla.protocol.api_keys` equal to them.
Source: the message schemas of Kafka, and its Errors.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ottla.protocol.schema import Versions

FACTS: Final = Path(__file__).with_suffix(".txt")

#: The indentation of a field, for each level.
INDENT: Final = "  "


@dataclass(slots=True, kw_only=True)
class KafkaField:
    """A field of a schema; `versions` None: all versions of what it belongs to."""

    name: str
    #: Kafka's type of the field, or of an array's elements: a primitive, or the name of a struct.
    kafka_type: str
    is_array: bool
    versions: Versions
    nullable: Versions | None = None
    tag: int | None = None
    tagged: Versions | None = None
    #: As the schema writes it, "null" included; None: the zero of the type.
    default: str | None = None
    fields: "list[KafkaField]" = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class KafkaStruct:
    """A struct that fields share by its name."""

    name: str
    versions: Versions
    fields: list[KafkaField] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class KafkaSchema:
    """A schema: of a request, a response, a record or another piece of data."""

    kind: str
    api_key: int | None
    name: str
    #: All versions, an unstable last one included.
    versions: range
    flexible_from: int | None
    listeners: tuple[str, ...]
    is_last_unstable: bool
    fields: list[KafkaField] = field(default_factory=list)
    structs: list[KafkaStruct] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Facts:
    """Everything in the file, in its order."""

    release: str
    errors: dict[str, int]
    schemas: dict[str, KafkaSchema]


def load(text: str | None = None) -> Facts:
    """Parse the facts; those of `protocol/schemas/kafka_schemas.txt` if no text is given."""
    facts = Facts(release="", errors={}, schemas={})
    #: The lists that lines of each indentation are appended to.
    open_fields: list[list[KafkaField]] = []
    schema: KafkaSchema | None = None
    for line in (FACTS.read_text() if text is None else text).splitlines():
        depth = (len(line) - len(line.lstrip())) // len(INDENT)
        words = line.split()
        if depth == 0 and words[0] == "kafka":
            facts.release = words[1]
        elif depth == 0 and words[0] == "error":
            facts.errors[words[2]] = int(words[1])
        elif depth == 0:
            schema = _parse_schema(words)
            facts.schemas[schema.name] = schema
            open_fields = [schema.fields]
        elif words[0] == "struct":
            assert schema is not None, line
            struct = KafkaStruct(name=words[1], versions=Versions.parse(words[2]))
            schema.structs.append(struct)
            open_fields = [schema.fields, struct.fields]
        else:
            parsed = _parse_field(words)
            del open_fields[depth:]
            open_fields[-1].append(parsed)
            open_fields.append(parsed.fields)
    return facts


def _options(words: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _parse_schema(words: list[str]) -> KafkaSchema:
    kind, key, name, versions, *rest = words
    options = _options(rest)
    valid = Versions.parse(versions)
    assert valid.last is not None, words
    return KafkaSchema(
        kind=kind,
        api_key=None if key == "-" else int(key),
        name=name,
        versions=range(valid.first, valid.last + 1),
        flexible_from=Versions.parse(options["flexible"]).first if "flexible" in options else None,
        listeners=tuple(options["listeners"].split(",")) if "listeners" in options else (),
        is_last_unstable="unstable" in options,
    )


def _parse_field(words: list[str]) -> KafkaField:
    name, kafka_type, versions, *rest = words
    options = _options(rest)
    return KafkaField(
        name=name,
        kafka_type=kafka_type.removeprefix("[]"),
        is_array=kafka_type.startswith("[]"),
        versions=Versions.parse(versions),
        nullable=Versions.parse(options["nullable"]) if "nullable" in options else None,
        tag=int(options["tag"]) if "tag" in options else None,
        tagged=Versions.parse(options["tagged"]) if "tagged" in options else None,
        default=options.get("default"),
    )
