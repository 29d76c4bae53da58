"""The controller's decisions, and around them brokers that are a model of replication (KIP-966's specification).

Model brokers read the metadata log at their own pace, crash and lose what they had not flushed, keep leading
while the world has moved on, and send AlterPartition requests that arrive late, twice or never. Their logs are
tuples of numbers, so that what was committed can be looked for. `Cluster.check` holds the invariants; their
names are those of the specification (kip_966_properties.tla) and of hachikuji/kafka-specification.
"""

from dataclasses import dataclass, field
from itertools import product
from uuid import UUID

from ottla.controller.configs import incremental_alter
from ottla.controller.membership import brokers
from ottla.controller.partitions.alter_partition import alter_partition
from ottla.controller.partitions.elect_leaders import balance_leaders, elect_leaders, elect_unclean
from ottla.controller.partitions.reassignments import alter_partition_reassignments
from ottla.metadata.image import LeaderRecoveryState, PartitionImage
from ottla.metadata.records import MetadataRecord, PartitionChangeRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.stories.elections.machine import CLUSTER_ID, Machine, directory

BROKERS = (1, 2, 3, 4)
ASSIGNMENTS = ([1, 2, 3], [2, 3, 4])
PARTITIONS = range(len(ASSIGNMENTS))
TOPIC = "t"


@dataclass(slots=True, eq=False)
class Proposal:
    """An AlterPartition request of a leader, in flight or answered."""

    partition: int
    isr: tuple[int, ...]
    request: AlterPartitionRequest
    answer: PartitionDataResponse | None = None


