"""CopyReader: reads one copy: from an offset or a timestamp to ranges of bytes, and from those to batches. [any thread]

    offset ---offset index---> position of a batch at or before it ---ranged GET---> batches, verified
    timestamp ---time index---> offset ---as above---> batches ---> the first record that is late enough

The index gives both ends of a range, so that it begins and ends with whole batches. It is a hint only: what
counts are the batches, and without an index the copy is read from its beginning. No range is larger than
`max_bytes`, or the batch that is larger than that. The length of such a batch comes from the store: it is
trusted as far as the index confirms it, or up to `max_batch_bytes`.

Source: RemoteLogManager.read and lookupTimestamp of Kafka 4.3.1, which leaves the end of the GET open.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, read_header
from ottla.protocol.records.record import times_of
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.reading.chunk import Batches, Chunk, CorruptCopy, parse
from ottla.remote.reading.chunk_memory import ChunkMemory
from ottla.remote.reading.index_cache_files import IndexFiles
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import RemoteStorageManager, filling
from ottla.storage.index import OffsetIndex, OffsetPosition, TimestampOffset
from ottla.storage.segment_reader import first_record
from ottla.storage.transaction_index import AbortedTransaction

#: The bytes of one read of a search by timestamp: the time index leads to within an index interval (4 KiB by default)
#: of the record.
SEARCH_BYTES: Final = 128 * 1024
#: A range may be longer than wanted by this, if it ends with its first batch then: max.message.bytes by default.
_LARGE_BATCH_BYTES: Final = 1024 * 1024 + 12
#: No request of a producer is larger: socket.request.max.bytes by default.
MAX_BATCH_BYTES: Final = 100 * 1024 * 1024


class Continuation(NamedTuple):
    """The position at which a sequential reader goes on: its batch is the first one at or behind `offset`."""

    offset: int
    position: int


class _Piece(NamedTuple):
    """A range of a copy: `body` from `position` on, and the whole batches in it."""

    position: int
    body: memoryview
    batches: Batches


class CopyReader:
    """Reads batches, timestamps and aborted transactions of one copy at a time from the store. [any thread]"""

    def __init__(
        self, store: RemoteStorageManager, indexes: IndexFiles, *, max_batch_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        self._store = store
        self._indexes = indexes
        self._max_batch_bytes = max_batch_bytes
        self.memory = ChunkMemory()

    def read(
        self,
        copy: RemoteLogSegmentMetadata,
        index_path: Path | None,
        *,
        offset: int,
        end_offset: int,
        continuation: Continuation | None,
        max_bytes: int,
    ) -> Chunk | None:
        """Return batches from the one that holds `offset` on, none from `end_offset` on; None if all are
        before `offset`.

        At most `max_bytes`, but at least one batch. Raises RemoteStorageError, CorruptIndex, FileNotFoundError.
        """
        with closing(_IndexHints(self._indexes, copy, index_path)) as hints:
            start = continuation
            if start is None:
                start = Continuation(copy.start_offset, hints.start(offset))
            for piece in self._pieces(copy, hints, start, max_bytes):
                batches = piece.batches
                first = bisect_right(batches.next_offsets, offset)
                if first < len(batches):
                    return _chunk(copy, piece, first=first, offset=offset, end_offset=end_offset)
        return None

    def find_timestamp(
        self,
        copy: RemoteLogSegmentMetadata,
        index_path: Path,
        time_index_path: Path,
        timestamp: int,
        *,
        start_offset: int,
        end_offset: int,
        is_cancelled: Callable[[], bool],
    ) -> TimestampOffset | None:
        """Return the first record in [start_offset, end_offset) whose timestamp is at least `timestamp`;
        None: there is none.

        Relies on the copy's time index, which is of the records (`ottla.storage.segment_times`), and opens
        all batches from its entry on, whatever their headers claim. None also after a cancellation. Raises as `read`.
        """
        with closing(self._indexes.time_index(copy, time_index_path)) as times:
            first_offset = max(times.lookup(timestamp).offset, start_offset)
        with closing(_IndexHints(self._indexes, copy, index_path)) as hints:
            start = Continuation(copy.start_offset, hints.start(first_offset))
            for piece in self._pieces(copy, hints, start, SEARCH_BYTES):
                if is_cancelled():
                    return None
                found = _first_record(
                    piece,
                    timestamp,
                    start_offset=start_offset,
                    is_cancelled=is_cancelled,
                )
                if found is not None:
                    return found if found.offset < end_offset else None
                if len(piece.batches) and piece.batches.next_offsets[-1] >= end_offset:
                    return None
        return None

    def largest_timestamp(
        self,
        copy: RemoteLogSegmentMetadata,
        index_path: Path,
        *,
        start_offset: int,
        end_offset: int,
        is_cancelled: Callable[[], bool],
    ) -> int:
        """Return the largest timestamp of the records in [start_offset, end_offset), for a copy that has another one.

        -1: there is none, also after a cancellation. Reads all of the copy from `start_offset` on. Raises as `read`.
        """
        with closing(_IndexHints(self._indexes, copy, index_path)) as hints:
            largest = -1
            start = Continuation(copy.start_offset, hints.start(start_offset))
            for piece in self._pieces(copy, hints, start, 8 * SEARCH_BYTES):
                if is_cancelled():
                    return -1
                largest = max(largest, _largest_timestamp(piece, start_offset, end_offset))
                if piece.batches.next_offsets[-1] >= end_offset:
                    break
        return largest

    def aborted_transactions(
        self,
        copy: RemoteLogSegmentMetadata,
        path: Path,
        *,
        first_offset: int,
        end_offset: int,
        agreed_end: int,
    ) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions that overlap [first_offset, end_offset), and whether no later segment can have more.

        Only transactions that end before `agreed_end` count: records behind it in the copy are not part of the log.
        Raises CorruptIndex.
        """
        found = []
        for entry in self._indexes.transaction_index(copy, path).entries:
            if entry.last_offset >= agreed_end:
                break
            if entry.last_offset >= first_offset and entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def _pieces(
        self, copy: RemoteLogSegmentMetadata, hints: "_IndexHints", start: Continuation, max_bytes: int
    ) -> Iterator[_Piece]:
        """Yield ranges of the copy from `start` to its end, each with at least one whole batch.

        A damaged batch ends them: the sound ones before it come first, then CorruptCopy is raised.
        """
        after_offset, position = start
        size = copy.segment_size_bytes
        wanted = max_bytes
        while position < size:
            end = hints.end(position, wanted)
            body = self._fetch(copy, position, end)
            try:
                batches = parse(
                    copy,
                    body,
                    position=position,
                    indexed=hints.between(position, end),
                    after_offset=after_offset,
                )
            except CorruptCopy as error:
                if error.sound is not None and len(error.sound):
                    yield _Piece(position, body, error.sound)
                raise
            if len(batches):
                yield _Piece(position, body, batches)
                after_offset = batches.next_offsets[-1]
                position += batches.end
                wanted = max_bytes
            elif end == size:
                raise CorruptCopy(f"{copy.segment_id} ends with a part of a batch, at {position}")
            else:
                # The first batch is larger than the range (KIP-74): its header gives its size.
                wanted = HEADER_SIZE_BYTES
                if len(body) >= HEADER_SIZE_BYTES:
                    wanted = read_header(body).size_bytes
                    self._check_length(copy, hints, position, wanted)
                hints.ignore_end = True

    def _check_length(
        self, copy: RemoteLogSegmentMetadata, hints: "_IndexHints", position: int, size_bytes: int
    ) -> None:
        """Raise CorruptCopy if a batch cannot have this length: the memory for it is not taken.

        The checksum is known only with the whole batch, and a wrong length may reach to the end of the segment.
        """
        following = hints.following(position)
        limit = self._max_batch_bytes if following is None else following - position
        if size_bytes > limit:
            raise CorruptCopy(
                f"{copy.segment_id}: a batch at {position} has {size_bytes} bytes, where at most {limit} are possible"
            )

    def _fetch(self, copy: RemoteLogSegmentMetadata, start: int, end: int) -> memoryview:
        """Return exactly the bytes [start, end) of the segment. Raises RemoteStorageError."""
        body = self.memory.take(end - start)
        left = body
        with closing(self._store.fetch_log_segment(copy, start_position=start, end_position=end)) as stream:
            fill = filling(stream, piece_bytes=len(left))
            while len(left):
                size = fill(left)
                if not size:
                    raise RetriableRemoteStorageError(
                        f"{copy.segment_id}: the body of [{start}, {end}) ended {len(left)} bytes early"
                    )
                left = left[size:]
            if stream.read(1):
                raise CorruptCopy(f"{copy.segment_id}: more than [{start}, {end}) was sent")
        return body


