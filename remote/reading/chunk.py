"""Chunk: whole, verified batches of one copy, in memory.

A body that the store has sent becomes a chunk only if it is a run of batches of that copy: each with its length, its
format and its checksum, and offsets that grow. A store that answers with another range, or with less than it was asked
for, raises CorruptCopy, and nothing of it is served.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, crc_is_valid, read_header
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.reading.chunk_memory import held_bytes
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.storage.index import OffsetPosition
from ottla.storage.transaction_index import AbortedTransaction

#: The memory of a chunk beside its batches' bytes, and beside each batch.
_OVERHEAD_BYTES: Final = 500
_OVERHEAD_OF_BATCH_BYTES: Final = 24


class CorruptCopy(RetriableRemoteStorageError):
    """The store's bytes are not those of the segment: another attempt may get the right ones."""

    #: The whole, verified batches before the damaged one; None: nothing of the body can be used.
    sound: "Batches | None" = None


class Batches:
    """The positions and offsets at which the batches of a body begin and end."""

    __slots__ = ("base_offsets", "ends", "next_offsets")

    def __init__(self) -> None:
        self.base_offsets = array("q")
        self.next_offsets = array("q")
        #: Positions in the body, exclusive.
        self.ends = array("q")

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def end(self) -> int:
        """The end of the last whole batch in the body."""
        return self.ends[-1] if self.ends else 0


def parse(
    copy: RemoteLogSegmentMetadata,
    body: memoryview,
    *,
    position: int,
    indexed: Iterable[OffsetPosition] = (),
    after_offset: int,
) -> Batches:
    """Return the whole batches of `body`, the bytes of the copy from `position` on, without a part of a batch
    at its end.

    `indexed` are entries of the offset index: batches that must begin at their positions. All offsets are
    at or behind `after_offset`. Raises CorruptCopy, with the batches before the damage, if the index agrees with them.
    Cost: 40 us per MiB for the checksums, 2 us for each batch.
    """
    found, damage = Batches(), None
    try:
        _parse(copy, body, found, position=position, after_offset=after_offset)
    except CorruptCopy as error:
        damage = error
    for entry in indexed:
        _check_indexed(copy, found, entry, position=position)
    if damage is not None:
        damage.sound = found
        raise damage
    return found


def _parse(
    copy: RemoteLogSegmentMetadata, body: memoryview, found: Batches, *, position: int, after_offset: int
) -> None:
    """Add the batches to `found`, up to the first that is damaged."""
    at = 0
    next_offset = max(after_offset, copy.start_offset)
    try:
        while len(body) - at >= HEADER_SIZE_BYTES:
            header = read_header(body, at)
            end = at + header.size_bytes
            if position + end > copy.segment_size_bytes:
                raise CorruptCopy(f"{copy.segment_id}: a batch at {position + at} ends behind the segment")
            if not next_offset <= header.base_offset < header.next_offset <= copy.end_offset:
                raise CorruptCopy(
                    f"{copy.segment_id}: a batch at {position + at} has the offsets [{header.base_offset}, "
                    f"{header.next_offset}), after {next_offset}"
                )
            if end > len(body):
                break
            if not crc_is_valid(body[at:end]):
                raise CorruptCopy(f"{copy.segment_id}: the batch at {position + at} has a wrong checksum")
            next_offset = header.next_offset
            found.base_offsets.append(header.base_offset)
            found.next_offsets.append(next_offset)
            found.ends.append(end)
            at = end
    except (CorruptMessage, UnsupportedForMessageFormat) as error:
        raise CorruptCopy(f"{copy.segment_id}: no batch at {position + at}: {error}") from error


def _check_indexed(
    copy: RemoteLogSegmentMetadata, found: Batches, entry: OffsetPosition, *, position: int
) -> None:
    relative = entry.position - position
    if not 0 <= relative < found.end:
        return
    number = 0 if relative == 0 else bisect_left(found.ends, relative) + 1
    begins = 0 if number == 0 else found.ends[number - 1]
    if begins != relative or found.next_offsets[number] - 1 != entry.offset:
        raise CorruptCopy(
            f"{copy.segment_id}: the batch that ends with {entry.offset} is not at {entry.position}"
        )


