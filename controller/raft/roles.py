"""A replica's role in an epoch (Kafka's EpochState): six roles, each with its state and its deadline.

`machine` has the diagram of the transitions between them, `transitions` carries them out. Times are absolute, in
the milliseconds of `now_ms`; NEVER_MS is later than every time.
Source: UnattachedState, FollowerState, ProspectiveState, CandidateState, LeaderState, ResignedState of Kafka 4.3.1.
"""

from dataclasses import dataclass, field
from typing import Any

from ottla.controller.raft.follower_progress import Followers
from ottla.controller.raft.log import SnapshotDownload
from ottla.controller.raft.types import Endpoints, OffsetAndEpoch, ReplicaKey
from ottla.controller.raft.voters import VoterSet


@dataclass(slots=True)
class EpochElection:
    """The votes of one election (Kafka's EpochElection), by voter: granted, refused, or None without a response."""

    voters: VoterSet
    votes: dict[int, bool | None]

    @classmethod
    def begin(cls, voters: VoterSet, local_id: int) -> "EpochElection":
        """The ballot with this replica's own vote, which is granted."""
        return cls(voters, {id: True if id == local_id else None for id in voters.ids})

    def record_vote(self, voter_id: int, *, granted: bool) -> None:
        """Record a response. Responses from non-voters are ignored."""
        if voter_id in self.votes:
            self.votes[voter_id] = granted

    @property
    def granting_voters(self) -> list[int]:
        """The voters that have granted the vote."""
        return [id for id, granted in self.votes.items() if granted]

    @property
    def unrecorded_voters(self) -> list[ReplicaKey]:
        """The voters that have not responded."""
        return [self.voters.voters[id].key for id, granted in self.votes.items() if granted is None]

    @property
    def is_vote_granted(self) -> bool:
        """Whether a majority of the voters has granted the vote."""
        return len(self.granting_voters) >= self.voters.majority

    @property
    def is_vote_rejected(self) -> bool:
        """Whether no majority of the voters can grant the vote any more."""
        return len(self.granting_voters) + len(self.unrecorded_voters) < self.voters.majority


@dataclass(slots=True, kw_only=True)
class Unattached:
    """A replica that knows the epoch, but not its leader's address, and sends Fetches to find it.

    A voter has an election timeout.
    """

    epoch: int
    #: Only the id may be known: with the leader's address the role is Follower.
    leader_id: int | None = None
    #: The candidate that it has voted for in this epoch.
    voted: ReplicaKey | None = None
    #: NEVER_MS for an observer.
    election_deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Follower:
    """Fetches from the epoch's leader. A voter without a successful Fetch in the fetch timeout becomes Prospective."""

    epoch: int
    leader_id: int
    #: Never empty.
    leader_endpoints: Endpoints
    voted: ReplicaKey | None = None
    fetch_deadline_ms: int
    #: When to check again whether this voter's entry in the voter set is correct (KIP-853).
    update_voter_at_ms: int
    #: Whether a Fetch from the leader has succeeded. If not, it may have failed, so pre-votes are granted (KIP-996).
    has_fetched: bool = False
    #: Whether the leader has this voter's endpoints, which are not in the log at kraft.version 0.
    has_updated_leader: bool = False
    #: The snapshot that is being fetched instead of records.
    snapshot_id: OffsetAndEpoch | None = None
    download: SnapshotDownload | None = None
    #: Whether all chunks have arrived and a thread validates them (`Freeze`). Nothing is fetched meanwhile.
    is_freezing: bool = False


@dataclass(slots=True, kw_only=True)
class Prospective:
    """A voter that requests pre-votes in its epoch: if it cannot win, it does not raise the epoch (KIP-996)."""

    epoch: int
    #: The leader that it has lost, or knows by id only; it returns to it if it loses the pre-vote.
    leader_id: int | None = None
    leader_endpoints: Endpoints = field(default_factory=dict)
    voted: ReplicaKey | None = None
    epoch_election: EpochElection
    election_deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Has started a new epoch, voted for itself, and requests votes."""

    epoch: int
    epoch_election: EpochElection
    election_deadline_ms: int


@dataclass(slots=True, kw_only=True)
class VoterChange:
    """An AddRaftVoter or RemoveRaftVoter in progress; there is at most one at a time."""

    #: Of the request; None if it was answered before the commit (ack_when_committed=false).
    token: Any
    is_addition: bool
    #: An addition first waits for this voter's response to ApiVersions.
    voter: ReplicaKey
    endpoints: Endpoints
    ack_when_committed: bool = True
    #: The offset of the new voter set; None before it is appended.
    offset: int | None = None
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Leader:
    """The replica that won the election of its epoch: only it appends new records in that epoch."""

    epoch: int
    #: The offset of its first record, LeaderChange. Older records are committed only with this one (Raft, 5.4.2).
    epoch_start_offset: int
    followers: Followers
    #: None until something of this epoch is committed.
    high_watermark: int | None = None
    #: When to resign if no majority fetches (KAFKA-15489).
    check_quorum_deadline_ms: int
    #: When to send BeginQuorumEpoch to voters that do not fetch.
    begin_quorum_at_ms: int
    voter_change: VoterChange | None = None
    #: The voters with the endpoints and directory ids that they have reported; kraft.version 0 only, where these are
    #: not in the log but needed for the upgrade to 1.
    reported_voters: VoterSet | None = None
    #: Resign at the next poll.
    must_resign: bool = False


@dataclass(slots=True, kw_only=True)
class Resigned:
    """Has led this epoch and resigned. Sends EndQuorumEpoch to the voters; grants no vote in this epoch."""

    epoch: int
    #: The voters that have not acknowledged EndQuorumEpoch.
    unacknowledged: set[int]
    preferred_successors: list[ReplicaKey] = field(default_factory=list)
    #: When to start the next epoch as Unattached.
    deadline_ms: int


Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned
