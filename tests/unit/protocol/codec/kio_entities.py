"""kio's entities for tests: drawn at random, written and read by kio, and turned into our messages.

kio is the second opinion on every API and version. Its native reader is only given what kio wrote, or
what must be the same. Values are drawn from a seeded `random.Random` that hypothesis gives: drawing field
by field from hypothesis would take ten times as long.
"""

import dataclasses
import datetime
import importlib
import importlib.util
import io
import os
import pkgutil
import typing
from functools import cache
from types import NoneType
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.types import ZERO_UUID

#: Examples of each property and API; more by hand: OTTLA_EXAMPLES=200.
EXAMPLES = int(os.environ.get("OTTLA_EXAMPLES", "2"))

MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)


def integer(bits, *, signed=True):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    corners = [low, 0, 0, 1, high, -1 if signed else 2]
    return lambda rng: rng.choice(corners) if rng.random() < 0.5 else rng.randint(low, high)


def one_of(*values):
    return lambda rng: rng.choice(values)


#: How to draw a value of each of kio's types.
PRIMITIVES = {
    "bool": one_of(False, True),
    "int8": integer(8),
    "int16": integer(16),
    "uint16": integer(16, signed=False),
    "int32": integer(32),
    "int64": integer(64),
    "float64": one_of(0.0, -1.5, 1e300, float("inf")),
    # Some are longer than 126 bytes, the most that a compact length of one byte can say.
    "string": one_of("", "a", "topic", "größe", "\U0001f600\0", "ü" * 100, "x" * 300, "y" * 32767),
    "bytes": one_of(b"", b"\0", b"\xff\x80", b"z" * 126, b"z" * 127, b"z" * 20000),
    "uuid": lambda rng: rng.choice([None, UUID(int=rng.getrandbits(128) or 1)]),
    "error_code": one_of(*ErrorCode),
    "timedelta_i32": lambda rng: rng.randint(-(2**31), 2**31 - 1) * MILLISECOND,
    "timedelta_i64": lambda rng: rng.randint(-(2**40), 2**40) * MILLISECOND,
    # Whole seconds after the epoch: kio rounds others by floating point when it reads.
    "datetime_i64": lambda rng: EPOCH + rng.randint(0, 2**35) * 1000 * MILLISECOND,
}
PRIMITIVES["records"] = PRIMITIVES["bytes"]
type_hints = cache(typing.get_type_hints)
fields = cache(dataclasses.fields)


@cache
def kio_class(name, version, kind):
    """kio's entity class of one version: of an API by name, or of a data schema (kind "data")."""
    module = importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")
    return [
        c for c in vars(module).values() if dataclasses.is_dataclass(c) and c.__module__ == module.__name__
    ][-1]


def kio_request(key, version):
    return kio_class(ApiKey(key).name.lower(), version, "request")


def kio_response(key, version):
    return kio_class(ApiKey(key).name.lower(), version, "response")


def draw(cls, rng):
    """One of kio's entities of `cls`."""
    hints = type_hints(cls)
    return cls(**{f.name: _draw_value(f, hints[f.name], rng) for f in fields(cls)})


def _draw_value(field, hint, rng):
    is_optional, is_array, inner = parts_of(hint)
    if "tag" in field.metadata and field.default is not dataclasses.MISSING:
        if rng.random() < 0.5:
            return field.default
    elif is_optional and rng.random() < 0.3:
        return None
    kafka_type = field.metadata.get("kafka_type")
    if not is_array:
        return draw(inner, rng) if kafka_type is None else PRIMITIVES[kafka_type](rng)
    if kafka_type is None:
        return tuple(draw(inner, rng) for _ in range(rng.randint(0, 2)))
    # 127 elements are more than a compact length of one byte can say.
    length = rng.choice([0, 1, 2, 3, 126, 127]) if kafka_type == "int32" else rng.randint(0, 3)
    return tuple(PRIMITIVES[kafka_type](rng) for _ in range(length))


@cache
def parts_of(hint):
    is_optional = NoneType in typing.get_args(hint)
    inner = next(a for a in typing.get_args(hint) if a is not NoneType) if is_optional else hint
    is_array = typing.get_origin(inner) is tuple
    return is_optional, is_array, typing.get_args(inner)[0] if is_array else inner


#: Fields whose names Kafka has changed since kio's schema, in versions that kio has.
RENAMED = {
    ("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch",
    ("StreamsGroupHeartbeatResponse", "acceptable_recovery_lag"): "acceptable_recovery_lag_legacy",
}


def kio_versions(key):
    """The versions of an API that kio has; none where it lacks the API."""
    name = ApiKey(key).name.lower()
    if importlib.util.find_spec(f"kio.schema.{name}") is None:
        return range(0)
    package = importlib.import_module(f"kio.schema.{name}")
    numbers = [int(module.name[1:]) for module in pkgutil.iter_modules(package.__path__)]
    return range(min(numbers), max(numbers) + 1)


def kio_encode(entity):
    with io.BytesIO() as out:
        entity_writer(type(entity))(out, entity)
        return out.getvalue()


def kio_decode(cls, data):
    entity, size = entity_reader(cls)(bytes(data), 0)
    assert size == len(data)
    return entity


def to_ours(entity, cls):
    """Our message with what kio's entity holds; what its version lacks stays at its default."""
    ours = cls()
    annotations = type_hints(cls)
    for field in fields(type(entity)):
        value = getattr(entity, field.name)
        name = RENAMED.get((cls.__name__, field.name), field.name)
        name = name if name in annotations else f"{name}_ms"
        if isinstance(value, tuple):
            setattr(ours, name, [_our_value(element, field, annotations[name]) for element in value])
        else:
            is_null_array = value is None and parts_of(type_hints(type(entity))[field.name])[1]
            setattr(ours, name, None if is_null_array else _our_value(value, field, annotations[name]))
    return ours


def _our_value(value, field, hint):
    if value is None:
        return {"uuid": ZERO_UUID, "datetime_i64": -1}.get(field.metadata.get("kafka_type"))
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    return to_ours(value, _class_in(hint)) if dataclasses.is_dataclass(value) else value


@cache
def _class_in(hint):
    """The struct that `Struct`, `Struct | None`, `list[Struct]` or `list[Struct] | None` names."""
    if dataclasses.is_dataclass(hint):
        return hint
    return next((found for found in map(_class_in, typing.get_args(hint)) if found is not None), None)
