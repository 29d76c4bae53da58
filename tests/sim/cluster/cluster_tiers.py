"""Invariants of a tiered cluster, in addition to those of its logs (KIP-405).

The judge reads the records of `__remote_log_metadata` as they are committed, in its own model, and sees the bucket.

| invariant | what must hold |
| --- | --- |
| NoHoleBetweenTiers | what a leader or a member of the ISR lacks locally, from the log start on, |
|  | is in finished copies of its lineage, whose objects exist |
| RemoteEndIsCopied | what a replica believes to be copied, and has in its local segments yet, is in such copies |
| CopiesAreTrue | a finished copy has the batches that were committed, no more and no fewer, with all indexes |
| CopiesAreDecided | a finished copy has no record of an open transaction, and a transaction index |
|  | with the aborted ones that end in it |
| NeededCopiesStay | a copy whose deletion begins has nothing that a member of the ISR has of its log |
|  | in the remote tier only, with no other copy |
| FinishedCopiesStay | no object of a finished copy is deleted before its DELETE_SEGMENT_STARTED |
| RemoteStateAdvances | what a broker's cache has of a copy is a state that its records have reached; |
|  | the records follow the diagram |
| NothingIsOrphaned | at the end each object is of a finished copy, and each finished copy of a topic that exists |
| LostBranchesAreDeleted | at the end no finished copy is without a record of its leader's log, |
|  | unless it ends behind what is copied |
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from cluster_batches import Key
from cluster_bucket import Bucket
from cluster_ledger import Batch, Ledger
from cluster_machine import Machine
from cluster_violated import Violated

from ottla.broker.replicas.partition import Partition
from ottla.metadata.image import ConfigResource, ConfigResourceType, MetadataImage
from ottla.protocol.records.batch import batches
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
    is_segment_transition,
)
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.object_storage import CHECK_FOLDER, key_of, parse_key
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.topic_metadata.records import from_value
from ottla.remote.topic_metadata.topic import TOPIC
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.log import Log
from ottla.storage.transaction_index import AbortedTransaction

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
#: Of a transaction index: its version, and the fields of AbortedTransaction.
_ENTRY = Struct(">hqqqq")
#: What every copy has besides its batches.
_INDEXES = (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH)


@dataclass(slots=True)
class Copies:
    """The copies of one partition, as the records have them."""

    #: By id; deleted ones, too.
    by_id: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    #: Grows with each change.
    version: int = 0

    def finished(self) -> Iterator[RemoteLogSegmentMetadata]:
        """The copies that readers may get."""
        return (copy for copy in self.by_id.values() if copy.state is _FINISHED)


class _Seen(NamedTuple):
    log: Log
    version: int
    log_start_offset: int
    local_log_start_offset: int
    remote_end_offset: int | None
    lineage: tuple[EpochEntry, ...]


class TierJudge:
    """Checks the invariants of the remote tier against the metadata records and the bucket."""

    def __init__(self, bucket: Bucket, unclean: AbstractSet[str]) -> None:
        """`unclean`: topics whose leaders may be elected uncleanly."""
        self._bucket = bucket
        self._unclean = unclean
        bucket.on_delete = self._on_delete
        self.copies: dict[Key, Copies] = {}
        #: Metadata partition -> the next offset of its ledger.
        self._positions: dict[Key, int] = {}
        self._seen: dict[Partition, _Seen] = {}
        #: The largest log start offset that a replica has had: a new leader may yet have to find it.
        self._starts: dict[Key, int] = {}
        #: Records that ask for what the diagram does not have.
        self.refused_count = 0
        self.finished_count = 0
        #: Aborted transactions in the indexes of copies.
        self.aborted_count = 0
        #: Finished copies whose deletion has begun since the last look, with those of the same partition.
        self._begun: list[tuple[RemoteLogSegmentMetadata, Copies]] = []
        #: Raised in the next check: objects are deleted in threads.
        self._violation: Violated | None = None

    # -- the records -----------------------------------------------------------------------------------

    def read_records(self, image: MetadataImage, ledgers: dict[Key, list[Ledger]]) -> None:
        """Apply what has been committed since the last look."""
        if self._violation is not None:
            raise self._violation
        topic = image.topics_by_name.get(TOPIC)
        for index in () if topic is None else topic.partitions:
            assert topic is not None
            key = (topic.topic_id, index)
            ledger = ledgers[key][-1] if key in ledgers else None
            if ledger is None or self._positions.get(key, 0) == ledger.end:
                continue
            for offset in range(self._positions.get(key, 0), ledger.end):
                record = ledger.records.get(offset)
                if record is not None and record.value is not None:
                    self._apply(from_value(record.value), ledgers)
            self._positions[key] = ledger.end

    def _apply(self, change: object, ledgers: dict[Key, list[Ledger]]) -> None:
        match change:
            case RemoteLogSegmentMetadata():
                copies = self.copies.setdefault(_key_of(change.partition), Copies())
                copies.by_id.setdefault(change.segment_id.id, change)
                copies.version += 1
            case RemoteLogSegmentMetadataUpdate():
                key = _key_of(change.segment_id.partition)
                copies = self.copies.setdefault(key, Copies())
                known = copies.by_id.get(change.segment_id.id)
                if known is None or not is_segment_transition(known.state, change.state):
                    self.refused_count += 1
                    return
                now = copies.by_id[change.segment_id.id] = known.updated(change)
                copies.version += 1
                if known.state is _FINISHED and now.state is not _FINISHED:
                    self._begun.append((known, copies))
                if change.state is _FINISHED and known.state is not _FINISHED:
                    self.finished_count += 1
                    self._copies_are_true(now, ledgers.get(key, []))

    def _copies_are_true(self, copy: RemoteLogSegmentMetadata, ledgers: Sequence[Ledger]) -> None:
        missing = [each.value for each in _INDEXES if key_of(copy, each) not in self._bucket.objects]
        body = self._bucket.objects.get(key_of(copy))
        if body is None or missing or len(body) != copy.segment_size_bytes:
            raise Violated(
                f"CopiesAreTrue: {copy} has {None if body is None else len(body)} bytes, lacks {missing}"
            )
        found = [
            Batch(header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc)
            for header, _ in batches(memoryview(body))
        ]
        of = [ledger for ledger in ledgers if _is_of(ledger, copy, found)]
        if not of:
            raise Violated(f"CopiesAreTrue: {copy} has {found}, which no leader has committed")
        body = self._bucket.objects.get(key_of(copy, IndexType.TRANSACTION))
        index = [] if body is None else [AbortedTransaction(*each[1:]) for each in _ENTRY.iter_unpack(body)]
        if copy.is_transaction_index_empty != (body is None) or not any(
            _is_decided(ledger, copy, index, log_start_offset=self._starts.get(_key_of(copy.partition), 0))
            for ledger in of
        ):
            known = [(each.last_stable_offset(), each.isolation.aborted) for each in of]
            raise Violated(f"CopiesAreDecided: {copy} has {index}, committed is {known}")
        self.aborted_count += len(index)

    def _on_delete(self, key: str) -> None:
        if key.startswith(f"{CHECK_FOLDER}/"):
            return
        found = parse_key(key, 0)
        assert found is not None, key
        copies = self.copies.get(_key_of(found.segment_id.partition))
        copy = None if copies is None else copies.by_id.get(found.segment_id.id)
        if copy is not None and copy.state is _FINISHED:
            self._violation = Violated(f"FinishedCopiesStay: {key} is deleted: {copy}")

    # -- replicas ----------------------------------------------------------------------------------------

    def look_at_deletions(self, machines: Iterable[Machine], image: MetadataImage) -> None:
        """NeededCopiesStay: of the copies whose deletion has begun since the last look."""
        begun, self._begun = self._begun, []
        for copy, copies in begun:
            key = _key_of(copy.partition)
            topic = image.topics_by_id.get(key[0])
            if topic is None or _is_switched_off(image, topic.name):
                continue
            known = topic.partitions[key[1]]
            for machine in machines:
                replicas = None if machine.broker is None else machine.broker.replicas
                partition = None if replicas is None else replicas.hosted.get((topic.name, key[1]))
                if (
                    partition is not None
                    and machine.node_id in known.isr
                    and partition.leader_epoch == known.leader_epoch
                    and partition.log.has_whole_lineage
                ):
                    log = partition.log
                    start = max(log.log_start_offset, self._starts.get(key, 0), copy.start_offset)
                    offset = _first_needed(copy, copies, log, start, log.local_log_start_offset)
                    if offset is not None:
                        raise Violated(
                            f"NeededCopiesStay: {partition} on {machine} needs {offset} of {copy}: {log.offsets} "
                            f"{log.leader_epochs.entries}"
                        )

    def look_at(self, machine: Machine, partition: Partition, image: MetadataImage) -> None:
        """Hold a replica against the copies; cheap where nothing has changed."""
        log = partition.log
        key = (partition.topic_id, partition.topic_partition.partition)
        # Followers have it from a leader; one event may advance it on a leader, and depose that.
        self._starts[key] = max(self._starts.get(key, 0), log.log_start_offset)
        if not log.is_tiered:
            return
        copies = self.copies.setdefault(key, Copies())
        offsets = log.offsets
        now = _Seen(
            log,
            copies.version,
            log.log_start_offset,
            log.local_log_start_offset,
            offsets.remote_end_offset,
            tuple(log.leader_epochs.entries),
        )
        topic = image.topics_by_id.get(partition.topic_id)
        known = None if topic is None else topic.partitions.get(key[1])
        # Of a replica that is not in sync the leader's log start, and with it what must be there, may be unknown.
        if known is None or known.leader_epoch != partition.leader_epoch or machine.node_id not in known.isr:
            return
        if topic is not None and topic.name in self._unclean and not partition.is_leader:
            return  # a leader of another branch may have deleted what it lacks; the present one may have it locally
        if topic is not None and not partition.is_leader and _is_switched_off(image, topic.name):
            return  # its leader deletes the copies; it begins at its local log start as soon as it knows that
        if log.offsets.begins_after_gap and offsets.remote_end_offset is None:
            # A crash has taken its beginning: its log start offset follows when it has read which copies there are.
            return
        # A power cut may take the epochs of the remote part: a leader restores them before it serves
        # that (`ottla.remote.lost_lineage`).
        if self._seen.get(partition) == now or not log.has_whole_lineage:
            return
        self._seen[partition] = now
        start = max(log.log_start_offset, self._starts.get(key, 0))
        where = f"{partition} on {machine}: {offsets}"
        self._is_covered("NoHoleBetweenTiers", where, now.lineage, copies, start, log.local_log_start_offset)
        # Where tiering is switched off copies are deleted; a follower learns of that by and by.
        is_switched = "remote.log.delete.on.disable" in image.config(
            ConfigResource(ConfigResourceType.TOPIC, partition.topic_partition.topic)
        )
        if offsets.remote_end_offset is not None and (partition.is_leader or not is_switched):
            start = max(start, log.local_log_start_offset)
            self._is_covered(
                "RemoteEndIsCopied", where, now.lineage, copies, start, offsets.remote_end_offset
            )

    def _is_covered(
        self, name: str, where: str, lineage: Sequence[EpochEntry], copies: Copies, start: int, end: int
    ) -> None:
        """Each offset of [start, end) is in a finished copy, in the epoch that it has in this lineage."""
        for at, entry in enumerate(lineage):
            epoch_end = min(end, lineage[at + 1].start_offset if at + 1 < len(lineage) else end)
            offset = max(start, entry.start_offset)
            ranges = sorted(
                (*found, key_of(copy))
                for copy in copies.finished()
                if (found := copy.epoch_range(entry.epoch)) is not None
            )
            for range_start, range_end, key in ranges if offset < epoch_end else ():
                if range_start <= offset < range_end and key in self._bucket.objects:
                    offset = range_end
            if offset < epoch_end:
                held = [
                    (each.start_offset, each.end_offset, each.state.name) for each in copies.by_id.values()
                ]
                raise Violated(
                    f"{name}: no copy has {offset} of epoch {entry.epoch}: {where}: {lineage}: {held}"
                )
        if start < end and (not lineage or lineage[0].start_offset > start):
            raise Violated(f"{name}: the epoch of {start} is unknown: {where}: {lineage}")

    # -- caches --------------------------------------------------------------------------------------------

    def look_at_caches(self, machines: Iterable[Machine]) -> None:
        """Check RemoteStateAdvances in the caches of all brokers."""
        for machine, partition, cached in self._caches(machines):
            copies = self.copies.get(_key_of(partition), Copies())
            for copy in cached:
                known = copies.by_id.get(copy.segment_id.id)
                if known is None or not (copy.state is known.state or copy.state.value < known.state.value):
                    raise Violated(f"RemoteStateAdvances: {machine} has {copy}, the records say {known}")

    def _caches(
        self, machines: Iterable[Machine]
    ) -> Iterator[tuple[Machine, TopicIdPartition, list[RemoteLogSegmentMetadata]]]:
        for machine in machines:
            remote = None if machine.broker is None else machine.broker.remote
            if remote is not None:
                assert isinstance(remote.metadata, TopicBasedRemoteLogMetadataManager), remote.metadata
                for partition, user in remote.metadata._user_partitions.items():
                    if user.is_ready:
                        yield machine, partition, list(user.cache.segments())

    # -- the end -------------------------------------------------------------------------------------------

    def unsettled(self, machines: Sequence[Machine], image: MetadataImage) -> str | None:
        """The first unfinished work in the remote tier when nothing fails any more; None: there is none."""
        return self._undecided(image) or self._uncopied(machines)

    def _undecided(self, image: MetadataImage) -> str | None:
        for key, copies in self.copies.items():
            topic = image.topics_by_id.get(key[0])
            for copy in copies.by_id.values():
                if copy.state not in (_FINISHED, _GONE):
                    return f"EventuallyCopiesAreDecided: {copy}"
                if copy.state is not _GONE and (topic is None or _is_switched_off(image, topic.name)):
                    return f"NothingIsOrphaned: its topic is deleted, or not tiered: {copy}"
        named = {copy.segment_id.id for copies in self.copies.values() for copy in copies.finished()}
        for object_key in self._bucket.objects:
            if object_key.startswith(f"{CHECK_FOLDER}/"):
                continue  # of a broker that was killed during its check
            found = parse_key(object_key, 0)
            assert found is not None, object_key
            if found.segment_id.id not in named:
                return f"NothingIsOrphaned: no metadata names {object_key}"
        return None

    def _uncopied(self, machines: Sequence[Machine]) -> str | None:
        for machine, partition, cached in self._caches(machines):
            expected = self.copies.get(_key_of(partition), Copies()).by_id.values()
            if {each.segment_id.id: each for each in cached} != {
                each.segment_id.id: each for each in expected if each.state is not _GONE
            }:
                return f"EventuallyCachesConverge: {machine} has {cached} of {partition}, not {expected}"
        for machine in machines:
            for replica in () if machine.broker is None else machine.broker.replicas.partitions():
                key = (replica.topic_id, replica.topic_partition.partition)
                if (lag := _lag(replica)) is not None:
                    return f"EventuallyCopied: {replica} on {machine}: {lag}"
                if (lost := _lost(replica, self.copies.get(key, Copies()))) is not None:
                    return f"LostBranchesAreDeleted: {replica} on {machine}: {lost}: {replica.log.offsets}"
        return None


def _lag(partition: Partition) -> str | None:
    """The first segment that the leader has not copied, or fact that it does not know; None: there is none."""
    log = partition.log
    if not (log.is_tiered and partition.is_leader) or log.config.remote_log_copy_disable:
        return None
    if not log.has_whole_lineage:
        return f"its lineage is lost: {log.offsets} {log.leader_epochs.entries}"
    pending = log.offsets.earliest_pending_upload_offset
    if pending is None or pending < log.segments.active.base_offset:
        return f"copied is everything before {pending}: {log.offsets}"
    return None


def _lost(partition: Partition, copies: Copies) -> RemoteLogSegmentMetadata | None:
    """A copy that has nothing of a leader's log, and ends where that is copied, or before its start."""
    log = partition.log
    end = log.offsets.remote_end_offset
    if not (log.is_tiered and partition.is_leader) or end is None:
        return None
    for copy in copies.finished():
        start = max(copy.start_offset, log.log_start_offset)
        is_past = copy.end_offset <= max(end, log.log_start_offset)
        if is_past and _first_needed(copy, Copies(), log, start, copy.end_offset) is None:
            return copy
    return None


