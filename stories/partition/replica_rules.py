"""The rules that replicas apply: by transition of a follower, by error of a leader, by change of a log."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.broker.replicas.reading import fetch
from ottla.broker.replicas.reading.follower_fetch import is_high_watermark_stale
from ottla.broker.replicas.reading.preferred_read_replica import PreferredReadReplicas
from ottla.protocol.error_code import ErrorCode
from ottla.replication.follower_reads import offset_on_follower
from ottla.replication.follower_states import Transition, Transitions
from ottla.replication.leader_state import LeaderState
from ottla.replication.remote_log_aux import bootstrap_offset
from ottla.storage.log_reader import LogReader
from ottla.stories.rules import Place, Rule, place_of
from ottla.stories.trace import Replica

#: A rule and the function that applies it.
Applied = tuple[Rule, Callable[..., Any]]

#: The rules of a follower's state machine; appends of records are no event of their own.
FOLLOWER: Final[Mapping[Transition, Rule]] = {
    Transitions.NEW_EPOCH: Rule(
        "KIP-101",
        "In a new leader epoch a follower keeps its log, whatever its high watermark. Its next Fetch names the "
        "epoch of its last record, by which the leader finds where the logs diverge.",
    ),
    Transitions.NEW_EPOCH_WITHOUT_ONE: Rule(
        "KIP-101",
        "A log without leader epochs cannot be compared by epochs: only what is below the high watermark is "
        "known to be committed, and is kept.",
    ),
    Transitions.DIVERGED: Rule(
        "KIP-101",
        "The leader returns its largest epoch that is not newer than the one asked for, and where that epoch ends. "
        "The follower truncates to where both logs have that epoch; if it does not know it (KIP-279), to the end "
        "of its own next older epoch, and asks once more.",
    ),
    Transitions.DIVERGED_IN_REMOTE_PART: Rule(
        "KIP-405",
        "A log that diverges before its local segments has no local record in common with its leader: "
        "the follower restarts at an offset of the leader's, and keeps what is tiered.",
    ),
    Transitions.GAP: Rule(
        "",
        "A crash may lose the end of a closed segment. Once a leader has answered, a follower truncates to such "
        "a gap, and fetches what follows again.",
    ),
    Transitions.STARTS_WITHIN_BATCH: Rule(
        "",
        "Batches are copied whole: an empty log that starts within a batch starts at its beginning.",
    ),
    Transitions.OUT_OF_RANGE: Rule(
        "",
        "After OFFSET_OUT_OF_RANGE a follower asks where its leader's log starts and ends.",
    ),
    Transitions.TIERED: Rule(
        "KIP-405",
        "OFFSET_MOVED_TO_TIERED_STORAGE: only the remote tier has the records that follow. The follower does not "
        "fetch them from there; it asks where the leader's local log begins.",
    ),
    Transitions.LEADER_ENDS_BEFORE: Rule(
        "",
        "Where the leader's log ends before the follower's, after an unclean election, the follower truncates to "
        "that end.",
    ),
    Transitions.LEADER_STARTS_AFTER: Rule(
        "",
        "Where the leader's log starts after the follower's end, no record is in common: the follower removes "
        "all of its own, and starts at the leader's log start.",
    ),
    Transitions.EMPTY: Rule(
        "KIP-1023",
        "An empty follower starts after the last offset that is tiered, and does not copy what the remote tier has.",
    ),
    Transitions.LEADER_COVERS_END: Rule(
        "", "The leader's log covers the follower's end: it fetches from there again."
    ),
    Transitions.LOCAL_START_REACHED: Rule(
        "KIP-405", "The leader's local log begins at or before the follower's end: it fetches from there."
    ),
    Transitions.TIERED_IS_DELETED: Rule(
        "KIP-405",
        "The tiered records were deleted meanwhile: the follower starts with an empty log at the leader's log start.",
    ),
    Transitions.LOCAL_START_AFTER: Rule(
        "KIP-405",
        "The follower builds its auxiliary state from the remote tier: leader epochs and producer state up to the "
        "offset at which it then begins to fetch. It copies no records of the remote tier.",
    ),
    Transitions.UNCONFIRMED: Rule(
        "KIP-405",
        "A copy may be of a branch that its leader does not have: the follower first asks where the last epoch "
        "of the copy ends.",
    ),
    Transitions.CONFIRMED: Rule(
        "KIP-405", "The leader's end of that epoch shows which copies are of its lineage."
    ),
    Transitions.BUILT: Rule(
        "KIP-405",
        "The log begins again after a copy, with the leader epochs of the copy; the local log start offset is there, "
        "the log start offset is that of the leader.",
    ),
    Transitions.NOT_BUILT: Rule(
        "KIP-405",
        "While no copy is known, or the store fails, the log stays as it is, and the Fetch is sent again.",
    ),
    Transitions.FENCED: Rule(
        "KIP-320",
        "A follower in another leader epoch than its leader waits for the metadata log; it does not go on in the "
        "former epoch.",
    ),
    Transitions.FAILED: Rule("", "A log that cannot be written sends no requests in this leader epoch."),
}

_LEADER_EPOCH: Final = Rule(
    "KIP-320",
    "Requests name the leader epoch that the client knows. An older one is fenced, a newer one is not known yet: "
    "the client, or this broker, has to learn of the election first.",
)
#: The rules by which a replica refuses a request.
REFUSALS: Final[Mapping[ErrorCode, Applied]] = {
    ErrorCode.fenced_leader_epoch: (_LEADER_EPOCH, Partition.local_log),
    ErrorCode.unknown_leader_epoch: (_LEADER_EPOCH, Partition.local_log),
    ErrorCode.not_leader_or_follower: (
        Rule(
            "KIP-392", "Followers serve Fetch requests of consumers; what only a leader knows, they refuse."
        ),
        Partition.local_log,
    ),
    ErrorCode.offset_not_available: (
        Rule(
            "KIP-392",
            "An offset beyond what a replica knows to be committed may exist: the client is to retry, "
            "and does not reset its position.",
        ),
        offset_on_follower,
    ),
    ErrorCode.offset_out_of_range: (
        Rule(
            "KIP-392",
            "An offset before the log start, or beyond the end of what exists, does not become available by waiting.",
        ),
        Partition.check_fetch_offset,
    ),
    ErrorCode.offset_moved_to_tiered_storage: (
        Rule(
            "KIP-405",
            "A leader reads for followers from its local segments only: what is tiered, and not local any more, "
            "the follower has to skip.",
        ),
        LogReader.read,
    ),
}

DIVERGENCE: Final[Applied] = (
    Rule(
        "KIP-595",
        "The leader finds the divergence in the Fetch itself: it compares the end of the named epoch in its own log "
        "with the fetch offset, and returns where that epoch ends, in place of records.",
    ),
    Partition.diverging_epoch,
)
LAST_TIERED: Final[Applied] = (
    Rule(
        "KIP-1023",
        "With follower.fetch.last.tiered.offset.enable an empty follower begins at the leader's earliest pending "
        "upload offset, and not at its local log start: the remote tier has what is before.",
    ),
    bootstrap_offset,
)
FIRST_OF_SESSION: Final[Applied] = (
    Rule(
        "KIP-392",
        "The first Fetch of a follower's session does not wait, though there are no records: the leader has sent no "
        "high watermark in this session yet.",
    ),
    fetch._is_enough,
)
STALE_HIGH_WATERMARK: Final[Applied] = (
    Rule(
        "KIP-392",
        "A Fetch of a follower is answered without records when the leader has a newer high watermark than the one "
        "that it has sent in the session.",
    ),
    is_high_watermark_stale,
)
REDIRECTION: Final[Applied] = (
    Rule(
        "KIP-392",
        "The leader names a replica in the consumer's rack that has the offset; the consumer fetches there then.",
    ),
    PreferredReadReplicas.choose,
)
LEADERSHIP: Final[Applied] = (
    Rule(
        "KIP-101",
        "A new leader writes its epoch and the offset at which it begins into its leader-epoch-checkpoint, before its "
        "first record and even if it never has one.",
    ),
    PartitionLeader.begin_epoch,
)
COMMIT: Final[Applied] = (
    Rule(
        "KIP-497",
        "A record is committed when every replica of the largest ISR that may be in effect has it. A follower's fetch "
        "offset shows the leader what it has.",
    ),
    LeaderState.high_watermark_candidate,
)
COMMIT_KNOWN: Final[Applied] = (
    Rule(
        "KIP-101",
        "A follower learns the high watermark from the next Fetch response, so it knows later than the leader what is "
        "committed. It is limited to its own log end.",
    ),
    FollowerReplica.append,
)
IN_SYNC: Final[Applied] = (
    Rule(
        "KIP-497",
        "A follower that has reached the leader's high watermark, and the start of its leader epoch, is in sync. "
        "The controller changes the ISR when the leader proposes it.",
    ),
    LeaderState.expanded,
)


def changes(before: Replica | None, now: Replica) -> Iterator[tuple[str, Applied]]:
    """Yield what has happened to a replica since the last step that no message and no transition shows.

    A leader that restarts in its epoch begins none.
    """
    if now.state == "leader" and (before is None or before.leader_epoch != now.leader_epoch):
        yield f"{now.name} leads e{now.leader_epoch} from offset {_start_of(now)} on", LEADERSHIP
    known = before.high_watermark if before else 0
    if now.high_watermark > known and now.state in ("leader", "follower"):
        line = f"{now.name}: high watermark {known} to {now.high_watermark}"
        yield line, COMMIT if now.state == "leader" else COMMIT_KNOWN


def _start_of(leader: Replica) -> int:
    return dict(leader.epochs).get(leader.leader_epoch, leader.log_end_offset)


def place(applied: Applied) -> Place:
    """Return where the function of a rule is defined."""
    return place_of(applied[1])
