import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.varint import (
    encode_uvarint,
    encode_varint,
    read_uvarint,
    read_uvarlong,
    read_varint,
    read_varlong,
    uvarint_size,
    varint_size,
)


@pytest.mark.parametrize(("value", "text"), [
    (0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**31 - 1, "ffffffff07"), (2**32 - 1, "ffffffff0f"),
])  # fmt: skip
def test_unsigned(value, text):
    assert encode_uvarint(value).hex() == text
    assert read_uvarint(bytes.fromhex(text), 0) == (value, len(text) // 2)


@pytest.mark.parametrize(("value", "text"), [
    (0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-(2**31), "ffffffff0f"),
])  # fmt: skip
def test_zigzag(value, text):
    assert encode_varint(value).hex() == text
    assert read_varint(bytes.fromhex(text), 0) == (value, len(text) // 2)


@pytest.mark.parametrize("text", ["", "80", "ffffffff", "ffffffff1f", "808080808000", "ffffffffff"])
def test_malformed(text):
    with pytest.raises(MalformedMessage):
        read_uvarint(bytes.fromhex(text), 0)


@given(st.integers(0, 2**64 - 1))
def test_unsigned_long_round_trip(value):
    data = encode_uvarint(value)
    assert len(data) == uvarint_size(value)
    assert read_uvarlong(memoryview(b"x" + data), 1) == (value, len(data) + 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_zigzag_long_round_trip(value):
    data = encode_varint(value)
    assert len(data) == varint_size(value)
    assert read_varlong(data, 0) == (value, len(data))