def _first_needed(
    copy: RemoteLogSegmentMetadata, others: Copies, log: Log, start: int, end: int
) -> int | None:
    """The first offset of [start, end) at which the copy has the log's record, and no other finished one has."""
    for offset in range(start, min(end, copy.end_offset)):
        epoch = log.epoch_for_offset(offset)
        if epoch is None or not _has(copy, epoch, offset):
            continue
        if not any(_has(other, epoch, offset) for other in others.finished()):
            return offset
    return None


def _has(copy: RemoteLogSegmentMetadata, epoch: int, offset: int) -> bool:
    start, end = copy.epoch_range(epoch) or (0, 0)
    return start <= offset < end


def _is_switched_off(image: MetadataImage, topic: str) -> bool:
    configs = image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
    return configs.get("remote.log.delete.on.disable") == "true"


def _is_of(ledger: Ledger, copy: RemoteLogSegmentMetadata, found: Sequence[Batch]) -> bool:
    """Whether these are the ledger's batches of the copy's offsets, as far as it knows them."""
    known = [
        batch
        for offset, batch in sorted(ledger.batches.items())
        if copy.start_offset <= offset < copy.end_offset
    ]
    start = max(ledger.known_from, copy.start_offset)
    return ledger.end >= copy.end_offset and known == [each for each in found if each.base_offset >= start]


