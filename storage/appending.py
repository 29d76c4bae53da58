"""Appending: origin (Kafka's AppendOrigin) and result (LogAppendInfo) of an append, and a follower's checks."""

from enum import Enum, auto
from typing import NamedTuple

from ottla.protocol.errors import CorruptMessage
from ottla.protocol.records.batch import BatchHeader, batches, crc_of
from ottla.storage.index import MAX_RELATIVE_OFFSET


class AppendOrigin(Enum):
    """The origin of the records of an append, which decides how much of them is checked."""

    #: The partition's leader, on a follower: the leader has checked everything.
    REPLICATION = auto()
    #: A coordinator of this broker: its own records, without sequence numbers.
    COORDINATOR = auto()
    #: A Produce request: everything is checked.
    CLIENT = auto()
    #: The active controller: its own records, which may exceed `max.message.bytes`.
    RAFT_LEADER = auto()


class UnexpectedAppendOffset(CorruptMessage):
    """A follower got a batch, first_offset to last_offset, that begins before its log end offset."""

    def __init__(self, message: str, *, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class AppendInfo(NamedTuple):
    """The result of an append; for a duplicate, with the offsets of the first append."""

    first_offset: int
    #: Inclusive; `first_offset - 1` if nothing was appended.
    last_offset: int
    #: The largest record timestamp, -1 without any.
    max_timestamp: int
    #: The broker's time for LogAppendTime topics; None for CreateTime.
    log_append_time_ms: int | None
    log_start_offset: int
    is_duplicate: bool
    size_bytes: int
    records_count: int


def duplicate_info(
    *, first_offset: int, last_offset: int, timestamp: int, log_start_offset: int, records_count: int
) -> AppendInfo:
    """The result of an append that wrote nothing, as the log has the batch already: that of the first append."""
    return AppendInfo(
        first_offset=first_offset,
        last_offset=last_offset,
        max_timestamp=timestamp,
        log_append_time_ms=timestamp,  # for CreateTime topics, too, as in Kafka
        log_start_offset=log_start_offset,
        is_duplicate=True,
        size_bytes=0,
        records_count=records_count,
    )


def follower_batches(
    view: memoryview, *, next_offset: int, leader_epoch: int, log_start_offset: int, name: object
) -> tuple[list[tuple[BatchHeader, memoryview]], AppendInfo]:
    """The batches that a follower appends at `next_offset`, and the result; see Log.append_as_follower.

    `FastAppend.append_as_follower` has the same checks for most batches: who changes one changes the other.

    Invariant of the result: offsets grow from `next_offset` on, and no epoch is newer than `leader_epoch`.
    `name` is for messages. Raises UnexpectedAppendOffset, CorruptMessage.
    Cost: one pass, 2 us for each batch and the CRC.
    """
    found: list[tuple[BatchHeader, memoryview]] = []
    end_offset, size_bytes, records_count, max_timestamp = next_offset, 0, 0, -1
    for each in batches(view):
        header, batch = each
        if header.partition_leader_epoch > leader_epoch:
            break
        if header.base_offset < end_offset:
            if found:
                raise CorruptMessage(
                    f"Batches of {name} are not in offset order: {header.base_offset} follows {end_offset - 1}"
                )
            raise UnexpectedAppendOffset(
                f"The fetched batch of {name} begins at offset {header.base_offset}, but the next one is {end_offset}",
                first_offset=header.base_offset,
                last_offset=header.last_offset,
            )
        if header.last_offset_delta < 0 or crc_of(batch) != header.crc:
            raise CorruptMessage(f"The batch of {name} at offset {header.base_offset} is corrupt")
        found.append(each)
        end_offset = header.base_offset + header.last_offset_delta + 1
        size_bytes += len(batch)
        records_count += header.records_count
        max_timestamp = max(max_timestamp, header.max_timestamp)
    if found and end_offset - 1 - found[0][0].base_offset > MAX_RELATIVE_OFFSET:
        # A segment's index cannot have both, and no leader sends batches of two segments. No CRC covers a base offset.
        raise CorruptMessage(
            f"The batches of {name} from {found[0][0].base_offset} to {end_offset - 1} "
            "are too far apart for one segment"
        )
    assert not found or found[-1][0].partition_leader_epoch <= leader_epoch, (name, found[-1][0])
    assert not found or next_offset <= found[0][0].base_offset < end_offset, (name, next_offset, end_offset)
    assert size_bytes <= len(view), (name, size_bytes, len(view))
    return found, AppendInfo(
        first_offset=found[0][0].base_offset if found else next_offset,
        last_offset=end_offset - 1,
        max_timestamp=max_timestamp,
        log_append_time_ms=None,
        log_start_offset=log_start_offset,
        is_duplicate=False,
        size_bytes=size_bytes,
        records_count=records_count,
    )
