"""What a replica is in an epoch: six roles, each with what it must remember and until when it lasts.

`machine` has the diagram of the transitions between them, `transitions` carries them out. Times are absolute, in
the milliseconds of `now_ms`; NEVER_MS is a time that does not come.
Source: UnattachedState, FollowerState, ProspectiveState, CandidateState, LeaderState, ResignedState of Kafka 4.3.1.
"""

from dataclasses import dataclass, field
from typing import Any

from controller.raft.leading import Followers
from controller.raft.log import SnapshotDownload
from controller.raft.types import Endpoints, OffsetAndEpoch, ReplicaKey
from controller.raft.voters import VoterSet


@dataclass(slots=True)
class Ballot:
    """The votes of one election, by voter: granted, refused, or None as long as there is no answer."""

    voters: VoterSet
    votes: dict[int, bool | None]

    @classmethod
    def begin(cls, voters: VoterSet, my_id: int) -> "Ballot":
        """Only the own vote is known, and it is granted."""
        return cls(voters, {id: True if id == my_id else None for id in voters.ids})

    def record(self, voter_id: int, *, granted: bool) -> None:
        """What a voter has answered. Who votes not is not counted."""
        if voter_id in self.votes:
            self.votes[voter_id] = granted

    @property
    def granting(self) -> list[int]:
        """Who has granted the vote."""
        return [id for id, granted in self.votes.items() if granted]

    @property
    def unanswered(self) -> list[ReplicaKey]:
        """Whose answer is not known."""
        return [self.voters.voters[id].key for id, granted in self.votes.items() if granted is None]

    @property
    def is_won(self) -> bool:
        """A majority has granted it."""
        return len(self.granting) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        """No majority can grant it any more."""
        return len(self.granting) + len(self.unanswered) < self.voters.majority


@dataclass(slots=True, kw_only=True)
class Unattached:
    """Knows the epoch, and not where its leader is. Asks around; a voter runs for election when time is up."""

    epoch: int
    #: Known by id at most: a leader that can be reached makes a Follower.
    leader_id: int | None = None
    #: Whom it has voted for in this epoch.
    voted: ReplicaKey | None = None
    #: NEVER_MS for an observer.
    election_deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Follower:
    """Fetches from the leader of the epoch. A voter whose fetches bring nothing for too long runs for election."""

    epoch: int
    leader_id: int
    #: Never empty.
    leader_endpoints: Endpoints
    voted: ReplicaKey | None = None
    fetch_deadline_ms: int
    #: When to look again whether this voter's entry in the voter set is right (KIP-853).
    update_voter_at_ms: int
    #: Whether the leader has answered a fetch well. If not, it may not live, and others may try (KIP-996).
    has_fetched: bool = False
    #: Whether the leader knows our endpoints, where they are not in the log (kraft.version 0).
    has_updated_leader: bool = False
    #: The snapshot that is being fetched instead of records.
    snapshot_id: OffsetAndEpoch | None = None
    download: SnapshotDownload | None = None


@dataclass(slots=True, kw_only=True)
class Prospective:
    """Asks whether it would be elected, in the epoch that it is in: a node that cannot win disturbs nobody (KIP-996)."""

    epoch: int
    #: The leader that it has lost, or that it knows by id only; it goes back to it if it would not be elected.
    leader_id: int | None = None
    leader_endpoints: Endpoints = field(default_factory=dict)
    voted: ReplicaKey | None = None
    ballot: Ballot
    election_deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Candidate:
    """Has begun a new epoch, voted for itself, and asks for votes."""

    epoch: int
    ballot: Ballot
    election_deadline_ms: int


@dataclass(slots=True, kw_only=True)
class VoterChange:
    """An AddRaftVoter or RemoveRaftVoter that the leader is at; there is one at a time."""

    #: Of the request; None once it was answered before the change is committed (ack_when_committed=false).
    token: Any
    is_addition: bool
    #: An addition waits for the answer to ApiVersions from this voter first.
    voter: ReplicaKey
    endpoints: Endpoints
    ack_when_committed: bool = True
    #: Where the new voter set stands; None as long as it was not appended.
    offset: int | None = None
    deadline_ms: int


@dataclass(slots=True, kw_only=True)
class Leader:
    """Won the election of its epoch: the only one who appends."""

    epoch: int
    #: Its first record, LeaderChange. Nothing is committed before this record is (Raft's section 5.4.2).
    epoch_start_offset: int
    followers: Followers
    #: None until something of this epoch is committed.
    high_watermark: int | None = None
    #: When to resign for want of a majority that fetches (KAFKA-15489).
    check_quorum_deadline_ms: int
    #: When to send BeginQuorumEpoch to those who do not fetch.
    begin_quorum_at_ms: int
    voter_change: VoterChange | None = None
    #: The voters with endpoints and directory ids that they have told; kraft.version 0 only, where these are
    #: not in the log but needed for the upgrade to 1.
    told_voters: VoterSet | None = None
    #: Resign at the next occasion.
    must_resign: bool = False


@dataclass(slots=True, kw_only=True)
class Resigned:
    """Led this epoch, and does so no more. Tells the voters; votes for nobody in this epoch."""

    epoch: int
    #: Who has not acknowledged EndQuorumEpoch.
    unacknowledged: set[int]
    preferred_successors: list[ReplicaKey] = field(default_factory=list)
    #: When to begin a later epoch as Unattached.
    deadline_ms: int


Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned
