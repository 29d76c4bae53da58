"""Validation of a record batch before a leader appends it: checks, offsets, conversion (Kafka's LogValidator).

A leader's append is one batch of magic 2. In order:

1. check: one whole batch with no other after it; base offset 0; at most `max.message.bytes`; CRC-32C; no control
   batch; consistent count, offset range, sequence and transaction flag;
2. check: records with keys where the topic is compacted, timestamps within the topic's bounds;
3. assign: offsets from `first_offset` on, the leader epoch, the broker's time where the topic is LogAppendTime, and
   the topic's codec where `compression.type` names another one.

Step 2 needs the records. Kafka iterates over all of them in every batch (and decompresses for it). In Python this takes
0.35 us a record: for a megabyte of 1,000 records it would nearly double the cost of the append, for one of
10,000 multiply it by ten; the fastest parser of a library (aiokafka's, in Cython) takes a fifth of that, needs
an import of 80 ms, and is made for bytes from a broker. So a batch is opened where it has few records, or where
the result depends on them:

- it has at most `FULLY_CHECKED` records;
- the topic is compacted (keys), or another codec is to be written (the batch is rebuilt anyway);
- CreateTime with `message.timestamp.before.max.ms` set, a header whose maximum is after the upper bound, or
  timestamps in it that contradict each other (maximum before base, none at all): the error names the records;
- the header claims LogAppendTime, which only the broker may set;
- the first `FRAMES_WALKED` record lengths of an uncompressed batch do not fit into it.

Otherwise the header is trusted, after the CRC has shown that it is what the client wrote. So this broker, unlike
Kafka, stores a batch of more records whose payload contradicts its header (invalid compressed data, another
number of records, a maximum timestamp that no record has). That harms readers of the client's own topic, as
garbage in a value would; no part of the broker relies on a payload being sound, and nothing is deleted by such
a header's maximum timestamp alone (`ottla.storage.segment_times`). `deep=True` checks all that Kafka checks.

The cost of opening a batch grows with the number of its records: a megabyte may hold a hundred or millions of them.
A caller that must not block passes the budget of its `turns`. A large batch raises NeedsThread then, and is
validated in a thread: the result is appended like the batch itself, and gets its offsets then. What is opened
at once is charged, unless it is short; where the turn is spent, only what is short is opened at once.

Other differences: a transactional batch without producer id, and a producer id with a negative epoch, are rejected; a
payload that its codec cannot read is INVALID_RECORD, where Kafka mostly returns UNKNOWN_SERVER_ERROR, and so
are gaps between the offsets of a compressed batch that keeps its codec; negative timestamps, which Kafka's
rebuilding cannot handle, are kept.
"""

from struct import Struct
from typing import Final, NamedTuple, Protocol

from ottla.config.log_config import LogConfig
from ottla.protocol.checksum import crc32c
from ottla.protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    MessageTooLarge,
    UnsupportedForMessageFormat,
)
from ottla.protocol.records.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    batches,
    patch,
    patch_timestamps,
    patched,
    read_header,
)
from ottla.protocol.records.builder import assemble, build_batch
from ottla.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression, TooLargeToOpen, compress
from ottla.protocol.records.record import MAX_RECORD_BYTES, MAX_RECORDS, Bounds, decode_records, payload_of
from ottla.protocol.records.varint import read_varint
from ottla.protocol.varint import encode_varint
from ottla.storage.appending import AppendOrigin
from ottla.storage.record_checks import InvalidRecords, InvalidTimestamps, check_records

__all__ = [
    "FRAMES_WALKED",
    "InvalidRecords",
    "InvalidTimestamps",
    "NeedsThread",
    "ValidatedRecords",
    "validate",
]

#: How many records' lengths are followed in an uncompressed batch that is not opened: 0.15 us each.
FRAMES_WALKED: Final = 4

#: Batches of at most so many records are checked record by record: 6 us.
FULLY_CHECKED: Final = 16

#: Most records of a batch that is opened on the event loop: about a millisecond's work.
QUICK_RECORDS: Final = 500
#: The same bound in bytes of the payload, compressed or not.
QUICK_BYTES: Final = 64 * 1024
#: So many bytes, of `FULLY_CHECKED` records, are opened in any turn: 2 us without a codec, 5 with lz4 or
#: snappy, 15 with gzip, 35 with zstd.
SHORT_BYTES: Final = 8 * 1024
#: Records that are checked, and bytes that are decompressed or compressed, in one step of a turn: some 20 us.
_RECORDS_OF_STEP, _BYTES_OF_STEP, _COMPRESSED_BYTES_OF_STEP = 10, 8 * 1024, 1024