class _IndexHints:
    """The offset index of a copy: ends of ranges, and batches that must be in them. Empty without an index."""

    def __init__(self, indexes: IndexFiles, copy: RemoteLogSegmentMetadata, path: Path | None) -> None:
        self._size = copy.segment_size_bytes
        self._index: OffsetIndex | None = None if path is None else indexes.offset_index(copy, path)
        #: The next range is exactly as long as wanted.
        self.ignore_end = False

    def close(self) -> None:
        """Close the file of the index."""
        if self._index is not None:
            self._index.close()

    def start(self, offset: int) -> int:
        """Return the position of a batch at or before the one that holds `offset`."""
        return 0 if self._index is None else min(self._index.lookup(offset).position, self._size)

    def end(self, position: int, wanted_bytes: int) -> int:
        """Return the end of a range from `position`: behind a batch, if the index has one that begins near enough."""
        target = min(position + wanted_bytes, self._size)
        if self.ignore_end or self._index is None or target == self._size:
            self.ignore_end = False
            return target
        indexed = self._index.at_or_before(target)
        if indexed is not None and indexed.position > position:
            return indexed.position
        # A large batch has an entry, and so has the one behind it: one range instead of two.
        indexed = self._index.after(position)
        if indexed is not None and indexed.position <= target + _LARGE_BATCH_BYTES:
            return indexed.position
        return target

    def following(self, position: int) -> int | None:
        """Return the first position behind `position` at which a batch begins by the index; None: unknown."""
        indexed = None if self._index is None else self._index.after(position)
        return None if indexed is None else indexed.position

    def between(self, position: int, end: int) -> list[OffsetPosition]:
        """Return indexed batches that begin in [position, end): the first one and the last one."""
        if self._index is None:
            return []
        found = (self._index.after(position - 1), self._index.at_or_before(end - 1))
        return [each for each in found if each is not None and position <= each.position < end]


