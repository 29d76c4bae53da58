"""Requests and responses between replicas as short lines of a story: `records from 1 after e0? I believe in e0`."""

from typing import Any

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
)

_ASKED_OFFSETS = {
    LATEST: "where does your log end?",
    EARLIEST: "where does your log begin?",
    EARLIEST_LOCAL: "where does your local log begin?",
    LATEST_TIERED: "what is your last tiered offset?",
    EARLIEST_PENDING_UPLOAD: "which offset do you upload next?",
}


def request_line(key: int, message: Any) -> str:
    """Return a request of a follower in words."""
    if key == ApiKey.LIST_OFFSETS:
        timestamp = message.topics[0].partitions[0].timestamp
        return _ASKED_OFFSETS[timestamp]
    if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
        return f"where does e{message.topics[0].partitions[0].leader_epoch} end?"
    rows = [row for topic in message.topics for row in topic.partitions]
    if not rows:
        return "more?"
    (row,) = rows
    after = f" after e{row.last_fetched_epoch}" if row.last_fetched_epoch >= 0 else ""
    return f"records from {row.fetch_offset}{after}? I believe in e{row.current_leader_epoch}"


def response_line(key: int, response: Any) -> str:
    """Return the response to a follower, or to a client, in words."""
    if key == ApiKey.LIST_OFFSETS:
        (row,) = response.topics[0].partitions
        return error_of(row) or (str(row.offset) if row.offset >= 0 else "unknown")
    if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
        (row,) = response.topics[0].partitions
        return error_of(row) or f"e{row.leader_epoch} ends at {row.end_offset}"
    if response.error_code:
        return ErrorCode(response.error_code).name.upper()
    rows = [row for topic in response.responses for row in topic.partitions]
    return fetched_line(rows[0]) if rows else "nothing new"


def error_of(row: Any) -> str:
    """Return the name of a row's error; empty without one."""
    return ErrorCode(row.error_code).name.upper() if row.error_code else ""


def fetched_line(row: Any) -> str:
    """Return a row of a Fetch response in words."""
    if row.error_code:
        known = (
            f", log start {row.log_start_offset}, HW {row.high_watermark}" if row.high_watermark >= 0 else ""
        )
        return error_of(row) + known
    if row.diverging_epoch.epoch >= 0:
        return f"our logs part: e{row.diverging_epoch.epoch} ends at {row.diverging_epoch.end_offset}"
    values = [
        (record.value or b"").decode()
        for _, batch in batches(memoryview(bytes(row.records or b"")))
        for record in records(batch)
    ]
    return f"{' '.join(values) or 'no records'}, HW {row.high_watermark}"
