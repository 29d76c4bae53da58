"""Values and their stamps: what a producer writes is what a consumer verifies, and any other byte is found."""

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.bench.generators.records import STAMP_BYTES, Stamps, Values, stream_id
from ottla.bench.workloads.model import RecordSize, SizeLaw

STREAM = stream_id("producer")
SIZES = {
    "fixed": RecordSize(mean=100, least=100, most=100),
    "least": RecordSize(mean=STAMP_BYTES, least=STAMP_BYTES, most=STAMP_BYTES),
    "uniform": RecordSize(law=SizeLaw.UNIFORM, mean=150, least=50, most=250),
    "lognormal": RecordSize(law=SizeLaw.LOGNORMAL, mean=500, least=28, most=5000, sigma=1.0),
}


def stamps_of(values):
    """The stamps of values anywhere in memory."""
    arrays = [np.frombuffer(value, np.uint8) for value in values]
    addresses = np.array([array.ctypes.data if len(array) else 0 for array in arrays], np.int64)
    return Stamps(addresses, np.array([len(array) for array in arrays], np.int64))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_what_is_stamped_is_read(size):
    values = Values(size, stream=STREAM, slots=50)
    values.stamp(10, np.arange(7, 37), np.arange(30) * 10**12)
    written = [values.value(slot) for slot in range(10, 40)]
    assert [len(value) for value in written] == values.sizes[10:40].tolist()
    stamps = stamps_of(written)
    assert stamps.is_valid.all()
    assert set(stamps.streams.tolist()) == {STREAM}
    assert stamps.sequences.tolist() == list(range(7, 37))
    assert stamps.due_us.tolist() == (np.arange(30) * 10**12).tolist()
    # The last four bytes are what any other implementation computes.
    assert all(int.from_bytes(value[-4:], "little") == crc32c.crc32c(value[:-4]) for value in written)


def test_a_slot_is_used_again():
    values = Values(SIZES["uniform"], stream=STREAM, slots=4)
    for sequence in (1, 2**40):
        values.stamp(3, np.array([sequence]), np.array([5]))
        assert stamps_of([values.value(3)]).sequences.tolist() == [sequence]


@given(at=st.integers(0, 99), bit=st.integers(0, 7))
def test_one_wrong_bit_is_found(at, bit):
    values = Values(SIZES["fixed"], stream=STREAM, slots=3)
    values.stamp(0, np.arange(3), np.arange(3))
    wrong = bytearray(values.value(1))
    wrong[at] ^= 1 << bit
    stamps = stamps_of([values.value(0), bytes(wrong), values.value(2)])
    assert stamps.is_valid.tolist() == [True, False, True]
    assert stamps.sequences.tolist() == [0, 2]


def test_values_of_others_are_not_valid():
    stamps = stamps_of([b"", b"x" * (STAMP_BYTES - 1), b"x" * 1000, bytes(STAMP_BYTES)])
    assert not stamps.is_valid.any()
    assert not len(stamps.sequences)


def test_sizes_follow_their_law():
    uniform = Values(SIZES["uniform"], stream=STREAM, slots=4000).sizes
    assert (uniform.min(), uniform.max()) == (50, 250)
    assert uniform.mean() == pytest.approx(150, rel=0.05)
    lognormal = Values(SIZES["lognormal"], stream=STREAM, slots=4000).sizes
    assert lognormal.min() >= 28
    assert lognormal.max() <= 5000
    assert lognormal.mean() == pytest.approx(500, rel=0.1)
    # Half of a log-normal distribution is below exp(mu).
    assert np.median(lognormal) == pytest.approx(500 / np.exp(0.5), rel=0.1)


def test_a_stream_has_the_same_values_each_time_and_another_one_others():
    def first(stream):
        return Values(SIZES["fixed"], stream=stream, slots=1).value(0)[:-STAMP_BYTES]

    assert first(STREAM) == first(STREAM)
    assert first(STREAM) != first(stream_id("another"))
