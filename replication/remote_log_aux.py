"""Requests, responses and the action with which a follower continues after the remote tier (BuildingRemoteLogAux).

A leader returns OFFSET_MOVED_TO_TIERED_STORAGE for an offset that only the remote tier has. The follower does not copy
those records. It restarts its log at the leader's local log start offset, with what a log of these records would have:
leader epochs, producer state, log start offset. All of it is in the indexes of the copy that ends there.

    leader's log       [0 .... tiered .... 100)[100 ... local ... 170)     log start 0, local log start 100
    FetchLeaderOffsets                                                     <- 0, 100, epoch 3 at offset 99
    copy of offset 99  [80, 100) e2@80 e3@92                               -> the log restarts at 100
    or                 [80, 120) e2@80 e3@92                               -> at 120, if the leader's log has (e3, 119)

With KIP-1023 an empty follower does not copy what the remote tier has already, either, though the leader
still has it in its local segments: its log restarts at the leader's earliest pending upload offset, here 150.

    FetchLeaderOffsets                                                     <- 0, 100, 150, epoch 4 at offset 149
    copy of offset 149 [120, 150) e3@120 e4@140                            -> the log restarts at 150

The second copy of offset 99 is another leader's, whose segments begin and end elsewhere. Its producer state
is that of its end, so the log has to restart there; and after an unclean election its last records may be
those of the branch that was given up. They are in the leader's log if the leader's epoch of the copy's last
record does not end before (`FetchEpochEnd`). Counter-example without that question: the leader has e0
[0, 110) e5 [110, 170), and the copy is [80, 120) e0@80.

The leader's log goes on meanwhile: its pending offset advances, and so does its local log start. A restarted
log whose end is before that local log start is refused once more. It is not empty then, so it restarts at the
local log start.

Source: KIP-405, "Follower fetch protocol in detail"; KIP-1023, "ReplicaFetcher Changes"; TierStateMachine and
AbstractFetcherThread of Kafka 4.3.1, which starts at the copy's end without the question.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.protocol.errors import OffsetNotAvailable


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLeaderOffsets:
    """Asks for `LeaderOffsets`: one row in each of two or three ListOffsets requests.

    There may also be one row in an OffsetForLeaderEpoch request.
    """

    leader_epoch: int
    #: Whether the follower's local log is to start at the earliest pending upload offset (`bootstrap_offset`).
    prefers_last_tiered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOffsets:
    """The start of the leader's log in both tiers, and the offset at which the follower's local log is to start."""

    log_start_offset: int
    local_log_start_offset: int
    bootstrap_offset: int
    #: The leader epoch of the record before `bootstrap_offset`; None: the leader's log has none there.
    previous_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchEpochEnd:
    """Asks for an `EpochEnd`: one row in an OffsetForLeaderEpoch request."""

    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The leader's largest epoch <= the requested one, and that epoch's end offset (exclusive)."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRemoteLogAux:
    """Restart the log at the end of the copy that has the record before `end_offset`.

    Then call `on_remote_log_aux_built`; `on_remote_log_aux_failed` if there is no such copy yet or the store fails;
    `on_unconfirmed_copy` if it ends later, and `leader_ends` does not have its last epoch.
    """

    leader_epoch: int
    #: The leader's log has [log_start_offset, end_offset) in the remote tier.
    log_start_offset: int
    end_offset: int
    #: The leader epoch of the record before `end_offset`.
    previous_epoch: int
    #: Where epochs end in the leader's log, exclusive; None: it has no record of that epoch.
    leader_ends: Mapping[int, int | None]


def bootstrap_offset(
    *,
    log_start_offset: int,
    local_log_start_offset: int,
    earliest_pending_upload_offset: int | None,
    prefers_last_tiered: bool,
) -> int:
    """Return the offset at which a follower that lacks tiered records is to start its local log.

    It is the leader's local log start (KIP-405); or, for an empty follower with `prefers_last_tiered`, the earliest
    pending upload offset (KIP-1023). If that is unknown (None), either nothing is tiered yet, so that log
    start and local log start are the same, or the leader does not know it yet: raises OffsetNotAvailable, and
    the follower asks again.

    Below the leader's log start it says that no copy is valid any more, so that the leader has everything in its local
    segments, from the log start on. Below the local log start, its records could not be fetched. Kafka's
    leader limits it to the log start only (UnifiedLog; LocalLeaderEndPoint, which log directory moves use, to
    both).

    >>> def begins(log_start: int, local_start: int, pending: int | None, *, last_tiered: bool = True) -> int:
    ...     return bootstrap_offset(
    ...         log_start_offset=log_start,
    ...         local_log_start_offset=local_start,
    ...         earliest_pending_upload_offset=pending,
    ...         prefers_last_tiered=last_tiered,
    ...     )
    >>> begins(0, 3, 6), begins(0, 3, 6, last_tiered=False)
    (6, 3)
    >>> begins(50, 50, 20), begins(50, 50, None)
    (50, 50)
    """
    if not prefers_last_tiered:
        return local_log_start_offset
    if earliest_pending_upload_offset is not None:
        return max(earliest_pending_upload_offset, local_log_start_offset)
    if log_start_offset < local_log_start_offset:
        raise OffsetNotAvailable(
            f"records before {local_log_start_offset} are tiered, and the leader does not know up to where"
        )
    return local_log_start_offset


def previous_epoch(bootstrap_offset: int, *, epoch: int, earlier: EpochEnd | None) -> int:
    """The leader epoch of the record before `bootstrap_offset`, which is in `epoch`.

    `earlier` is the leader's `EpochEnd` for `epoch - 1`, None for epoch 0 and without an answer. An epoch
    before may have written nothing, so the answer names an older one: of the epochs e1@85 e3@90, epoch 2.

    >>> previous_epoch(90, epoch=3, earlier=EpochEnd(epoch=1, end_offset=90))
    1
    >>> previous_epoch(95, epoch=3, earlier=EpochEnd(epoch=1, end_offset=90))
    3
    """
    if earlier is None or earlier.end_offset < bootstrap_offset:
        return epoch
    return earlier.epoch
