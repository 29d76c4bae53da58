"""Helpers of compiled readers: bounds, and the parts that are not worth inlining.

The functions that `ottla.protocol.reader` generates call these by name.
"""

import re
from codecs import register_error
from collections.abc import Callable, Generator
from struct import Struct
from typing import Any, Final, NoReturn
from uuid import UUID, SafeUUID

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.function_source import once
from ottla.protocol.steps import at_once
from ottla.protocol.varint import read_uvarint

#: Limit of array elements and tagged fields of one message, together: enough for a request with 100,000 partitions.
MAX_ELEMENTS: Final = 500_000
#: The most elements of a response, which comes from a node that this broker has chosen.
MAX_RESPONSE_ELEMENTS: Final = 20_000_000
#: Kafka's bound for every string.
MAX_STRING_BYTES: Final = 0x7FFF
#: The name of the error handler of strings.
LENIENT: Final = "as-by-java"
#: A surrogate, or the beginning of one: one character of Java, none of Python.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
#: Size of the UUID cache, 200 bytes each; one more clears it.
MAX_REMEMBERED_UUIDS: Final = 4096
#: UUIDs, or tagged fields, that are read in one step where reading is divided into steps.
_OF_STEP: Final = 200

_new_uuid = UUID.__new__
_set_int = UUID.int.__set__  # type: ignore[attr-defined, misc]
_set_is_safe = UUID.is_safe.__set__  # type: ignore[attr-defined, misc]
_UNKNOWN = SafeUUID.unknown
_int_from_bytes = int.from_bytes
_read_lately: dict[bytes, UUID] = {}


def uuid_of(data: bytes) -> UUID:
    """The UUID of 16 bytes: the same as `UUID(bytes=...)`, in a quarter of its 1.5 microseconds.

    In 0.1 us if it is cached, as ids of topics and directories mostly are: then it is the same object, which saves
    memory and comparisons by value.
    """
    uuid = _read_lately.get(data)
    if uuid is None:
        uuid = _new_uuid(UUID)
        _set_int(uuid, _int_from_bytes(data, "big"))
        _set_is_safe(uuid, _UNKNOWN)
        if len(_read_lately) >= MAX_REMEMBERED_UUIDS:
            _read_lately.clear()
        _read_lately[data] = uuid
    return uuid


@once
def few_unpackers(code: str) -> tuple[Callable[[memoryview | bytes, int], tuple[Any, ...]], ...]:
    """Unpackers for arrays of zero to eight values of a `struct` code: half the time of `struct.unpack_from`.

    Most arrays of ids are a partition's replicas.
    """
    return tuple(Struct(">" + code * count).unpack_from for count in range(9))


_FEW_UUIDS = few_unpackers("16s")


def uuids_of(data: memoryview | bytes, position: int, count: int) -> list[UUID]:
    """`count` UUIDs from `position` on; the caller has checked that the bytes suffice."""
    if count < len(_FEW_UUIDS):
        return [*map(uuid_of, _FEW_UUIDS[count](data, position))]
    return [uuid_of(bytes(data[at : at + 16])) for at in range(position, position + 16 * count, 16)]


def uuids_in_steps(
    data: memoryview | bytes, position: int, count: int, parts: list[Any]
) -> Generator[None, None, list[UUID]]:
    """Read `count` UUIDs from `position` on in short steps; those of each step are appended to `parts`, as a list."""
    found: list[UUID] = []
    while len(found) < count:
        some = min(count - len(found), _OF_STEP)
        part = uuids_of(data, position + 16 * len(found), some)
        parts.append(part)
        found += part
        if some == _OF_STEP:
            yield
    return found


def rest_of_uvarint(data: memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, before `position`, has the continuation bit.

    Unrolled for two and three bytes, the lengths of most record batches: half a microsecond of a Produce.
    """
    second = data[position]
    if second < 0x80:
        return first & 0x7F | second << 7, position + 1
    third = data[position + 1]
    if third < 0x80:
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 2
    return read_uvarint(data, position - 1)


def skip_tags(data: memoryview, position: int, count: int, budget: int) -> tuple[int, int]:
    """Skip `count` tagged fields, none of which is defined, in any order: (position after them, budget left)."""
    return at_once(skip_tags_in_steps(data, position, count, budget))


def skip_tags_in_steps(
    data: memoryview, position: int, count: int, budget: int
) -> Generator[None, None, tuple[int, int]]:
    """Skip `count` tagged fields, none of which is defined, in short steps: (position after them, budget left)."""
    budget -= count
    size = len(data)
    if budget < 0 or count > (size - position) // 2:
        bad_count("tagged fields", count)
    for number in range(1, count + 1):
        tag, position = read_uvarint(data, position)
        length, position = read_uvarint(data, position)
        position += length
        if position > size:
            bad_tag(tag)
        if not number % _OF_STEP:
            yield
    return position, budget


def replaced_as_by_java(error: UnicodeError) -> tuple[str, int]:
    """The error handler of strings: U+FFFD for bytes that are not UTF-8, as Java's String decodes them, and so Kafka.

    Both replace the longest beginning of a character at once. Only a surrogate (ED A0 to ED BF) is one in
    Java, and none in Python. A string that would exceed the limit of the wire format, as each byte may become
    three, is malformed.
    """
    assert isinstance(error, UnicodeDecodeError), error
    data = error.object
    if len(data) > MAX_STRING_BYTES // 3:
        raise MalformedMessage(f"a string of {len(data)} bytes that are not UTF-8")
    # All that follows at once: a call for each wrong byte would be 160 ms for a step of a hundred strings.
    rest = _SURROGATE.sub(b"\xff", data[error.start :])
    return rest.decode("utf-8", "replace"), len(data)


register_error(LENIENT, replaced_as_by_java)


def bad_length(name: str, length: int) -> NoReturn:
    """A string or bytes value that is null, too long, or longer than the remaining bytes."""
    raise MalformedMessage(f"{name} has length {length}")


def bad_count(name: str, count: int) -> NoReturn:
    """An array that is null, or has more elements than the rest of the message can hold."""
    raise MalformedMessage(f"{name} has {count} elements")


def bad_tag(tag: int) -> NoReturn:
    """Raise MalformedMessage for a tagged field that is longer than the remaining bytes."""
    raise MalformedMessage(f"tagged field {tag} is out of bounds")
