"""Compression of record batches: the four codecs, as Kafka's clients and broker write them.

Data from a peer must not exhaust memory: `decompress` has an upper bound, which it checks chunk by
chunk, and raises TooLargeToOpen beyond it (CVE-2023-43642 and similar: a few bytes that claim gigabytes).

Snappy has two formats, xerial's framing (Java's clients, and ours) and one bare block; both are read.
The codecs' libraries are imported on first use: most brokers never need more than one.
Source: CompressionType and the Compression classes of Kafka 4.3.1.
"""

import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct, error
from types import MappingProxyType
from typing import Final

from ottla.protocol.errors import CorruptMessage, InvalidRecord, UnsupportedCompressionType

#: Limit of one batch's decompressed size unless the caller sets another: the default of socket.request.max.bytes,
#: above which no client could send the same records uncompressed.
MAX_DECOMPRESSED_BYTES: Final = 100 * 1024 * 1024

#: Output is produced in chunks of this size, so that the bound is checked early.
_CHUNK_BYTES = 256 * 1024

Bytes = bytes | bytearray | memoryview


class TooLargeToOpen(InvalidRecord):
    """A batch has more records, or more bytes when decompressed, than its reader allows (`record.Bounds`)."""


class Compression(IntEnum):
    """Kafka's codecs; the value is that in a batch's attributes, the name that in `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_attributes(cls, attributes: int) -> "Compression":
        """The codec in a batch's attributes; raises UnsupportedCompressionType for 5, 6 and 7."""
        number = attributes & 7
        if number < len(CODECS):
            return CODECS[number]
        raise UnsupportedCompressionType(f"Unknown compression codec {number}")

    @classmethod
    def of_name(cls, name: str) -> "Compression":
        """The codec of a `compression.type` (`uncompressed` is NONE); KeyError for `producer`."""
        return _BY_NAME[name]


#: By the number in the attributes.
CODECS: Final = tuple(Compression)
_BY_NAME: Final = {codec.name.lower(): codec for codec in Compression} | {"uncompressed": Compression.NONE}

