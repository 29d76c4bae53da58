"""Log compaction: rewrites segments of a compacted log with the newest record of each key only.

    closed segments      [ clean ....... ][ dirty ....... ][ active ]
                                           |-> offset map: key -> newest offset
                         |-> every batch: keep records that the map does not supersede
    <base>.log.cleaned   [ ............. ]     up to the size of a segment
    swap                 replaces its sources (Log.replace_segments), before the next one is made

Offsets never change: a batch keeps its range and its position in the order, with fewer records in it. A record
without a value (a tombstone) is kept for `delete.retention.ms` after the first cleaning that read it, so that
readers see the deletion: the batch stores that time as its delete horizon (KIP-534). Transaction markers likewise: one
may be removed only when no record of its transaction is left, since until then readers need it to know whether the
records are committed. Records of aborted transactions are removed at once (`CleanedTransactions`).

Runs in a thread: it reads closed segments only, and writes files that are not part of the log yet.

Source: Cleaner, MemoryRecords.filterTo and CleanedTransactionMetadata of Kafka 4.3.1.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

from ottla.protocol.errors import CorruptMessage, InvalidRecord
from ottla.protocol.records.batch import BatchHeader, crc_is_valid, read_header
from ottla.protocol.records.builder import build_batch, build_empty_batch
from ottla.protocol.records.control import ControlRecordType, control_type
from ottla.protocol.records.record import OF_MARKERS, RecordKey, keys_of
from ottla.protocol.records.record import records as parse_records
from ottla.storage import file_names
from ottla.storage.files import Files
from ottla.storage.index import MAX_RELATIVE_OFFSET
from ottla.storage.recovery import walk
from ottla.storage.segment import Segment
from ottla.storage.segments import Segments
from ottla.storage.transaction_index import AbortedTransaction, TransactionIndex

#: Keys up to this length are stored as they are in the offset map, longer ones as a digest of this length.
KEY_BYTES = 16
#: Approximate memory of a key in the map: dictionary entry, key and offset.
BYTES_A_KEY = 160
#: Bytes that are buffered before a write.
WRITE_BYTES = 1024 * 1024


class LastRecord(NamedTuple):
    """The last committed record of an active producer: the log must keep its sequence or epoch."""

    #: Batches that it wrote at or after this offset are kept. None if it is known from a marker only.
    last_data_offset: int | None
    epoch: int


class Source(NamedTuple):
    """A closed segment that is cleaned."""

    segment: Segment
    #: The base offset of the next segment of the log, before which the batches end.
    end_offset: int


class Compaction(NamedTuple):
    """The input of a cleaning: the segments, offsets and limits that decide which records are kept."""

    #: All closed segments before `end_offset`, clean ones included.
    sources: Sequence[Source]
    #: Where the dirty part begins.
    first_dirty_offset: int
    #: Base offset of the first segment that must not be cleaned.
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    max_segment_bytes: int
    active_producers: Mapping[int, LastRecord]
    aborted_in: Callable[[int, int], list[AbortedTransaction]]
    #: The log's current segments: retention may have removed some meanwhile. [any thread]
    present: Callable[[], Segments]
    files: Files
    max_keys: int
    #: Called with the number of bytes read or written; blocks while the rate is too high.
    throttle: Callable[[int], None]


class Replacement(NamedTuple):
    """A finished `.cleaned` segment and its sources, which it replaces."""

    old: Sequence[Segment]
    new: Segment


class OffsetMap:
    """Offset map (Kafka's SkimpyOffsetMap): the newest offset of each key in the dirty part, up to `last_offset`."""

    def __init__(self, max_keys: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._max_keys = max_keys
        #: The last offset that the map covers; one before the dirty part's start while it covers nothing.
        self.last_offset = -1

    def put(self, key: bytes, offset: int) -> bool:
        """Store the newest offset of a key. False, with nothing stored, if the map is full."""
        known = _digest(key)
        if len(self._offsets) >= self._max_keys and known not in self._offsets:
            return False
        self._offsets[known] = offset
        return True

    def supersedes(self, key: bytes, offset: int) -> bool:
        """Whether a newer record than the one at `offset` has this key."""
        return self._offsets.get(_digest(key), -1) > offset

    def __len__(self) -> int:
        return len(self._offsets)


def _digest(key: bytes) -> bytes:
    return key if len(key) <= KEY_BYTES else blake2b(key, digest_size=KEY_BYTES).digest()


class CleanedTransactions:
    """The transactions of a cleaning that still have records, while the cleaner reads a log in offset order.

    Batches must be passed in offset order; aborted transactions that still have records are added to `index`.
    """

    def __init__(self, index: TransactionIndex | None = None) -> None:
        self.index = index
        #: A heap by first offset: aborted transactions that begin after the current position.
        self._coming: list[tuple[int, AbortedTransaction]] = []
        #: By producer id: the aborted transaction that is open at the current position, and whether it has records.
        self._aborted: dict[int, AbortedTransaction] = {}
        self._has_records: set[int] = set()
        #: Producer ids whose open transaction has records, and is not aborted.
        self._committed: set[int] = set()

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions of the following batches, from the transaction indexes.

        A transaction that spans several segments is added several times, which is harmless: the copies are ignored.
        Cost: O(log n) for each.
        """
        for transaction in aborted:
            heapq.heappush(self._coming, (transaction.first_offset, transaction))

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0][0] <= offset:
            _, transaction = heapq.heappop(self._coming)
            self._aborted.setdefault(transaction.producer_id, transaction)

    def is_data_obsolete(self, header: BatchHeader) -> bool:
        """Whether the data batch belongs to an aborted transaction, so that none of its records is needed."""
        assert not header.is_control, header
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._has_records.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_marker_obsolete(self, header: BatchHeader, batch: memoryview | bytes) -> bool:
        """Whether the control batch ends a transaction without records, or is empty."""
        assert header.is_control, header
        self._begin_up_to(header.last_offset)
        if not header.records_count:
            return True
        kind = _kind_of_marker(batch)
        producer_id = header.producer_id
        if kind is ControlRecordType.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if transaction is not None and producer_id in self._has_records:
                self._has_records.discard(producer_id)
                if self.index is not None:
                    self.index.add(transaction)
                return False
            return True
        if kind is ControlRecordType.COMMIT:
            is_without_records = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_without_records
        return False


def _kind_of_marker(batch: memoryview | bytes) -> ControlRecordType | None:
    try:
        return control_type(next(iter(parse_records(batch, OF_MARKERS))).key)
    except InvalidRecord:
        return None


def compact(compaction: Compaction) -> Iterator[Replacement | int]:
    """Yields flushed segments that replace others, one by one, and finally the end of the clean part. [any thread]

    The caller puts each segment in place before it requests the next one: then at most one unplaced segment exists,
    and wherever the cleaning stops, no tombstone has a delete horizon while a record that it deletes is still in the
    log. If the caller does not, as retention has removed some of the sources, the remaining ones are cleaned next.
    Raises CorruptMessage for a damaged batch, which is never overwritten; OSError.
    """
    assert compaction.first_dirty_offset <= compaction.end_offset, (
        compaction.first_dirty_offset,
        compaction.end_offset,
    )
    offsets = build_offset_map(compaction)
    assert compaction.first_dirty_offset <= offsets.last_offset + 1 <= compaction.end_offset, (
        offsets.last_offset,
        compaction.end_offset,
    )
    clean_end = offsets.last_offset + 1
    transactions = CleanedTransactions()
    for group in group_by_size(compaction, clean_end):
        while sources := [source for source in group if source.segment in compaction.present()]:
            if sources[0].segment is compaction.present().first:
                # Retention has removed what is before, perhaps with the marker of a transaction that was open there:
                # a later transaction of that producer must not be mistaken for it.
                transactions = CleanedTransactions()
            try:
                made = _clean(sources, compaction, offsets, transactions)
            except Exception:
                if all(source.segment in compaction.present() for source in sources):
                    raise
                continue  # retention has removed a source, and its files are deleted after a delay
            yield made
    yield clean_end


def verified_batches(source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
    """All batches of a closed segment, whose offsets end before the next one. Raises CorruptMessage at a corrupt one.

    No checksum covers a base offset. By one that is too large, a batch would be newer than those that follow it, whose
    records would be removed in favour of its own.
    """
    segment, end_offset = source
    end, next_offset = 0, segment.base_offset
    for header, position, batch in walk(segment):
        if not crc_is_valid(batch):
            raise CorruptMessage(f"{segment}: the batch at position {position} has a wrong CRC")
        if not next_offset <= header.base_offset <= header.last_offset < end_offset:
            raise CorruptMessage(
                f"{segment}: the batch at position {position} has the offsets {header.base_offset} to "
                f"{header.last_offset}, which are not in [{next_offset}, {end_offset})"
            )
        end, next_offset = position + header.size_bytes, header.next_offset
        yield header, batch
    if end != segment.size:
        raise CorruptMessage(f"{segment}: no valid batch at position {end}")


def build_offset_map(compaction: Compaction) -> OffsetMap:
    """Map the keys of the dirty part, up to its end or until the map is full."""
    start, end = compaction.first_dirty_offset, compaction.end_offset
    offsets = OffsetMap(compaction.max_keys)
    offsets.last_offset = start - 1
    transactions = CleanedTransactions()
    transactions.add(compaction.aborted_in(start, end))
    for source in compaction.sources:
        if source.end_offset <= start:
            continue
        for header, batch in verified_batches(source):
            if header.last_offset < start:
                continue
            compaction.throttle(header.size_bytes)
            if header.is_control:
                transactions.is_marker_obsolete(header, batch)
            elif not transactions.is_data_obsolete(header):
                for offset, key, _ in keys_of(batch):
                    if key is None or offset < start:
                        continue
                    if not offsets.put(key, offset):
                        # The map is full, perhaps in the middle of a batch: the next cleaning continues here.
                        # A record's offset may be any: those of a producer's uncompressed batch are not checked.
                        offsets.last_offset = max(offsets.last_offset, min(offset - 1, header.last_offset))
                        return offsets
            offsets.last_offset = max(offsets.last_offset, header.last_offset)
        # Offsets at a segment's end that no batch has are clean, too.
        offsets.last_offset = max(offsets.last_offset, source.end_offset - 1)
    return offsets


def group_by_size(compaction: Compaction, clean_end: int) -> list[list[Source]]:
    """Groups of adjacent segments whose logs and indexes fit into one segment, before any record is removed."""
    groups: list[list[Source]] = []
    sizes = (0, 0, 0)
    for source in compaction.sources:
        segment, end = source
        if segment.base_offset >= clean_end:
            break
        added = (segment.size, *segment.files.index_sizes())
        most_index_bytes = segment.indexes.settings.max_index_bytes
        most = (compaction.max_segment_bytes, most_index_bytes, most_index_bytes)
        fits = groups and (
            all(size + more <= limit for size, more, limit in zip(sizes, added, most, strict=True))
            and (not segment.size or end - 1 - groups[-1][0].segment.base_offset <= MAX_RELATIVE_OFFSET)
        )
        if fits:
            groups[-1].append(source)
            sizes = (sizes[0] + added[0], sizes[1] + added[1], sizes[2] + added[2])
        else:
            groups.append([source])
            sizes = added
    grouped = [source for group in groups for source in group]
    assert grouped == [*compaction.sources][: len(grouped)], (groups, compaction.sources)
    return groups


def _clean(
    sources: Sequence[Source], compaction: Compaction, offsets: OffsetMap, transactions: CleanedTransactions
) -> Replacement:
    group = [source.segment for source in sources]
    first = group[0]
    assert all(one.base_offset < two.base_offset for one, two in pairwise(group)), group
    cleaned = Segment.create(
        first.files.directory,
        first.base_offset,
        settings=first.indexes.settings._replace(preallocated_bytes=None),
        files=compaction.files,
        now_ms=compaction.now_ms,
        suffix=file_names.CLEANED,
    )
    transactions.index = cleaned.indexes.transactions
    headers: list[BatchHeader] = []
    buffers: list[bytes] = []
    size = 0
    try:
        for number, source in enumerate(sources):
            segment = source.segment
            following = group[number + 1].base_offset if number + 1 < len(group) else None
            end = following if following is not None else segment.reader.next_offset()
            transactions.add(compaction.aborted_in(segment.base_offset, end))
            for header, batch in verified_batches(source):
                compaction.throttle(header.size_bytes)
                kept = retain(header, batch, compaction, offsets, transactions)
                if kept is None:
                    continue
                made = read_header(kept)
                assert (made.base_offset, made.last_offset) == (header.base_offset, header.last_offset), (
                    made,
                    header,
                )
                headers.append(made)
                buffers.append(kept)
                size += len(kept)
                if size >= WRITE_BYTES:
                    cleaned.append(headers, buffers, size)
                    compaction.throttle(size)
                    headers, buffers, size = [], [], 0
        if headers:
            cleaned.append(headers, buffers, size)
        cleaned.close_to_appends()
        cleaned.flush()
        cleaned.files.set_modified_ms(group[-1].files.modified_ms())
    except BaseException:
        cleaned.delete_files()
        raise
    return Replacement(group, cleaned)


def retain(
    header: BatchHeader,
    batch: memoryview,
    compaction: Compaction,
    offsets: OffsetMap,
    transactions: CleanedTransactions,
) -> bytes | None:
    """Return the part of a batch that compaction keeps: all of it, some of its records, only its header, or None.

    Invariant: base and last offset of a kept batch stay the same, even if it is empty.
    """
    horizon = header.delete_horizon_ms
    is_due = horizon is not None and horizon <= compaction.now_ms
    is_obsolete_marker = False
    if header.is_control:
        is_obsolete_marker = transactions.is_marker_obsolete(header, batch)
        is_discarded = is_obsolete_marker and is_due
    else:
        is_discarded = transactions.is_data_obsolete(header)

    if is_discarded:
        rows, kept_rows = [], []
    else:
        rows = list(keys_of(batch))
        kept_rows = rows if header.is_control else [it for it in rows if _is_kept(it, offsets, is_due=is_due)]
    if not kept_rows:
        return build_empty_batch(header) if _must_stay(header, compaction) else None
    has_tombstone = not header.is_control and not all(has_value for _, _, has_value in kept_rows)
    needs_horizon = horizon is None and (has_tombstone or is_obsolete_marker)
    if len(kept_rows) == len(rows) and not needs_horizon:
        return bytes(batch)
    kept_offsets = {offset for offset, _, _ in kept_rows}
    kept = [record for record in parse_records(batch) if record.offset in kept_offsets]
    if any(
        one >= two for one, two in pairwise((header.base_offset - 1, *(record.offset for record in kept)))
    ):
        # The offsets of a producer's uncompressed batch are not checked, nor those of a topic that was not compacted.
        raise CorruptMessage(
            f"The offsets of the records in the batch at offset {header.base_offset} do not grow"
        )
    return build_batch(
        kept,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        leader_epoch=header.partition_leader_epoch,
        compression=header.compression,
        log_append_time_ms=header.max_timestamp if header.is_log_append_time else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_control=header.is_control,
        is_transactional=header.is_transactional,
        delete_horizon_ms=compaction.now_ms + compaction.delete_retention_ms if needs_horizon else horizon,
    )


def _is_kept(row: RecordKey, offsets: OffsetMap, *, is_due: bool) -> bool:
    offset, key, has_value = row
    if offset > offsets.last_offset:
        return True  # not covered by the map: left to the next cleaning
    if key is None or offsets.supersedes(key, offset):
        return False
    return has_value or not is_due


def _must_stay(header: BatchHeader, compaction: Compaction) -> bool:
    """Whether an empty batch must be kept: for a producer's last sequence or epoch, or to mark the clean part's end."""
    last = compaction.active_producers.get(header.producer_id) if header.has_producer_id else None
    if last is not None:
        if last.last_data_offset is not None:
            is_last = not header.is_control and header.last_offset >= last.last_data_offset
        else:
            is_last = header.is_control and header.producer_epoch == last.epoch
        if is_last:
            return True
    return header.next_offset == compaction.end_offset
