"""Any history of brokers, leaders and users: the invariants of KIP-966's specification hold after every step.

About KIP-455, KIP-497, KIP-841, KIP-1303.
"""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from replica_control_model import BROKERS, PARTITIONS, Cluster

from ottla.controller.partitions import (
    alter_partition,
    leader_and_isr_updates,
    leader_election,
    partition_change,
)
from ottla.controller.partitions.alter_partition import _check, _check_members, _local_logs
from ottla.controller.partitions.draft import Draft
from ottla.controller.partitions.partition_change import (
    ElectionRules,
    _target_elr,
    maybe_complete_reassignment,
)
from ottla.metadata.image import PartitionImage
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.local_log import LocalLogs
from ottla.protocol.messages.alter_partition import BrokerState, PartitionData

a_broker = st.sampled_from(BROKERS)
a_partition = st.sampled_from(PARTITIONS)
replicas = st.lists(a_broker, min_size=1, max_size=3, unique=True)


class ReplicaControl(RuleBasedStateMachine):
    """Hypothesis chooses the steps, and finds the shortest history that breaks an invariant."""

    @initialize(elr=st.booleans(), prefers_local=st.booleans())
    def begin(self, elr: bool, prefers_local: bool) -> None:
        self.cluster = Cluster(elr=elr, prefers_local=prefers_local)

    @rule(broker=a_broker, lost=st.integers(0, 3))
    def crash(self, broker: int, lost: int) -> None:
        self.cluster.crash(broker, lost)

    @rule(broker=a_broker)
    def stop(self, broker: int) -> None:
        self.cluster.stop(broker)

    @rule(broker=a_broker)
    def leave(self, broker: int) -> None:
        self.cluster.leave(broker)

    @rule(broker=a_broker)
    def start(self, broker: int) -> None:
        self.cluster.register(broker)

    @rule(broker=a_broker)
    def beat(self, broker: int) -> None:
        self.cluster.beat(broker)

    @rule(loud=st.sets(a_broker))
    def silence(self, loud: set[int]) -> None:
        for broker in loud:
            self.cluster.read(broker)
            self.cluster.beat(broker)
        self.cluster.silence(5_000)

    @rule(broker=a_broker, count=st.sampled_from([1, 3, None]))
    def read(self, broker: int, count: int | None) -> None:
        self.cluster.read(broker, count)

    @rule(partition=a_partition, brokers=st.lists(a_broker, min_size=1, max_size=4))
    def replicate(self, partition: int, brokers: list[int]) -> None:
        for broker in BROKERS:
            self.cluster.produce(broker, partition)
        for broker in brokers:
            self.cluster.fetch(broker, partition)

    @rule(partition=a_partition, broker=a_broker, without=st.sampled_from([None, None, *BROKERS]))
    def propose(self, partition: int, broker: int, without: int | None) -> None:
        self.cluster.propose(broker, partition, without=without)

    @rule(partition=a_partition, broker=a_broker, start=st.sampled_from([0, 9, 10, 18, 50]))
    def expire_locally(self, partition: int, broker: int, start: int) -> None:
        self.cluster.expire_locally(broker, partition, start)

    @rule(which=st.integers(-3, -1), is_answered=st.booleans())
    def deliver(self, which: int, is_answered: bool) -> None:
        self.cluster.deliver(which)
        if is_answered:
            self.cluster.answer(which)

    @rule(partition=a_partition, to=st.one_of(st.none(), replicas))
    def reassign(self, partition: int, to: list[int] | None) -> None:
        self.cluster.reassign(partition, to)

    @rule(election=st.sampled_from([0, 0, 1]))
    def elect(self, election: int) -> None:
        self.cluster.elect(election)

    @rule()
    def balance(self) -> None:
        self.cluster.balance()

    @rule(is_hasty=st.booleans())
    def policy(self, is_hasty: bool) -> None:
        self.cluster.configure("unclean.leader.election.enable", str(is_hasty).lower())
        self.cluster.elect_unclean()

    @rule(count=st.integers(1, 3))
    def require(self, count: int) -> None:
        self.cluster.require(count)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.heal()


ReplicaControl.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestReplicaControl = ReplicaControl.TestCase


# -- the same by seed ----------------------------------------------------------------------------------


