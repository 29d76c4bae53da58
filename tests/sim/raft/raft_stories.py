"""The stories of the simulation; each is a function of a seed. The names are those of RaftEventSimulationTest."""

from collections.abc import Callable
from random import Random
from typing import Any

from raft_cluster import Cluster
from raft_events import MS
from raft_node import CLUSTER, LISTENER, Node

from ottla.controller.raft.types import ReplicaKey
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest
from ottla.protocol.messages.add_raft_voter import Listener as AddedListener
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.stories.partition.faulty_files import Loss

Story = Callable[[int], Cluster]


def _cluster(seed: int, *, least_voters: int = 1, is_traced: bool = False) -> Cluster:
    """Sizes and kraft.version by the seed."""
    random = Random(seed)
    voters = random.randint(max(3, least_voters), 5)
    if least_voters == 1 and random.random() < 0.1:
        voters = random.randint(1, 2)
    return Cluster(
        seed,
        voters=voters,
        observers=random.choice((0, 0, 1, 2, 5)),
        is_dynamic=random.random() < 0.5,
        is_traced=is_traced,
    ).start()


def can_elect_initial_leader(seed: int, *, is_traced: bool = False) -> Cluster:
    """All start: one leads, and the others follow."""
    cluster = _cluster(seed, is_traced=is_traced)
    yield cluster
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress(within_s=10)


def can_elect_new_leader_after_old_leader_failure(seed: int, *, is_traced: bool = False) -> Cluster:
    """The leader is killed: a majority is left."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress()
    cluster.crash(cluster.leader)
    cluster.run_until(cluster.has_leader, "another leader", within_s=30)
    cluster.make_progress()


def can_recover_after_all_nodes_killed(seed: int, *, is_traced: bool = False) -> Cluster:
    """All are killed, and a majority comes back: what was committed is there."""
    cluster = _cluster(seed, is_traced=is_traced)
    yield cluster
    cluster.make_progress()
    for node in cluster.running:
        cluster.crash(node)
    voters = [cluster.nodes[id] for id in cluster.first_voters]
    back = cluster.random.sample(voters, len(voters) // 2 + 1)
    for node in back:
        node.start()
    cluster.run_until(cluster.has_leader, "a leader again", within_s=30)
    cluster.make_progress()
    for node in cluster.nodes.values():
        if not node.is_running:
            node.start()
    cluster.make_progress()


def can_elect_new_leader_after_old_leader_partitioned_away(seed: int, *, is_traced: bool = False) -> Cluster:
    """The leader is cut off (one way or both): the others elect another one."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress()
    old = cluster.leader
    cluster.isolate([old], inbound=cluster.random.random() < 0.5)
    others = [node for node in cluster.running if node is not old]
    cluster.run_until(lambda: cluster.has_leader(others), "a leader of the others", within_s=30)
    cluster.make_progress(others)
    cluster.heal()
    cluster.run_until(cluster.has_leader, "one leader of all", within_s=30)
    cluster.make_progress()


def can_make_progress_if_majority_is_reachable(seed: int, *, is_traced: bool = False) -> Cluster:
    """A minority of the voters is cut off from the rest."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress()
    minority = cluster.random.sample(cluster.first_voters, (len(cluster.first_voters) - 1) // 2)
    cluster.isolate([cluster.nodes[id] for id in minority])
    rest = [node for node in cluster.running if node.id not in minority]
    cluster.make_progress(rest)
    cluster.heal()
    cluster.make_progress()


def can_make_progress_after_back_to_back_leader_failures(seed: int, *, is_traced: bool = False) -> Cluster:
    """One leader after the other is killed and comes back."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    for _ in range(4):
        cluster.run_until(cluster.has_leader, "a leader", within_s=30)
        goal = cluster.committed_end + cluster.random.randint(0, 5)
        cluster.run_until(lambda goal=goal: cluster.committed_end >= goal, f"{goal} is committed")
        leader = cluster.leader
        cluster.crash(leader)
        cluster.run_for(cluster.random.uniform(0, 3))
        leader.start()
    cluster.make_progress()