_MAX_LONG: Final = 2**63 - 1
#: A length, attributes, two deltas, two lengths and a count, of one byte each.
_SMALLEST_RECORD_BYTES: Final = 7
#: The first of these as it is written: without itself, and doubled (zigzag).
_SMALLEST_LENGTH: Final = (_SMALLEST_RECORD_BYTES - 1) << 1
_EIGHT: Final = 8
#: A batch of one record whose length has two bytes.
_LARGEST_PLAIN: Final = HEADER_SIZE_BYTES + 2 + 2**13 - 1
_first_eight = Struct("<Q").unpack_from
#: Results of `_plain_start`: of some 8,000 sizes at most.
_plain_starts: dict[int, tuple[int, int]] = {}


class NeedsThread(Exception):
    """The batch must be opened and is large, or the turn is spent: the caller validates a copy of it in a thread."""


class Turns(Protocol):
    """The budget of a loop's turns (`ottla.runtime.turns`)."""

    @property
    def is_spent(self) -> bool:
        """Whether long work has to be put off."""

    def charge(self, steps: int) -> None:
        """Long work takes some steps of this turn: some 20 us each."""


class ValidatedRecords(NamedTuple):
    """One validated batch, in the form in which it is written."""

    #: With the offsets and leader epoch that were assigned.
    header: BatchHeader
    #: The bytes to write, in order. Two buffers (16 bytes and the rest) if the caller's could not be patched in place
    #: and nothing else had to change; one otherwise, and always for control batches.
    buffers: tuple[bytes | memoryview, ...]
    #: Size of all buffers together.
    size_bytes: int
    #: The largest timestamp in the batch, or the broker's time; -1 for none.
    max_timestamp: int
    #: The broker's time if the topic is LogAppendTime; the Produce response has it.
    log_append_time_ms: int | None
    #: Whether the batch was rebuilt: the codec or inner offsets have changed.
    is_rebuilt: bool


def validate(
    records: memoryview | bytes | bytearray | ValidatedRecords,
    *,
    first_offset: int,
    now_ms: int,
    config: LogConfig,
    leader_epoch: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    deep: bool = False,
    turns: Turns | None = None,
) -> ValidatedRecords:
    """Check the one batch in `records`, and assign offsets from `first_offset` on.

    `records` is patched in place if it is writable, otherwise it is not changed. Bytes after the batch that are not a
    whole batch are dropped, as in Kafka. `deep` opens every batch; see the module's docstring, also for `turns`.
    ValidatedRecords, of an earlier call with this configuration, only get their offsets, and this time with
    LogAppendTime.
    Cost: 3 us and the CRC (0.8 us for 16 KiB) for a batch that need not be opened. The fast path has the same
    checks, in 1 us, for most batches (`ottla.storage.fast_append.fast_path_fields`): who changes one changes the other.

    Raises CorruptMessage, InvalidRecord, MessageTooLarge, UnsupportedCompressionType, UnsupportedForMessageFormat,
    and InvalidRecords or InvalidTimestamps with the errors per record; NeedsThread only with `turns`.
    """
    assert first_offset >= 0, first_offset
    if type(records) is memoryview:
        view = records
    elif isinstance(records, ValidatedRecords):
        return _placed(records, first_offset=first_offset, leader_epoch=leader_epoch, now_ms=now_ms)
    else:
        view = memoryview(records)
    header = _only_header(view, origin)
    size_bytes = header.batch_length + LOG_OVERHEAD_BYTES
    batch = view if len(view) == size_bytes else view[:size_bytes]
    is_client = origin is AppendOrigin.CLIENT
    if is_client and header.base_offset != 0:
        raise InvalidRecord(f"The base offset of a produced batch is 0, not {header.base_offset}")
    if size_bytes > config.max_message_bytes and origin is not AppendOrigin.RAFT_LEADER:
        raise MessageTooLarge(
            f"The batch has {size_bytes} bytes, more than max.message.bytes {config.max_message_bytes}"
        )
    if crc32c(batch[ATTRIBUTES_OFFSET:]) != header.crc:
        raise CorruptMessage(f"The batch's CRC is not the stored one, {header.crc}")
    if is_client:
        _check_fields(header)
    source = target = header.compression
    # A control batch that is not compressed stays so.
    if config.compression_type != "producer" and not (header.is_control and source is Compression.NONE):
        target = Compression.of_name(config.compression_type)
    log_append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else None
    quick_records = QUICK_RECORDS
    if (
        source is target
        and not deep
        and (
            not is_client
            or (
                not config.is_compacted
                and _is_header_enough(header, batch, config, now_ms, log_append_time_ms)
            )
        )
    ):
        if not is_client or header.records_count > FULLY_CHECKED:
            return _in_place(
                header,
                batch,
                first_offset=first_offset,
                leader_epoch=leader_epoch,
                max_timestamp=header.max_timestamp,
                log_append_time_ms=log_append_time_ms,
            )
        # Opened at once as on the fast path, since the records are few, but for what is large when it is
        # decompressed.
        quick_records = FULLY_CHECKED
        turns = None if source is Compression.NONE else turns
    return _open(
        header,
        batch,
        target,
        config,
        first_offset=first_offset,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        log_append_time_ms=log_append_time_ms,
        origin=origin,
        turns=turns,
        quick_records=quick_records,
    )