class Walk:
    """A random history; brokers mostly do what keeps a cluster going, so that there is something to break."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        is_hasty = seed % 5 == 0
        self.cluster = Cluster(elr=is_hasty or seed % 4 != 0, prefers_local=seed % 3 == 0)
        if is_hasty:
            self.cluster.configure("unclean.leader.election.enable", "true")

    def run(self, steps: int = 120) -> None:
        weights = (12, 10, 8, 4, 2, 3, 1, 1, 3, 2, 1, 1, 1, 1, 2, 2 if self.cluster.prefers_local else 0)
        choices = (
            self.work, self.propose, self.beats, self.crash_and_return, self.reassign, self.start, self.crash,
            self.stop, self.leave, self.silence, self.elect, self.cluster.balance, self.require,
            self.cluster.elect_unclean, self.late, self.expire_locally,
        )  # fmt: skip
        for _ in range(steps):
            self.random.choices(choices, weights)[0]()
            self.cluster.check()
        self.cluster.heal()

    def any_broker(self) -> int:
        return self.random.choice(BROKERS)

    def is_likely(self) -> bool:
        return self.random.random() < 0.75

    def work(self) -> None:
        for index in PARTITIONS:
            for broker in BROKERS:
                if self.is_likely():
                    self.cluster.read(broker)
                self.cluster.produce(broker, index)
            for broker in BROKERS:
                if self.is_likely():
                    self.cluster.fetch(broker, index)

    def propose(self) -> None:
        index = self.random.choice(PARTITIONS)
        leader = self.cluster.now(index).leader or self.any_broker()
        self.cluster.propose(leader, index, without=self.random.choice([None, None, *BROKERS]))
        if self.is_likely():
            self.cluster.deliver(-1)
            if self.is_likely():
                self.cluster.answer(-1)

    def expire_locally(self) -> None:
        start = self.random.choice([0, 9, 10, 18, 50])
        self.cluster.expire_locally(self.any_broker(), self.random.choice(PARTITIONS), start)

    def late(self) -> None:
        self.cluster.deliver(self.random.randrange(-5, 0))

    def beats(self) -> None:
        for broker in BROKERS:
            if self.is_likely():
                self.cluster.read(broker)
                self.cluster.beat(broker)

    def crash(self) -> None:
        self.cluster.crash(self.any_broker(), self.random.randrange(4))

    def crash_and_return(self) -> None:
        broker = self.any_broker()
        self.cluster.crash(broker, self.random.randrange(4))
        for _ in range(2):
            for other in BROKERS:
                self.cluster.beat(other)
            self.cluster.silence(4_600)
        self.cluster.register(broker)

    def stop(self) -> None:
        self.cluster.stop(self.any_broker())

    def leave(self) -> None:
        self.cluster.leave(self.any_broker())

    def start(self) -> None:
        self.cluster.register(self.any_broker())

    def silence(self) -> None:
        self.cluster.silence(5_000)

    def reassign(self) -> None:
        to = self.random.sample(BROKERS, self.random.choice([1, 2, 2, 3]))
        self.cluster.reassign(self.random.choice(PARTITIONS), self.random.choice([to, to, None]))

    def elect(self) -> None:
        self.cluster.elect(self.random.choice([0, 0, 1]))

    def require(self) -> None:
        self.cluster.require(self.random.choice([1, 2, 2, 3]))


def walk_all(seeds: range) -> None:
    for seed in seeds:
        Walk(seed).run()


@pytest.mark.parametrize("seed", range(120))
def test_walk(seed: int):
    Walk(seed).run()


# -- bugs that are planted, and found ------------------------------------------------------------------


def ignoring_broker_epochs(
    draft: Draft, partition: PartitionImage, members: Sequence[BrokerState]
) -> ErrorCode | None:
    """Treat a restarted broker as its former incarnation, as before KIP-903."""
    return _check_members(draft, partition, [BrokerState(broker_id=member.broker_id) for member in members])


def ignoring_partition_epochs(
    partition: PartitionImage, broker_id: int, row: PartitionData, isr: Sequence[int]
) -> ErrorCode | None:
    error = _check(partition, broker_id, row, isr)
    return None if error is ErrorCode.invalid_update_version else error


def keeping_the_lost(
    before: PartitionImage, wanted: PartitionImage, lost: Sequence[int], rules: ElectionRules
) -> tuple[int, ...]:
    """Unclean stops do not count for the ELR."""
    return _target_elr(before, wanted, (), rules)


def keeping_the_removed(
    before: PartitionImage, wanted: PartitionImage, lost: Sequence[int], rules: ElectionRules
) -> tuple[int, ...]:
    """Keep a replica in the ELR that a reassignment has removed, as Kafka 4.3.1 does."""
    return _target_elr(before, wanted._replace(replicas=BROKERS), lost, rules)


def completing_early(partition: PartitionImage) -> PartitionImage:
    """A planted bug: a reassignment completes as soon as one replica that stays is in sync."""
    isr = [replica for replica in partition.isr if replica not in partition.removing_replicas]
    is_moving = partition.adding_replicas and partition.removing_replicas and isr
    if not is_moving:
        return maybe_complete_reassignment(partition)
    return maybe_complete_reassignment(partition._replace(isr=partition.replicas))._replace(isr=tuple(isr))


def ignoring_local_data(candidates: list[int], *_: object, now_ms: int) -> list[list[int]]:
    """Treat all replicas as equivalent in elections."""
    return [candidates] if candidates else []


def adding_local_logs(partition: PartitionImage, members: Sequence[BrokerState]) -> LocalLogs:
    """The values of members that are known already are not replaced."""
    return tuple(sorted({**dict(_local_logs(partition, members)), **dict(partition.local_logs)}.items()))


@pytest.mark.parametrize(
    ("module", "name", "bug", "broken"),
    [
        (alter_partition, "_check_members", ignoring_broker_epochs, "LeaderCandidateCompleteness"),
        (alter_partition, "_check", ignoring_partition_epochs, "ReplicationQuorumSuperset"),
        (partition_change, "_target_elr", keeping_the_lost, "LeaderCandidateCompleteness"),
        (partition_change, "_target_elr", keeping_the_removed, "the ELR .* is not part of"),
        (partition_change, "maybe_complete_reassignment", completing_early, "a reassignment ends"),
        (leader_election, "preference_order", ignoring_local_data, "LeaderHasLocalData"),
        (alter_partition, "_local_logs", adding_local_logs, "EventuallyReported"),
        (
            leader_and_isr_updates,
            "remove_from_isrs_and_elrs",
            leader_and_isr_updates.remove_from_isrs,
            "LeaderCandidateCompleteness",
        ),
    ],
)
def test_planted_bugs_are_found(module, name, bug, broken, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, name, bug)
    with pytest.raises(AssertionError, match=broken):
        walk_all(range(400))
