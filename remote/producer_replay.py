"""Producer state at an offset within a copy: the snapshot of the copy before it, and the batches in between.

    copies            [40, 80)               [80, 120)
    snapshots                 at 80                   at 120
    wanted                            at 100                   = the one at 80, and the batches of [80, 100)

Only headers count, and transaction markers. The segment is read in pieces, up to the offset.

Source: the rebuilding of UnifiedLog.rebuildProducerState of Kafka 4.3.1, which knows local segments only.
"""

from typing import Final

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, BatchHeader, crc_is_valid, read_header
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.storage_manager import RemoteStream
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.snapshot_files import replay

#: Bytes of one read from the store.
_PIECE_BYTES: Final = 1024 * 1024
#: A batch with a transaction marker has about 80 bytes.
_MAX_CONTROL_BYTES: Final = 64 * 1024


def replay_segment(
    stream: RemoteStream, producers: ProducerStateManager, *, end_offset: int, name: str
) -> None:
    """Replay the batches of a segment from `producers.map_end_offset` up to `end_offset`. [any thread]

    `stream` has the segment from its beginning. Raises RemoteStorageError if it is not a run of batches that reaches
    `end_offset`, with a boundary there.
    """
    pieces = _Pieces(stream, name)
    next_offset = 0
    while next_offset < end_offset:
        header, batch = _next_batch(pieces, name)
        if not next_offset <= header.base_offset < header.next_offset <= end_offset:
            raise RemoteStorageError(
                f"{name}: a batch [{header.base_offset}, {header.next_offset}) after offset {next_offset}, "
                f"where a log ends at {end_offset}"
            )
        next_offset = header.next_offset
        if next_offset > producers.map_end_offset:
            replay(producers, header, batch, None)


def _next_batch(pieces: "_Pieces", name: str) -> tuple[BatchHeader, bytes]:
    """Return a header, and its batch if it has a transaction marker. Raises RemoteStorageError."""
    head = pieces.take(HEADER_SIZE_BYTES)
    try:
        header = read_header(head)
    except (CorruptMessage, UnsupportedForMessageFormat) as error:
        raise RetriableRemoteStorageError(f"{name}: {error}") from error
    rest = header.size_bytes - HEADER_SIZE_BYTES
    if not header.is_control:
        pieces.skip(rest)
        return header, b""
    if rest > _MAX_CONTROL_BYTES:
        raise RemoteStorageError(f"{name}: a control batch of {header.size_bytes} bytes")
    batch = head + pieces.take(rest)
    if not crc_is_valid(batch):
        raise RetriableRemoteStorageError(f"{name}: the batch at {header.base_offset} has another checksum")
    return header, batch


class _Pieces:
    """Reads exact numbers of bytes from a stream of the store."""

    def __init__(self, stream: RemoteStream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._piece = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises RemoteStorageError at the end of the stream."""
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        while len(found) < size:
            self._read()
            more = self._piece[: size - len(found)]
            self._at = len(more)
            found += more
        return found

    def skip(self, size: int) -> None:
        """Skip the next `size` bytes. Raises RemoteStorageError at the end of the stream."""
        while (left := len(self._piece) - self._at) < size:
            size -= left
            self._read()
        self._at += size

    def _read(self) -> None:
        self._piece, self._at = self._stream.read(_PIECE_BYTES), 0
        if not self._piece:
            raise RetriableRemoteStorageError(f"{self._name}: the store has sent only a part")
