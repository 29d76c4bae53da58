"""What an append is given and returns: its origin (Kafka's AppendOrigin), a follower's checks, its LogAppendInfo."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from protocol.errors import CorruptMessage
from protocol.records.batch import BatchHeader, batches, crc_is_valid


class AppendOrigin(Enum):
    """Where the records of an append come from, which decides how much is checked."""

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


def follower_info(
    headers: Sequence[BatchHeader], *, log_end_offset: int, log_start_offset: int
) -> AppendInfo:
    """The result of a follower's append of these batches at `log_end_offset`."""
    first_offset = headers[0].base_offset if headers else log_end_offset
    return AppendInfo(
        first_offset=first_offset,
        last_offset=headers[-1].last_offset if headers else first_offset - 1,
        max_timestamp=max((header.max_timestamp for header in headers), default=-1),
        log_append_time_ms=None,
        log_start_offset=log_start_offset,
        is_duplicate=False,
        size_bytes=sum(header.size_bytes for header in headers),
        records_count=sum(header.records_count for header in headers),
    )


def follower_headers(
    view: memoryview, *, next_offset: int, leader_epoch: int, name: object
) -> list[BatchHeader]:
    """The headers of the batches that a follower appends at `next_offset`; see Log.append_as_follower.

    Invariant of the result: offsets grow from `next_offset` on, and no epoch is newer than `leader_epoch`.
    `name` is for messages. Raises UnexpectedAppendOffset, CorruptMessage.
    """
    headers: list[BatchHeader] = []
    for header, batch in batches(view):
        if header.partition_leader_epoch > leader_epoch:
            break
        if header.base_offset < next_offset:
            if headers:
                raise CorruptMessage(
                    f"Batches of {name} are not in offset order: {header.base_offset} follows {next_offset - 1}"
                )
            raise UnexpectedAppendOffset(
                f"The fetched batch of {name} begins at offset {header.base_offset}, but the next one is {next_offset}",
                first_offset=header.base_offset,
                last_offset=header.last_offset,
            )
        if header.last_offset_delta < 0 or not crc_is_valid(batch):
            raise CorruptMessage(f"The batch of {name} at offset {header.base_offset} is corrupt")
        headers.append(header)
        next_offset = header.next_offset
    assert not headers or headers[-1].partition_leader_epoch <= leader_epoch, (name, headers[-1])
    return headers


def slices(view: memoryview, headers: Sequence[BatchHeader]) -> list[memoryview]:
    """The bytes of each of the consecutive batches in `view`."""
    position, slices = 0, []
    for header in headers:
        slices.append(view[position : position + header.size_bytes])
        position += header.size_bytes
    return slices
