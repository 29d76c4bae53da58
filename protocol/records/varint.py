"""Variable-length integers inside records: little-endian groups of seven bits, zigzag for signed ones.

Reading is written out in the record walk's loop for the one-byte case; what is longer comes here.
Source: Kafka's ByteUtils, whose bounds these are: five bytes for 32 bits, ten for 64, what is above cut off.
"""

from typing import Final

from protocol.errors import InvalidRecord


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag int32 at `position`, and the position behind it. IndexError at the end of `data`."""
    raw = data[position]
    if raw >= 0x80:
        second = data[position + 1]
        if second >= 0x80:
            return _read_long(data, position, bits=32)
        raw = raw & 0x7F | second << 7
        position += 1
    return (raw >> 1) ^ -(raw & 1), position + 1


def read_varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A zigzag int64 at `position`, and the position behind it. IndexError at the end of `data`."""
    raw = data[position]
    if raw >= 0x80:
        second = data[position + 1]
        if second >= 0x80:
            return _read_long(data, position, bits=64)
        raw = raw & 0x7F | second << 7
        position += 1
    return (raw >> 1) ^ -(raw & 1), position + 1


def _read_long(data: bytes | memoryview, position: int, *, bits: int) -> tuple[int, int]:
    """The general case; the two above have what is short, which nearly everything is."""
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


#: Encodings of the numbers that nearly all lengths and deltas are, by their zigzag form.
_SMALL: Final = tuple(_encoded(raw) for raw in range(4096))


def varint(value: int) -> bytes:
    """Zigzag encoding of an int32 or int64, as short as it can be."""
    raw = value << 1 if value >= 0 else ~(value << 1)
    return _SMALL[raw] if raw < 4096 else _encoded(raw)
