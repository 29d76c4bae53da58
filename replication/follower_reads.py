"""Consumers that read from followers (KIP-392): the replicas that a leader may name, and what a follower answers.

The leader chooses among itself and the followers that `candidates` returns, by the selector of `replica_selector`.
A follower distinguishes an offset that it does not have yet from one that does not exist ("Out of range handling"):

    fetch offset          0 ... start ........ high watermark ........ log end ..... the leader's high watermark ...
    of a follower's log       3 |  readable  |           1           |          2          |          4

Source: KIP-392; ReplicaManager.findPreferredReadReplica and Partition.readRecords of Kafka 4.3.1, whose
followers return no records in case 1 and OFFSET_OUT_OF_RANGE in case 2.
"""

from enum import Enum
from typing import NamedTuple

from ottla.replication.leader_state import LeaderState


class OffsetOnFollower(Enum):
    """The position of a consumer's fetch offset in a follower's log; the numbers are those of KIP-392's cases."""

    READABLE = 0
    #: It is in the log, but the follower does not know that it is committed: OFFSET_NOT_AVAILABLE.
    NOT_KNOWN_COMMITTED = 1
    #: It is committed, or may be, but not in the log yet: OFFSET_NOT_AVAILABLE.
    NOT_REPLICATED = 2
    #: It is before the log start: OFFSET_OUT_OF_RANGE.
    DELETED = 3
    #: It is neither in the log nor known to be committed: OFFSET_OUT_OF_RANGE.
    NOT_EXISTING = 4


def offset_on_follower(
    fetch_offset: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    leader_high_watermark: int | None,
) -> OffsetOnFollower:
    """The KIP's case of a consumer's fetch offset; `leader_high_watermark` is the last one that the leader reported.

    Until the leader of the epoch has reported one (None), case 4 cannot be distinguished: it is answered as case 2.

    >>> def case(fetch_offset, leader_high_watermark=12):
    ...     return offset_on_follower(fetch_offset, log_start_offset=3, high_watermark=7, log_end_offset=10,
    ...                               leader_high_watermark=leader_high_watermark).value
    >>> [case(offset) for offset in (2, 3, 7, 8, 9, 10, 12, 13)], case(13, None)
    ([3, 0, 0, 1, 1, 2, 2, 4], 2)
    """
    assert log_start_offset <= high_watermark <= log_end_offset, (
        log_start_offset,
        high_watermark,
        log_end_offset,
    )
    if fetch_offset < log_start_offset:
        return OffsetOnFollower.DELETED
    if fetch_offset <= high_watermark:
        return OffsetOnFollower.READABLE
    if leader_high_watermark is not None and fetch_offset > max(log_end_offset, leader_high_watermark):
        return OffsetOnFollower.NOT_EXISTING
    if fetch_offset < log_end_offset:
        return OffsetOnFollower.NOT_KNOWN_COMMITTED
    return OffsetOnFollower.NOT_REPLICATED


class Candidate(NamedTuple):
    """A follower that a consumer may be redirected to, as its fetches show it."""

    broker_id: int
    log_end_offset: int
    #: 0 if never.
    caught_up_ms: int
    local_log_start_offset: int | None


def candidates(leader_state: LeaderState, fetch_offset: int) -> list[Candidate]:
    """The followers that a consumer may be redirected to, by broker id: members of the ISR that have the offset.

    Another replica may lag without bound, and its consumers with it.
    """
    return [
        Candidate(
            replica,
            progress.log_end_offset,
            progress.caught_up_ms or 0,
            None if progress.local_log is None else progress.local_log.start_offset,
        )
        for replica, progress in sorted(leader_state.followers.items())
        if replica in leader_state.isr
        and progress.log_end_offset is not None
        and progress.log_start_offset is not None
        and progress.log_start_offset <= fetch_offset <= progress.log_end_offset
    ]
