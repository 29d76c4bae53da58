"""Invariants of a cluster after every event, by the names of the KIP-966 specification and our own.

The judge sees everything: each broker's logs and roles, and the newest metadata that any node has replayed. What a
leader has once committed is written into a ledger (`cluster_ledger`), against which every replica, leader and consumer
is held from then on.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from cluster_batches import Appended
from cluster_ledger import Ledger, difference
from cluster_machine import Machine
from cluster_quorum import QuorumJudge
from cluster_roles import look_at_roles
from cluster_tiers import TierJudge
from cluster_violated import Violated

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.broker.services import BrokerServices
from ottla.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.runtime.virtual_loop import Process
from ottla.storage.log import Log
from ottla.storage.log_offsets import LogOffsets
from tests.harness.history import History, Poll, Send

#: A partition: (topic id, index).
Key = tuple[UUID, int]
#: The ISR: the partition epoch, and the process of each member.
Replicas = tuple[int, dict[Machine, object]]


class _Seen(NamedTuple):
    """The state of a replica at the last check."""

    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    is_leader: bool
    #: What it has been found to agree with; None: not known since it started.
    ledger: Ledger | None


class _Resignations:
    """One event may let a leader commit, and remove its replica: what it has committed is recorded before that."""

    def __init__(self, judge: "Judge", machine: Machine, broker: BrokerServices) -> None:
        self._judge = judge
        self._machine = machine
        self._broker = broker

    def on_election(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """The next look shows it."""

    def on_resignation(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Its log can still be read, unless its disk has failed."""
        log = self._broker.replicas.logs.get(topic_partition)
        if log is not None and log.topic_id is not None:
            with suppress(KafkaStorageError), self._machine.simulation.threads.paused():
                self._judge.on_resignation((log.topic_id, topic_partition.partition), leader_epoch, log)


