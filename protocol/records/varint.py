"""Variable-length integers inside records: little-endian groups of seven bits, zigzag for signed ones.

The loops in `record` decode varints of one byte inline; longer ones are decoded here. `ottla.protocol.varint` has
those of messages: it refuses a number of more than 32 or 64 bits, whose higher bits are dropped here.
Source: Kafka's ByteUtils, with its bounds: five bytes for 32 bits, ten for 64.
"""

from typing import Final

from ottla.protocol.errors import InvalidRecord


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag int32 at `position`, and the position after it. IndexError at the end of `data`."""
    raw = data[position]
    if raw >= 0x80:
        second = data[position + 1]
        if second >= 0x80:
            return _read_long(data, position, bits=32)
        raw = raw & 0x7F | second << 7
        position += 1
    return (raw >> 1) ^ -(raw & 1), position + 1


def read_varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag int64 at `position`, and the position after it. IndexError at the end of `data`."""
    raw = data[position]
    if raw >= 0x80:
        second = data[position + 1]
        if second >= 0x80:
            return _read_long(data, position, bits=64)
        raw = raw & 0x7F | second << 7
        position += 1
    return (raw >> 1) ^ -(raw & 1), position + 1


def _read_long(data: bytes | memoryview, position: int, *, bits: int) -> tuple[int, int]:
    """The general case; the two functions above decode one and two bytes, which are nearly all varints."""
    raw = shift = 0
    while (byte := data[position]) >= 0x80:
        raw |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if shift >= bits:
            raise InvalidRecord(f"A varint of more than {bits} bits")
    raw = (raw | byte << shift) & ((1 << bits) - 1)
    return (raw >> 1) ^ -(raw & 1), position + 1


def _encoded(raw: int) -> bytes:
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


#: Encodings of small numbers, by their zigzag form: nearly all lengths and deltas are among them.
_SMALL: Final = tuple(_encoded(raw) for raw in range(4096))


def encode_varint(value: int) -> bytes:
    """The shortest zigzag encoding of an int32 or int64."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    return _SMALL[raw] if raw < 4096 else _encoded(raw)
