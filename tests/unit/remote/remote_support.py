"""Copies of segments for tests: by number, offsets and leader epochs."""

from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.types import TopicPartition
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from ottla.storage.leader_epoch_cache import EpochEntry

PARTITION = TopicIdPartition(UUID(int=7), TopicPartition("t", 0))


def copy_of(number, start, end, *epochs, **fields):
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=start * 10,
        broker_id=1,
        event_timestamp_ms=number,
        segment_size_bytes=(end - start) * 100,
        leader_epochs=tuple(EpochEntry(*each) for each in epochs) or (EpochEntry(0, start),),
        **fields,
    )


def to(number, state, **fields):
    return RemoteLogSegmentMetadataUpdate(
        segment_id=RemoteLogSegmentId(PARTITION, UUID(int=number)),
        state=state,
        broker_id=2,
        event_timestamp_ms=99,
        **fields,
    )


def cache_of(*copies):
    cache = RemoteLogMetadataCache(PARTITION)
    for each in copies:
        cache.add(each)
        cache.update(to(each.segment_id.id.int, State.COPY_SEGMENT_FINISHED))
    return cache