def can_recover_from_single_node_committed_data_loss(seed: int, *, is_traced: bool = False) -> Cluster:
    """One voter loses its disk; when it comes back, it gets everything from the others."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    # What a node has forgotten it cannot keep to.
    cluster.judge.without |= {"MonotonicEpoch", "MajorityReachedHighWatermark"}
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress()
    unlucky = cluster.nodes[cluster.random.choice(cluster.first_voters)]
    cluster.crash(unlucky, Loss.EVERYTHING)
    unlucky.lose_disk()
    cluster.run_until(cluster.has_leader, "a leader without it", within_s=30)
    cluster.make_progress()
    unlucky.start()
    cluster.make_progress()


def isolated_voter_does_not_disturb(seed: int, *, is_traced: bool = False) -> Cluster:
    """A voter loses the leader alone, all others keep it: it must not bring a new epoch about (KIP-996)."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress()
    # Only with a log as long as the others' could it win.
    cluster.has_work = False
    cluster.run_for(1)
    cluster.run_until(cluster.has_leader, "still a leader", within_s=30)
    leader = cluster.leader
    epoch = leader.raft.leader_and_epoch.epoch
    other = cluster.nodes[cluster.random.choice([id for id in cluster.first_voters if id != leader.id])]
    cut = {(leader.id, other.id)}
    cluster.network.weather.cut |= cut if cluster.random.random() < 0.5 else cut | {(other.id, leader.id)}
    cluster.events.note("cut", *cluster.network.weather.cut)
    cluster.run_for(10)
    cluster.heal()
    cluster.has_work = True
    cluster.make_progress(within_s=10)
    assert cluster.leader.raft.leader_and_epoch.epoch == epoch, "the leader was disturbed"


def cut_off_leader_cannot_shrink_the_quorum(seed: int, *, is_traced: bool = False) -> Cluster:
    """Asked to remove one voter after the other, a leader that is cut off must not end as the only one."""
    random = Random(seed)
    cluster = Cluster(seed, voters=random.randint(3, 5), observers=1, is_dynamic=True, is_traced=is_traced)
    cluster.start()
    yield cluster
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    cluster.make_progress()
    cluster.run_until(cluster.has_leader, "still a leader", within_s=30)
    leader, chaos = cluster.leader, Chaos(cluster)
    others = [node for node in cluster.running if node is not leader]
    cluster.isolate([leader])
    for voter in list(leader.raft.voters.keys):
        if voter.id != leader.id:
            chaos.ask_to_remove(leader, voter)
    cluster.run_until(lambda: cluster.has_leader(others), "a leader of the others", within_s=30)
    cluster.make_progress(others)
    cluster.heal()
    cluster.make_progress()


