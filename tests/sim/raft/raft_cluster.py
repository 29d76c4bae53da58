"""A quorum in virtual time: nodes, network, a client that appends numbers, and the faults that a story names."""

from collections.abc import Callable, Iterable
from random import Random

from raft_events import MS, Events, S
from raft_judge import Judge
from raft_network import Network
from raft_node import LISTENER, Broken, Node

from ottla.controller.raft.types import Address
from ottla.protocol.messages.voters_record import Endpoint, KRaftVersionFeature, Voter, VotersRecord
from ottla.stories.partition.faulty_files import RANDOM_LOSSES, Loss

#: Events that a run may take; beyond it goes round in circles.
MAX_EVENTS = 3_000_000


class Cluster:
    """Voters have the ids from 1 on, observers those behind them; every third observer is a broker."""

    def __init__(
        self, seed: int, *, voters: int, observers: int = 0, is_dynamic: bool = False, is_traced: bool = False
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.events = Events(is_traced=is_traced)
        self.network = Network(self.events, self.random)
        self.judge = Judge(self.events)
        self.is_dynamic = is_dynamic
        self.next_value = 0
        self.has_work = True
        self.append_interval = 40 * MS
        self.snapshot_interval = 700 * MS
        self.nodes: dict[int, Node] = {}
        self.first_voters = list(range(1, voters + 1))
        for id in range(1, voters + observers + 1):
            node = Node(
                id,
                events=self.events,
                network=self.network,
                random=self.random,
                judge=self.judge,
                clock_rate=self.random.uniform(0.95, 1.05),
            )
            node.can_become_voter = id <= voters or id % 3 != 0
            self.nodes[id] = node
        addresses = {id: self.nodes[id].address for id in self.first_voters}
        for node in self.nodes.values():
            if is_dynamic:
                node.bootstrap_servers = tuple(addresses.values())
            else:
                node.static_voters = addresses
        if is_dynamic:
            record = VotersRecord(voters=[self._voter(id, address) for id, address in addresses.items()])
            for id in self.first_voters:
                self.nodes[id].format(record)

    def _voter(self, id: int, address: Address) -> Voter:
        return Voter(
            voter_id=id,
            voter_directory_id=self.nodes[id].directory_id,
            endpoints=[Endpoint(name=LISTENER, host=address.host, port=address.port)],
            k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
        )

    # -- running ---------------------------------------------------------------------------------------------

    def start(self) -> "Cluster":
        """All nodes, the client, and who takes snapshots."""
        for node in self.nodes.values():
            node.start()
        self._repeat(self.append_interval, self._append)
        self._repeat(self.snapshot_interval, self._snapshot)
        return self

    def _repeat(self, interval: int, happen: Callable[[], None]) -> None:
        def again() -> None:
            happen()
            self.events.after(int(interval * self.random.uniform(0.5, 1.5)), again)

        self.events.after(interval, again)

    def _append(self) -> None:
        for node in self.running:
            if node.is_leader and self.has_work:
                self.next_value += 1
                node.append(self.next_value)

    def _snapshot(self) -> None:
        running = self.running
        if running:
            self.random.choice(running).begin_snapshot()

    def run_until(self, is_so: Callable[[], bool], what: str, *, within_s: float = 60) -> float:
        """Go on until it is so; the virtual seconds that it took. Raises Broken if it does not become so."""
        begin = self.events.now
        limit = begin + int(within_s * S)
        while not is_so():
            if not self.events.step() or self.events.now > limit or self.events.count > MAX_EVENTS:
                raise Broken(f"not within {within_s} s: {what}; {self.describe()}")
        self.events.note("reached:", what)
        return (self.events.now - begin) / S

    def run_for(self, seconds: float) -> None:
        """Go on for so long."""
        limit = self.events.now + int(seconds * S)
        while self.events.now < limit and self.events.step():
            pass

    def describe(self) -> str:
        """The state of the cluster, for an error message."""
        return "; ".join(
            f"{node.id}: {type(node.raft.role).__name__} {node.raft.leader_and_epoch} end {node.log.end} hw "
            f"{node.raft.high_watermark}"
            if node.is_running
            else f"{node.id}: down"
            for node in self.nodes.values()
        )

    # -- what is so ------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Node]:
        """The nodes that are up."""
        return [node for node in self.nodes.values() if node.is_running]

    @property
    def voter_ids(self) -> list[int]:
        """The voters, as the node with the newest log knows them."""
        newest = max(self.running, key=lambda node: node.log.end, default=None)
        return self.first_voters if newest is None else newest.raft.voters.ids

    def has_leader(self, among: Iterable[Node] | None = None) -> bool:
        """Whether all of them (None: all that run) follow one leader of one epoch, which is one of them."""
        nodes = list(self.running if among is None else among)
        known = {node.raft.leader_and_epoch for node in nodes}
        if len(known) != 1:
            return False
        leader = known.pop().leader_id
        return leader is not None and any(node.id == leader and node.is_leader for node in nodes)

    @property
    def leader(self) -> Node:
        """The one with the latest epoch."""
        return max(
            (node for node in self.running if node.is_leader),
            key=lambda node: node.raft.leader_and_epoch.epoch,
        )

    @property
    def committed_end(self) -> int:
        """The largest high watermark that any node had."""
        return self.judge.committed_end

    def have_reached(self, offset: int, among: Iterable[Node] | None = None) -> bool:
        """Whether all of them (None: all that run) have committed up to here."""
        nodes = self.running if among is None else among
        return all((node.raft.high_watermark or 0) >= offset for node in nodes)

    def make_progress(self, among: Iterable[Node] | None = None, *, within_s: float = 60) -> None:
        """Run until ten more records are committed everywhere."""
        nodes = None if among is None else list(among)
        goal = self.committed_end + 10
        self.run_until(lambda: self.have_reached(goal, nodes), f"all reach {goal}", within_s=within_s)

    # -- faults ----------------------------------------------------------------------------------------------

    def crash(self, node: Node, loss: Loss | None = None) -> None:
        """The power of a node fails, or (NOTHING) only its process ends."""
        node.crash(self.random.choice(RANDOM_LOSSES) if loss is None else loss)

    def isolate(self, nodes: Iterable[Node], *, outbound: bool = True, inbound: bool = True) -> None:
        """Nothing goes from these nodes to others, or comes from them."""
        inside = {node.id for node in nodes}
        outside = self.nodes.keys() - inside
        for a in inside:
            for b in outside:
                self.network.weather.cut |= ({(a, b)} if outbound else set()) | (
                    {(b, a)} if inbound else set()
                )
        self.events.note("isolate", sorted(inside), outbound, inbound)

    def heal(self) -> None:
        """All nodes are connected, and nothing is lost."""
        self.network.weather.cut.clear()
        self.network.weather.loss = 0
        self.network.weather.max_delay_ms = 5
        for node in self.nodes.values():
            node.disk.max_delay_ms = 1.0
        self.events.note("heal")

    def finish(self) -> None:
        """The last check of everything."""
        self.judge.final(self.running)