def _placed(
    validated: ValidatedRecords, *, first_offset: int, leader_epoch: int, now_ms: int
) -> ValidatedRecords:
    """Assign offsets and time to a batch that was validated with others; in place if it is writable."""
    (buffer,) = validated.buffers
    batch = memoryview(buffer)
    if validated.log_append_time_ms is not None:
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        patch_timestamps(batch, max_timestamp=now_ms, is_log_append_time=True)
        validated = validated._replace(
            header=read_header(batch), max_timestamp=now_ms, log_append_time_ms=now_ms
        )
    buffers: tuple[bytes | memoryview, ...] = (batch,)
    if batch.readonly:
        buffers = patched(batch, base_offset=first_offset, leader_epoch=leader_epoch)
    else:
        patch(batch, base_offset=first_offset, leader_epoch=leader_epoch)
    header = validated.header
    header = BatchHeader._make((first_offset, header.batch_length, leader_epoch, *header[3:]))
    return validated._replace(header=header, buffers=buffers)


def _only_header(view: memoryview, origin: AppendOrigin) -> BatchHeader:
    try:
        if len(view) < HEADER_SIZE_BYTES and next(batches(view), None) is None:
            raise InvalidRecord(f"{len(view)} bytes are too few for a record batch")
        header = read_header(view)
    except UnsupportedForMessageFormat as reason:
        if origin is AppendOrigin.CLIENT:  # Kafka's answer to producers of older formats
            raise InvalidRecord(reason.message) from None
        raise
    size_bytes = header.batch_length + LOG_OVERHEAD_BYTES
    if len(view) != size_bytes:
        if len(view) < size_bytes:
            raise InvalidRecord(f"Incomplete record batch: {len(view)} of {size_bytes} bytes")
        if next(batches(view[size_bytes:]), None) is not None:
            raise InvalidRecord("More than one record batch for one partition")
    return header


def _check_fields(header: BatchHeader) -> None:
    """Check that the header fields of a producer's batch are consistent. Raises InvalidRecord."""
    count = header.records_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"The batch has {count} records, but its offsets are 0 to {header.last_offset_delta}"
        )
    if header.attributes & CONTROL_FLAG:
        raise InvalidRecord("Clients are not allowed to write control records")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(
                f"Producer {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
            )
    elif header.attributes & TRANSACTIONAL_FLAG:
        raise InvalidRecord("A transactional batch needs a producer id")


def _is_header_enough(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, log_append_time_ms: int | None
) -> bool:
    """Whether the header of a batch with many records is enough, so that the batch need not be opened.

    Precondition: the topic is not compacted, and the batch keeps its codec.
    """
    attributes = header.attributes
    if attributes & LOG_APPEND_TIME_FLAG:
        return False
    if log_append_time_ms is None and not (
        0 <= header.base_timestamp <= header.max_timestamp <= now_ms + config.message_timestamp_after_max_ms
        and config.message_timestamp_before_max_ms == _MAX_LONG
    ):
        return False
    if header.records_count > MAX_RECORDS:
        return False
    if attributes & COMPRESSION_MASK:
        return config.max_decompressed_message_bytes == MAX_RECORD_BYTES
    return is_framed(batch, header.records_count)


