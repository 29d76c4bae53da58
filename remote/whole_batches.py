"""The batches of a copy's log, read to the end, each with a valid CRC: for copies of which nothing else is known to be right."""

from collections.abc import Callable, Iterator
from typing import Final

from protocol.errors import KafkaError
from protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, crc_is_valid, read_header

#: A larger batch is taken for damage.
_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class DamagedLog(Exception):
    """The log is damaged, or ends too early; the message is a clause about "its log" or "an object"."""


def whole_batches(read: Callable[[int], bytes], *, position: int, end_position: int) -> Iterator[BatchHeader]:
    """The headers of the batches in [position, end_position), which `read` returns from its beginning on.

    Memory: one batch. Raises DamagedLog.
    """
    while position < end_position:
        data = exactly(read, min(HEADER_SIZE_BYTES, end_position - position))
        try:
            header = read_header(data)
        except KafkaError as error:
            raise DamagedLog(f"its log is damaged at position {position}: {error}") from error
        if header.size_bytes > min(end_position - position, _MAX_BATCH_BYTES):
            raise DamagedLog(f"its log ends within a batch at position {position}")
        batch = data + exactly(read, header.size_bytes - len(data))
        if not crc_is_valid(batch):
            raise DamagedLog(f"its log is damaged at position {position}: the CRC of a batch is wrong")
        yield header
        position += header.size_bytes


def exactly(read: Callable[[int], bytes], size: int) -> bytes:
    """So many bytes. Raises DamagedLog if there are fewer."""
    pieces = []
    while size and (piece := read(min(size, _READ_BYTES))):
        pieces.append(piece)
        size -= len(piece)
    if size:
        raise DamagedLog(f"an object ends {size} bytes too early")
    return b"".join(pieces)
