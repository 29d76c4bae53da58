"""VoterSet: the voters, from the configuration (kraft.version 0) or from KRaftVoters records (kraft.version 1).

A voter set is immutable; methods that change one return a new one. Invariant: one voter changes at a time, so that
every majority of the old set shares a voter with every majority of the new one. Otherwise two leaders could be elected
in one epoch, one by each set: {1,2} of {1,2,3}, and {3,4,5} of {1,2,3,4,5} after two additions at once. A change is
in effect as soon as it is appended, committed or not (KIP-853).
Source: VoterSet of Kafka 4.3.1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from ottla.controller.raft.types import Address, Endpoints, Node, ReplicaKey, VersionRange
from ottla.protocol.messages.voters_record import Endpoint, KRaftVersionFeature, VotersRecord
from ottla.protocol.messages.voters_record import Voter as VoterRow


@dataclass(frozen=True, slots=True)
class Voter:
    """One voter, its endpoints, and the kraft.version levels that it supports."""

    key: ReplicaKey
    endpoints: Endpoints
    kraft_versions: VersionRange


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters of the metadata quorum, by node id."""

    voters: Mapping[int, Voter]

    def __post_init__(self) -> None:
        # A voter under two ids would have two votes.
        assert all(id == voter.key.id for id, voter in self.voters.items()), self.voters

    @classmethod
    def of_addresses(cls, voters: Mapping[int, Address], *, listener_name: str) -> Self:
        """The voters of controller.quorum.voters, of which only ids and addresses are known."""
        return cls(
            {
                id: Voter(ReplicaKey(id), {listener_name: address}, VersionRange(0, 0))
                for id, address in sorted(voters.items())
            }
        )

    @classmethod
    def of_record(cls, record: VotersRecord) -> Self:
        """The voters in a KRaftVoters control record."""
        return cls(
            {
                row.voter_id: Voter(
                    ReplicaKey(row.voter_id, row.voter_directory_id),
                    {each.name: Address(each.host, each.port) for each in row.endpoints},
                    VersionRange(
                        row.k_raft_version_feature.min_supported_version,
                        row.k_raft_version_feature.max_supported_version,
                    ),
                )
                for row in record.voters
            }
        )

    def to_record(self) -> VotersRecord:
        """The KRaftVoters control record of these voters."""
        return VotersRecord(
            voters=[
                VoterRow(
                    voter_id=voter.key.id,
                    voter_directory_id=voter.key.directory_id,
                    endpoints=[
                        Endpoint(name=name, host=address.host, port=address.port)
                        for name, address in voter.endpoints.items()
                    ],
                    k_raft_version_feature=KRaftVersionFeature(
                        min_supported_version=voter.kraft_versions.min_version,
                        max_supported_version=voter.kraft_versions.max_version,
                    ),
                )
                for voter in self
            ]
        )

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters.values())

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def ids(self) -> list[int]:
        """The node ids of the voters."""
        return list(self.voters)

    @property
    def keys(self) -> list[ReplicaKey]:
        """The replica keys of the voters."""
        return [voter.key for voter in self]

    @property
    def majority(self) -> int:
        """The smallest number of voters that is more than half."""
        return len(self) // 2 + 1

    def is_voter(self, replica: ReplicaKey) -> bool:
        """Whether this replica is a voter: its id matches and, if the set has one, its directory id."""
        voter = self.voters.get(replica.id)
        return voter is not None and voter.key.matches(replica)

    def is_only_voter(self, replica: ReplicaKey) -> bool:
        """Whether this replica is the only voter."""
        return len(self) == 1 and self.is_voter(replica)

    def endpoints(self, voter_id: int) -> Endpoints:
        """A voter's endpoints; empty if the id is not a voter's."""
        voter = self.voters.get(voter_id)
        return voter.endpoints if voter is not None else {}

    def node(self, voter_id: int, *, listener_name: str) -> Node | None:
        """A voter as the destination of requests; None if it has no endpoint for this listener."""
        address = self.endpoints(voter_id).get(listener_name)
        return None if address is None else Node(voter_id, address)

    def differs_from(self, voter: Voter) -> bool:
        """Whether the set has this voter with other endpoints or levels: it has moved, or was upgraded."""
        known = self.voters.get(voter.key.id)
        return known is not None and known.key.matches(voter.key) and known != voter

    def supports(self, kraft_version: int) -> bool:
        """Whether every voter supports this level."""
        return all(kraft_version in voter.kraft_versions for voter in self)

    def with_voter(self, voter: Voter) -> "VoterSet | None":
        """The set with this voter added; None if a voter has this id, on any disk."""
        return None if voter.key.id in self.voters else self._with(voter)

    def without_voter(self, key: ReplicaKey) -> "VoterSet | None":
        """The set without this voter; None if no voter has exactly this key, or if it is the last one."""
        voter = self.voters.get(key.id)
        if voter is None or voter.key != key or len(self) == 1:
            return None
        return VoterSet({id: each for id, each in self.voters.items() if id != key.id})

    def with_updated(self, voter: Voter) -> "VoterSet | None":
        """The set with this voter's new endpoints and levels; None if it is not a voter."""
        return self._with(voter) if self.is_voter(voter.key) else None

    def with_directory(self, voter: Voter) -> "VoterSet | None":
        """The set with this voter in place of the one with its id, on any disk; None if the id is not a voter's.

        So the voters of controller.quorum.voters get their directory ids.
        """
        return self._with(voter) if voter.key.id in self.voters else None

    def _with(self, voter: Voter) -> "VoterSet":
        return VoterSet(dict(sorted({**self.voters, voter.key.id: voter}.items())))

    def has_overlapping_majority(self, other: "VoterSet") -> bool:
        """Whether every majority of this set shares a voter with every majority of the other.

        False if two disjoint majorities exist: each takes the voters of its own set first, then different common ones.
        """
        mine, others = set(self.keys), set(other.keys)
        needed = max(0, self.majority - len(mine - others)) + max(0, other.majority - len(others - mine))
        return needed > len(mine & others)
