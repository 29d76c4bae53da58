"""The four codecs of record batches, as Kafka's clients and broker write them."""

from enum import IntEnum
from typing import Final

from protocol.errors import UnsupportedCompressionType


class Compression(IntEnum):
    """Kafka's codecs; the value is what a batch's attributes hold, the name what `compression.type` says."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of_attributes(cls, attributes: int) -> "Compression":
        """The codec in a batch's attributes; raises UnsupportedCompressionType for 5, 6 and 7."""
        number = attributes & 7
        if number < len(_ALL):
            return _ALL[number]
        raise UnsupportedCompressionType(f"Unknown compression codec {number}")

    @classmethod
    def of_name(cls, name: str) -> "Compression":
        """The codec that `compression.type` calls so (`uncompressed` is NONE); KeyError for `producer`."""
        return _BY_NAME[name]


_ALL: Final = tuple(Compression)
_BY_NAME: Final = {codec.name.lower(): codec for codec in Compression} | {"uncompressed": Compression.NONE}
