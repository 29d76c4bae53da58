"""Role transitions: what each one keeps, makes durable, starts and ends. `machine` has the diagram.

Invariants: a vote is kept while the epoch lasts, so that no replica votes twice in an epoch; delayed requests are
refused when their leader stops leading; responses to requests of an earlier role are ignored.
Source: QuorumState of Kafka 4.3.1.
"""

from ottla.controller.raft import high_watermark
from ottla.controller.raft.core import Core, logger
from ottla.controller.raft.follower_progress import Followers
from ottla.controller.raft.roles import (
    Candidate,
    EpochElection,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from ottla.controller.raft.types import NEVER_MS, RECONFIGURABLE, ElectionState, Endpoints, ReplicaKey
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage, Voter
from ottla.protocol.records.quorum import QuorumMessage


def become_initial(core: Core, election: ElectionState | None) -> None:
    """The role after a start, from `quorum-state` (None without that file) and the log."""
    end = core.log.end
    epoch = election.leader_epoch if election is not None else 0
    deadline_ms = core.now_ms + core.random_election_timeout_ms()
    role: Role
    if election is None or epoch < end.epoch:
        # The log has a later epoch than the file. This replica's vote in it, if any, is unknown; the epoch has
        # elected its leader already.
        role = Unattached(epoch=max(epoch, end.epoch), election_deadline_ms=deadline_ms)
    else:
        voted = (
            None if election.voted_id is None else ReplicaKey(election.voted_id, election.voted_directory_id)
        )
        voted_for_local = voted is not None and voted.matches(core.local_key)
        is_open = election.leader_id is None
        has_begun = is_open and voted_for_local and epoch > 0 and end.epoch == epoch
        if election.leader_id == core.local_key.id or has_begun:
            # This node led the epoch, or was about to. Some of its records of the epoch may be lost: writing again
            # in the same epoch could assign one (offset, epoch) to two records. (The records are not of another
            # leader of this epoch: they are fetched only after that leader is in `quorum-state`.)
            role = _resigned(core, epoch=epoch, successors=[])
        elif is_open and voted_for_local and core.is_voter:
            epoch_election = EpochElection.begin(core.voters, core.local_key.id)
            role = Candidate(epoch=epoch, epoch_election=epoch_election, election_deadline_ms=deadline_ms)
        elif election.leader_id is not None and (endpoints := core.voters.endpoints(election.leader_id)):
            role = _follower(
                core, epoch=epoch, leader_id=election.leader_id, endpoints=endpoints, voted=voted
            )
        else:
            role = Unattached(
                epoch=epoch, leader_id=election.leader_id, voted=voted, election_deadline_ms=deadline_ms
            )
    _enter(core, role, durably=True)
    if core.voters.is_only_voter(core.local_key):
        if isinstance(core.role, Candidate):
            become_leader(core)
        else:
            become_prospective(core)


def become_unattached(core: Core, epoch: int, *, leader_id: int | None = None) -> None:
    """Enter a later epoch without a known leader or address; or the same one, after a lost pre-vote."""
    former = core.role
    assert epoch > core.epoch or (epoch == core.epoch and isinstance(former, Prospective)), (epoch, former)
    voted = core.voted if epoch == core.epoch else None
    match former:
        case _ if not core.is_voter:
            deadline_ms = NEVER_MS
        case Candidate() | Unattached():
            deadline_ms = former.election_deadline_ms
        case Prospective() if not former.epoch_election.is_vote_rejected:
            deadline_ms = former.election_deadline_ms
        case Resigned():
            deadline_ms = former.deadline_ms
        case _:
            deadline_ms = core.now_ms + core.random_election_timeout_ms()
    role = Unattached(epoch=epoch, leader_id=leader_id, voted=voted, election_deadline_ms=deadline_ms)
    _enter(core, role, durably=True)
    core.requests.reset_all()


def vote_for(core: Core, candidate: ReplicaKey) -> None:
    """Grant the vote of this epoch, once, and reset the election timeout: the candidate may win."""
    assert candidate.id != core.local_key.id, candidate
    assert core.leader_id is None, (candidate, core.leader_id)
    deadline_ms = core.now_ms + core.random_election_timeout_ms()
    match core.role:
        case Unattached(voted=None) as role:
            role.voted, role.election_deadline_ms = candidate, deadline_ms
        case Prospective(voted=None) as role:
            role.voted, role.election_deadline_ms = candidate, deadline_ms
            role.epoch_election = EpochElection.begin(core.voters, core.local_key.id)
        case _:
            raise AssertionError((candidate, core.role))
    core.persist()


def become_follower(core: Core, *, epoch: int, leader_id: int, endpoints: Endpoints) -> None:
    """Follow the leader of the epoch, whose address is known."""
    assert endpoints, (epoch, leader_id)
    assert leader_id != core.local_key.id, (epoch, leader_id)
    assert epoch >= core.epoch, (epoch, leader_id, core.role)
    assert epoch > core.epoch or not isinstance(core.role, Leader), (epoch, leader_id)
    assert epoch > core.epoch or core.leader_id in (None, leader_id), (epoch, leader_id, core.leader_id)
    voted = core.voted if epoch == core.epoch else None
    _enter(
        core,
        _follower(core, epoch=epoch, leader_id=leader_id, endpoints=endpoints, voted=voted),
        durably=True,
    )
    core.requests.reset_all()


def become_prospective(core: Core) -> None:
    """An election or fetch timeout: request pre-votes, in the same epoch (KIP-996)."""
    assert core.is_voter, core.voters
    assert not isinstance(core.role, Leader | Prospective), core.role
    role = Prospective(
        epoch=core.epoch,
        leader_id=core.leader_id,
        leader_endpoints=core.leader_endpoints,
        voted=core.voted,
        epoch_election=EpochElection.begin(core.voters, core.local_key.id),
        election_deadline_ms=core.now_ms + core.random_election_timeout_ms(),
    )
    _enter(core, role, durably=False)
    core.requests.reset_all()
    if role.epoch_election.is_vote_granted:
        become_candidate(core)


def become_candidate(core: Core) -> None:
    """The pre-vote is won, or not supported: start the next epoch, with this replica's vote for itself."""
    assert core.is_voter, core.voters
    assert isinstance(core.role, Prospective), core.role
    role = Candidate(
        epoch=core.epoch + 1,
        epoch_election=EpochElection.begin(core.voters, core.local_key.id),
        election_deadline_ms=core.now_ms + core.random_election_timeout_ms(),
    )
    _enter(core, role, durably=True)
    core.requests.reset_all()
    if role.epoch_election.is_vote_granted:
        become_leader(core)


def become_leader(core: Core) -> None:
    """The election is won: append the epoch's first records; older records are not committed before these are."""
    candidate = core.role
    assert isinstance(candidate, Candidate), candidate
    assert candidate.epoch_election.is_vote_granted, candidate
    # A record of this epoch would be of an earlier leadership: a new one could get the same offset and epoch.
    assert core.log.end.epoch < core.epoch, (core.log.end, core.epoch)
    settings, history = core.settings, core.history
    reported_voters = None
    if history.kraft_version < RECONFIGURABLE:
        reported_voters = core.voters.with_directory(core.local_voter)
    role = Leader(
        epoch=core.epoch,
        epoch_start_offset=core.log.end.offset,
        followers=Followers(core.voters, core.local_key),
        check_quorum_deadline_ms=core.now_ms + core.check_quorum_timeout_ms,
        begin_quorum_at_ms=core.now_ms,
        reported_voters=reported_voters,
    )
    messages: list[QuorumMessage] = [
        LeaderChangeMessage(
            leader_id=core.local_key.id,
            voters=[Voter(voter_id=id) for id in core.voters.ids],
            granting_voters=[Voter(voter_id=id) for id in candidate.epoch_election.granting_voters],
        )
    ]
    if history.kraft_version >= RECONFIGURABLE:
        is_in_log = history.voters_offset is not None and history.voters_offset >= 0
        # The only voter may have no listener: its former endpoints stay in the log.
        updated = core.voters.with_updated(core.local_voter) if settings.endpoints else core.voters
        assert updated is not None, (core.local_key, core.voters)
        if not is_in_log or updated != core.voters:
            # The bootstrap snapshot is not replicated, so the log must have the voter set. Or this node's
            # endpoints have changed.
            messages += [KRaftVersionRecord(k_raft_version=history.kraft_version), updated.to_record()]
    logger.info(
        "node %d leads epoch %d from offset %d", settings.node_id, role.epoch, role.epoch_start_offset
    )
    _enter(core, role, durably=True)
    core.requests.reset_all()
    high_watermark.append_control(core, messages)


def become_resigned(core: Core) -> None:
    """Resign as leader: EndQuorumEpoch names the preferred successors."""
    assert isinstance(core.role, Leader), core.role
    role = _resigned(core, epoch=core.epoch, successors=core.role.followers.preferred_successors())
    _enter(core, role, durably=False)
    core.requests.reset_all()


def _follower(
    core: Core, *, epoch: int, leader_id: int, endpoints: Endpoints, voted: ReplicaKey | None
) -> Follower:
    return Follower(
        epoch=epoch,
        leader_id=leader_id,
        leader_endpoints=endpoints,
        voted=voted,
        fetch_deadline_ms=core.now_ms + core.settings.fetch_timeout_ms,
        update_voter_at_ms=core.now_ms + core.settings.fetch_timeout_ms,
    )


def _resigned(core: Core, *, epoch: int, successors: list[ReplicaKey]) -> Resigned:
    return Resigned(
        epoch=epoch,
        unacknowledged=set(core.voters.ids) - {core.local_key.id},
        preferred_successors=successors,
        deadline_ms=core.now_ms + core.random_election_timeout_ms(),
    )


def _enter(core: Core, role: Role, *, durably: bool) -> None:
    former, core.role = core.role, role
    assert role.epoch >= former.epoch, (former, role)
    if isinstance(former, Leader) and role.epoch == former.epoch:
        assert isinstance(role, Resigned), role
    logger.debug("node %d: %s in epoch %d", core.local_key.id, type(role).__name__, role.epoch)
    if durably:
        core.persist()
    if isinstance(former, Follower) and former.download is not None:
        former.download.delete()
    if isinstance(former, Leader):
        high_watermark.refuse_delayed_requests(core, former)
    core.notify_leader()
