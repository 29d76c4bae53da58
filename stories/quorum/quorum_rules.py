"""The rules of the metadata quorum, by what a node becomes and does; and a node's state for a trace."""

from collections.abc import Iterator, Mapping
from typing import Final

from ottla.controller.raft import follower_fetch
from ottla.controller.raft.effects import Committed, Effect, Flush, Persist, SnapshotLoaded
from ottla.controller.raft.follower_fetch_snapshot import handle_fetch_snapshot_response
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from ottla.protocol.records.record import records
from ottla.stories.quorum import quorum_lines as lines
from ottla.stories.quorum.quorum_places import Kind
from ottla.stories.quorum.raft_replicas import Replica
from ottla.stories.rules import Place, Rule, place_of
from ottla.stories.trace import Cell, Node

#: A rule and the place that applies it.
Applied = tuple[Rule, Place]

_NEWER_EPOCH: Final = Rule(
    "KIP-595", "A newer epoch counts as soon as any message names it, even if its leader is not known yet."
)
_ROLES: Final[Mapping[type[Role], Rule]] = {
    Prospective: Rule(
        "KIP-996",
        "A voter that loses its leader first asks in its present epoch whether it would be elected. A node that "
        "could not win so raises no epoch, and disturbs no leader.",
    ),
    Candidate: Rule(
        "KIP-595",
        "With a majority of pre-votes, or where a voter does not know them, a voter begins the next epoch and votes "
        "for itself.",
    ),
    Leader: Rule(
        "KIP-595",
        "A candidate with the votes of a majority leads. It appends a LeaderChangeMessage, so that its epoch "
        "has a record that can be committed.",
    ),
    Follower: Rule("KIP-595", "A node follows the leader of its epoch from the first message that names it."),
    Unattached: _NEWER_EPOCH,
    Resigned: Rule(
        "KIP-595",
        "A leader that resigns names its successors, those with the longest logs first; it accepts no records.",
    ),
}
_LOST_PRE_VOTE: Final = Rule(
    "KIP-996",
    "A pre-vote that is lost has changed nothing: the voter returns to its epoch, and to its leader.",
)
_RESIGNATION_ENDS: Final = Rule(
    "KIP-595",
    "A leader that has resigned writes no more in its epoch: when its time is over, it takes part in the next one.",
)
#: Where a role is entered by another rule than usual: (the role, the end of the function's name).
_OTHER_ROLES: Final[Mapping[tuple[type[Role], str], Rule]] = {
    (Follower, "transition_after_pre_vote_loss"): _LOST_PRE_VOTE,
    (Unattached, "transition_after_pre_vote_loss"): _LOST_PRE_VOTE,
    (Unattached, "poll"): _RESIGNATION_ENDS,
}
VOTERS: Final = Rule(
    "KIP-853",
    "A new set of voters counts as soon as it is in the log, and is committed by a majority of itself. It differs "
    "from the former one by one voter.",
)
TRUNCATION: Final = Rule(
    "KIP-595",
    "The leader's response says where the logs diverge; it truncates there, never below its high watermark.",
)
TRUNCATION_PLACE: Final = place_of(follower_fetch.truncation_offset)
_DURABLE: Final = Rule(
    "KIP-595", "Epoch and vote are durable in quorum-state before a node answers: it votes once in an epoch."
)
_FLUSHED: Final = Rule(
    "KIP-595",
    "A voter flushes what it has fetched before its next Fetch, whose offset the leader counts as replicated.",
)
_FLUSHED_BY_LEADER: Final = Rule(
    "KIP-595", "The leader counts itself among the voters that have a record once the record is flushed."
)
_COMMITTED: Final = Rule(
    "KIP-595",
    "A record is committed when a majority of the voters has it, and a record of the leader's own epoch, too.",
)
_COMMIT_KNOWN: Final = Rule(
    "KIP-595",
    "A follower learns the high watermark from the leader's Fetch response; it is limited to its own log end.",
)
_SNAPSHOT: Final = Rule(
    "KIP-630",
    "A follower that needs records which the leader has deleted loads the leader's snapshot in place of its log.",
)
_SNAPSHOT_PLACE: Final = place_of(handle_fetch_snapshot_response)


def of_role(role: Role, place: Place) -> Rule:
    """Return the rule by which a node enters a role at this place."""
    return _OTHER_ROLES.get((type(role), place.function.rpartition(".")[2]), _ROLES[type(role)])


def of_effect(effect: Effect, role: Role, places: Mapping[Kind, Place]) -> Applied | None:
    """Return the rule of what a node in this role does, and its place; None for what is no event."""
    is_leader = isinstance(role, Leader)
    match effect:
        case Persist() if "state" in places:
            return _DURABLE, places["state"]
        case Flush() if "flush" in places:
            return _FLUSHED_BY_LEADER if is_leader else _FLUSHED, places["flush"]
        case Committed() if "high watermark" in places:
            return _COMMITTED if is_leader else _COMMIT_KNOWN, places["high watermark"]
        case SnapshotLoaded():
            return _SNAPSHOT, _SNAPSHOT_PLACE
        case _:
            return None


def node_of(replica: Replica, *, is_up: bool, is_cut_off: bool) -> Node:
    """Return a node with its log; of a stopped one the role is `down`."""
    role, state = replica.role, replica.election
    leader = replica.raft.leader_and_epoch.leader_id
    voted = (
        None
        if state is None or state.voted_id is None
        else lines.node(state.voted_id, state.voted_directory_id)
    )
    return Node(
        name=lines.node(replica.id, replica.settings.directory_id),
        role=type(role).__name__.lower() if is_up else "down",
        epoch=role.epoch,
        leader=None if leader is None else str(leader),
        voted_for=voted,
        voters=[lines.node(each.id, each.directory_id) for each in replica.raft.voters.keys],
        high_watermark=replica.raft.high_watermark,
        log_start_offset=replica.log.log_start_offset,
        log_end_offset=replica.log.end.offset,
        cells=list(_cells(replica)),
        is_cut_off=is_cut_off,
    )


def _cells(replica: Replica) -> Iterator[Cell]:
    for batch in replica.log.batches:
        epoch = batch.header.partition_leader_epoch
        for row in records(memoryview(batch.data)):
            value = lines.value_of(batch.header, row)
            # The log in memory keeps all that it has over a restart.
            yield Cell(offset=row.offset, epoch=epoch, value=value, flushed=True)
