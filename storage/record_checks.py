"""Checks of each record of a produced batch: key, timestamp, offset.

Source: LogValidator.validateRecord of Kafka 4.3.1.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, InvalidRecord
from ottla.protocol.records.batch import NO_TIMESTAMP, BatchHeader
from ottla.protocol.records.record import decode_records

#: Most invalid records of a batch that are reported one by one; the whole batch is rejected in any case.
MAX_RECORD_ERRORS: Final = 1000


class InvalidRecords(InvalidRecord):
    """Some records of a batch are invalid; nothing of the batch is written."""

    def __init__(self, message: str, record_errors: Sequence[tuple[int, str]]) -> None:
        super().__init__(message)
        #: (index in the batch, what is wrong with it)
        self.record_errors = tuple(record_errors)


class InvalidTimestamps(InvalidRecords):
    """Some records of a batch are too old, too far in the future, or claim LogAppendTime."""

    code = ErrorCode.invalid_timestamp


class RecordsFound(NamedTuple):
    """Values from the records, which the header may contradict."""

    first_timestamp: int
    max_timestamp: int
    #: Whether the offsets inside do not follow each other from the base offset on.
    has_gaps: bool


def check_records(
    header: BatchHeader, payload: bytes, config: LogConfig, now_ms: int, *, is_log_append_time: bool
) -> RecordsFound:
    """Check key, timestamp and offset of every record. No record is kept in memory: a batch may have millions.

    Raises InvalidRecords or InvalidTimestamps with the errors of at most `MAX_RECORD_ERRORS` records.
    """
    errors: list[tuple[int, str]] = []
    errors_count = 0
    is_timestamp_wrong = False
    is_compacted = config.is_compacted
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    first_timestamp = None
    max_timestamp = NO_TIMESTAMP
    has_gaps = False
    for index, (offset, timestamp, key, _, _) in enumerate(decode_records(payload, header)):
        if first_timestamp is None:
            first_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        if offset != header.base_offset + index:
            has_gaps = True
        if is_compacted and key is None:
            wrong = "A compacted topic cannot accept a record without key"
        elif not is_log_append_time and timestamp != NO_TIMESTAMP:
            if earliest <= timestamp <= latest:
                continue
            is_timestamp_wrong = True
            wrong = f"Timestamp {timestamp} is out of range [{earliest}, {latest}]"
        elif header.is_log_append_time:
            is_timestamp_wrong = True
            wrong = "Producers cannot set the timestamp type to LogAppendTime"
        else:
            continue
        errors_count += 1
        if errors_count <= MAX_RECORD_ERRORS:
            errors.append((index, wrong))
    if is_timestamp_wrong:
        raise InvalidTimestamps("One or more records have been rejected due to invalid timestamp", errors)
    if errors:
        raise InvalidRecords(
            f"{errors_count} records have been rejected, among them "
            + "; ".join(f"record {index}: {wrong}" for index, wrong in errors[:3]),
            errors,
        )
    return RecordsFound(
        header.base_timestamp if first_timestamp is None else first_timestamp, max_timestamp, has_gaps
    )
