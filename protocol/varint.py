"""Variable-length integers: 7 bits a byte, the lowest first, the top bit set on all but the last.

Unsigned ones are lengths and tags of flexible versions (KIP-482); zigzag ones are used in records
(KIP-98), where -1 must be short. They are bounded as Java's ints: 32 bits take at most 5 bytes, 64 at most 10.
Source: ByteUtils of Kafka.
"""

from ottla.protocol.errors import MalformedMessage

_UVARINT_BYTES = 5
_UVARLONG_BYTES = 10
_MAX_UVARLONG = 2**64 - 1


def encode_uvarint(value: int) -> bytes:
    """The bytes of a number that is not negative.

    >>> encode_uvarint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:
        return bytes((value,))
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


def write_uvarint(out: bytearray, value: int) -> None:
    """Append a number that is not negative, of at most 64 bits, to `out`."""
    assert 0 <= value <= _MAX_UVARLONG, value
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uvarint_size(value: int) -> int:
    """The size in bytes of `encode_uvarint(value)`.

    >>> uvarint_size(127), uvarint_size(128)
    (1, 2)
    """
    return max(1, (value.bit_length() + 6) // 7)


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned number: (number below 2**32, position after it); raises MalformedMessage."""
    return _read(data, position, max_bytes=_UVARINT_BYTES, bits=32)


def read_uvarlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned number: (number below 2**64, position after it); raises MalformedMessage."""
    return _read(data, position, max_bytes=_UVARLONG_BYTES, bits=64)


def _read(data: bytes | memoryview, position: int, *, max_bytes: int, bits: int) -> tuple[int, int]:
    try:
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
        value = byte & 0x7F
        for shift in range(7, 7 * max_bytes, 7):
            position += 1
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> bits:
                    break
                return value, position + 1
    except IndexError:
        raise MalformedMessage("the bytes end within a varint") from None
    raise MalformedMessage(f"a varint of more than {bits} bits")


def zigzag(value: int) -> int:
    """Zigzag encoding, numbers of small magnitude as small unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def unzigzag(value: int) -> int:
    """Decode a zigzag number: the inverse of `zigzag`."""
    return (value >> 1) ^ -(value & 1)


def encode_varint(value: int) -> bytes:
    """The bytes of a zigzag number; the same for a Java int and a Java long.

    >>> encode_varint(-1).hex(), encode_varint(64).hex()
    ('01', '8001')
    """
    return encode_uvarint(zigzag(value))


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag number to `out`."""
    write_uvarint(out, zigzag(value))


def varint_size(value: int) -> int:
    """The size in bytes of `encode_varint(value)`."""
    return uvarint_size(zigzag(value))


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a zigzag number: (signed 32-bit number, position after it); raises MalformedMessage."""
    value, position = _read(data, position, max_bytes=_UVARINT_BYTES, bits=32)
    return unzigzag(value), position


def read_varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a zigzag number: (signed 64-bit number, position after it); raises MalformedMessage."""
    value, position = _read(data, position, max_bytes=_UVARLONG_BYTES, bits=64)
    return unzigzag(value), position
