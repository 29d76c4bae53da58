"""The codecs: round trips, both kinds of snappy, bounds on what a peer's bytes may become.

About KIP-110.
"""

import contextlib
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import CorruptMessage, UnsupportedCompressionType
from ottla.protocol.records.compression import Compression, TooLargeToOpen, compress, decompress

CODECS = list(Compression)[1:]
LEVELS = {Compression.GZIP: (-1, 1, 9), Compression.LZ4: (1, 9, 12, 17), Compression.ZSTD: (-5, 1, 3, 19)}
TEXT = b"the quick brown fox jumps over the lazy dog; " * 3000


@given(st.sampled_from(Compression), st.binary(max_size=2000))
def test_round_trip(codec, data):
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_long_input_at_every_level(codec):
    for level in (None, *LEVELS.get(codec, ())):
        packed = compress(codec, TEXT, level=level)
        assert len(packed) < len(TEXT) / 4
        assert decompress(codec, packed) == TEXT


def test_levels_matter():
    assert len(compress(Compression.GZIP, TEXT, level=9)) < len(compress(Compression.GZIP, TEXT, level=1))


@pytest.mark.parametrize("codec", CODECS)
def test_output_is_bounded(codec):
    packed = compress(codec, bytes(5_000_000))
    assert len(decompress(codec, packed, max_bytes=5_000_000)) == 5_000_000
    with pytest.raises(TooLargeToOpen, match="more than 4999999"):
        decompress(codec, packed, max_bytes=4_999_999)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_cut_off_is_refused(codec):
    packed = compress(codec, TEXT)
    for end in (0, 1, 7, len(packed) // 2, len(packed) - 1):
        if codec is Compression.SNAPPY and end == 0:
            continue  # see below: no bytes are no block either
        with pytest.raises(CorruptMessage):
            decompress(codec, packed[:end])


def test_no_bytes_are_no_snappy():
    with pytest.raises(CorruptMessage):
        decompress(Compression.SNAPPY, b"")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=100))
def test_random_bytes(codec, data):
    with contextlib.suppress(CorruptMessage, TooLargeToOpen):
        decompress(codec, data, max_bytes=100_000)


def test_snappy_without_framing():
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_streams_behind_each_other():
    packed = compress(Compression.SNAPPY, b"one") + compress(Compression.SNAPPY, b"two")
    assert decompress(Compression.SNAPPY, packed) == b"onetwo"


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x09"])
def test_snappy_block_longer_than_what_is_there(size):
    header = compress(Compression.SNAPPY, b"")[:16]
    with pytest.raises(CorruptMessage):
        decompress(Compression.SNAPPY, header + size + b"12345678")


def test_snappy_block_that_claims_gigabytes():
    with pytest.raises(TooLargeToOpen, match="more than"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 20)


def test_gzip_members_behind_each_other_and_garbage_after_them():
    packed = compress(Compression.GZIP, b"one") + zlib.compress(b"two", wbits=31)
    assert decompress(Compression.GZIP, packed + b"garbage") == b"onetwo"


def test_zstd_frames_with_content_size_and_behind_each_other():
    packed = zstandard.compress(b"one") + compress(Compression.ZSTD, b"two")
    assert decompress(Compression.ZSTD, packed) == b"onetwo"


def test_names():
    assert [Compression.of_name(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == list(
        Compression
    )
    assert Compression.of_name("uncompressed") is Compression.NONE
    with pytest.raises(KeyError):
        Compression.of_name("producer")


def test_numbers_without_a_codec():
    for number in (5, 6, 7):
        with pytest.raises(UnsupportedCompressionType):
            Compression.of_attributes(number)
