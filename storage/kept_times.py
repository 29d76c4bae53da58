"""KeptTimes: what look-ups by time have read of a log's closed segments, in a file: a restart does not read it again.

`record-times-checkpoint`, in the log's directory, in the format of all checkpoints; a line for each segment
that was read:

    base offset, size, position of the last batch, its base offset, leader epoch and CRC, the largest timestamp,
    then of each part with headers that claim too little: its position, and the largest timestamp
    (`ottla.storage.segment_times`); last the CRC-32C of the line before it, as retention may rely on it, too

A line counts if the segment still has this size and last batch: no two batches have the same offset and leader
epoch, and what is before them is the same in all logs (log matching). So the file need not be flushed, nor
written when a log is truncated. None is written for a compacted log, whose headers are checked when they are
appended, and whose segments change.

Source: none in Kafka.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from ottla.protocol.checksum import crc32c
from ottla.protocol.errors import CorruptMessage, UnsupportedForMessageFormat
from ottla.protocol.records.batch import BatchHeader
from ottla.storage import checkpoints
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.files import Files
from ottla.storage.segment import Segment
from ottla.storage.segment_times import Known

FILE_NAME: Final = "record-times-checkpoint"


def write(directory: Path, segments: Iterable[Segment], files: Files) -> None:
    """Replace the file of a log's known timestamps. [any thread] Raises OSError."""
    lines = [line for segment in segments if (line := _line(segment)) is not None]
    files.write_atomically(directory / FILE_NAME, checkpoints.encode(lines, len(lines)), durable=False)


def restore(directory: Path, segments: Iterable[Segment], files: Files) -> None:
    """Restore the known timestamps of segments from the file of their log. [any thread] Raises OSError.

    A damaged file is ignored.
    """
    try:
        rows = checkpoints.decode(files.read(directory / FILE_NAME), parse)
    except (FileNotFoundError, CorruptCheckpoint):
        return
    by_base = {row[0]: row for row in rows}
    for segment in segments:
        generation = segment.times.generation
        row = by_base.get(segment.base_offset)
        if row is not None and segment.log.is_closed and _is_of(segment, row):
            _, size, last, _, _, _, largest, *understated = row
            segment.times.keep(
                Known(size, largest, tuple(zip(understated[::2], understated[1::2], strict=True)), last),
                generation,
            )


#: Of a line without parts.
_FIELDS: Final = 7


def parse(words: Sequence[str]) -> list[int]:
    """The numbers of a line, in the order that the module describes, without its CRC. Raises CorruptCheckpoint."""
    *row, crc = map(int, words)
    if len(row) < _FIELDS or len(row) % 2 == 0 or crc != _crc(" ".join(words[:-1])):
        raise CorruptCheckpoint(" ".join(words))
    return row


def _crc(line: str) -> int:
    return int(crc32c(line.encode()))


def _line(segment: Segment) -> str | None:
    known = segment.times.known
    if not segment.log.is_closed or known.position != segment.size or known.last < 0:
        return None
    header = _batch_at(segment, known.last)
    if header is None or header.partition_leader_epoch < 0:
        return None
    row = (
        segment.base_offset,
        known.position,
        known.last,
        *(header.base_offset, header.partition_leader_epoch, header.crc),
        known.largest,
        *chain.from_iterable(known.understated),
    )
    line = " ".join(map(str, row))
    return f"{line} {_crc(line)}"


def _is_of(segment: Segment, row: Sequence[int]) -> bool:
    _, size, last, *batch = row[:6]
    if size != segment.size or not 0 <= last < size:
        return False
    header = _batch_at(segment, last)
    return header is not None and batch == [header.base_offset, header.partition_leader_epoch, header.crc]


def _batch_at(segment: Segment, position: int) -> BatchHeader | None:
    """The header of the last batch, which is at `position`; None: there is none that ends with the segment."""
    with suppress(CorruptMessage, UnsupportedForMessageFormat), segment.log.for_one_use() as fd:
        found = next(segment.log.headers(position, fd=fd), None)
        if found is not None and position + found.header.size_bytes == segment.size:
            return found.header
    return None
