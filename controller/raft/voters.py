"""Who votes: `VoterSet`, from the configuration (kraft.version 0) or from KRaftVoters records (kraft.version 1).

A voter set never changes; the methods that change one return another. Changes are of one voter at a time, so that
any majority of the old set and any majority of the new one have a voter in common: two leaders in one epoch, one
by each set, cannot be. A change takes effect as soon as it is appended, committed or not (KIP-853).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from controller.raft.types import Address, Endpoints, Node, ReplicaKey, VersionRange
from protocol.messages.voters_record import Endpoint, KRaftVersionFeature, VotersRecord
from protocol.messages.voters_record import Voter as VoterRow


@dataclass(frozen=True, slots=True)
class Voter:
    """One voter, where it listens, and the kraft.version levels that it understands."""

    key: ReplicaKey
    endpoints: Endpoints
    kraft_versions: VersionRange


@dataclass(frozen=True, slots=True)
class VoterSet:
    """All voters, by node id."""

    voters: Mapping[int, Voter]

    @classmethod
    def of_addresses(cls, voters: Mapping[int, Address], *, listener_name: str) -> Self:
        """The voters of controller.quorum.voters, of whom nothing is known but where they are."""
        return cls(
            {
                id: Voter(ReplicaKey(id), {listener_name: address}, VersionRange(0, 0))
                for id, address in sorted(voters.items())
            }
        )

    @classmethod
    def of_record(cls, record: VotersRecord) -> Self:
        """The voters that a control record names."""
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
        """The control record that names these voters."""
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
        """The voters' node ids."""
        return list(self.voters)

    @property
    def keys(self) -> list[ReplicaKey]:
        """The voters' replica keys."""
        return [voter.key for voter in self]

    @property
    def majority(self) -> int:
        """So many voters are more than half."""
        return len(self) // 2 + 1

    def is_voter(self, replica: ReplicaKey) -> bool:
        """Whether this replica votes: the right node and, where the set knows it, the right disk."""
        voter = self.voters.get(replica.id)
        return voter is not None and voter.key.names(replica)

    def is_only_voter(self, replica: ReplicaKey) -> bool:
        """Whether nobody but this replica votes."""
        return len(self) == 1 and self.is_voter(replica)

    def endpoints(self, voter_id: int) -> Endpoints:
        """Where a voter listens; nowhere if it is none."""
        voter = self.voters.get(voter_id)
        return voter.endpoints if voter is not None else {}

    def node(self, voter_id: int, *, listener_name: str) -> Node | None:
        """Where to send requests for a voter; None if it does not listen there."""
        address = self.endpoints(voter_id).get(listener_name)
        return None if address is None else Node(voter_id, address)

    def differs_from(self, voter: Voter) -> bool:
        """Whether the set has this voter, but knows it otherwise: it has moved, or was updated."""
        known = self.voters.get(voter.key.id)
        return known is not None and known.key.names(voter.key) and known != voter

    def supports(self, kraft_version: int) -> bool:
        """Whether every voter understands this level."""
        return all(kraft_version in voter.kraft_versions for voter in self)

    def with_voter(self, voter: Voter) -> "VoterSet | None":
        """With one more; None if the id is taken, whatever the disk."""
        return None if voter.key.id in self.voters else self._with(voter)

    def without_voter(self, key: ReplicaKey) -> "VoterSet | None":
        """With one less; None if it is no voter by exactly this key, or the last one."""
        voter = self.voters.get(key.id)
        if voter is None or voter.key != key or len(self) == 1:
            return None
        return VoterSet({id: each for id, each in self.voters.items() if id != key.id})

    def with_updated(self, voter: Voter) -> "VoterSet | None":
        """With this voter's new endpoints and versions; None if it is no voter."""
        return self._with(voter) if self.is_voter(voter.key) else None

    def with_directory(self, voter: Voter) -> "VoterSet | None":
        """As `with_updated`, but also on another disk: how configured voters get directory ids. None if it is none."""
        return self._with(voter) if voter.key.id in self.voters else None

    def _with(self, voter: Voter) -> "VoterSet":
        return VoterSet(dict(sorted({**self.voters, voter.key.id: voter}.items())))

    def has_overlapping_majority(self, other: "VoterSet") -> bool:
        """Whether every majority here shares a voter with every majority there.

        Not if both can be filled up, first with voters of their own, then with different common ones.
        """
        mine, others = set(self.keys), set(other.keys)
        needed = max(0, self.majority - len(mine - others)) + max(0, other.majority - len(others - mine))
        return needed > len(mine & others)
