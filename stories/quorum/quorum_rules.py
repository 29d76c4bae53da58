"""The rules of the metadata quorum, by what a node becomes and does; and a node's state for a trace."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ottla.controller.raft import follower_fetch, high_watermark, quorum_epochs, reconfiguration, voting
from ottla.controller.raft.effects import Committed, Effect, Flush, Persist, SnapshotLoaded
from ottla.controller.raft.follower_fetch_snapshot import handle_fetch_snapshot_response
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from ottla.protocol.records.record import records
from ottla.stories.quorum import quorum_lines as lines
from ottla.stories.quorum.raft_replicas import Replica
from ottla.stories.rules import Rule
from ottla.stories.trace import Cell, Node

#: A rule and the function that applies it.
Applied = tuple[Rule, Callable[..., Any]]

_ROLES: Final[Mapping[type[Role], Applied]] = {
    Prospective: (
        Rule(
            "KIP-996",
            "A voter that loses its leader first asks in its present epoch whether it would be elected. A node that "
            "could not win so raises no epoch, and disturbs no leader.",
        ),
        voting.maybe_send_vote_requests,
    ),
    Candidate: (
        Rule(
            "KIP-595",
            "With a majority of pre-votes a voter begins the next epoch and votes for itself.",
        ),
        voting.handle_vote_response,
    ),
    Leader: (
        Rule(
            "KIP-595",
            "A candidate with the votes of a majority leads. It appends a LeaderChangeMessage, so that its epoch "
            "has a record that can be committed.",
        ),
        voting.handle_vote_response,
    ),
    Follower: (
        Rule("KIP-595", "A node follows the leader of its epoch from the first message that names it."),
        quorum_epochs.handle_begin_quorum_epoch_request,
    ),
    Unattached: (
        Rule(
            "KIP-595",
            "A newer epoch counts as soon as any message names it, even if its leader is not known yet.",
        ),
        voting.handle_vote_request,
    ),
    Resigned: (
        Rule(
            "KIP-595",
            "A leader that resigns names its successors, those with the longest logs first; it accepts no records.",
        ),
        quorum_epochs.maybe_send_end_quorum_epoch_requests,
    ),
}
VOTERS: Final[Applied] = (
    Rule(
        "KIP-853",
        "A new set of voters counts as soon as it is in the log, and is committed by a majority of itself. It differs "
        "from the former one by one voter.",
    ),
    reconfiguration.handle_add_voter_request,
)
TRUNCATION: Final[Applied] = (
    Rule(
        "KIP-595",
        "The leader's response says where the logs diverge; it truncates there, never below its high watermark.",
    ),
    follower_fetch.truncation_offset,
)
_DURABLE: Final[Applied] = (
    Rule(
        "KIP-595",
        "Epoch and vote are durable in quorum-state before a node answers: it votes once in an epoch.",
    ),
    voting.can_grant_vote,
)
_FLUSHED: Final[Applied] = (
    Rule(
        "KIP-595",
        "A voter flushes what it has fetched before its next Fetch, whose offset the leader counts as replicated.",
    ),
    high_watermark.flushed,
)
_COMMITTED: Final[Applied] = (
    Rule(
        "KIP-595",
        "A record is committed when a majority of the voters has it, and a record of the leader's own epoch, too.",
    ),
    high_watermark.advance,
)
_SNAPSHOT: Final[Applied] = (
    Rule(
        "KIP-630",
        "A follower that needs records which the leader has deleted loads the leader's snapshot in place of its log.",
    ),
    handle_fetch_snapshot_response,
)


def of_role(role: Role) -> Applied:
    """Return the rule by which a node enters a role."""
    return _ROLES[type(role)]


def of_effect(effect: Effect) -> Applied | None:
    """Return the rule of what a node does; None for what is no event."""
    match effect:
        case Persist():
            return _DURABLE
        case Flush():
            return _FLUSHED
        case Committed():
            return _COMMITTED
        case SnapshotLoaded():
            return _SNAPSHOT
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