def leaders_die_young(seed: int, *, is_traced: bool = False) -> Cluster:
    """Leaders fall when some have their records and others have not, and the next one begins on top of either."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    cluster.append_interval = 5 * MS
    voters = [cluster.nodes[id] for id in cluster.first_voters]
    for _ in range(8):
        cluster.run_until(lambda: any(node.is_leader for node in cluster.running), "a leader", within_s=30)
        leader = cluster.leader
        cut_off = cluster.random.sample(voters, len(voters) // 2 + 1)
        if cluster.random.random() < 0.7:
            cluster.isolate([leader, *(node for node in voters if node not in cut_off)][: len(voters) // 2])
        cluster.run_for(cluster.random.choice((0.01, 0.05, 0.3)) * cluster.random.random())
        for node in cluster.running:
            if node is leader or cluster.random.random() < 0.2:
                cluster.crash(node)
        cluster.heal()
        cluster.run_for(cluster.random.uniform(0, 1))
        for node in cluster.nodes.values():
            if not node.is_running and (node is not leader or cluster.random.random() < 0.7):
                node.start()
    for node in cluster.nodes.values():
        if not node.is_running:
            node.start()
    cluster.make_progress()


def votes_are_kept(seed: int, *, is_traced: bool = False) -> Cluster:
    """Elections without a winner at first, while voters die right after they have voted."""
    cluster = _cluster(seed, least_voters=3, is_traced=is_traced)
    yield cluster
    voters = [cluster.nodes[id] for id in cluster.first_voters]
    cluster.network.weather.max_delay_ms = 900
    for _ in range(12):
        cluster.run_for(cluster.random.uniform(0.1, 1))
        for node in voters:
            if not node.is_running:
                node.start()
            elif node.is_leader or (node.has_voted and cluster.random.random() < 0.7):
                cluster.crash(node, Loss.EVERYTHING)
                cluster.run_for(cluster.random.uniform(0, 0.1))
                node.start()
    cluster.heal()
    for node in voters:
        if not node.is_running:
            node.start()
    cluster.make_progress()


# -- anything at any time ------------------------------------------------------------------------------------


class Chaos:
    """Faults of all kinds, as the dice fall."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.is_asking = False
        self.lost_disks = 0
        self.actions: list[Callable[[], None]] = [
            self.crash,
            self.crash,
            self.restart,
            self.restart,
            self.restart,
            self.split,
            self.cut_one_way,
            self.heal,
            self.heal,
            self.weather,
            self.slow_disk,
            self.snapshots,
        ]
        if cluster.is_dynamic:
            self.actions += [self.add, self.add, self.remove, self.lose_disk]

    def go_on(self, steps: int) -> None:
        """Inject so many faults, a moment apart."""
        for _ in range(steps):
            self.random.choice(self.actions)()
            self.cluster.run_for(self.random.choice((0.01, 0.1, 0.5, 1, 2)) * self.random.random())

    def crash(self) -> None:
        """Any node at any moment."""
        if nodes := self.cluster.running:
            leaders = [node for node in nodes if node.is_leader]
            chosen = self.random.choice(leaders if leaders and self.random.random() < 0.5 else nodes)
            self.cluster.crash(chosen)

    def restart(self) -> None:
        """Restart a node that is down."""
        if nodes := [node for node in self.cluster.nodes.values() if not node.is_running]:
            self.random.choice(nodes).start()

    def split(self) -> None:
        """Two halves that do not know of each other."""
        nodes = list(self.cluster.nodes.values())
        self.cluster.isolate(self.random.sample(nodes, self.random.randint(1, len(nodes))))

    def cut_one_way(self) -> None:
        """Cut some links in one direction."""
        ids = list(self.cluster.nodes)
        for _ in range(self.random.randint(1, 4)):
            self.cluster.network.weather.cut.add((self.random.choice(ids), self.random.choice(ids)))

    def heal(self) -> None:
        """Repair all links of the network."""
        self.cluster.network.weather.cut.clear()

    def weather(self) -> None:
        """Draw loss and delay of messages."""
        weather = self.cluster.network.weather
        weather.loss = self.random.choice((0, 0, 0.02, 0.2))
        weather.max_delay_ms = self.random.choice((1, 5, 50, 400))

    def slow_disk(self) -> None:
        """Make the disk of one node slow."""
        node = self.random.choice(list(self.cluster.nodes.values()))
        node.disk.max_delay_ms = self.random.choice((0, 1, 20, 300, 2000))

    def snapshots(self) -> None:
        """Have every node take a snapshot."""
        for node in self.cluster.running:
            node.begin_snapshot()

    # -- the voter set ---------------------------------------------------------------------------------------

    def _alive(self) -> list[Node]:
        """Voters that can still vote: those whose disk is the one that the set names."""
        keys = max(self.cluster.running, key=lambda node: node.log.end).raft.voters.keys
        return [
            node
            for node in self.cluster.nodes.values()
            if any(key == ReplicaKey(node.id, node.directory_id) for key in keys)
        ]

    def has_majority(self) -> bool:
        """Whether enough voters are left, if all come up."""
        newest = max(self.cluster.running, key=lambda node: node.log.end, default=None)
        return newest is not None and 2 * len(self._alive()) > len(newest.raft.voters)

    def _ask(self, node: Node, request: Any) -> None:
        self.is_asking = True
        self.cluster.events.note("ask", node.id, request)

        def answered(response: Any) -> None:
            self.is_asking = False
            self.cluster.events.note("answer", node.id, response)

        def forget() -> None:
            self.is_asking = False

        node.ask(request, answered)
        self.cluster.events.after(5_000 * MS, forget)

    def add(self) -> None:
        """A controller that is no voter becomes one."""
        leaders = [node for node in self.cluster.running if node.is_leader]
        if self.is_asking or not leaders:
            return
        leader = self.random.choice(leaders)
        ids = set(leader.raft.voters.ids)
        others = [node for node in self.cluster.running if node.can_become_voter and node.id not in ids]
        if others:
            node = self.random.choice(others)
            listener = AddedListener(name=LISTENER, host=node.address.host, port=node.address.port)
            self._ask(
                leader,
                AddRaftVoterRequest(
                    cluster_id=CLUSTER,
                    timeout_ms=3000,
                    voter_id=node.id,
                    voter_directory_id=node.directory_id,
                    listeners=[listener],
                    ack_when_committed=self.random.random() < 0.5,
                ),
            )

    def remove(self) -> None:
        """A voter becomes an observer; the one first whose disk is gone."""
        leaders = [node for node in self.cluster.running if node.is_leader]
        if self.is_asking or not leaders:
            return
        leader = self.random.choice(leaders)
        keys = leader.raft.voters.keys
        dead = [key for key in keys if self.cluster.nodes[key.id].directory_id != key.directory_id]
        if dead or len(keys) > 2:
            self.ask_to_remove(leader, self.random.choice(dead or list(keys)))

    def ask_to_remove(self, leader: Node, key: ReplicaKey) -> None:
        """One request, of this leader."""
        request = RemoveRaftVoterRequest(
            cluster_id=CLUSTER, voter_id=key.id, voter_directory_id=key.directory_id
        )
        self._ask(leader, request)

    def lose_disk(self) -> None:
        """One node comes back as another replica, if the quorum can do without it."""
        nodes = [node for node in self.cluster.nodes.values() if not node.is_running]
        if self.lost_disks or self.is_asking or not nodes or not self.cluster.running:
            return
        node = self.random.choice(nodes)
        newest = max(self.cluster.running, key=lambda node: node.log.end)
        alive = [each for each in self._alive() if each is not node]
        if 2 * len(alive) > len(newest.raft.voters) and len(newest.raft.voters) > 2:
            self.lost_disks += 1
            node.lose_disk()


