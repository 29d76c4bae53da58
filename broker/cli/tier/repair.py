"""Writes metadata that is lost, made from the store: which copies, and their records in `__remote_log_metadata`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.cli.tier.comparison import OrphanKind, orphans
from ottla.broker.cli.tier.inspection import Inspection
from ottla.broker.cli.tier.metadata_topic import append
from ottla.broker.cli.tier.progress import Progress
from ottla.broker.cluster_client.client import ClusterClient
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.rebuilding import (
    NotRebuilt,
    finished,
    is_lost_finish,
    metadata_of,
    without_duplicates,
)
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.stores.object_storage import ObjectStore
from ottla.remote.stores.stored_segments import StoredSegment
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.records import Change, to_value

_FINISHED: Final = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
#: Records of one request.
_RECORDS_AT_ONCE: Final = 200


@dataclass(slots=True, kw_only=True)
class Plan:
    """The copies whose metadata is to be written, and those that are left out."""

    #: Copies without metadata, of which both records are written.
    lost: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    #: Copies that have started, and of which the second record is lost.
    unfinished: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    #: Why the others are left out.
    left_out: list[tuple[RemoteLogSegmentId, str]] = field(default_factory=list)


def plan_rebuilding(
    seen: Inspection, store: ObjectStore, topics: Collection[str], progress: Progress, *, now_ms: int
) -> Plan:
    """Return which copies' metadata can be rebuilt from the store, of these topics or of all.

    Raises RemoteStorageError. [any thread]
    """
    plan = Plan()
    candidates = list(_candidates(seen, topics))
    found: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    with progress.measuring("copies", len(candidates)) as done:
        for position, segment in enumerate(candidates):
            done(position)
            partition = segment.segment_id.partition
            leader = seen.partitions.get(partition)
            log = seen.logs.get(partition)
            if leader is None or log is None:
                plan.left_out.append((segment.segment_id, "its partition has no leader now"))
                continue
            try:
                copy = metadata_of(segment, store, broker_id=leader.node_id, now_ms=now_ms)
            except NotRebuilt as error:
                plan.left_out.append((segment.segment_id, str(error)))
                continue
            if copy.end_offset <= log.log_start_offset:
                plan.left_out.append(
                    (segment.segment_id, f"it ends before the log start {log.log_start_offset}")
                )
            else:
                found.setdefault(partition, []).append(copy)
    known = {
        partition: [copy for copy in copies if copy.state is _FINISHED]
        for partition, copies in seen.known.by_partition().items()
    }
    for partition, copies in found.items():
        kept, duplicates = without_duplicates(copies, known.get(partition, ()))
        plan.lost += kept
        plan.left_out += [(copy.segment_id, "another copy has its records") for copy in duplicates]
    plan.unfinished += _lost_finishes(seen, topics, known)
    return plan


async def write_plan(
    client: ClusterClient, plan: Plan, progress: Progress, *, partition_count: int, now_ms: int
) -> None:
    """Append the records. Raises ClusterError; what was appended by then stays, and the next run continues."""
    by_number: dict[int, list[Change]] = {}
    for copy in plan.lost:
        changes = by_number.setdefault(
            metadata_partition(copy.partition, partition_count=partition_count), []
        )
        changes += (copy, finished(copy, now_ms=now_ms))
    for copy in plan.unfinished:
        changes = by_number.setdefault(
            metadata_partition(copy.partition, partition_count=partition_count), []
        )
        changes.append(finished(copy, now_ms=now_ms))
    with progress.measuring("records", sum(map(len, by_number.values()))) as done:
        written = 0
        for number, changes in sorted(by_number.items()):
            for start in range(0, len(changes), _RECORDS_AT_ONCE):
                some = changes[start : start + _RECORDS_AT_ONCE]
                await append(client, number, [to_value(change) for change in some])
                written += len(some)
                done(written)


def _candidates(seen: Inspection, topics: Collection[str]) -> Iterator[StoredSegment]:
    for orphan in orphans(seen.known, seen.stored, seen.partitions, seen.logs):
        partition = orphan.segment.segment_id.partition
        is_asked = not topics or partition.topic_partition.topic in topics
        is_unnamed = orphan.kind in (OrphanKind.UNNAMED, OrphanKind.NEEDED, OrphanKind.NO_METADATA)
        if is_asked and is_unnamed and partition in seen.partitions:
            yield orphan.segment


def _lost_finishes(
    seen: Inspection,
    topics: Collection[str],
    known: Mapping[TopicIdPartition, Sequence[RemoteLogSegmentMetadata]],
) -> Iterator[RemoteLogSegmentMetadata]:
    for copy in seen.known.in_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED):
        log = seen.logs.get(copy.partition)
        if log is None or (topics and copy.partition.topic_partition.topic not in topics):
            continue
        if copy.end_offset > log.log_start_offset and is_lost_finish(
            copy,
            seen.stored.segments.get(copy.segment_id),
            local_log_start_offset=log.local_log_start_offset,
            others=known.get(copy.partition, ()),
        ):
            yield copy
