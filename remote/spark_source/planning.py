"""Planning: the offsets of copies that each task of a query reads.

    copies of a partition --> its history --> requested offsets (options, filters) --> parts of copies --> tasks

Segments are read here only for a start or an end by time. A large segment becomes several parts, by its offsets, and
small ones that follow each other one task.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ottla.protocol.records.batch import BatchHeader
from ottla.remote.errors import RemoteStorageError
from ottla.remote.history.copy_batches import CopyBatches
from ottla.remote.history.partition_history import (
    PartitionHistory,
    Piece,
    aborted_in,
    check_no_holes,
    first_offset_at,
    history_of,
)
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.spark_source.bounds import Bounds
from ottla.remote.spark_source.copies import PartitionCopies, copies_in
from ottla.remote.spark_source.options import Bound, TierOptions, Time
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.storage.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The offsets [start_offset, end_offset) of a copy that a task reads, and the records that it leaves out."""

    copy: RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int
    #: Records that are older may be left out; None: none may be.
    min_timestamp_ms: int | None
    #: The aborted transactions, whose records are left out.
    aborted: tuple[AbortedTransaction, ...]

    @property
    def size_bytes(self) -> int:
        """The estimated size of the part, by its share of the copy's offsets."""
        return _share(self.copy, self.start_offset, self.end_offset)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction."""
        return header.is_transactional and any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in self.aborted
        )


def plan(store: RemoteStorageManager, options: TierOptions, bounds: Bounds) -> list[list[Part]]:
    """Return the parts of each task, by topic, partition and offset. Raises RemoteStorageError, InvalidConfig."""
    tasks: list[list[Part]] = []
    with CopyBatches(store, sleep=time.sleep) as batches:
        for copies in _copies(store, options):
            topic, number = copies.partition.topic_partition
            if bounds.has(topic, number):
                history = history_of(
                    store,
                    copies.partition,
                    copies.copies,
                    log_start_offset=copies.log_start_offset,
                    log_end_offset=copies.log_end_offset,
                )
                parts = _parts(history, batches, options, bounds)
                tasks += _packed(parts, options.max_partition_bytes)
    return tasks


def _copies(store: RemoteStorageManager, options: TierOptions) -> Iterable[PartitionCopies]:
    if options.client is None:
        return copies_in(store, options.topics, options.topic_id)
    # Only needed here: a reader of a bucket needs no Kafka client.
    from ottla.remote.spark_source.topic_records import copies_by_records

    return copies_by_records(options.client, options.topics, options.topic_id)


def _parts(
    history: PartitionHistory, batches: CopyBatches, options: TierOptions, bounds: Bounds
) -> Iterator[Part]:
    """Yield the parts of a partition to read. Raises RemoteStorageError."""
    if options.fails_on_data_loss:
        check_no_holes(history)
    topic, number = history.partition.topic_partition
    start = _resolved(options.starting.of(topic, number), history, batches, default=history.start_offset)
    end = _resolved(options.ending.of(topic, number), history, batches, default=history.end_offset)
    if options.fails_on_data_loss:
        _check_within(history, start, end)
    if options.is_read_committed:
        end = min(end, history.stable_end_offset)
    start, end = max(start, bounds.start_offset), min(end, bounds.end_offset)
    wanted = [
        Piece(copy, max(first, start), min(last, end))
        for copy, first, last in history.pieces
        if first < end and last > start
        and (bounds.min_timestamp_ms is None or copy.max_timestamp_ms >= bounds.min_timestamp_ms)
    ]  # fmt: skip
    aborted: tuple[AbortedTransaction, ...] = ()
    if options.is_read_committed and wanted:
        aborted = aborted_in(
            history.pieces,
            batches.aborted_transactions,
            start_offset=wanted[0].start_offset,
            end_offset=wanted[-1].end_offset,
        )
    for piece in wanted:
        for first, last in _cut(piece, options.max_partition_bytes):
            yield Part(
                copy=piece.copy,
                start_offset=first,
                end_offset=last,
                min_timestamp_ms=bounds.min_timestamp_ms,
                aborted=tuple(
                    each for each in aborted if each.first_offset < last and each.last_offset >= first
                ),
            )


def _resolved(bound: Bound, history: PartitionHistory, batches: CopyBatches, *, default: int) -> int:
    """Return the offset of a bound, which may be a time, or unset: then `default`."""
    match bound:
        case None:
            return default
        case Time():
            found = first_offset_at(history, batches, bound.timestamp_ms)
            return history.end_offset if found is None else found
        case int():
            return bound


def _check_within(history: PartitionHistory, start: int, end: int) -> None:
    """Raise RemoteStorageError if an option requests offsets that the store does not have."""
    partition = history.partition.topic_partition
    has = f"the store has [{history.start_offset}, {history.end_offset}) of {partition}"
    remedy = "Ask for these, or set failOnDataLoss to false."
    if start < history.start_offset:
        raise RemoteStorageError(
            f"startingOffsets asks for {start}, but {has}: retention has deleted what was before. {remedy}"
        )
    if end > history.end_offset:
        raise RemoteStorageError(
            f"endingOffsets asks for {end}, but {has}: only brokers have what follows. {remedy}"
        )


def _cut(piece: Piece, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of offsets of about equal size, none of them empty."""
    copy, start, end = piece
    count = min(-(-_share(copy, start, end) // max_bytes) or 1, end - start)
    for number in range(count):
        yield start + (end - start) * number // count, start + (end - start) * (number + 1) // count


def _share(copy: RemoteLogSegmentMetadata, start_offset: int, end_offset: int) -> int:
    """Return the bytes of a range of offsets, as if all records of the copy had equal size."""
    return copy.segment_size_bytes * (end_offset - start_offset) // (copy.end_offset - copy.start_offset)


def _packed(parts: Iterable[Part], max_bytes: int) -> Iterator[list[Part]]:
    """Yield the parts of each task: those that follow each other, together up to `max_bytes`."""
    task: list[Part] = []
    size = 0
    for part in parts:
        if task and size + part.size_bytes > max_bytes:
            yield task
            task, size = [], 0
        task.append(part)
        size += part.size_bytes
    if task:
        yield task