def voters_change_under_faults(seed: int, *, is_traced: bool = False) -> Cluster:
    """Voters are added and removed, through nodes that lead or believe so, while leaders are cut off."""
    cluster = Cluster(
        seed, voters=Random(seed).randint(2, 4), observers=2, is_dynamic=True, is_traced=is_traced
    )
    cluster.start()
    yield cluster
    chaos = Chaos(cluster)
    cluster.run_until(cluster.has_leader, "a leader", within_s=30)
    for _ in range(15):
        chaos.is_asking = False
        cluster.random.choice((chaos.add, chaos.remove))()
        if cluster.random.random() < 0.5:
            cluster.run_for(cluster.random.uniform(0, 0.02))
        cluster.random.choice((chaos.split, chaos.split, chaos.heal, chaos.crash, chaos.restart))()
        cluster.run_for(cluster.random.uniform(0, 4))
        chaos.restart()
    _end_well(cluster, chaos)


def survives_anything(seed: int, *, is_traced: bool = False, steps: int = 40) -> Cluster:
    """Faults of all kinds for a while; then all is well again, and the quorum works."""
    cluster = _cluster(seed, is_traced=is_traced)
    yield cluster
    chaos = Chaos(cluster)
    chaos.go_on(steps)
    _end_well(cluster, chaos)


def _end_well(cluster: Cluster, chaos: Chaos) -> None:
    cluster.heal()
    for node in cluster.nodes.values():
        if not node.is_running:
            node.start()
    # Disks that are gone may be too many for the voters that are left: then there is no leader, and nothing is lost.
    cluster.run_until(lambda: not chaos.has_majority() or cluster.has_leader(), "a leader", within_s=60)
    if chaos.has_majority():
        cluster.make_progress(within_s=30)


STORIES = {
    story.__name__: story
    for story in (
        can_elect_initial_leader,
        can_elect_new_leader_after_old_leader_failure,
        can_recover_after_all_nodes_killed,
        can_elect_new_leader_after_old_leader_partitioned_away,
        can_make_progress_if_majority_is_reachable,
        can_make_progress_after_back_to_back_leader_failures,
        can_recover_from_single_node_committed_data_loss,
        isolated_voter_does_not_disturb,
        cut_off_leader_cannot_shrink_the_quorum,
        leaders_die_young,
        votes_are_kept,
        voters_change_under_faults,
        survives_anything,
    )
}


def run_story(name: str, seed: int, *, is_traced: bool = False) -> Cluster:
    """Run a story to its end; the cluster as it is then. What breaks carries the trace's end."""
    run = STORIES[name](seed, is_traced=is_traced)
    cluster = next(run)
    try:
        for _ in run:
            raise AssertionError("a story yields its cluster, once")
        cluster.finish()
    except Exception as error:
        error.add_note(f"{name}, seed {seed}: repeat it by `run_story({name!r}, {seed}, is_traced=True)`")
        for line in (cluster.events.trace or [])[-60:]:
            error.add_note(line)
        raise
    return cluster
