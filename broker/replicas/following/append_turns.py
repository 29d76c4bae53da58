"""Turns of the event loop in which a follower appends a Fetch response: none takes longer than a few milliseconds.

A response has several MiB, or thousands of small batches, or rows of a thousand partitions. What each of these takes is
estimated as a number of bytes. After `TURN_COST` other tasks run; a row that costs more than `PART_COST` is
divided into parts, between two batches. A part of a row of 1 MiB takes 0.5 ms, whatever its batches; the
whole row would take 10 ms in batches of 200 bytes.

While other tasks run, the log may be truncated, led by this broker, or removed. So a part is the answer to a
request of its own, which begins where the part before it ends: it is appended only if the follower would send
that request now. The leader's response guarantees that its records follow each other, as if the leader had
answered each request.

Source: none in Kafka, where a fetcher is a thread.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.protocol.hot.fetch import Records
from ottla.protocol.records.batch import HEADER_SIZE_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, unpack_header

#: Other tasks run after appends of this cost: 0.3 ms for one batch of a MiB.
TURN_COST: Final = 1 << 20
#: The most that is appended at once, unless a single batch costs more.
PART_COST: Final = 2 << 20
#: What a row costs besides its batches, and a batch besides its bytes: about 12 us and 2.5 us. Half of the 12
#: where so few partitions are fetched that their state stays in the processor's cache.
ROW_COST: Final = 32 * 1024
BATCH_COST: Final = 8 * 1024
#: Records of this size are not divided, as they have at most 60 batches.
SMALL_BYTES: Final = 4 * 1024

_LENGTH = Struct(">8xi")
_new_tuple = tuple.__new__
_BASE_OFFSET, _LAST_OFFSET_DELTA = map(BatchHeader._fields.index, ("base_offset", "last_offset_delta"))


class Part(NamedTuple):
    """The records of a row, or a part of them."""

    answer: Records
    cost: int
    #: The offset after its last batch, where the next part begins; None: this is the last one.
    end_offset: int | None


def parts_of(answer: Records) -> Iterable[Part]:
    """The parts of a row, in order; nearly always it is one. Batches are not checked: that is done by the append.

    Cost: 0.2 us for each batch.
    """
    size = len(answer.records)
    if size <= SMALL_BYTES:
        return (_new_tuple(Part, (answer, ROW_COST + size, None)),)
    return _parts_of_large(answer, size)


def _parts_of_large(answer: Records, size: int) -> Iterator[Part]:
    records = answer.records
    start = last = position = 0
    cost = ROW_COST
    while size - position >= HEADER_SIZE_BYTES:
        batch_bytes = _LENGTH.unpack_from(records, position)[0] + LOG_OVERHEAD_BYTES
        if not HEADER_SIZE_BYTES <= batch_bytes <= size - position:
            break  # an incomplete batch, or a corrupt one
        if position > start and cost + batch_bytes + BATCH_COST > PART_COST:
            fields = unpack_header(records, last)
            end_offset = fields[_BASE_OFFSET] + fields[_LAST_OFFSET_DELTA] + 1
            yield Part(answer._replace(records=records[start:position]), cost, end_offset)
            start, cost = position, ROW_COST
        last = position
        position += batch_bytes
        cost += batch_bytes + BATCH_COST
    yield Part(answer._replace(records=records[start:]) if start else answer, cost, None)