class Judge:
    """Checks the invariants of a world's partitions; call `check` after every event."""

    def __init__(self, machines: Sequence[Machine], history: History, tiers: TierJudge) -> None:
        self._history = history
        self._tiers = tiers
        self._machines = [machine for machine in machines if machine.is_broker]
        self._nodes = machines
        #: The newest is the last; more than one only after unclean elections.
        self.ledgers: dict[Key, list[Ledger]] = {}
        #: (partition, leader epoch) -> broker
        self._leaders: dict[tuple[Key, int], int] = {}
        #: One that is moved away and comes back is another, as is one of a broker that has restarted.
        self._seen: dict[Partition, _Seen] = {}
        #: What `_replication_quorum_superset` has last found in order.
        self._supersets: dict[Partition, tuple[object, ...]] = {}
        self._image_offset = -1
        self.image = MetadataImage()
        #: broker -> the directories that it had at first
        self._directories: dict[int, tuple[UUID, ...]] = {}
        #: Highest epochs seen so far.
        self._epochs: dict[Key, PartitionImage] = {}
        self.check_count = 0
        #: Topics whose replicas delete by age or size, each by itself.
        self.aging: set[str] = set()
        #: Topics that may lose what was committed, without an election that would show it: no ledger has them.
        self.lossy: set[str] = set()
        #: (topic, partition) -> up to where a client has requested records deleted.
        self.deleted: dict[tuple[str, int], int] = {}
        #: The leader epoch of the last unclean election.
        self._unclean_epochs: dict[Key, int] = {}
        #: Of each machine, the broker whose resignations are recorded.
        self._recorded: dict[Machine, BrokerServices] = {}
        self._appended = Appended(self._must_not_be_lost, lambda topic: topic in history.compacted)
        #: How often each machine has lost what was not flushed, or its disk.
        self._losses: dict[Machine, int] = {}
        self._quorum = QuorumJudge(machines)

    # -- after every event -------------------------------------------------------------------------

    def check(self, *, is_interrupted: bool = False) -> None:
        """Look at everything; if it `is_interrupted`, a node dies in the middle of something. Raises Violated."""
        self.check_count += 1
        self._quorum.check()
        self._look_at_metadata()
        for machine in self._machines:
            if machine.loss_count != self._losses.get(machine, 0):
                self._losses[machine] = machine.loss_count
                self._appended.is_gone(machine)
            broker = machine.broker
            if broker is None:
                continue
            if self._recorded.get(machine) is not broker:
                self._recorded[machine] = broker
                broker.replicas.add_leadership_listener(_Resignations(self, machine, broker))
            has_changed = self.check_count % 64 == 0
            for partition in broker.replicas.partitions():
                log = partition.log
                self._appended.look_at(machine, partition)
                seen = self._seen.get(partition)
                has_changed |= seen is None or seen.leader_epoch != partition.leader_epoch
                if partition.topic_partition.topic in self.lossy:
                    continue
                if (
                    seen is None
                    or seen.high_watermark != log.high_watermark
                    or seen.log_start_offset != log.log_start_offset
                    or seen.leader_epoch != partition.leader_epoch
                    or seen.is_leader != partition.is_leader
                ):
                    key = (partition.topic_id, partition.topic_partition.partition)
                    ledger = self._look_at(machine, partition, key, seen)
                    self._look_at_start(machine, partition, seen, ledger)
                    self._seen[partition] = _Seen(
                        partition.leader_epoch,
                        log.high_watermark,
                        log.log_start_offset,
                        partition.is_leader,
                        ledger,
                    )
                if partition.leader is not None:
                    self._replication_quorum_superset(partition, partition.leader)
            if has_changed and not is_interrupted:
                look_at_roles(machine, broker)
        self._tiers.read_records(self.image, self.ledgers)
        if not is_interrupted:
            self._look_at_tiers()

    def _look_at_tiers(self) -> None:
        self._tiers.look_at_deletions(self._machines, self.image)
        for machine in self._machines:
            for partition in () if machine.broker is None else machine.broker.replicas.partitions():
                if partition.log.is_tiered or partition.is_leader:
                    self._tiers.look_at(machine, partition, self.image)
        if self.check_count % 64 == 0:
            self._tiers.look_at_caches(self._machines)

    @property
    def quorum_leaders(self) -> dict[int, int]:
        """Epoch -> leader of the metadata quorum."""
        return self._quorum.leaders

    def _must_not_be_lost(self, key: Key) -> Ledger | None:
        """The committed records of existing partitions whose leaders are elected cleanly."""
        topic, ledgers = self.image.topics_by_id.get(key[0]), self.ledgers.get(key)
        if topic is None or ledgers is None or topic.name in self._history.unclean:
            return None
        return ledgers[-1]

    def _look_at(self, machine: Machine, partition: Partition, key: Key, seen: _Seen | None) -> Ledger | None:
        """Hold it against the ledger of its epoch; the one that it is known to agree with."""
        log = partition.log
        is_new_leader = partition.is_leader and (seen is None or seen.leader_epoch != partition.leader_epoch)
        if partition.is_leader:
            leader = self._leaders.setdefault((key, partition.leader_epoch), machine.node_id)
            if leader != machine.node_id:
                raise Violated(f"OneLeaderAnEpoch: {partition} {partition.leader_epoch}: {leader}, {machine}")
        ledger = self._ledger(partition, key, is_new_leader=is_new_leader)
        if seen is not None and log.high_watermark < seen.high_watermark:
            self._went_back(machine, partition, seen, ledger)
        if is_new_leader and self._is_newest(partition, key):
            self._match("LeaderCompleteness", machine, partition, ledger, 0, ledger.end)
        if (epoch := _led_before(partition, seen)) is not None:
            self._of_epoch(key, epoch).commit(log)
        if partition.is_leader:
            ledger.commit(log)
        if is_new_leader:
            ledger.begun[partition.leader_epoch] = ledger.end
        is_same_epoch = seen is not None and seen.leader_epoch == partition.leader_epoch
        has_risen = seen is not None and is_same_epoch and log.high_watermark > seen.high_watermark
        if len(self.ledgers[key]) > 1 and not partition.is_leader and not has_risen:
            # It may have yet to find out where its log parts from that of a leader who was elected uncleanly.
            return None if seen is None else seen.ledger
        if log.high_watermark > ledger.end:
            raise Violated(
                f"HighWatermarkIsCommitted: {partition} on {machine}: {log.high_watermark} > {ledger.end}"
            )
        if partition.is_leader:
            self._strong_isr(key)
        start = seen.high_watermark if seen is not None and is_same_epoch and seen.ledger is ledger else 0
        self._match("LogMatching", machine, partition, ledger, start, log.high_watermark)
        return ledger

    def _ledger(self, partition: Partition, key: Key, *, is_new_leader: bool) -> Ledger:
        """The ledger of the partition's epoch; a new one if its leader was elected uncleanly."""
        ledgers = self.ledgers.setdefault(key, [Ledger()])
        unclean_epoch = self._unclean_epochs.get(key, -1)
        if is_new_leader and ledgers[-1].first_epoch < unclean_epoch <= partition.leader_epoch:
            ledgers.append(Ledger(first_epoch=unclean_epoch))
        return self._of_epoch(key, partition.leader_epoch)

    def _of_epoch(self, key: Key, leader_epoch: int) -> Ledger:
        return next(each for each in reversed(self.ledgers[key]) if each.first_epoch <= leader_epoch)

    def on_resignation(self, key: Key, leader_epoch: int, log: Log) -> None:
        """A leader of this epoch resigns, with this log."""
        if key in self.ledgers:
            self._of_epoch(key, leader_epoch).commit(log)

    def _went_back(self, machine: Machine, partition: Partition, seen: _Seen, ledger: Ledger) -> None:
        """Only a follower of a leader that was elected uncleanly may have less: it has just been truncated."""
        log = partition.log
        if seen.ledger is ledger or partition.is_leader or log.high_watermark != log.log_end_offset:
            raise Violated(
                f"HighWatermarkNeverMovesBack: {partition} on {machine}: "
                f"{seen.high_watermark} in epoch {seen.leader_epoch}, then {log.high_watermark}"
            )

    def _match(
        self, name: str, machine: Machine, partition: Partition, ledger: Ledger, start: int, end: int
    ) -> None:
        """The replica has what the ledger has, from `start` to `end`."""
        is_compacted = partition.topic_partition.topic in self._history.compacted
        if found := difference(ledger, partition.log, start, end, is_compacted=is_compacted):
            raise Violated(f"{name}: {partition} on {machine}: {found}")

    def _look_at_start(
        self, machine: Machine, partition: Partition, seen: _Seen | None, ledger: Ledger | None
    ) -> None:
        """Only forward, never beyond what is wanted, and on a follower not beyond what a leader has said."""
        log = partition.log
        start = log.log_start_offset
        topic, index = partition.topic_partition
        # One that continues behind the remote part of its leader's log begins where that does; both are deleted later.
        is_rebuilt = (
            log.is_tiered and not partition.is_leader and log.local_log_start_offset == log.log_end_offset
        )
        # An empty one that started within a batch of its leader's begins with that batch.
        was_empty = (
            seen is not None and seen.high_watermark == seen.log_start_offset and not partition.is_leader
        )
        is_kept = topic in self._history.unclean or is_rebuilt or was_empty
        if seen is not None and start < seen.log_start_offset and not is_kept:
            raise Violated(f"LogStartNeverMovesBack: {partition} on {machine}: {seen}, then {start}")
        if ledger is not None and partition.is_leader:
            ledger.start = max(ledger.start, start)
            if log.offsets.begins_after_gap:  # a crash has deleted what is before it
                self.deleted[topic, index] = max(self.deleted.get((topic, index), 0), start)
                self._appended.gaps.setdefault((partition.topic_id, index), set()).update(range(start))
        if ledger is None or topic in self.aging or topic not in self.image.topics_by_name:
            # The copies of a deleted topic are deleted, while a leader that is cut off from the controller
            # still leads it.
            return
        if start > min(ledger.start, self.deleted.get((topic, index), 0)):
            raise Violated(
                f"LogStartIsTheLeaders: {partition} on {machine}: {start}, the leader's is {ledger.start}, "
                f"wanted is {self.deleted.get((topic, index), 0)}"
            )

    def _strong_isr(self, key: Key) -> None:
        """Every replica that may be elected has everything that is committed (StrongIsr of the KIP-320
        specification).
        """
        image, ledgers = self._epochs.get(key), self.ledgers.get(key)
        if image is None or ledgers is None:
            return
        ledger = ledgers[-1]
        if self._unclean_epochs.get(key, -1) > ledger.first_epoch:
            return  # the leader's log decides what there is
        for machine in self._machines:
            if machine.node_id not in image.isr + image.elr or machine.broker is None:
                continue
            partition = machine.broker.replicas.hosted.get(key)
            if partition is not None and partition.log.log_end_offset < ledger.end:
                raise Violated(
                    f"StrongIsr: {partition} on {machine}, in ISR {image.isr} or ELR {image.elr}, "
                    f"ends at {partition.log.log_end_offset}, committed is everything before {ledger.end}"
                )

    def _is_newest(self, partition: Partition, key: Key) -> bool:
        image = self._epochs.get(key)
        return image is not None and image.leader_epoch == partition.leader_epoch

    def _replication_quorum_superset(self, partition: Partition, leader: PartitionLeader) -> None:
        """The high watermark waits for each replica that may be elected (KIP-966):
        the leader's maximal ISR covers the controller's ISR and ELR.
        """
        leader_state = leader.state
        state = (self._image_offset, leader_state, leader_state.isr, leader_state.proposed_isr)
        if self._supersets.get(partition) == state:
            return
        self._supersets[partition] = state
        image = self._epochs.get((partition.topic_id, partition.topic_partition.partition))
        if image is None or image.leader_epoch != leader_state.epoch:
            return
        if len(leader_state.isr) < leader.effective_min_isr:
            return  # it commits nothing
        if not leader_state.maximal_isr.issuperset(image.isr + image.elr):
            raise Violated(
                f"ReplicationQuorumSuperset: {partition}: {sorted(leader_state.maximal_isr)} "
                f"for ISR {image.isr} and ELR {image.elr}"
            )

    # -- metadata ----------------------------------------------------------------------------------

    def _look_at_metadata(self) -> None:
        newest = None
        for machine in self._nodes:
            metadata = machine.metadata
            if metadata is not None and metadata.last_applied_offset > self._image_offset:
                self._image_offset = metadata.last_applied_offset
                newest = metadata.image
        if newest is None:
            return
        self.image = newest
        for topic in newest.topics_by_id.values():
            minimum = self.min_isr(topic.name)
            for index, partition in topic.partitions.items():
                known = self._epochs.get((topic.topic_id, index))
                if known is not partition:
                    self._valid_controller_state(topic, index, partition, known, minimum)
                    self._epochs[topic.topic_id, index] = partition
                    self._appended.only((topic.topic_id, index), partition.replicas)
                    if known is not None and topic.name in self._history.unclean:
                        self._note_unclean_election((topic.topic_id, index), partition, known)
                    self._strong_isr((topic.topic_id, index))
        for broker_id, broker in newest.brokers.items():
            if (
                broker.is_fenced
                or self._directories.setdefault(broker_id, broker.log_dirs) != broker.log_dirs
            ):
                self._lost_are_in_no_isr(broker)

    def min_isr(self, topic: str) -> int:
        """min.insync.replicas of a topic, as the controllers know it."""
        text = self.image.config(ConfigResource(ConfigResourceType.TOPIC, topic)).get("min.insync.replicas")
        return 2 if text is None else int(text)

    def _valid_controller_state(
        self, topic: TopicImage, index: int, now: PartitionImage, known: PartitionImage | None, minimum: int
    ) -> None:
        where = f"{topic.name}-{index}: {now}"
        if set(now.isr) & set(now.elr):
            raise Violated(f"ValidControllerIsrAndElr: both in ISR and ELR: {where}")
        if now.elr and len(now.isr) >= min(minimum, len(now.replicas)):
            raise Violated(f"ValidControllerIsrAndElr: an ELR beside a full ISR: {where}")
        if not set(now.isr) | set(now.elr) <= set(now.replicas):
            raise Violated(f"ValidControllerState: not a replica: {where}")
        if now.leader is not None and now.leader not in now.isr:
            raise Violated(f"LeaderInIsr: {where}")
        if known is not None:
            if now.leader_epoch < known.leader_epoch or now.partition_epoch < known.partition_epoch:
                raise Violated(f"EpochsOnlyGrow: {where} after {known}")
            if now.leader != known.leader and now.leader_epoch == known.leader_epoch:
                raise Violated(f"OneLeaderAnEpoch: {where} after {known}")
            if now.leader not in _candidates(known, now):
                is_recovering = now.leader_recovery_state is LeaderRecoveryState.RECOVERING
                # A leader that was not in sync leads alone, and has to recover (KIP-704).
                if topic.name not in self._history.unclean or now.isr != (now.leader,) or not is_recovering:
                    raise Violated(f"LeaderCandidateCompleteness: {where} after {known}")

    def _note_unclean_election(self, key: Key, now: PartitionImage, known: PartitionImage) -> None:
        is_elected = now.leader is not None and now.leader_epoch > known.leader_epoch
        is_recovering = now.leader_recovery_state is LeaderRecoveryState.RECOVERING
        if is_elected and is_recovering and now.leader not in known.isr + known.elr:
            self._unclean_epochs[key] = now.leader_epoch

    def _lost_are_in_no_isr(self, broker: BrokerImage) -> None:
        """No ISR has a replica of a fenced broker, or one on a directory that its broker has lost (KIP-858)."""
        for topic in self.image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                # The last member stays until another one can be elected.
                if broker.broker_id not in partition.isr or len(partition.isr) == 1:
                    continue
                directory = partition.directories[partition.replicas.index(broker.broker_id)]
                is_lost = directory not in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, *broker.log_dirs)
                if broker.is_fenced or is_lost:
                    raise Violated(f"ValidControllerState: {broker} in {topic.name}-{index} {partition}")

    # -- consumers -----------------------------------------------------------------------------------

    def on_poll(self, poll: Poll) -> None:
        """ConsistentRead: nothing is seen that is not committed."""
        self.check()
        topic = self.image.topics_by_name.get(poll.topic)
        if topic is None:
            return
        ledgers = self.ledgers.get((topic.topic_id, poll.partition), [])
        for (offset, value), epoch in zip(poll.found, poll.epochs, strict=True):
            known = [record for ledger in ledgers if (record := ledger.records.get(offset)) is not None]
            if any(offset < ledger.known_from or offset in ledger.lost for ledger in ledgers):
                continue
            if not any(record.leader_epoch == epoch and record.value == value for record in known):
                raise Violated(
                    f"ConsistentRead: {poll.client} saw {value!r} of epoch {epoch} at {offset} of "
                    f"{poll.topic}-{poll.partition} on {poll.broker_id}, committed is {known} "
                    f"(ends {[ledger.end for ledger in ledgers]})"
                )
        if poll.topic not in self._history.compacted and ledgers:
            self._is_complete(poll, ledgers)

    def _is_complete(self, poll: Poll, ledgers: Sequence[Ledger]) -> None:
        """IsolatedRead: a consumer gets all that its isolation level shows of where it has been, and nothing else."""
        assert poll.positions is not None
        start, end = poll.positions
        found = [offset for offset, _ in poll.found]
        level = poll.is_read_committed
        log_start_offset = self.log_start_offset(poll.topic, poll.partition, poll.broker_id)
        expected = []
        for ledger in ledgers:  # of more than one, a replica that is behind may still serve an older one
            differing = ledger.differing(is_read_committed=level)
            shown = ledger.shown(start, end, is_read_committed=level)
            expected.append([offset for offset in shown if offset not in differing])
            known = [offset for offset in found if offset >= ledger.known_from and offset not in differing]
            stable_end = ledger.last_stable_offset(log_start_offset)
            is_decided = not level or end <= stable_end or bool(ledger.isolation.ambiguous)
            if known == expected[-1] and is_decided and end <= ledger.end:
                return
        raise Violated(
            f"IsolatedRead: {poll}: not {expected}, last stable offsets "
            f"{[each.last_stable_offset(log_start_offset) for each in ledgers]}"
        )

    # -- what clients' answers are held against ------------------------------------------------------

    def leader_and_ledger(self, topic: str, index: int, leader_epoch: int) -> tuple[int, Ledger] | None:
        """The leader of this epoch, and what is committed; None without a leader."""
        key = (self.image.topics_by_name[topic].topic_id, index)
        leader = self._leaders.get((key, leader_epoch))
        return None if leader is None else (leader, self._of_epoch(key, leader_epoch))

    def log_start_offset(self, topic: str, index: int, broker_id: int) -> int:
        """The log start offset of that broker now; behind everything if it has no log now."""
        broker = next(machine.broker for machine in self._machines if machine.node_id == broker_id)
        partition = None if broker is None else broker.replicas.hosted.get((topic, index))
        return 2**62 if partition is None else partition.log.log_start_offset

    def process_of(self, broker_id: int) -> Process | None:
        """The last process of this broker."""
        return next(machine.process for machine in self._machines if machine.node_id == broker_id)

    def offsets_of_leader(self, topic: str, index: int, broker_id: int, epoch: int) -> LogOffsets | None:
        """The offsets of this broker's log, if it still leads in the epoch."""
        broker = next(machine.broker for machine in self._machines if machine.node_id == broker_id)
        partition = None if broker is None else broker.replicas.hosted.get((topic, index))
        is_leader = partition is not None and partition.is_leader and partition.leader_epoch == epoch
        return partition.log.offsets if partition is not None and is_leader else None

    def committed_end(self, topic: str, index: int) -> int:
        """Up to where the partition is committed."""
        return self.ledgers[self.image.topics_by_name[topic].topic_id, index][-1].end

    def last_values(self, topic: str, index: int) -> tuple[int, dict[bytes | None, tuple[int, bytes | None]]]:
        """The end, and the last value of each key with its offset."""
        ledger = self.ledgers[self.image.topics_by_name[topic].topic_id, index][-1]
        return ledger.end, {key: (at, ledger.records[at].value) for key, at in ledger.last.items()}

    def gaps(self, topic: str, index: int) -> set[int]:
        """The offsets that some replica has lost in a crash, before others that it kept."""
        return self._appended.gaps.get((self.image.topics_by_name[topic].topic_id, index), set())

    def differing(self, topic: str, index: int, *, is_read_committed: bool) -> set[int]:
        """The offsets that one replica may show to readers of this isolation level, and another one not."""
        ledgers = self.ledgers.get((self.image.topics_by_name[topic].topic_id, index))
        return ledgers[-1].differing(is_read_committed=is_read_committed) if ledgers else set()

    def replicas_of(self, topic: str, index: int) -> Replicas:
        """The ISR now, and the process of each member."""
        image = self.image.topics_by_name[topic].partitions[index]
        processes = {machine: machine.process for machine in self._machines if machine.node_id in image.isr}
        return image.partition_epoch, processes

    def look_at_deletion(
        self, topic: str, index: int, offset: int, low_watermark: int, asked: Replicas
    ) -> None:
        """Everything before the low watermark is gone from those that were in sync all the time (KIP-107)."""
        if low_watermark < offset:
            raise Violated(f"DeletionIsEverywhere: {topic}-{index} {low_watermark}, {offset} was wanted")
        now = self.replicas_of(topic, index)
        for machine, process in asked[1].items() if now[0] == asked[0] else ():
            if machine.is_serving and machine.process is process:
                start = self.log_start_offset(topic, index, machine.node_id)
                if start < low_watermark:
                    raise Violated(
                        f"DeletionIsEverywhere: {topic}-{index} {low_watermark}, {machine} has {start}"
                    )

    def look_at_acknowledged(self, sends: Sequence[Send]) -> None:
        """Check that a record acknowledged with acks=all was committed when it was acknowledged."""
        for send in sends:
            topic = self.image.topics_by_name.get(send.topic)
            if topic is None or not send.is_ok or send.acks != -1 or send.base_offset is None:
                continue
            ledgers = self.ledgers[topic.topic_id, send.partition]
            for offset, value in enumerate(send.values, start=send.base_offset):
                known = [each.records[offset].value for each in ledgers if offset in each.records]
                if value not in known and offset >= max(each.known_from for each in ledgers):
                    raise Violated(f"AcknowledgedIsCommitted: {value!r} at {offset} of {send}")