#: Kafka's defaults of `compression.{gzip,lz4,zstd}.level`.
DEFAULT_LEVELS: Final[Mapping[Compression, int]] = MappingProxyType(
    {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
)


def compress(codec: Compression, data: Bytes, *, level: int | None = None) -> bytes:
    """Compress `data`; `level` None is Kafka's default for the codec. Codecs without levels ignore it."""
    if codec is Compression.NONE:
        return bytes(data)
    return _COMPRESS[codec](data, DEFAULT_LEVELS.get(codec, 0) if level is None else level)


def decompress(codec: Compression, data: Bytes, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Decompress `data` into at most `max_bytes` bytes.

    Raises CorruptMessage if it is not in the codec's format or is truncated, TooLargeToOpen if it decompresses to more
    than `max_bytes`.
    """
    if codec is Compression.NONE:
        return bytes(data)
    return _DECOMPRESS[codec](data, max_bytes)


class _Output:
    """Chunks of decompressed data under a common bound."""

    __slots__ = ("left", "max_bytes", "pieces")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.left = max_bytes
        self.pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self.left -= len(piece)
        if self.left < 0:
            raise TooLargeToOpen(f"The batch decompresses to more than {self.max_bytes} bytes")
        self.pieces.append(piece)

    def joined(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


# gzip: the format of java.util.zip. The header is Java's (no time, unknown system), not zlib's own, which
# names the operating system that zlib was compiled for.

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_GZIP_TRAILER = Struct("<II")


def _gzip(data: Bytes, level: int) -> bytes:
    trailer = _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, zlib.compress(data, level, wbits=-15), trailer))


def _gunzip(data: Bytes, max_bytes: int) -> bytes:
    output = _Output(max_bytes)
    rest: Bytes = data
    try:
        while True:
            stream = zlib.decompressobj(wbits=31)
            while not stream.eof:
                piece = stream.decompress(rest, min(_CHUNK_BYTES, output.left + 1))
                rest = stream.unconsumed_tail
                if not piece and not rest and not stream.eof:
                    raise CorruptMessage("The gzip stream is cut off")
                output.add(piece)
            # Members may follow each other; other trailing bytes are ignored, as in Java.
            rest = stream.unused_data
            if rest[:2] != b"\x1f\x8b":
                return output.joined()
    except zlib.error as reason:
        raise CorruptMessage(f"Not gzip: {reason}") from None


# snappy: xerial's framing is a 16-byte header, then for each 32 KiB a length and a bare block.

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2
_XERIAL_HEADER_SIZE_BYTES = len(_XERIAL_HEADER)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")
#: The magic's first four bytes in place of a length: another stream starts there (concatenated streams).
_XERIAL_RESTART = _INT32.unpack_from(_XERIAL_MAGIC)[0]


def _snappy(data: Bytes, _level: int) -> bytes:
    import cramjam

    view = memoryview(data)
    pieces = [_XERIAL_HEADER]
    for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
        pieces.append(_INT32.pack(len(block)))
        pieces.append(block)
    return b"".join(pieces)


def _unsnappy(data: Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    output = _Output(max_bytes)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        _unsnappy_block(view, output)
        return output.joined()
    position = _XERIAL_HEADER_SIZE_BYTES
    end = len(view)
    try:
        while position < end:
            size = _INT32.unpack_from(view, position)[0]
            if size == _XERIAL_RESTART:
                position += _XERIAL_HEADER_SIZE_BYTES
                continue
            position += _INT32.size
            if not 0 <= size <= end - position:
                raise CorruptMessage(f"A snappy block of {size} bytes where {end - position} are left")
            _unsnappy_block(view[position : position + size], output)
            position += size
    except error:
        raise CorruptMessage("The snappy stream is cut off") from None
    return output.joined()


def _unsnappy_block(block: memoryview, output: _Output) -> None:
    import cramjam

    # The block starts with its decompressed size: checked before anything is allocated.
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > output.left:
        raise TooLargeToOpen(f"The batch decompresses to more than {output.max_bytes} bytes")
    try:
        output.add(bytes(cramjam.snappy.decompress_raw(block)))
    except cramjam.DecompressionError as reason:
        raise CorruptMessage(f"Not snappy: {reason}") from None


# lz4: a frame of independent 64 KiB blocks without content size or checksums, as Java writes it.


def _lz4(data: Bytes, level: int) -> bytes:
    import lz4.frame

    # Kafka's level 9 (its default) means the fast compressor; any other level is high compression, for which
    # liblz4's frames support 3 to 12.
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level == DEFAULT_LEVELS[Compression.LZ4] else min(max(level, 3), 12),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return frame


def _unlz4(data: Bytes, max_bytes: int) -> bytes:
    import lz4.frame

    output = _Output(max_bytes)
    stream = lz4.frame.LZ4FrameDecompressor()
    rest: Bytes = data
    try:
        while not stream.eof:
            piece = stream.decompress(rest, min(_CHUNK_BYTES, output.left + 1))
            rest = b""
            if not piece and stream.needs_input and not stream.eof:
                raise CorruptMessage("The lz4 frame is cut off")
            output.add(piece)
    except (RuntimeError, EOFError) as reason:
        raise CorruptMessage(f"Not lz4: {reason}") from None
    return output.joined()


# zstd: frames without content size, as Java and librdkafka write them.


def _zstd(data: Bytes, level: int) -> bytes:
    import zstandard

    # A new context each time: threads must not share one, and compaction runs in another thread.
    return zstandard.ZstdCompressor(level=level, write_content_size=False).compress(data)


def _unzstd(data: Bytes, max_bytes: int) -> bytes:
    import zstandard

    output = _Output(max_bytes)
    # Small chunks of input bound the output of one call: four bytes can decompress to a block of 128 KiB.
    view = memoryview(data)
    input_bytes = min(max(max_bytes >> 13, _ZSTD_LEAST_INPUT_BYTES), _ZSTD_INPUT_BYTES)
    context = zstandard.ZstdDecompressor()
    stream = context.decompressobj()
    started = False
    try:
        for position in range(0, len(view), input_bytes):
            piece = view[position : position + input_bytes]
            while piece:
                if stream.eof:
                    stream = context.decompressobj()
                started = True
                output.add(stream.decompress(piece))
                piece = memoryview(stream.unused_data)
    except zstandard.ZstdError as reason:
        raise CorruptMessage(f"Not zstd: {reason}") from None
    if not started or not stream.eof:
        raise CorruptMessage("The zstd frame is cut off")
    return output.joined()


_ZSTD_INPUT_BYTES = 1024
_ZSTD_LEAST_INPUT_BYTES = 64

_COMPRESS: Final[Mapping[Compression, Callable[[Bytes, int], bytes]]] = MappingProxyType(
    {Compression.GZIP: _gzip, Compression.SNAPPY: _snappy, Compression.LZ4: _lz4, Compression.ZSTD: _zstd}
)
_DECOMPRESS: Final[Mapping[Compression, Callable[[Bytes, int], bytes]]] = MappingProxyType(
    {
        Compression.GZIP: _gunzip,
        Compression.SNAPPY: _unsnappy,
        Compression.LZ4: _unlz4,
        Compression.ZSTD: _unzstd,
    }
)