def _is_decided(
    ledger: Ledger,
    copy: RemoteLogSegmentMetadata,
    index: Sequence[AbortedTransaction],
    *,
    log_start_offset: int,
) -> bool:
    """Whether all transactions in the copy have ended, and the index has those that were aborted in it.

    Of one that began before the log start, a replica that was emptied may know a part, which begins where it has
    fetched from, or nothing. One that may have begun before the ledger did has the offset of its first batch there,
    or another before the ledger.
    """
    start = max(ledger.known_from, log_start_offset)
    aborted = ledger.isolation.aborted
    expected = [
        each
        for each in aborted
        if copy.start_offset <= each.last_offset < copy.end_offset and each.first_offset >= start
    ]
    #: They began before the log start.
    older = {(each.producer_id, each.last_offset) for each in aborted if each.first_offset < start}
    begun_before = {
        (each.producer_id, each.last_offset): each
        for each in expected
        if each.last_offset in ledger.isolation.begun_before
    }
    found = []
    for each in index:
        known = begun_before.get((each.producer_id, each.last_offset))
        if known is not None and each.first_offset < ledger.known_from:
            found.append(known)
        elif each.first_offset >= start and (each.producer_id, each.last_offset) not in older:
            found.append(each._replace(last_stable_offset=-1))
    return copy.end_offset <= ledger.last_stable_offset() and found == expected


def _key_of(partition: TopicIdPartition) -> Key:
    return partition.topic_id, partition.topic_partition.partition