def _candidates(known: PartitionImage, now: PartitionImage) -> set[int | None]:
    """The replicas that may lead after this change without a loss of committed records."""
    candidates = {None, known.leader, *known.isr, *known.elr}
    if not known.isr:
        # No leader, and the ELR has ended without a clean shutdown: the last known leader may lead (KIP-966).
        candidates |= set(known.last_known_elr)
    was_moving = known.adding_replicas or known.removing_replicas
    if was_moving and not (now.adding_replicas or now.removing_replicas):
        # The last one to join the ISR has completed a reassignment, and may lead at once (KIP-455).
        candidates |= set(now.isr)
    if now.partition_epoch > known.partition_epoch + 1:
        # One event has brought several changes, and one of those between may have let it join.
        candidates |= set(now.isr)
    return candidates


def _led_before(partition: Partition, seen: _Seen | None) -> int | None:
    """The epoch that it has led in since the last look, and committed in perhaps;
    one event may also bring the successor.
    """
    if seen is None or seen.is_leader:
        return None if seen is None else seen.leader_epoch
    latest = partition.log.leader_epochs.latest
    # Only leaders note an epoch without a record of it.
    is_passed = latest is not None and latest.start_offset == partition.log.log_end_offset
    if latest is not None and is_passed and seen.leader_epoch < latest.epoch < partition.leader_epoch:
        return latest.epoch
    return None
