"""The rules of the remote tier: when a segment is copied, when a copy is deleted, how a follower begins after it."""

from collections.abc import Mapping
from typing import Final

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.remote.expiration import Reason, expire
from ottla.remote.log_manager import copying
from ottla.remote.log_manager.deletions import CopyDeletions
from ottla.remote.lost_branches import lost_copies
from ottla.stories.partition.replica_rules import Applied
from ottla.stories.rules import Place, Rule, place_of

COPY: Final[Applied] = (
    Rule(
        "KIP-405",
        "A leader copies its closed segments in order, as far as they are committed: no clean election truncates them. "
        "The copy has the leader epochs of its records.",
    ),
    copying.next_segment,
)
RESTART: Final[Applied] = (
    Rule(
        "KIP-405",
        "The follower takes leader epochs and producer state from the copy, and begins after it with an empty log.",
    ),
    AuxiliaryStates.read,
)
#: Changes of a log start offset, by their reason in the log; others are of a follower, or of the remote tier.
_LOG_STARTS: Final[Mapping[str, Applied]] = {
    "remote retention": (
        Rule(
            "KIP-405", "Where tiered records expire, the leader first moves the log start offset behind them."
        ),
        expire,
    ),
    "DeleteRecords": (
        Rule(
            "KIP-107", "DeleteRecords moves the log start offset at once, up to the high watermark at most."
        ),
        PartitionLeader.delete_records,
    ),
}
_FOLLOWERS_LOG_START: Final[Applied] = (
    Rule(
        "KIP-107",
        "A follower learns its leader's log start offset from a Fetch response, and takes it over up to its own high "
        "watermark.",
    ),
    FollowerReplica.append,
)
_TIERS_LOG_START: Final = Rule(
    "KIP-405",
    "A new leader learns from the copies in the remote tier where the log starts: it may not have learned the last log "
    "start offset of its predecessor.",
)
_EXPIRED: Final[Applied] = (
    Rule(
        "KIP-405",
        "A copy is deleted when its records expire or are before the log start offset. The deletion is written into "
        "the metadata first, so that another leader can finish it.",
    ),
    expire,
)
#: Deletions for another reason than that the records have expired.
_DELETIONS: Final[Mapping[Reason, Applied]] = {
    Reason.LOST_BRANCH: (
        Rule("KIP-405", "A copy of a branch that an unclean election has given up is no part of any log."),
        lost_copies,
    ),
    Reason.DUPLICATE: (
        Rule("KIP-405", "Another copy has the same records: this one is not read any more."),
        expire,
    ),
    Reason.ABANDONED: (
        Rule(
            "KIP-405",
            "A copy that was begun and not finished is deleted by the leader once no broker can be writing it.",
        ),
        expire,
    ),
    Reason.RETRY: (
        Rule("KIP-405", "A deletion that another leader has begun is finished by the present one."),
        expire,
    ),
}
_DISCARDED: Final = Rule(
    "KIP-405",
    "A copy that has failed, or must not be finished any more, is deleted by the broker that has begun it.",
)


def of_log_start(reason: str, place: Place) -> tuple[Rule, Place]:
    """Return the rule by which a log start offset was moved: `reason` as the log has it, `place` of the caller."""
    applied = _LOG_STARTS.get(reason)
    if applied is None and place.function.startswith(FollowerReplica.__module__):
        applied = _FOLLOWERS_LOG_START
    return (_TIERS_LOG_START, place) if applied is None else (applied[0], place_of(applied[1]))


def of_deletion(reason: Reason | None, place: Place) -> tuple[Rule, Place]:
    """Return the rule by which a copy is deleted; `reason` None: its copy task discards it, at this place."""
    if reason is None:
        return _DISCARDED, place
    rule, function = _DELETIONS.get(reason, _EXPIRED)
    return rule, place_of(function)


#: By the state that a copy enters; DELETE_SEGMENT_STARTED has rules by cause (`of_deletion`).
STATES: Final[Mapping[RemoteLogSegmentState, Applied]] = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: COPY,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (
        Rule(
            "KIP-405",
            "A copy counts once it is complete and the metadata say so; only then may the local segment go.",
        ),
        copying.after_copy,
    ),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: (
        Rule("KIP-405", "The objects are gone, so the metadata forget the copy."),
        CopyDeletions.complete,
    ),
}
