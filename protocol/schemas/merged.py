"""A message merged from the versions of its schema: the form between a source of schemas and the generated text.

`ottla.protocol.schemas.from_kio` and `ottla.protocol.schemas.from_kafka` make these, `ottla.protocol.generate` writes
them.
"""

from dataclasses import dataclass, field
from typing import Final

from ottla.protocol.local_log import LOCAL_LOG_TAG, LocalLogState

LOCAL_LOG_STATE: Final = LocalLogState.__name__
_ANNOTATIONS: Final = {"float64": "float", "bool": "bool", "string": "str", "bytes": "bytes", "uuid": "UUID"}
#: The zero of each annotation, as source text.
ZEROS: Final = {
    "float": "0.0",
    "bool": "False",
    "str": '""',
    "bytes": 'b""',
    "bytes | memoryview": 'b""',
    "UUID": "ZERO_UUID",
}
#: The structs with a tagged `local_log`, by module, kind and name; and the first version that has it.
_WITH_LOCAL_LOG: Final = {
    ("alter_partition", "request", "BrokerState"): 3,
    ("fetch", "request", "FetchPartition"): 12,
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


def add_local_logs(module: str, kind: str, structs: dict[str, MergedStruct]) -> None:
    """Add the tagged fields of our own to the structs of a message (`ottla.protocol.local_log`)."""
    for (of_module, of_kind, struct), first in _WITH_LOCAL_LOG.items():
        if (of_module, of_kind) == (module, kind):
            structs[struct].fields.append(_local_log(structs[struct].versions, first))


def _local_log(versions: list[int], first: int) -> MergedField:
    """The tagged field `local_log` of a struct that has these versions."""
    having = [version for version in versions if version >= first]
    return MergedField(
        name="local_log",
        kafka_type=None,
        struct=LOCAL_LOG_STATE,
        is_array=False,
        default="None",
        versions=having,
        nullable=having,
        tag=LOCAL_LOG_TAG,
        tagged=having,
    )


def inner_first(structs: dict[str, MergedStruct], top: str) -> list[MergedStruct]:
    """Depth first from `top`, so that each class follows those that it uses."""
    done: dict[str, MergedStruct] = {}

    def visit(name: str) -> None:
        for merged in structs[name].fields:
            if merged.struct not in (None, LOCAL_LOG_STATE) and merged.struct not in done:
                visit(merged.struct)
        done[name] = structs[name]

    visit(top)
    assert done.keys() == structs.keys(), (top, structs.keys() - done.keys())
    return list(done.values())
