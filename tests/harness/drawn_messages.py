"""Requests drawn from a seed: valid on the wire, with names, ids and numbers that exist, that do not,
and that are extreme.
"""

from random import Random
from typing import Any
from uuid import UUID

from ottla.protocol.messages import request_class
from ottla.protocol.plan import FieldPlan, StructPlan, plan_of
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.schema import Request

BATCH = bytes(build_batch(simple_records([(b"k", b"v")] * 3, timestamp=1_700_000_000_000)))
TOPICS = ("t", "u")
_TEXTS = (
    *TOPICS, "", "1", "2", "User:a", "User", "metadata.version", "kraft.version", "group.version",
    "min.insync.replicas", "retention.ms", "log.retention.ms", "cleanup.policy", "compact", "delete", "range",
    "\0", "x" * 300, "../x", "ü", "*", "client-id", "user", "ip", "127.0.0.1", "consumer_byte_rate",
    "request_percentage", "5", "PLAINTEXT",
)  # fmt: skip
_BYTES = (b"", b"\0", b"x" * 64)
_FLOATS = (0.0, -1.0, 0.5, 1024.0, 1e308, float("inf"), float("nan"))
#: By the name of the field: texts that requests of one group have in common, and times that are mostly short.
_OF_NAME: dict[str, tuple[Any, ...]] = {
    "group_id": ("g", "g", "h", ""),
    "key": ("g", "g", "h", ""),
    "protocol_type": ("consumer", "consumer", ""),
    "partition": (0, 0, 1, -1, 2**31 - 1),
    "partition_index": (0, 0, 1, -1, 2**31 - 1),
    "index": (0, 0, 1, -1, 2**31 - 1),
    "max_wait_ms": (0, 10, -1),
    "timeout_ms": (0, 10, 10_000, -1),
    "session_timeout_ms": (6_000, 10_000, 2**31 - 1, -1),
    "rebalance_timeout_ms": (0, 10, 6_000, -1, 2**31 - 1),
}


class Drawing:
    """Draws requests; `ids` and `texts` are what the answers so far have named."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.ids: list[UUID] = [UUID(int=0), UUID(int=1), UUID(int=10**30)]
        #: By the name of the field.
        self.texts: dict[str, str] = {}

    def choose(self, values: Any) -> Any:
        """Draw one of the values."""
        return self._random.choice(values)

    def request(self, key: int, version: int) -> Request:
        """A request of this API and version."""
        found: Request = self._struct(plan_of(request_class(key), version))
        return found

    def _struct(self, plan: StructPlan) -> Any:
        return plan.cls(**{field.name: self._field(field) for field in (*plan.fields, *plan.tagged)})

    def _field(self, field: FieldPlan) -> Any:
        if field.is_nullable and self._random.random() < 0.2:
            return None
        if field.is_array:
            return [self._value(field) for _ in range(self.choose((0, 1, 1, 1, 2, 3)))]
        return self._value(field)

    def _value(self, field: FieldPlan) -> Any:
        if isinstance(field.kind, StructPlan):
            return self._struct(field.kind)
        if (values := _OF_NAME.get(field.name)) is not None:
            return self.choose(values)
        match field.kind:
            case "bool":
                return self._random.random() < 0.5
            case "uuid":
                return self.choose(self.ids)
            case "string":
                known = self.texts.get(field.name)
                return known if known and self._random.random() < 0.6 else self.choose(_TEXTS)
            case "bytes":
                return self.choose(_BYTES)
            case "records":
                return self.choose((BATCH, BATCH, BATCH * 2, b"", BATCH[:40]))
            case "float64":
                return self.choose(_FLOATS)
            case kind:
                return self._integer(kind)

    def _integer(self, kind: str) -> int:
        bits, is_signed = int(kind.strip("uint")), kind.startswith("int")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
        drawn: int = self.choose((0, 0, 1, 1, 2, 3, -1, 5, 100, low, high, high - 1))
        return max(low, min(drawn, high))
