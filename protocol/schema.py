"""Message schemas (Kafka's ApiMessage): base classes and version ranges.

A message is one mutable dataclass (`ottla.protocol.schema_class`) for all versions of its schema. Each
field's metadata defines its wire format, from which a reader and a writer are compiled for each version
(`ottla.protocol.plan`):

| key | meaning |
|---|---|
| `kafka_type` | the type of the field, of the element in a list; absent where the annotation names another struct |
| `versions` | the versions that have the field, "3", "4-12" or "9+"; absent: all |
| `nullable` | the versions in which it may be null; absent: none |
| `tag` | the number of a tagged field (KIP-482) |
| `tag_versions` | the versions in which it is tagged; absent: all versions that have it |

The types are int8, int16, uint16, int32, uint32, int64, float64, bool, string, bytes, uuid and records.

The classes in `ottla.protocol.messages` are generated in this form; schemas that kio lacks (metadata records,
coordinator records) are written by hand in the same form.
Source: Kafka's message schemas (KIP-482 for flexible versions).
"""

from dataclasses import dataclass
from typing import ClassVar, Self


@dataclass(slots=True, frozen=True)
class Versions:
    """A range of versions, both ends included, as Kafka writes them; `last` None is open-ended."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return version >= self.first and (self.last is None or version <= self.last)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "3", "4-12" or "9+".

        >>> 9 in Versions.parse("4-12"), 3 in Versions.parse("4+")
        (True, False)
        """
        if text.endswith("+"):
            return cls(int(text[:-1]), None)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.first}+"
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


class Message:
    """A schema with versions of its own; nested structs are plain dataclasses."""

    __slots__ = ()
    __versions__: ClassVar[Versions]
    #: The first version with compact lengths and tagged fields (KIP-482); None if there is none.
    __flexible_from__: ClassVar[int | None] = None


class Request(Message):
    """The body of a request: the base class of all requests."""

    __slots__ = ()
    __api_key__: ClassVar[int]


class Response(Message):
    """The body of a response: the base class of all responses."""

    __slots__ = ()
    __api_key__: ClassVar[int]


class Record(Message):
    """A record schema; Kafka calls its number an API key, too (metadata and coordinator records)."""

    __slots__ = ()
    __api_key__: ClassVar[int]
