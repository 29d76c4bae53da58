"""Compares what the store has with what the metadata and the cluster say: what is missing, what is left over.

A finished copy has all its objects, and its segment the recorded size. Every offset before the local log
start is in a finished copy. An object that no metadata names is an orphan, of one of five kinds; only two of
them are certainly of no use.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.known_copies import KnownCopies
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.stored_segments import StoredSegment, StoredSegments, name_of

_FINISHED: Final = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_ANYWHERE: Final = 2**63


@dataclass(slots=True, frozen=True, kw_only=True)
class LogRange:
    """A partition's log as its leader reports it; ends are exclusive."""

    log_start_offset: int
    local_log_start_offset: int
    log_end_offset: int


@dataclass(slots=True, frozen=True)
class Finding:
    """A difference between the store and the metadata; an error is a loss of records, or will be one."""

    partition: TopicIdPartition
    message: str
    is_error: bool

    def __str__(self) -> str:
        return f"{self.partition.topic_partition}: {self.message}"


class OrphanKind(Enum):
    """The kind of an orphan: the reason for which no metadata names its objects."""

    DELETED = "deleted"
    UNNAMED = "unnamed"
    NEEDED = "needed"
    NO_METADATA = "no-metadata"
    UNKNOWN_TOPIC = "unknown-topic"

    @property
    def reason(self) -> str:
        """The reason as a phrase for an operator."""
        return _REASONS[self]


_REASONS: Final[Mapping[OrphanKind, str]] = {
    OrphanKind.DELETED: "the metadata says that it was deleted",
    OrphanKind.UNNAMED: "no metadata names it",
    OrphanKind.NEEDED: "no metadata names it, and offsets that it may have are in no tier: rebuild the metadata first",
    OrphanKind.NO_METADATA: "there is no metadata of its partition at all: if that was lost, rebuild it first",
    OrphanKind.UNKNOWN_TOPIC: "neither this cluster nor its metadata has the topic: perhaps another cluster's",
}


def certain(known: KnownCopies) -> frozenset[OrphanKind]:
    """The orphans that are of no use to anyone. The other kinds are deleted only where the operator says so."""
    if known.removed_count or known.unread_count:
        return frozenset({OrphanKind.DELETED})
    return frozenset({OrphanKind.DELETED, OrphanKind.UNNAMED})


@dataclass(slots=True, frozen=True, kw_only=True)
class Orphan:
    """The objects of a copy that no metadata names."""

    segment: StoredSegment
    kind: OrphanKind


def findings(
    known: KnownCopies, stored: StoredSegments, logs: Mapping[TopicIdPartition, LogRange]
) -> Iterator[Finding]:
    """Yield a finding for each error, unfinished copy and missing range of offsets.

    `logs` are those of partitions that have a leader.
    """
    for copy in known.copies.values():
        found = stored.segments.get(copy.segment_id)
        name = f"the copy {to_text(copy.segment_id.id)} of [{copy.start_offset}, {copy.end_offset})"
        if copy.state is _FINISHED:
            for problem in problems_of(copy, found):
                yield Finding(copy.partition, f"{name} {problem}", is_error=True)
        else:
            left = "no object" if found is None else f"{len(found.objects)} objects"
            yield Finding(
                copy.partition,
                f"{name} is in state {copy.state.name} since broker {copy.broker_id} wrote it; {left} in the store",
                is_error=False,
            )
    by_partition: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for copy in known.in_state(_FINISHED):
        by_partition.setdefault(copy.partition, []).append(copy)
    for partition, log in logs.items():
        for start, end in holes(
            by_partition.get(partition, ()),
            start_offset=log.log_start_offset,
            end_offset=log.local_log_start_offset,
        ):
            yield Finding(partition, f"the offsets [{start}, {end}) are in no tier", is_error=True)


def problems_of(copy: RemoteLogSegmentMetadata, found: StoredSegment | None) -> Iterator[str]:
    """Yield the errors of a finished copy in the store: missing objects, another size than its metadata has."""
    if found is None:
        yield "has no object in the store"
        return
    missing = found.missing
    if not copy.is_transaction_index_empty and IndexType.TRANSACTION not in found.objects:
        missing.append(IndexType.TRANSACTION)
    if missing:
        yield f"lacks objects in the store: {', '.join(map(name_of, missing))}"
    log = found.objects.get(None)
    if log is not None and log.size_bytes != copy.segment_size_bytes:
        yield f"has {log.size_bytes} bytes in the store, but {copy.segment_size_bytes} in the metadata"


def holes(
    copies: Iterable[RemoteLogSegmentMetadata], *, start_offset: int, end_offset: int
) -> Iterator[tuple[int, int]]:
    """The parts of [start_offset, end_offset) that no copy has.

    Copies may overlap: two leaders have copied the same segment, or another branch of an unclean election.
    """
    at = start_offset
    for copy in sorted(copies, key=lambda each: each.start_offset):
        if copy.start_offset >= end_offset:
            break
        if copy.start_offset > at:
            yield at, copy.start_offset
        at = max(at, copy.end_offset)
    if at < end_offset:
        yield at, end_offset


def orphans(
    known: KnownCopies,
    stored: StoredSegments,
    partitions: Iterable[TopicIdPartition],
    logs: Mapping[TopicIdPartition, LogRange],
) -> Iterator[Orphan]:
    """Yield the copies that no metadata names.

    `partitions` are those of the cluster's topics; `logs` those of partitions with a leader.
    """
    of_cluster = set(partitions)
    known_topics = {each.topic_id for each in known.partitions}
    missing_ends = _missing_ends(known, of_cluster, logs)
    for segment_id, segment in stored.segments.items():
        if segment_id not in known.copies:
            kind = _kind(segment_id, known, of_cluster, known_topics)
            if kind is OrphanKind.UNNAMED and segment.start_offset < missing_ends.get(
                segment_id.partition, 0
            ):
                kind = OrphanKind.NEEDED
            yield Orphan(segment=segment, kind=kind)


def _missing_ends(
    known: KnownCopies, of_cluster: Iterable[TopicIdPartition], logs: Mapping[TopicIdPartition, LogRange]
) -> dict[TopicIdPartition, int]:
    """The end of the last hole of each log that has one; without a leader that is unknown, and may be anywhere."""
    finished: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for copy in known.in_state(_FINISHED):
        finished.setdefault(copy.partition, []).append(copy)
    ends = {}
    for partition in of_cluster:
        log = logs.get(partition)
        if log is None:
            ends[partition] = _ANYWHERE
            continue
        of_log = holes(
            finished.get(partition, ()),
            start_offset=log.log_start_offset,
            end_offset=log.local_log_start_offset,
        )
        for _, end in of_log:
            ends[partition] = end
    return ends


def _kind(
    segment_id: RemoteLogSegmentId,
    known: KnownCopies,
    of_cluster: set[TopicIdPartition],
    known_topics: set[UUID],
) -> OrphanKind:
    partition = segment_id.partition
    if segment_id in known.deleted:
        return OrphanKind.DELETED
    if partition in known.partitions:
        return OrphanKind.UNNAMED
    if partition in of_cluster:
        return OrphanKind.NO_METADATA
    # Another partition of a topic that was deleted, or of one that the cluster has: it was ours.
    return OrphanKind.UNNAMED if partition.topic_id in known_topics else OrphanKind.UNKNOWN_TOPIC