def is_framed(batch: memoryview, count: int) -> bool:
    """Whether the first `FRAMES_WALKED` records fit into the batch by their lengths; if there are no more, exactly."""
    position = HEADER_SIZE_BYTES
    end = len(batch)
    if count * _SMALLEST_RECORD_BYTES > end - position:
        return False
    walked = 0
    try:
        while walked < count and walked < FRAMES_WALKED:  # 0.1 us less than a range of the smaller one
            walked += 1
            raw = batch[position]
            position += 1
            if raw >= 0x80:
                second = batch[position]
                position += 1
                if second < 0x80:
                    raw = raw & 0x7F | second << 7
                elif (third := batch[position]) < 0x80:
                    position += 1
                    raw = raw & 0x7F | (second & 0x7F) << 7 | third << 14
                else:
                    size, position = read_varint(batch, position - 2)
                    raw = size << 1
            if raw < _SMALLEST_LENGTH or raw & 1:  # too short, or negative
                return False
            position += raw >> 1
    except (IndexError, InvalidRecord):
        return False
    return position == end if count <= FRAMES_WALKED else position < end


def is_one_record(batch: memoryview) -> bool:
    """Whether the batch is one uncompressed record of its base timestamp and offset, with a value and no headers.

    False: `largest_timestamp` decides. A third of its time, and a sixth without a key: most small batches are this.
    """
    end = len(batch)
    start = _plain_starts.get(end) or _plain_start(end)
    if start is not None and _first_eight(batch, HEADER_SIZE_BYTES)[0] & start[0] == start[1]:
        return not batch[-1]
    try:
        raw, position = batch[HEADER_SIZE_BYTES], HEADER_SIZE_BYTES + 1
        if raw >= 0x80:
            second, position = batch[position], position + 1
            if second >= 0x80:
                return False
            raw = raw & 0x7F | second << 7
        # No timestamp and offset delta, behind the attributes; no headers, at the end.
        if raw & 1 or position + (raw >> 1) != end or batch[position + 1] or batch[position + 2] or batch[-1]:
            return False
        raw, position = batch[position + 3], position + 4
        if raw != 1:  # a key
            if raw & 0x81:
                return False
            position += raw >> 1
        raw, position = batch[position], position + 1
        if raw >= 0x80:
            second, position = batch[position], position + 1
            if second >= 0x80:
                return False
            raw = raw & 0x7F | second << 7
    except IndexError:
        return False
    return not raw & 1 and position + (raw >> 1) == end - 1


def _plain_start(size_bytes: int) -> tuple[int, int] | None:
    """A mask of the first eight bytes of a batch's payload, and their value if it is one record without a key.

    Its lengths follow from the size. None: they have more than eight bytes, or all have fewer.
    """
    if size_bytes > _LARGEST_PLAIN:
        return None
    for width in (1, 2):
        record_bytes = size_bytes - HEADER_SIZE_BYTES - width
        for value_width in (1, 2):
            value_bytes = record_bytes - value_width - 5
            if value_bytes < 1 or width + record_bytes < _EIGHT:
                continue
            start = encode_varint(record_bytes) + b"\0\0\0\1" + encode_varint(value_bytes)
            if len(start) == width + 4 + value_width:
                found = (1 << 8 * len(start)) - 1, int.from_bytes(start, "little")
                _plain_starts[size_bytes] = found
                return found
    return None


def _in_place(
    header: BatchHeader,
    batch: memoryview,
    *,
    first_offset: int,
    leader_epoch: int,
    max_timestamp: int,
    log_append_time_ms: int | None,
) -> ValidatedRecords:
    """The batch with its payload as it is and new offsets; the header's timestamps are patched only if they change."""
    if log_append_time_ms is not None:
        max_timestamp = log_append_time_ms
    if (
        log_append_time_ms is not None
        or max_timestamp != header.max_timestamp
        or header.attributes & LOG_APPEND_TIME_FLAG
    ):
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        patch_timestamps(
            batch, max_timestamp=max_timestamp, is_log_append_time=log_append_time_ms is not None
        )
        header = read_header(batch)
    elif batch.readonly and header.attributes & CONTROL_FLAG:
        batch = memoryview(bytearray(batch))  # in one buffer: it is small, and the producer state reads it
    buffers: tuple[bytes | memoryview, ...]
    if batch.readonly:
        buffers = patched(batch, base_offset=first_offset, leader_epoch=leader_epoch)
    else:
        patch(batch, base_offset=first_offset, leader_epoch=leader_epoch)
        buffers = (batch,)
    header = BatchHeader._make((first_offset, header.batch_length, leader_epoch, *header[3:]))
    return ValidatedRecords(header, buffers, len(batch), max_timestamp, log_append_time_ms, False)