def _chunk(
    copy: RemoteLogSegmentMetadata, piece: _Piece, *, first: int, offset: int, end_offset: int
) -> Chunk | None:
    """Return the batches of a piece from number `first` on that are before `end_offset`; None: the first one is not."""
    found = piece.batches
    last = bisect_right(found.next_offsets, end_offset)
    if last <= first:
        return None
    begin = found.ends[first - 1] if first else 0
    kept = Batches()
    kept.base_offsets = found.base_offsets[first:last]
    kept.next_offsets = found.next_offsets[first:last]
    kept.ends.extend(end - begin for end in found.ends[first:last])
    end = found.ends[last - 1]
    return Chunk(
        segment_id=copy.segment_id.id,
        data=piece.body[begin:end],
        batches=kept,
        start_offset=offset,
        end_offset=kept.next_offsets[-1],
        end_position=piece.position + end,
    )


def _largest_timestamp(piece: _Piece, start_offset: int, end_offset: int) -> int:
    """Return the largest timestamp of the piece's records in [start_offset, end_offset); -1: there is none.

    A batch that cannot be read has none.
    """
    found, largest, begin = piece.batches, -1, 0
    for base_offset, next_offset, end in zip(found.base_offsets, found.next_offsets, found.ends, strict=True):
        if base_offset >= end_offset:
            break
        if next_offset > start_offset:
            with suppress(KafkaError):
                times = times_of(piece.body[begin:end])
                largest = max([largest, *(time for offset, time in times if offset >= start_offset)])
        begin = end
    return largest


def _first_record(
    piece: _Piece,
    timestamp: int,
    *,
    start_offset: int,
    is_cancelled: Callable[[], bool],
) -> TimestampOffset | None:
    view, begin = piece.body, 0
    for end in piece.batches.ends:
        if is_cancelled():
            return None
        header = read_header(view, begin)
        if header.last_offset >= start_offset:
            found = first_record(
                header, view[begin:end], timestamp, start_offset=start_offset, is_cancelled=is_cancelled
            )
            if found is not None:
                return found
        begin = end
    return None