class ChunkRead(NamedTuple):
    """Whole batches of a chunk that answer a read; they may be none."""

    records: memoryview
    #: The base offset of the first batch.
    base_offset: int
    #: The end, exclusive: the offset at which the next read begins.
    end_offset: int


class Chunk:
    """Batches of one copy that answer reads of the offsets from `start_offset` to `end_offset`. Immutable."""

    __slots__ = (
        "_batches", "_data", "aborted", "end_offset", "end_position", "segment_id", "size_bytes", "start_offset"
    )  # fmt: skip

    def __init__(
        self,
        *,
        segment_id: UUID,
        data: memoryview,
        batches: Batches,
        start_offset: int,
        end_offset: int,
        end_position: int,
        aborted: tuple[AbortedTransaction, ...] | None = None,
    ) -> None:
        """`data` begins with the first of the `batches`; `end_position` is their end in the segment."""
        self.segment_id = segment_id
        self._data = data
        self._batches = batches
        #: The offset that was read for: the first batch holds it, or is the first one behind it.
        self.start_offset = start_offset
        #: The end, exclusive. Offsets at the end may have no batch, as before the start of the next segment.
        self.end_offset = end_offset
        #: The position in the segment behind the last batch.
        self.end_position = end_position
        #: The aborted transactions with records in it; None: it was read for read_uncommitted consumers only.
        self.aborted = aborted
        #: The memory that the chunk occupies.
        self.size_bytes = held_bytes(data) + len(batches) * _OVERHEAD_OF_BATCH_BYTES + _OVERHEAD_BYTES

    @classmethod
    def empty(cls, copy: RemoteLogSegmentMetadata, *, start_offset: int, end_offset: int) -> "Chunk":
        """Return a chunk without batches: the end of a copy that has none there."""
        return cls(
            segment_id=copy.segment_id.id,
            data=memoryview(b""),
            batches=Batches(),
            start_offset=start_offset,
            end_offset=end_offset,
            end_position=copy.segment_size_bytes,
        )

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first_offset(self) -> int:
        """The base offset of the chunk's first batch; there must be one."""
        return self._batches.base_offsets[0]

    @property
    def data_bytes(self) -> int:
        """The size of the chunk's batches in bytes."""
        return len(self._data)

    def holds(self, offset: int) -> bool:
        """Whether a read at `offset` is answered by this chunk."""
        return self.start_offset <= offset < self.end_offset

    def with_aborted(self, aborted: tuple[AbortedTransaction, ...]) -> "Chunk":
        """Return a chunk of the same batches, with their aborted transactions, for read_committed consumers."""
        return Chunk(
            segment_id=self.segment_id,
            data=self._data,
            batches=self._batches,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            end_position=self.end_position,
            aborted=aborted,
        )

    def read(self, offset: int, *, max_bytes: int, max_offset: int, min_one_message: bool) -> ChunkRead:
        """Return batches from the one that holds `offset` on, at most `max_bytes`, none that ends behind `max_offset`.

        With `min_one_message` at least one batch (KIP-74). Cost: three binary searches, no copy.
        """
        assert self.holds(offset), (self.start_offset, offset, self.end_offset)
        batches = self._batches
        first = bisect_right(batches.next_offsets, offset)
        begin = batches.ends[first - 1] if first else 0
        last = bisect_right(batches.ends, begin + max_bytes)
        readable = bisect_right(batches.next_offsets, max_offset)
        if min_one_message:
            last = max(last, first + 1)
        last = min(last, readable)
        if last <= first:
            next_offset = self.end_offset if first == len(batches) else offset
            return ChunkRead(memoryview(b""), next_offset, next_offset)
        end_offset = self.end_offset if last == len(batches) else batches.next_offsets[last - 1]
        return ChunkRead(self._data[begin : batches.ends[last - 1]], batches.base_offsets[first], end_offset)

    def aborted_in(self, *, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [first_offset, end_offset)."""
        assert self.aborted is not None, self.start_offset
        return [
            each
            for each in self.aborted
            if each.last_offset >= first_offset and each.first_offset < end_offset
        ]
