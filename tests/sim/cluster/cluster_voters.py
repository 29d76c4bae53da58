"""Voters that change (KIP-853): the first ones are in the metadata log, and operators and controllers change them.

    voter_add        a controller that is no voter becomes one (AddRaftVoter)
    voter_remove     a voter becomes an observer (RemoveRaftVoter), often the leader; one whose disk is gone comes first
    port             a controller is stopped, and is found at another port afterwards: it says so itself
                     (UpdateRaftVoter)

In half of the worlds controllers join by themselves (controller.quorum.auto.join.enable),
also one that was just removed. The invariants are in `cluster_quorum`.
"""

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from cluster_clients import UNANSWERED, Client
from cluster_machine import CLUSTER_ID, CONTROLLER_PORT, CONTROLLER_PORTS, Machine

from ottla.broker.roles.formatting import InitialController
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import ReplicaKey
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest

if TYPE_CHECKING:
    from cluster_world import World

#: After so many seconds a request that was not answered does not arrive any more.
_FORGOTTEN_S = 4.0


class QuorumOfWorld:
    """The first voters of a world, and what its nodes are configured with."""

    def __init__(self, seed: int, shapes: Sequence[tuple[int, str]], spares: int | None) -> None:
        """`shapes`: (node id, roles) of the nodes but for the `spares`; None: the configuration names the voters."""
        random = Random(f"voters {seed}")
        voters = [node_id for node_id, roles in shapes if "controller" in roles]
        self.spares = [(200 + number, "controller") for number in range(spares or 0)]
        self.initial: list[InitialController] = []
        self._joins = False
        if spares is None:
            addresses = ",".join(f"{each}@n{each}:{CONTROLLER_PORT}" for each in voters)
            self.property = f"controller.quorum.voters={addresses}"
            return
        self._joins = random.random() < 0.5
        self.initial = [
            InitialController(each, f"n{each}", CONTROLLER_PORT, UUID(int=random.getrandbits(128), version=4))
            for each in voters
        ]
        controllers = [*voters, *(node_id for node_id, _ in self.spares)]
        servers = ",".join(f"n{each}:{port}" for each in controllers for port in CONTROLLER_PORTS)
        self.property = f"controller.quorum.bootstrap.servers={servers}"

    def settings_of(self, roles: str) -> dict[str, object]:
        """The configuration of a node with these roles, besides the property."""
        return {"controller.quorum.auto.join.enable": "true"} if self._joins and "controller" in roles else {}


class VoterChanges:
    """Operators' changes of one world's voters; their outcome is not waited for."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = Random(f"voter changes {world.seed}")
        self._client: Client | None = None
        self._asked_s = -_FORGOTTEN_S

    def add(self) -> None:
        """A controller that is no voter becomes one."""
        leader = _leader(self._world)
        if leader is None:
            return
        ids = leader[1].voters.ids
        others = [each for each in _controllers(self._world) if each.is_up and each.node_id not in ids]
        if others:
            machine = self._random.choice(others)
            listener = Listener(name="CONTROLLER", host=machine.host, port=machine.controller_port)
            self._world.note(f"add voter {machine}")
            self._ask(
                ApiKey.ADD_RAFT_VOTER,
                AddRaftVoterRequest(
                    cluster_id=CLUSTER_ID,
                    timeout_ms=1000,
                    voter_id=machine.node_id,
                    voter_directory_id=machine.metadata_directory_ids[-1],
                    listeners=[listener],
                    ack_when_committed=self._random.random() < 0.5,
                ),
            )

    def remove(self) -> None:
        """A voter becomes an observer, unless it is the last but one and the seed has it so."""
        leader = _leader(self._world)
        if leader is None:
            return
        keys, living = leader[1].voters.keys, _living(self._world)
        if _has_moved(self._world, leader[1]):
            return  # nothing would reach the voter that the smaller set may need
        dead = [key for key in keys if key not in living]
        if not dead and (len(keys) < 2 or (len(keys) == 2 and self._random.random() < 0.7)):
            return
        own = [key for key in keys if key.id == leader[0].node_id]
        key = self._random.choice(dead or (own if own and self._random.random() < 0.4 else keys))
        self._world.note(f"remove voter {key.id}")
        self._ask(
            ApiKey.REMOVE_RAFT_VOTER,
            RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=key.id, voter_directory_id=key.directory_id
            ),
        )

    def _ask(self, api_key: int, message: AddRaftVoterRequest | RemoveRaftVoterRequest) -> None:
        if self._client is None:
            self._client = self._world.client("voters")
        client, broker_id = self._client, self._random.choice(self._world.broker_ids)
        self._asked_s = self._world.now

        async def ask() -> None:
            with suppress(*UNANSWERED):
                await client.request(broker_id, api_key, message)

        self._world.begin(ask())

    def spares_one(self) -> bool:
        """Whether the quorum goes on when one voter has lost its disk, or is not found any more, and can replace it.

        There are three voters at least, all of them on their disks, where the log says, and no change is under way that
        would remove another. A quorum of two, one of which has moved while no node leads, is stuck,
        as Kafka's is: only a leader learns of the other address.
        """
        leader = _leader(self._world)
        if leader is None or self._world.now < self._asked_s + _FORGOTTEN_S:
            return False
        role, keys = leader[1]._raft.role, leader[1].voters.keys
        assert isinstance(role, Leader), role
        return (
            len(keys) > 2
            and role.voter_change is None
            and set(keys) <= _living(self._world)
            and not _has_moved(self._world, leader[1])
            and all(
                each.is_serving and each.quorum is not None and each.quorum.voters.keys == keys
                for each in _controllers(self._world)
            )
        )


def _has_moved(world: "World", quorum: RaftClient) -> bool:
    """Whether a voter is at another port than its log has."""
    ports = {each.node_id: each.controller_port for each in _controllers(world)}
    return any(each.endpoints["CONTROLLER"].port != ports[each.key.id] for each in quorum.voters)


def all_joined(world: "World") -> bool:
    """Whether each controller that joins by itself is a voter, on its disk, as all nodes know."""
    joining = {
        ReplicaKey(each.node_id, each.metadata_directory_ids[-1])
        for each in _controllers(world)
        if each.config.get("controller.quorum.auto.join.enable")
    }
    return all(each.quorum is not None and joining <= set(each.quorum.voters.keys) for each in world.machines)


def _controllers(world: "World") -> list[Machine]:
    return [machine for machine in world.machines if machine.is_controller]


def _living(world: "World") -> set[ReplicaKey]:
    """The voters that could vote, if all machines ran."""
    return {ReplicaKey(each.node_id, each.metadata_directory_ids[-1]) for each in _controllers(world)}


def _leader(world: "World") -> tuple[Machine, RaftClient] | None:
    """The leader of the newest epoch that has one."""
    leaders = [
        (machine, machine.quorum)
        for machine in _controllers(world)
        if machine.quorum is not None and isinstance(machine.quorum._raft.role, Leader)
    ]
    return max(leaders, key=lambda each: each[1]._raft.role.epoch, default=None)
