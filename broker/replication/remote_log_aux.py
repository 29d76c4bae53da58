"""Requests, responses and the action with which a follower continues after the remote tier (BuildingRemoteLogAux of KIP-405).

A leader returns OFFSET_MOVED_TO_TIERED_STORAGE for an offset that only the remote tier has. The follower does not copy
those records. It restarts its log at the leader's local log start offset, with what a log of these records would have:
leader epochs, producer state, log start offset. All of it is in the indexes of the copy that ends there.

    leader's log       [0 .... tiered .... 100)[100 ... local ... 170)     log start 0, local log start 100
    FetchLeaderOffsets                                                     <- 0, 100, epoch 3 at offset 99
    copy of offset 99  [80, 100) e2@80 e3@92                               -> the log restarts at 100
    or                 [80, 120) e2@80 e3@92                               -> at 120, if the leader's log has (e3, 119)

The second copy is another leader's, whose segments begin and end elsewhere. Its producer state is that of its end, so the
log has to restart there; and after an unclean election its last records may be those of the branch that was given up.
They are in the leader's log if the leader's epoch of the copy's last record does not end before (`FetchEpochEnd`). Counter-
example without that question: the leader has e0 [0, 110) e5 [110, 170), and the copy is [80, 120) e0@80.

Source: KIP-405, "Follower fetch protocol in detail"; TierStateMachine of Kafka 4.3.1, which starts at the copy's end
without the question.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLeaderOffsets:
    """Asks for `LeaderOffsets`: one row in two ListOffsets requests, and maybe one in an OffsetForLeaderEpoch request."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderOffsets:
    """Where the leader's log starts in both tiers.

    KIP-1023 will add the earliest pending upload offset, as another offset at which a follower may begin.
    """

    log_start_offset: int
    local_log_start_offset: int
    #: The leader epoch of the record before `local_log_start_offset`.
    previous_epoch: int


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
    """Restart the log at the end of the copy that has the record before `local_log_start_offset`.

    Then call `on_remote_log_aux_built`; `on_remote_log_aux_failed` if there is no such copy yet or the store fails;
    `on_unconfirmed_copy` if it ends later, and `leader_ends` does not have its last epoch.
    """

    leader_epoch: int
    log_start_offset: int
    local_log_start_offset: int
    #: The leader epoch of the record before `local_log_start_offset`.
    previous_epoch: int
    #: Where epochs end in the leader's log, exclusive; None: it has no record of that epoch.
    leader_ends: Mapping[int, int | None]


def previous_epoch(local_log_start_offset: int, epoch: int, earlier: EpochEnd | None) -> int:
    """The leader epoch of the record before the leader's local log start, which is in `epoch`.

    `earlier` is the leader's `EpochEnd` for `epoch - 1`, None for epoch 0 and without an answer. An epoch before may have
    written nothing, so the answer names an older one.

    >>> previous_epoch(90, 3, EpochEnd(epoch=1, end_offset=90))  # epochs e1@85 e3@90: epoch 2 wrote nothing
    1
    >>> previous_epoch(95, 3, EpochEnd(epoch=1, end_offset=90))
    3
    """
    if earlier is None or earlier.end_offset < local_log_start_offset:
        return epoch
    return earlier.epoch