def _open(
    header: BatchHeader,
    batch: memoryview,
    target: Compression,
    config: LogConfig,
    *,
    first_offset: int,
    leader_epoch: int,
    now_ms: int,
    log_append_time_ms: int | None,
    origin: AppendOrigin,
    turns: Turns | None,
    quick_records: int,
) -> ValidatedRecords:
    """Check every record; keep the payload if codec and inner offsets stay the same."""
    is_rewritten = header.compression is not target
    payload = _payload(header, batch, config, turns, is_rewritten=is_rewritten, quick_records=quick_records)
    found = check_records(header, payload, config, now_ms, is_log_append_time=log_append_time_ms is not None)
    # As in Kafka, the inner offsets of an uncompressed batch that keeps its codec are ignored: gaps between
    # them stay. Those of a compressed one fail there (its records are read without keys and values, and cannot
    # be written again).
    if not is_rewritten and found.has_gaps and header.is_compressed:
        raise InvalidRecord("The offsets of the records in the compressed batch do not follow each other")
    if header.records_count == 0 or not is_rewritten:
        return _in_place(
            header,
            batch,
            first_offset=first_offset,
            leader_epoch=leader_epoch,
            max_timestamp=found.max_timestamp,
            log_append_time_ms=log_append_time_ms,
        )
    level = _level(target, config)
    if found.has_gaps or header.is_log_append_time or found.first_timestamp != header.base_timestamp:
        rebuilt = build_batch(
            (
                record._replace(offset=offset)
                for offset, record in enumerate(decode_records(payload, header), start=first_offset)
            ),
            base_offset=first_offset,
            leader_epoch=leader_epoch,
            compression=target,
            compression_level=level,
            log_append_time_ms=log_append_time_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            is_control=header.is_control,
            is_transactional=header.is_transactional,
        )
    else:
        # Rebuilding the records would give the same payload: only the codec changes.
        rebuilt = assemble(
            compress(target, payload, level=level),
            base_offset=first_offset,
            leader_epoch=leader_epoch,
            attributes=target
            | header.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
            | (LOG_APPEND_TIME_FLAG if log_append_time_ms is not None else 0),
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=found.max_timestamp if log_append_time_ms is None else log_append_time_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            records_count=header.records_count,
        )
    if len(rebuilt) > config.max_message_bytes and origin is not AppendOrigin.RAFT_LEADER:
        raise MessageTooLarge(
            f"The batch has {len(rebuilt)} bytes when compressed with {target.name.lower()}, more than "
            f"max.message.bytes {config.max_message_bytes}"
        )
    made = read_header(rebuilt)
    assert (made.base_offset, made.records_count) == (first_offset, header.records_count), (made, header)
    return ValidatedRecords(
        made, (rebuilt,), len(rebuilt), made.max_timestamp, log_append_time_ms, is_rebuilt=True
    )


def _payload(
    header: BatchHeader,
    batch: memoryview,
    config: LogConfig,
    turns: Turns | None,
    *,
    is_rewritten: bool,
    quick_records: int,
) -> bytes:
    """The records' bytes, decompressed; what is done with them is charged to `turns`.

    Raises InvalidRecord, and NeedsThread.
    """
    max_bytes = MAX_DECOMPRESSED_BYTES
    if turns is not None:
        max_bytes = QUICK_BYTES
        if turns.is_spent:
            quick_records = min(quick_records, FULLY_CHECKED)
            max_bytes = _COMPRESSED_BYTES_OF_STEP if is_rewritten else SHORT_BYTES
        if header.records_count > quick_records or len(batch) > max_bytes:
            raise NeedsThread
    bounds = Bounds(max_bytes=max_bytes, max_record_bytes=config.max_decompressed_message_bytes)
    try:
        payload = payload_of(header, batch, bounds)
    except TooLargeToOpen:
        if turns is not None:
            raise NeedsThread from None
        raise
    except CorruptMessage as reason:
        # The checksum is correct, so the producer's data is wrong: a retry would not help.
        raise InvalidRecord(reason.message) from None
    if turns is not None:
        steps = header.records_count // _RECORDS_OF_STEP + len(payload) // _BYTES_OF_STEP
        if is_rewritten:
            steps += len(payload) // _COMPRESSED_BYTES_OF_STEP
        if steps:
            turns.charge(steps)
    return payload


def _level(target: Compression, config: LogConfig) -> int | None:
    """The topic's compression level for a codec; with `compression.type=producer` it is the producer's codec."""
    match target:
        case Compression.GZIP:
            return config.compression_gzip_level
        case Compression.LZ4:
            return config.compression_lz4_level
        case Compression.ZSTD:
            return config.compression_zstd_level
        case _:
            return None
