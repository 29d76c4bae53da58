"""The copies of topics: of each partition, by the objects of the store alone, without any broker.

Each copy's metadata is made from four of its objects. The information that only `__remote_log_metadata` and the leaders
have is missing; `ottla.remote.spark_source.topic_records` reads it from the cluster:

- a copy counts as soon as all its objects are there, also if retention is about to delete it;
- the history begins where the newest copy's leader epochs begin, which was the log start when it was copied:
  records that were deleted since are read as long as the store has them;
- a branch that an unclean election has given up counts until the new leader has copied a segment.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from logging import getLogger
from typing import Final
from uuid import UUID

from ottla.protocol.errors import InvalidConfig
from ottla.protocol.kafka_uuid import to_text
from ottla.remote.errors import RemoteStorageError
from ottla.remote.rebuilding import NotRebuilt, finished, metadata_of
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.spark_source.options import InvalidOption
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.stores.object_storage import ListedObject, ObjectStorage
from ottla.remote.stores.stored_segments import StoredSegment, StoredSegments

_LOG: Final = getLogger(__name__)
#: The number of reads of the store at a time.
_THREADS: Final = 16
#: The broker id in metadata that is not written anywhere.
_NO_BROKER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCopies:
    """The copies of one partition, in any state; the bounds of its log, if a broker has reported them."""

    partition: TopicIdPartition
    copies: tuple[RemoteLogSegmentMetadata, ...]
    log_start_offset: int | None = None
    log_end_offset: int | None = None


def copies_in(
    manager: RemoteStorageManager, topics: Sequence[str], topic_id: UUID | None
) -> Iterator[PartitionCopies]:
    """Yield the copies of all partitions that the store has of these topics.

    Raises RemoteStorageError, InvalidConfig.
    """
    if not isinstance(manager, ObjectStorage):
        raise InvalidConfig(
            f"The objects of {type(manager).__name__} cannot be listed: set kafka.bootstrap.servers, "
            "so that the metadata is read from the cluster."
        )
    for topic in topics:
        yield from _copies_of(manager, topic, topic_id)


def _copies_of(manager: ObjectStorage, topic: str, topic_id: UUID | None) -> Iterator[PartitionCopies]:
    segments = [
        each
        for each in StoredSegments.of(_listed(manager, topic)).segments.values()
        if each.segment_id.partition.topic_partition.topic == topic
        and topic_id in (None, each.segment_id.partition.topic_id)
    ]
    ids = sorted({each.segment_id.partition.topic_id for each in segments})
    if not ids:
        raise RemoteStorageError(f"The store has no objects of the topic {topic}.")
    if len(ids) > 1:
        raise InvalidOption(
            f"The store has {len(ids)} topics of the name {topic}: set topicId to {' or '.join(map(to_text, ids))}."
        )
    by_partition: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for copy in threads.map(lambda each: _copy(manager, each), segments):
            if copy is not None:
                by_partition.setdefault(copy.partition, []).append(copy)
    for partition in sorted(by_partition, key=lambda each: each.topic_partition):
        yield PartitionCopies(partition=partition, copies=tuple(by_partition[partition]))


def _listed(manager: ObjectStorage, topic: str) -> Iterator[ListedObject]:
    return manager.store.list(f"{topic}-")


def _copy(manager: ObjectStorage, segment: StoredSegment) -> RemoteLogSegmentMetadata | None:
    try:
        found = metadata_of(segment, manager.store, broker_id=_NO_BROKER, now_ms=0)
    except NotRebuilt as error:
        _LOG.warning("%s is left out: %s", segment.segment_id, error)
        return None
    return found.updated(finished(found, now_ms=0))
