"""Requests that a hostile peer might send: valid ones with odd values, and what mutation makes of them."""

from random import Random
from typing import Any
from uuid import UUID

from ottla.broker.api import modules
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import encode_struct
from ottla.protocol.framing import encode_request_header
from ottla.protocol.messages import request_class
from ottla.protocol.plan import FieldPlan, StructPlan, plan_of
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import ZERO_UUID

#: All that is served, as (key, version).
SERVED = [(key, version) for key in sorted(modules()) for version in KAFKA_VERSIONS[ApiKey(key)]]

_SIZES = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_BATCH = build_batch(simple_records([(b"k", b"v"), (None, b"w" * 100)], timestamp=1_767_225_600_000))

#: Names that mean something to a broker, or nearly; never the topic of the well-behaved producer.
_STRINGS = [
    "", ".", "..", "victim", "victim-2", "Victim", "a" * 249, "a" * 250, "ä", "\0", "x/y", "group", "member",
    "__consumer_offsets", "__cluster_metadata", "consumer", "range", "retention.ms", "cleanup.policy",
    "no.such.config", "1", "-1", "0", "compact", "12", "x" * 20_000,
]  # fmt: skip


class Attacker:
    """Makes requests from one seeded source."""

    def __init__(self, random: Random, topic_ids: list[UUID]) -> None:
        self.random = random
        self._topic_ids = [ZERO_UUID, UUID(int=random.getrandbits(128)), *topic_ids]

    def valid(self, key: int, version: int) -> bytes:
        """A request that parses, header included; its values are of the right type and no more."""
        plan = plan_of(request_class(key), version)
        message = self._struct(plan, depth=0)
        if key == ApiKey.UNREGISTER_BROKER:
            message.broker_id = -99  # this broker would shut down as asked
        header = encode_request_header(key, version, self.random.getrandbits(31), self._string())
        return header + encode_struct(request_class(key), version, message)

    def mutated(self, request: bytes) -> bytes:
        """The request with one to three changes."""
        data = bytearray(request)
        for _ in range(self.random.randint(1, 3)):
            self._mutate(data)
        return bytes(data) or b"\0"

    def _mutate(self, data: bytearray) -> None:
        random = self.random
        at = random.randrange(len(data) + 1)
        match random.randrange(9):
            case 0:
                for _ in range(random.randint(1, 8)):
                    if data:
                        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            case 1:
                size = random.choice((1, 2, 4, 8))
                corner = random.choice((-1, -2, 0, 1, 2 ** (size * 8 - 1) - 1, -(2 ** (size * 8 - 1))))
                data[at : at + size] = corner.to_bytes(size, "big", signed=True)
            case 2:
                del data[at : at + random.randint(1, 20)]
            case 3:
                data[at:at] = random.randbytes(random.randint(1, 20))
            case 4:
                data[at:at] = data[at : at + random.randint(1, 40)]
            case 5:
                del data[at:]
            case 6:
                data += random.randbytes(random.randint(1, 50))
            case 7:  # what varint lengths and counts look like at their largest
                data[at : at + 5] = random.choice(
                    (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\xff" * 11)
                )
            case _:  # another API's or version's header before this body
                key, version = random.choice(SERVED)
                data[:4] = key.to_bytes(2, "big") + version.to_bytes(2, "big")

    def _struct(self, plan: StructPlan, *, depth: int) -> Any:
        return plan.cls(
            **{
                field.name: self._field(field, depth=depth)
                for field in (*plan.fields, *plan.tagged)
                if field.tag is None or self.random.random() < 0.5
            }
        )

    def _field(self, field: FieldPlan, *, depth: int) -> Any:
        random = self.random
        if field.is_nullable and random.random() < 0.2:
            return None
        if not field.is_array:
            return self._value(field, depth=depth)
        count = random.choice((0, 1, 1, 1, 2, 3)) if depth < 3 else 1
        elements = [self._value(field, depth=depth + 1) for _ in range(count)]
        if elements and random.random() < 0.1:
            elements.append(elements[0])
        return elements

    def _value(self, field: FieldPlan, *, depth: int) -> Any:
        random = self.random
        match field.kind:
            case StructPlan() as plan:
                return self._struct(plan, depth=depth + 1)
            case "string":
                return self._string()
            case "bytes":
                return random.randbytes(random.choice((0, 1, 10, 200)))
            case "records":
                return self._records()
            case "bool":
                return random.random() < 0.5
            case "uuid":
                return random.choice(self._topic_ids)
            case "float64":
                return random.choice((0.0, -1.0, 1e300, float("nan")))
            case name:
                return self._integer(name)

    def _integer(self, kind: str) -> int:
        size = _SIZES[kind]
        if kind.startswith("u"):
            return self.random.choice((0, 1, 2**size - 1))
        # Small ones mostly: a request that asks for two thousand million partitions is refused at once.
        corners = (-1, 0, 0, 1, 1, 1, 2, 3, 100, -2, 2 ** (size - 1) - 1, -(2 ** (size - 1)))
        return self.random.choice(corners)

    def _string(self) -> str:
        return self.random.choice(_STRINGS)

    def _records(self) -> bytes:
        batch = bytearray(_BATCH)
        match self.random.randrange(6):
            case 0:
                return b""
            case 1:
                self._mutate(batch)
            case 2:
                return self.random.randbytes(100)
            case 3:
                return bytes(batch * 3)
            case 4:
                del batch[self.random.randrange(len(batch)) :]
            case _:
                pass
        return bytes(batch)
