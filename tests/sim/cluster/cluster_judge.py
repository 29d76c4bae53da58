"""What must hold after every event of a cluster, by the names of DESIGN.md and of the KIP-966 specification.

The judge sees everything: each broker's logs and roles, and the newest metadata that any node has replayed. What a
leader has once committed is written into a ledger, against which every replica, leader and consumer is held from then
on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from cluster_machine import Machine

from broker.replicas.partition import Partition
from protocol.metadata.image import (
    ConfigResource,
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from protocol.records.record import records as records_of
from storage.log import Log
from tests.harness.history import Poll

#: A partition: (topic id, index).
Key = tuple[UUID, int]


class Violated(AssertionError):
    """An invariant does not hold; its name comes first."""


class Batch(NamedTuple):
    """A batch as all replicas have to have it."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


@dataclass(slots=True)
class Ledger:
    """What has been committed of one partition."""

    batches: list[Batch] = field(default_factory=list)
    by_offset: dict[int, Batch] = field(default_factory=dict)
    #: offset -> value
    values: dict[int, bytes | None] = field(default_factory=dict)
    end: int = 0


class _Seen(NamedTuple):
    """How a replica was at the last look."""

    partition: Partition
    leader_epoch: int
    high_watermark: int
    is_leader: bool


class Judge:
    """See the module. `check` after every event."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = [machine for machine in machines if machine.is_broker]
        self._nodes = machines
        self.ledgers: dict[Key, Ledger] = {}
        #: (partition, leader epoch) -> broker
        self.leaders: dict[tuple[Key, int], int] = {}
        self._seen: dict[tuple[object, Key], _Seen] = {}
        self._image_offset = -1
        self.image = MetadataImage()
        #: Highest epochs told so far.
        self._epochs: dict[Key, PartitionImage] = {}
        self.check_count = 0
        #: Topics whose leaders may be elected uncleanly: nothing is for ever there.
        self.unclean: set[str] = set()

    # -- after every event -------------------------------------------------------------------------

    def check(self) -> None:
        """Look at everything. Raises Violated."""
        self.check_count += 1
        self._look_at_metadata()
        for machine in self._machines:
            broker = machine.broker
            if broker is None:
                continue
            process = machine.process
            for partition in broker.replicas.partitions():
                key = (partition.topic_id, partition.topic_partition.partition)
                log = partition.log
                seen = self._seen.get((process, key))
                if seen is not None and seen.partition is not partition:
                    seen = None  # it had been moved away, and is back
                if (
                    seen is None
                    or seen.high_watermark != log.high_watermark
                    or seen.leader_epoch != partition.leader_epoch
                    or seen.is_leader != partition.is_leader
                ):
                    self._look_at(machine, partition, key, seen)
                    self._seen[process, key] = _Seen(
                        partition, partition.leader_epoch, log.high_watermark, partition.is_leader
                    )
                if partition.leadership is not None:
                    self._replication_quorum_superset(partition, key)

    def _look_at(self, machine: Machine, partition: Partition, key: Key, seen: _Seen | None) -> None:
        log = partition.log
        topic = partition.topic_partition.topic
        if partition.is_leader:
            leader = self.leaders.setdefault((key, partition.leader_epoch), machine.node_id)
            if leader != machine.node_id:
                raise Violated(f"OneLeaderAnEpoch: {partition} {partition.leader_epoch}: {leader}, {machine}")
        if topic in self.unclean:
            return
        if seen is not None and log.high_watermark < seen.high_watermark:
            raise Violated(
                f"HighWatermarkNeverMovesBack: {partition} on {machine}: "
                f"{seen.high_watermark} in epoch {seen.leader_epoch}, then {log.high_watermark}"
            )
        ledger = self.ledgers.get(key)
        if ledger is None:
            ledger = self.ledgers[key] = Ledger()
        is_new_leader = partition.is_leader and (seen is None or seen.leader_epoch != partition.leader_epoch)
        if is_new_leader and self._is_newest(partition, key):
            self._match("LeaderCompleteness", machine, partition, ledger, 0, ledger.end)
        # One event may bring a leader both a smaller ISR, which commits, and its successor.
        leads_or_led = partition.is_leader or (seen is not None and seen.is_leader)
        if leads_or_led and log.high_watermark > ledger.end:
            _commit(ledger, log)
        if log.high_watermark > ledger.end:
            raise Violated(
                f"HighWatermarkIsCommitted: {partition} on {machine}: {log.high_watermark} > {ledger.end}"
            )
        if partition.is_leader:
            self._strong_isr(key)
        start = 0 if seen is None or seen.leader_epoch != partition.leader_epoch else seen.high_watermark
        self._match("LogMatching", machine, partition, ledger, start, log.high_watermark)

    def _match(
        self, name: str, machine: Machine, partition: Partition, ledger: Ledger, start: int, end: int
    ) -> None:
        """The replica has what the ledger has, from `start` to `end`."""
        log = partition.log
        reached = max(start, log.log_start_offset)
        for batch in batches_of(log, reached, end):
            known = ledger.by_offset.get(batch.base_offset)
            if known != batch:
                raise Violated(f"{name}: {partition} on {machine}: {batch}, committed is {known}")
            reached = batch.next_offset
        if reached < end:
            raise Violated(
                f"{name}: {partition} on {machine}: ends at {reached}, committed is everything before {end}"
            )

    def _strong_isr(self, key: Key) -> None:
        """Whoever may be elected has everything that is committed (StrongIsr of the KIP-320 specification)."""
        image, ledger = self._epochs.get(key), self.ledgers.get(key)
        if image is None or ledger is None:
            return
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

    def _replication_quorum_superset(self, partition: Partition, key: Key) -> None:
        """Who may be elected is waited for (KIP-966): the leader's maximal ISR covers the controller's ISR and ELR."""
        image = self._epochs.get(key)
        leadership = partition.leadership
        assert leadership is not None
        if image is None or image.leader_epoch != leadership.epoch:
            return
        if len(leadership.isr) < partition.effective_min_isr:
            return  # it commits nothing
        if not leadership.maximal_isr.issuperset(image.isr + image.elr):
            raise Violated(
                f"ReplicationQuorumSuperset: {partition}: {sorted(leadership.maximal_isr)} "
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
            minimum = self._min_isr(topic)
            for index, partition in topic.partitions.items():
                known = self._epochs.get((topic.topic_id, index))
                if known is not partition:
                    self._valid_controller_state(topic, index, partition, known, minimum)
                    self._epochs[topic.topic_id, index] = partition
                    if topic.name not in self.unclean:
                        self._strong_isr((topic.topic_id, index))
        for broker_id, broker in newest.brokers.items():
            if broker.is_fenced:
                self._fenced_is_in_no_isr(broker_id)

    def _min_isr(self, topic: TopicImage) -> int:
        text = self.image.config(ConfigResource(ConfigResourceType.TOPIC, topic.name)).get(
            "min.insync.replicas"
        )
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
            candidates = {None, known.leader, *known.isr, *known.elr}
            if not known.isr:
                # Nobody leads, and the ELR has ended without a clean shutdown: the last leader is as good (KIP-966).
                candidates |= set(known.last_known_elr)
            if (known.adding_replicas or known.removing_replicas) and not (
                now.adding_replicas or now.removing_replicas
            ):
                # The last one to join the ISR has completed a reassignment, and may lead at once (KIP-455).
                candidates |= set(now.isr)
            if topic.name not in self.unclean and now.leader not in candidates:
                raise Violated(f"LeaderCandidateCompleteness: {where} after {known}")

    def _fenced_is_in_no_isr(self, broker_id: int) -> None:
        for topic in self.image.topics_by_id.values():
            for index, partition in topic.partitions.items():
                # The last member stays until somebody else can be elected.
                if broker_id in partition.isr and len(partition.isr) > 1:
                    raise Violated(
                        f"ValidControllerState: fenced {broker_id} in {topic.name}-{index} {partition}"
                    )

    # -- consumers -----------------------------------------------------------------------------------

    def on_poll(self, poll: Poll) -> None:
        """ConsistentRead: nothing is seen that is not committed."""
        if poll.topic in self.unclean:
            return
        self.check()
        topic = self.image.topics_by_name.get(poll.topic)
        if topic is None:
            return
        ledger = self.ledgers.get((topic.topic_id, poll.partition), Ledger())
        for offset, value in poll.found:
            if ledger.values.get(offset) != value:
                raise Violated(
                    f"ConsistentRead: {poll.client} saw {value!r} at {offset} of {poll.topic}-{poll.partition} "
                    f"on {poll.broker_id}, committed is {ledger.values.get(offset)!r} (end {ledger.end})"
                )


def batches_of(log: Log, start: int, end: int) -> Iterator[Batch]:
    """The batches of [start, end)."""
    if start >= end:
        return
    for header, _ in log.records_since(start, end=end):
        if header.base_offset >= end:
            return
        if header.base_offset >= start:
            yield Batch(header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc)


def _commit(ledger: Ledger, log: Log) -> None:
    """A leader's high watermark has moved beyond all that was committed."""
    end = log.high_watermark
    for header, data in log.records_since(max(ledger.end, log.log_start_offset), end=end):
        if header.base_offset < ledger.end or header.base_offset >= end:
            continue
        batch = Batch(header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc)
        ledger.batches.append(batch)
        ledger.by_offset[batch.base_offset] = batch
        for record in records_of(data):
            ledger.values[record.offset] = None if record.value is None else bytes(record.value)
    ledger.end = end
