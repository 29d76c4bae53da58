"""The states of a follower replica, and the table of their transitions, which `ottla.replication.follower` executes.

    any --a new leader epoch, the log has epochs------------------------> FETCHING
    any --a new leader epoch, the log has none--------------------------> TRUNCATING, to the high watermark
    FETCHING --records--------------------------------------------------> FETCHING, from the new log end
    FETCHING --the leader's log diverges from ours----------------------> TRUNCATING, to where both may agree
    FETCHING --it diverges before our local log start-------------------> LOCATING
    FETCHING --records, and a crash has left a gap in our log-----------> TRUNCATING, to the gap
    FETCHING --a batch within which our empty log starts----------------> TRUNCATING, to where the batch begins
    FETCHING --the fetch offset is out of the leader's range------------> LOCATING
    FETCHING --only the remote tier has the offset (KIP-405)------------> LOCATING_LOCAL
    TRUNCATING --truncated----------------------------------------------> FETCHING, from the log end
    LOCATING --the leader's log ends before ours (unclean election)-----> TRUNCATING, to its end
    LOCATING --it starts after our end, or has none of our records------> TRUNCATING, fully, to its start
    LOCATING --it starts after our end, and we are empty (KIP-1023)-----> LOCATING_LOCAL
    LOCATING --it covers our end----------------------------------------> FETCHING
    LOCATING_LOCAL --the leader's local log starts at or before our end-> FETCHING
    LOCATING_LOCAL --its tiered records were deleted meanwhile----------> TRUNCATING, fully, to its start
    LOCATING_LOCAL --its local log starts after our end-----------------> BUILDING_REMOTE_LOG_AUX
    BUILDING_REMOTE_LOG_AUX --the copy may be of another branch---------> CONFIRMING_COPY, asks where its epoch ends
    CONFIRMING_COPY --the leader answers where it ends------------------> BUILDING_REMOTE_LOG_AUX
    BUILDING_REMOTE_LOG_AUX --the log has restarted after a copy--------> FETCHING, from the end of the copy
    BUILDING_REMOTE_LOG_AUX --no copy is known, or the store fails------> FETCHING, with an unchanged log
    any --the leader knows a newer epoch--------------------------------> FENCED, until the metadata log names it
    any --the log cannot be written-------------------------------------> FAILED, until the next leader epoch

In every state a new leader epoch begins with FETCHING or TRUNCATING, so that no answer of an older one matters
any more.

Source: AbstractFetcherThread, TierStateMachine of Kafka 4.3.1; KIP-101, 279, 320, 405, 595, 1023.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple


class ReplicaState(Enum):
    """The state of a follower replica."""

    #: Truncates its log; sends no request meanwhile.
    TRUNCATING = auto()
    #: The only state that fetches records.
    FETCHING = auto()
    #: Asks for the bounds of the leader's log (ListOffsets).
    LOCATING = auto()
    #: Asks where the leader's log starts in both tiers (ListOffsets, OffsetForLeaderEpoch).
    LOCATING_LOCAL = auto()
    #: Reads leader epochs and producer state from the remote tier (KIP-405); sends no request meanwhile.
    BUILDING_REMOTE_LOG_AUX = auto()
    #: Asks where the last epoch of a copy ends in the leader's log (OffsetForLeaderEpoch).
    CONFIRMING_COPY = auto()
    #: Its leader epoch is fenced; waits for the metadata log.
    FENCED = auto()
    #: Its log cannot be written.
    FAILED = auto()


_ANY: Final = tuple(ReplicaState)
_EVENT_COLUMNS: Final = 68


class Transition(NamedTuple):
    """A row of the table: what happens in which states, and the state afterwards."""

    sources: tuple[ReplicaState, ...]
    event: str
    target: ReplicaState
    #: What the follower does in the target state.
    then: str = ""


class Transitions:
    """All transitions of a follower, in the order of the table."""

    NEW_EPOCH = Transition(_ANY, "a new leader epoch, the log has epochs", ReplicaState.FETCHING)
    NEW_EPOCH_WITHOUT_ONE = Transition(
        _ANY, "a new leader epoch, the log has none", ReplicaState.TRUNCATING, "to the high watermark"
    )
    APPENDED = Transition((ReplicaState.FETCHING,), "records", ReplicaState.FETCHING, "from the new log end")
    DIVERGED = Transition(
        (ReplicaState.FETCHING,),
        "the leader's log diverges from ours",
        ReplicaState.TRUNCATING,
        "to where both may agree",
    )
    DIVERGED_IN_REMOTE_PART = Transition(
        (ReplicaState.FETCHING,), "it diverges before our local log start", ReplicaState.LOCATING
    )
    GAP = Transition(
        (ReplicaState.FETCHING,),
        "records, and a crash has left a gap in our log",
        ReplicaState.TRUNCATING,
        "to the gap",
    )
    STARTS_WITHIN_BATCH = Transition(
        (ReplicaState.FETCHING,),
        "a batch within which our empty log starts",
        ReplicaState.TRUNCATING,
        "to where the batch begins",
    )
    OUT_OF_RANGE = Transition(
        (ReplicaState.FETCHING,), "the fetch offset is out of the leader's range", ReplicaState.LOCATING
    )
    TIERED = Transition(
        (ReplicaState.FETCHING,),
        "only the remote tier has the offset (KIP-405)",
        ReplicaState.LOCATING_LOCAL,
    )
    TRUNCATED = Transition((ReplicaState.TRUNCATING,), "truncated", ReplicaState.FETCHING, "from the log end")
    LEADER_ENDS_BEFORE = Transition(
        (ReplicaState.LOCATING,),
        "the leader's log ends before ours (unclean election)",
        ReplicaState.TRUNCATING,
        "to its end",
    )
    LEADER_STARTS_AFTER = Transition(
        (ReplicaState.LOCATING,),
        "it starts after our end, or has none of our records",
        ReplicaState.TRUNCATING,
        "fully, to its start",
    )
    EMPTY = Transition(
        (ReplicaState.LOCATING,),
        "it starts after our end, and we are empty (KIP-1023)",
        ReplicaState.LOCATING_LOCAL,
    )
    LEADER_COVERS_END = Transition((ReplicaState.LOCATING,), "it covers our end", ReplicaState.FETCHING)
    LOCAL_START_REACHED = Transition(
        (ReplicaState.LOCATING_LOCAL,),
        "the leader's local log starts at or before our end",
        ReplicaState.FETCHING,
    )
    TIERED_IS_DELETED = Transition(
        (ReplicaState.LOCATING_LOCAL,),
        "its tiered records were deleted meanwhile",
        ReplicaState.TRUNCATING,
        "fully, to its start",
    )
    LOCAL_START_AFTER = Transition(
        (ReplicaState.LOCATING_LOCAL,),
        "its local log starts after our end",
        ReplicaState.BUILDING_REMOTE_LOG_AUX,
    )
    UNCONFIRMED = Transition(
        (ReplicaState.BUILDING_REMOTE_LOG_AUX,),
        "the copy may be of another branch",
        ReplicaState.CONFIRMING_COPY,
        "asks where its epoch ends",
    )
    CONFIRMED = Transition(
        (ReplicaState.CONFIRMING_COPY,),
        "the leader answers where it ends",
        ReplicaState.BUILDING_REMOTE_LOG_AUX,
    )
    BUILT = Transition(
        (ReplicaState.BUILDING_REMOTE_LOG_AUX,),
        "the log has restarted after a copy",
        ReplicaState.FETCHING,
        "from the end of the copy",
    )
    NOT_BUILT = Transition(
        (ReplicaState.BUILDING_REMOTE_LOG_AUX,),
        "no copy is known, or the store fails",
        ReplicaState.FETCHING,
        "with an unchanged log",
    )
    FENCED = Transition(
        _ANY, "the leader knows a newer epoch", ReplicaState.FENCED, "until the metadata log names it"
    )
    FAILED = Transition(_ANY, "the log cannot be written", ReplicaState.FAILED, "until the next leader epoch")


def table() -> Iterator[str]:
    """The lines of the table, as the module's docstring has them."""
    for row in vars(Transitions).values():
        if isinstance(row, Transition):
            source = "any" if row.sources == _ANY else ", ".join(each.name for each in row.sources)
            event = f"{source} --{row.event}"
            yield f"    {event:-<{_EVENT_COLUMNS}}> {row.target.name}{', ' if row.then else ''}{row.then}"