@dataclass(slots=True)
class Leadership:
    """The state of a broker that leads a partition, in one leader epoch."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    recovery: LeaderRecoveryState
    #: Where the log ended when the epoch began: a replica that has less is not in sync.
    start: int
    high_watermark: int = 0
    proposal: Proposal | None = None
    #: Follower -> (how far it has fetched, the broker epoch that it named).
    fetched: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def maximal_isr(self) -> set[int]:
        """The replicas that would be in sync whether the proposal was accepted or not."""
        return {*self.isr, *(self.proposal.isr if self.proposal else ())}


@dataclass(slots=True)
class Broker:
    """A process and its disk."""

    broker_id: int
    is_running: bool = True
    incarnation: int = 0
    #: None: not registered since it was started.
    epoch: int | None = None
    #: What a clean stop has left on the disk.
    clean_epoch: int = -1
    #: The metadata log's records before this one have been read.
    read: int = 0
    wants_out: bool = False
    logs: dict[int, tuple[int, ...]] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, ()))
    leads: dict[int, Leadership] = field(default_factory=dict)


class RecordingMachine(Machine):
    """Remembers what the partitions were after each record."""

    def replay(self, *records: MetadataRecord) -> None:
        for record in records:
            super().replay(record)
            topic = self.state.image.topics_by_name.get(TOPIC)
            self.views.append({} if topic is None else dict(topic.partitions))

    @property
    def views(self) -> list[dict[int, PartitionImage]]:
        return self.__dict__.setdefault("_views", [])


class Cluster:
    """Steps, each of which may find nothing to do; `check` after every one of them."""

    def __init__(self, *, elr: bool, prefers_local: bool = False) -> None:
        self.elr = elr
        #: The topic is tiered, and elections prefer early local log starts (draft KIP-1303).
        self.prefers_local = prefers_local
        #: (broker, partition) -> its local log start.
        self.local_starts = dict.fromkeys(product(BROKERS, PARTITIONS), 0)
        self.machine = RecordingMachine(elr=elr)
        self.machine.set_config("min.insync.replicas", "2")
        self.brokers = {broker_id: Broker(broker_id) for broker_id in BROKERS}
        #: (where the metadata log ended when it was set, min.insync.replicas), in order.
        self.required = [(0, 2)]
        self.next_value = 1
        self.proposals: list[Proposal] = []
        #: What was acknowledged and must be in every log that may lead.
        self.committed: dict[int, tuple[int, ...]] = dict.fromkeys(PARTITIONS, ())
        #: The leader epoch of the last unclean election: what older leaders acknowledge since is not checked.
        self.unclean_epoch = dict.fromkeys(PARTITIONS, 0)
        self.leaders: dict[tuple[int, int], int | None] = {}
        self.checked = 0
        for broker_id in BROKERS:
            self.register(broker_id)
            self.read(broker_id)
            self.beat(broker_id)
            self.read(broker_id)
        self.machine.create(TOPIC, *ASSIGNMENTS)
        if prefers_local:
            self.machine.set_config("remote.storage.enable", "true", topic=TOPIC)
            self.machine.set_config("leader.election.prefer.early.local.log.start.offset", "true")
            self.machine.set_config("leader.election.local.log.start.offset.threshold", "10")
        for broker_id in BROKERS:
            self.read(broker_id)
        self.check()

    # -- what the world does ---------------------------------------------------------------------------

    def now(self, partition: int) -> PartitionImage:
        return self.machine.partition(TOPIC, partition)

    def decide(self, decide: object, *arguments: object, **options: object) -> object | None:
        """Carry out a decision; None if it was refused as a whole."""
        try:
            answer = self.machine.do(decide(self.machine.state, *arguments, **options))
        except KafkaError:
            return None
        self._check_log()
        return answer

    def stop(self, broker_id: int) -> None:
        """A clean stop, wherever its controlled shutdown is: nothing is lost."""
        broker = self.brokers[broker_id]
        if broker.is_running and broker.epoch is not None:
            broker.clean_epoch = broker.epoch
            self._end(broker)

    def crash(self, broker_id: int, lost: int) -> None:
        """The process and the last `lost` records of each log are gone."""
        broker = self.brokers[broker_id]
        if broker.is_running:
            if self.elr:  # without it one crash may lose what was committed: no such loss then
                broker.logs = {index: log[: max(0, len(log) - lost)] for index, log in broker.logs.items()}
            broker.clean_epoch = -1
            self._end(broker)

    def _end(self, broker: Broker) -> None:
        broker.is_running = broker.wants_out = False
        broker.epoch = None
        broker.leads.clear()

    def register(self, broker_id: int) -> None:
        """A process is started if there is none, and registers."""
        broker = self.brokers[broker_id]
        if not broker.is_running or broker.incarnation == 0:
            broker.is_running = True
            broker.incarnation += 1
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=1000 * broker_id + broker.incarnation),
            rack=None,
            log_dirs=[directory(broker_id)],
            previous_broker_epoch=broker.clean_epoch,
            features=[
                Feature(name="metadata.version", min_supported_version=7, max_supported_version=33),
                Feature(
                    name="eligible.leader.replicas.version", min_supported_version=0, max_supported_version=1
                ),
            ],
        )
        answer = self.decide(brokers.register, request, now_ms=self.machine.now_ms)
        if answer is not None and broker.epoch is None:
            broker.epoch = answer.broker_epoch
            self.read(broker_id)

    def beat(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.epoch is None:
            return
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=broker.read - 1,
            want_shut_down=broker.wants_out,
        )
        answer = self.decide(brokers.heartbeat, request, now_ms=self.machine.now_ms)
        if answer is not None and answer.should_shut_down:
            self.stop(broker_id)

    def leave(self, broker_id: int) -> None:
        """It wants to be shut down, and says so from now on."""
        self.brokers[broker_id].wants_out = True
        self.beat(broker_id)

    def silence(self, milliseconds: int) -> None:
        """Time passes without a heartbeat; sessions end."""
        self.machine.now_ms += milliseconds
        while self.decide(brokers.expire_sessions, now_ms=self.machine.now_ms):
            self.check()

    def reassign(self, partition: int, replicas: list[int] | None) -> None:
        row = ReassignablePartition(partition_index=partition, replicas=replicas)
        topic = ReassignableTopic(name=TOPIC, partitions=[row])
        self.decide(alter_partition_reassignments, AlterPartitionReassignmentsRequest(topics=[topic]))

    def elect(self, election: int) -> None:
        self.decide(elect_leaders, ElectLeadersRequest(election_type=election, topic_partitions=None))

    def balance(self) -> None:
        self.decide(balance_leaders, self.machine.now_ms)
        for index in PARTITIONS:
            self._check_preference(self.now(index))

    def elect_unclean(self) -> None:
        self.decide(elect_unclean, self.machine.now_ms)

    def configure(self, key: str, value: str) -> None:
        config = AlterableConfig(name=key, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
        self.decide(incremental_alter, IncrementalAlterConfigsRequest(resources=[resource]))

    def require(self, count: int) -> None:
        """min.insync.replicas changes; a broker knows when it has read so far."""
        self.configure("min.insync.replicas", str(count))
        self.required.append((len(self.machine.log), count))

    def _required_by(self, broker: Broker) -> int:
        return next(count for end, count in reversed(self.required) if end <= broker.read)

    # -- what brokers do -------------------------------------------------------------------------------

    def read(self, broker_id: int, count: int | None = None) -> None:
        """The broker reads on in the metadata log; it begins with its own registration."""
        broker = self.brokers[broker_id]
        if broker.epoch is None:
            return
        end = len(self.machine.log)
        broker.read = max(
            broker.epoch + 1, end if count is None else min(end, broker.read + count), broker.read
        )
        view = self.machine.views[broker.read - 1]
        for index, partition in view.items():
            self._follow(broker, index, partition)

    def expire_locally(self, broker_id: int, partition: int, start: int) -> None:
        """Local retention, or a disk that was replaced: the local log starts elsewhere."""
        self.local_starts[broker_id, partition] = start

    def _local_log(self, broker_id: int, partition: int) -> LocalLogState | None:
        if not self.prefers_local:
            return None
        return LocalLogState(local_log_start_offset=self.local_starts[broker_id, partition])

    def _follow(self, broker: Broker, index: int, partition: PartitionImage) -> None:
        me = broker.broker_id
        if me not in partition.replicas:
            broker.logs[index] = ()  # StopReplica: deleted
        if partition.leader != me:
            broker.leads.pop(index, None)
            return
        leads = broker.leads.get(index)
        if leads is None or leads.leader_epoch < partition.leader_epoch:
            broker.leads[index] = Leadership(
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                isr=partition.isr,
                recovery=partition.leader_recovery_state,
                start=len(broker.logs[index]),
            )
        elif leads.partition_epoch < partition.partition_epoch:
            leads.partition_epoch = partition.partition_epoch
            leads.isr = partition.isr
            leads.recovery = partition.leader_recovery_state
            leads.proposal = None
        self._advance(broker, index)

    def produce(self, broker_id: int, partition: int) -> None:
        broker = self.brokers[broker_id]
        if partition in broker.leads:
            broker.logs[partition] += (self.next_value,)
            self.next_value += 1
            self._advance(broker, partition)

    def fetch(self, broker_id: int, partition: int) -> None:
        """Fetch from the leader of the epoch that both know; the log is truncated where it differs from the
        leader's."""
        follower = self.brokers[broker_id]
        if follower.epoch is None:
            return
        view = self.machine.views[follower.read - 1].get(partition)
        if view is None or view.leader in (None, broker_id) or broker_id not in view.replicas:
            return
        leader = self.brokers[view.leader]
        leads = leader.leads.get(partition)
        if leads is None or leads.leader_epoch != view.leader_epoch:
            return
        log, theirs = follower.logs[partition], leader.logs[partition]
        common = common_prefix(log, theirs)
        leads.fetched[broker_id] = (len(common), follower.epoch)
        follower.logs[partition] = theirs
        self._advance(leader, partition)

    def propose(self, broker_id: int, partition: int, *, without: int | None = None) -> None:
        """All followers that have caught up join the ISR; or one leaves it."""
        broker = self.brokers[broker_id]
        leads = broker.leads.get(partition)
        if leads is None or leads.proposal is not None:
            return
        if without is not None:
            isr = tuple(replica for replica in leads.isr if replica == broker_id or replica != without)
        else:
            view = self.machine.views[broker.read - 1][partition]
            caught_up = {
                replica
                for replica, (end, _) in leads.fetched.items()
                if end >= max(leads.high_watermark, leads.start) and replica in view.replicas
            }
            isr = (*leads.isr, *sorted(caught_up - set(leads.isr)))
        if (
            isr == leads.isr
            and leads.recovery is LeaderRecoveryState.RECOVERED
            and self._are_reported(broker, partition, isr)
        ):
            return
        image = self.machine.state.image
        members = [
            BrokerState(
                broker_id=replica,
                broker_epoch=broker.epoch if replica == broker_id else leads.fetched.get(replica, (0, -1))[1],
                local_log=self._local_log(replica, partition),
            )
            for replica in isr
        ]
        row = PartitionData(
            partition_index=partition,
            leader_epoch=leads.leader_epoch,
            partition_epoch=leads.partition_epoch,
            new_isr_with_epochs=members,
            leader_recovery_state=LeaderRecoveryState.RECOVERED,
        )
        topic = TopicData(topic_id=image.topics_by_name[TOPIC].topic_id, partitions=[row])
        leads.proposal = Proposal(
            partition,
            isr,
            AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker.epoch or -1, topics=[topic]),
        )
        self.proposals.append(leads.proposal)

    def _are_reported(self, leader: Broker, partition: int, isr: tuple[int, ...]) -> bool:
        """Whether the metadata log has the local log starts of these members, as far as the leader has read it."""
        if not self.prefers_local:
            return True
        reported = dict(self.machine.views[leader.read - 1][partition].local_logs)
        return all(
            replica in reported and reported[replica].start_offset == self.local_starts[replica, partition]
            for replica in isr
        )

    def deliver(self, which: int) -> None:
        """A request reaches the controller, perhaps once more; what counts is the last answer."""
        if self.proposals:
            proposal = self.proposals[which % len(self.proposals)]
            answer = self.decide(alter_partition, proposal.request)
            if answer is not None:
                proposal.answer = answer.topics[0].partitions[0]

    def answer(self, which: int) -> None:
        """An answer reaches its leader, and with it all copies of the request are gone."""
        if not self.proposals:
            return
        proposal = self.proposals[which % len(self.proposals)]
        answer = proposal.answer
        broker = self.brokers[proposal.request.broker_id]
        leads = broker.leads.get(proposal.partition)
        if answer is None or leads is None or leads.proposal is not proposal:
            return
        self.proposals.remove(proposal)
        if answer.error_code == ErrorCode.none:
            # What is granted holds when the metadata log says so, beside the configuration that it was granted by.
            if answer.partition_epoch <= leads.partition_epoch:
                leads.proposal = None
        elif answer.error_code in (ErrorCode.ineligible_replica, ErrorCode.invalid_request):
            leads.proposal = None  # nothing has changed
        # Anything else: what holds is to be learnt from the metadata log; until then the proposal may hold.

    def _advance(self, leader: Broker, partition: int) -> None:
        """The high watermark: what the whole maximal ISR has; with an ELR, only if enough are in sync."""
        leads = leader.leads[partition]
        view = self.machine.views[leader.read - 1][partition]
        if self.elr and len(leads.isr) < min(self._required_by(leader), len(view.replicas)):
            return
        log = leader.logs[partition]
        ends = [
            len(log) if replica == leader.broker_id else leads.fetched.get(replica, (0, -1))[0]
            for replica in leads.maximal_isr
        ]
        if min(ends) <= leads.high_watermark:
            return
        leads.high_watermark = min(ends)
        if leads.leader_epoch >= self.unclean_epoch[partition]:
            acknowledged = log[: leads.high_watermark]
            known = self.committed[partition]
            common = common_prefix(acknowledged, known)
            assert common in (acknowledged, known), (
                "LogMatching: two leaders have committed different records"
            )
            self.committed[partition] = max(acknowledged, known, key=len)

    # -- the invariants --------------------------------------------------------------------------------

    def _check_log(self) -> None:
        for offset in range(self.checked, len(self.machine.log)):
            self._check_record(offset)
        self.checked = len(self.machine.log)

    def check(self) -> None:
        self._check_log()
        for index in PARTITIONS:
            partition = self.now(index) if TOPIC in self.machine.state.image.topics_by_name else None
            if partition is not None:
                self._check_partition(partition)
                self._check_leader(index, partition)
                self._check_logs(index, partition)

    def _check_record(self, offset: int) -> None:
        """Epochs only grow, and one leader an epoch."""
        record = self.machine.log[offset]
        after = self.machine.views[offset]
        before = self.machine.views[offset - 1] if offset else {}
        for index, partition in after.items():
            previous = before.get(index)
            if previous is not None and previous != partition:
                assert partition.partition_epoch == previous.partition_epoch + 1
                assert partition.leader_epoch in (previous.leader_epoch, previous.leader_epoch + 1)
                assert partition.leader == previous.leader or partition.leader_epoch > previous.leader_epoch
            key = (index, partition.leader_epoch)
            assert self.leaders.setdefault(key, partition.leader) == partition.leader, "one leader an epoch"
        if isinstance(record, PartitionChangeRecord):
            self._check_change(record, before[record.partition_id], after[record.partition_id])

    def _check_change(
        self, record: PartitionChangeRecord, before: PartitionImage, after: PartitionImage
    ) -> None:
        is_recovering = after.leader_recovery_state is LeaderRecoveryState.RECOVERING
        is_known = record.leader in (*before.isr, *before.elr) and record.leader_recovery_state != 1
        if record.leader >= 0 and is_recovering and not is_known:
            # Unclean: what this leader does not have is lost, as the policy (or KIP-966) admits.
            assert after.isr == (record.leader,)
            index = record.partition_id
            self.unclean_epoch[index] = after.leader_epoch
            log = self.brokers[record.leader].logs[index]
            self.committed[index] = common_prefix(self.committed[index], log)
        elif before.adding_replicas and not after.adding_replicas and record.replicas is not None:
            kept = {*before.adding_replicas} & {*after.replicas}
            is_completed = set(after.replicas) < set(before.replicas)
            assert not is_completed or kept <= set(after.isr), (
                "a reassignment ends when all that come are in sync"
            )

    def _check_partition(self, now: PartitionImage) -> None:
        image = self.machine.state.image
        assert len(set(now.replicas)) == len(now.replicas) == len(now.directories)
        assert set(now.isr) <= set(now.replicas)
        assert set(now.elr) <= set(now.replicas), "an eligible leader is a replica"
        assert set(now.adding_replicas) <= set(now.replicas)
        assert set(now.removing_replicas) <= set(now.replicas)
        assert not set(now.adding_replicas) & set(now.removing_replicas)
        if self.elr:
            for replica in now.isr:
                assert image.brokers[replica].is_active, "ValidControllerState"
        else:
            assert now.isr, "without an ELR the last known leader is kept"
        assert {replica for replica, _ in now.local_logs} <= set(now.replicas)
        assert self.prefers_local or not now.local_logs
        assert not set(now.isr) & set(now.elr), "ValidControllerIsrAndElr: disjoint"
        _, enough = self.required[-1]
        assert not now.elr or len(now.isr) < enough, (
            "ValidControllerIsrAndElr: enough in sync, the ELR is empty"
        )
        assert self.elr or not now.elr
        if now.leader is not None:
            assert now.leader in now.isr, "LeaderInIsr"
            assert image.brokers[now.leader].is_active, "LeaderInIsr: and alive"

    def _check_preference(self, now: PartitionImage) -> None:
        """After a preferred election no replica that may lead has much more local data than the leader."""
        if now.leader is None or not self.prefers_local:
            return
        brokers = self.machine.state.image.brokers
        starts = {replica: log.start_offset for replica, log in now.local_logs}
        earliest = min(starts.get(replica, 0) for replica in now.isr if brokers[replica].is_active)
        assert starts.get(now.leader, 0) - earliest < 10, ("LeaderHasLocalData", now)

    def _check_leader(self, index: int, now: PartitionImage) -> None:
        """A leader that can commit in this epoch waits for all replicas that the controller might elect."""
        if now.leader is None:
            return
        leader = self.brokers[now.leader]
        leads = leader.leads.get(index)
        if leads is None or leads.leader_epoch != now.leader_epoch:
            return
        view = self.machine.views[leader.read - 1][index]
        if self.elr and len(leads.isr) < min(self._required_by(leader), len(view.replicas)):
            return
        if leads.partition_epoch < now.partition_epoch and set(view.replicas) != set(now.replicas):
            return  # a reassignment that it does not know yet
        eligible = {*now.isr, *now.elr}
        assert eligible <= leads.maximal_isr, ("ReplicationQuorumSuperset", leads, now)

    def _check_logs(self, index: int, now: PartitionImage) -> None:
        """All that may be elected have what was committed, unless they have crashed and yet to admit it."""
        image = self.machine.state.image
        for replica in {*now.isr, *now.elr}:
            broker = self.brokers[replica]
            known = image.brokers.get(replica)
            is_itself = known is not None and (
                broker.epoch == known.epoch or (not broker.is_running and broker.clean_epoch == known.epoch)
            )
            if is_itself:
                log = broker.logs[index]
                committed = self.committed[index]
                assert log[: len(committed)] == committed, ("LeaderCandidateCompleteness", replica, log, now)

    # -- and in the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing fails any more: after some rounds everything is as it should be."""
        self.configure("unclean.leader.election.enable", "true")
        for broker in self.brokers.values():
            broker.wants_out = False
        for _ in range(8):
            self._heal_once()
            self.check()
        image = self.machine.state.image
        assert all(image.brokers[broker_id].is_active for broker_id in BROKERS), "EventuallyUnfenced"
        for index in PARTITIONS:
            now = self.now(index)
            assert now.leader is not None, ("EventuallyRuns", now)
            assert not now.adding_replicas, ("EventuallyReassignmentCompletes", now)
            assert not now.removing_replicas, ("EventuallyReassignmentCompletes", now)
            assert set(now.isr) == set(now.replicas), now
            assert now.leader_recovery_state is LeaderRecoveryState.RECOVERED
            leads = self.brokers[now.leader].leads[index]
            assert self._are_reported(self.brokers[now.leader], index, now.isr), ("EventuallyReported", now)
            assert leads.partition_epoch == now.partition_epoch, "AlterPartitionEpochEventuallyReachedOrZero"
            assert self.committed[index] == self.brokers[now.leader].logs[index], (
                "EventuallyAcknowledgedValueFullyReplicated"
            )

    def _heal_once(self) -> None:
        for broker_id, broker in self.brokers.items():
            self._come_back(broker)
            self.read(broker_id)
            self.beat(broker_id)
        self.elect_unclean()
        for _ in range(2):
            for index in PARTITIONS:
                self._work(index)

    def _come_back(self, broker: Broker) -> None:
        known = self.machine.state.image.brokers.get(broker.broker_id)
        if broker.epoch is not None and known is not None and known.in_controlled_shutdown:
            self.stop(broker.broker_id)  # after a controlled shutdown it comes back by a restart
        if broker.epoch is None:
            self.silence(9_000)
            for other in BROKERS:
                self.beat(other)
            self.register(broker.broker_id)

    def _work(self, partition: int) -> None:
        """One round of replication, with an AlterPartition in the middle of it."""
        for broker_id in BROKERS:
            self.read(broker_id)
        leader = self.now(partition).leader
        if leader is None:
            return
        self.produce(leader, partition)
        for broker_id in BROKERS * 2:
            self.fetch(broker_id, partition)
        self.propose(leader, partition)
        leads = self.brokers[leader].leads.get(partition)
        if leads is not None and leads.proposal in self.proposals:
            which = self.proposals.index(leads.proposal)
            self.deliver(which)
            self.answer(which)
        for broker_id in BROKERS * 2:
            self.read(broker_id)
            self.fetch(broker_id, partition)


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    length = next(
        (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )
    return one[:length]
