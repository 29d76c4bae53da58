"""OTLP messages as bytes, written by hand: the numbers of fields are those of OpenTelemetry's metrics v1."""

import struct

from ottla.broker.telemetry.otlp import Pushed, read

DELTA, CUMULATIVE = 1, 2


def varint(value: int) -> bytes:
    out = bytearray()
    value &= 0xFFFF_FFFF_FFFF_FFFF
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(number: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def attribute(key: str, text: str) -> bytes:
    return message(1, key) + message(2, message(1, text))


def point(value: float, **attributes: str) -> bytes:
    fields = b"".join(message(7, attribute(key, text)) for key, text in attributes.items())
    if isinstance(value, int):
        return fields + varint(6 << 3 | 1) + struct.pack("<q", value)
    return fields + varint(4 << 3 | 1) + struct.pack("<d", value)


def gauge(name: str, *points: bytes, description: str = "") -> bytes:
    return (
        message(1, name) + message(2, description) + message(5, b"".join(message(1, each) for each in points))
    )


def counter(name: str, *points: bytes, temporality: int = DELTA) -> bytes:
    values = b"".join(message(1, each) for each in points)
    return message(1, name) + message(7, values + number(2, temporality) + number(3, 1))


def metrics_data(*metrics: bytes, **resource: str) -> bytes:
    of_client = b"".join(message(1, attribute(key, text)) for key, text in resource.items())
    scope = b"".join(message(2, each) for each in metrics)
    return message(1, message(1, of_client) + message(2, scope))


def steps_and_result(data: bytes, max_points: int = 1000) -> tuple[int, Pushed]:
    reading, steps = read(data, max_points=max_points), 0
    while True:
        try:
            next(reading)
        except StopIteration as done:
            return steps, done.value
        steps += 1


def read_all(data: bytes, max_points: int = 1000) -> Pushed:
    return steps_and_result(data, max_points)[1]
