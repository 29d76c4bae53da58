"""One partition in both tiers: segments and leader epochs of this broker's replica, copies and their objects.

Segments are known to the broker that has them, and no request of Kafka asks for them: the page of that broker shows
them. Copies are read from the metadata of the remote tier, which each broker with a replica has.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from ottla.broker.page.query import CannotShow, Query
from ottla.broker.page.sources import Sources
from ottla.broker.page.tally import min_isr_of
from ottla.broker.page.topics import partition_row, replica_logs, topic_named
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.types import MAX_PARTITION, TopicPartition
from ottla.remote.errors import RemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import RemoteStorageManager, StorageManagerInFront
from ottla.runtime.turns import in_turns
from ottla.storage.log import Log

#: The latest segments, copies and epochs that are shown; their number is said.
_MOST: Final = 100


async def partition(sources: Sources, query: Query) -> dict[str, Any]:
    """One partition: its replicas, and what this broker knows of its segments, epochs and copies."""
    name, index = query.required("topic"), query.number("partition", 0, most=MAX_PARTITION)
    query.check_all_read()
    image = topic_named(sources, name)
    row = image.partitions.get(index)
    if row is None:
        raise CannotShow(404, f"The topic {name} has no partition {index}.")
    at = TopicPartition(name, index)
    logs = await replica_logs(sources, image, {index: row})
    configs = sources.broker.metadata.image.topic_config(name)
    hosted = sources.broker.replicas.hosted.get(at)
    return {
        "topic": name,
        **partition_row(sources, index, row, logs, min_isr_of(sources.broker, configs)),
        "node": sources.broker.node_id,
        "log": None if hosted is None else await _log(sources, hosted.log),
        "tier": await _tier(sources, TopicIdPartition(image.topic_id, at)),
    }


async def _log(sources: Sources, log: Log) -> dict[str, Any]:
    segments: list[dict[str, Any]] = []

    def collect() -> Iterator[None]:
        for segment in list(log.segments)[-_MOST:]:
            segments.append(
                {
                    "base_offset": segment.base_offset,
                    "end_offset": log.segments.end_of(segment) or log.log_end_offset,
                    "bytes": segment.size,
                }
            )
            yield

    await in_turns(sources.runtime, collect())
    epochs = log.leader_epochs.entries
    return {
        "directory": str(log.directory),
        "segment_count": len(log.segments),
        "segments": segments,
        "epoch_count": len(epochs),
        "epochs": [[each.epoch, each.start_offset] for each in epochs[-_MOST:]],
        "producers": len(log.producers.producers),
        "recovery_point": log.recovery_point,
        "last_stable_offset": log.last_stable_offset,
    }


async def _tier(sources: Sources, at: TopicIdPartition) -> dict[str, Any] | None:
    """The copies of the partition; None: this broker has no remote tier, or does not know them."""
    remote = sources.broker.remote
    if remote is None or sources.broker.replicas.hosted.get(at.topic_partition) is None:
        return None
    # Imported here: only where there is a remote tier.
    from ottla.remote.stores.object_storage import ObjectStorage, key_of

    store: RemoteStorageManager = remote.store
    while isinstance(store, StorageManagerInFront):
        store = store.store
    has_our_names = isinstance(store, ObjectStorage)
    try:
        if not remote.metadata.is_ready(at):
            return {"problem": "The metadata of the copies are being read.", "copy_count": 0, "copies": []}
        cache = remote.metadata.copies(at)
    except RemoteStorageError as error:
        return {"problem": str(error), "copy_count": 0, "copies": []}
    latest: list[RemoteLogSegmentMetadata] = []
    count = len(cache)

    def collect(copies: Iterable[RemoteLogSegmentMetadata]) -> Iterator[None]:
        for each in islice(copies, max(0, count - _MOST), None):
            latest.append(each)
            yield

    await in_turns(sources.runtime, collect(cache.segments()))
    return {
        "problem": None if remote.store.is_up else "The remote store does not answer.",
        "copy_count": count,
        "copies": [
            {
                "start_offset": each.start_offset,
                "end_offset": each.end_offset,
                "bytes": each.segment_size_bytes,
                "state": each.state.name,
                "broker": each.broker_id,
                "max_timestamp_ms": each.max_timestamp_ms,
                "epochs": [[epoch.epoch, epoch.start_offset] for epoch in each.leader_epochs[:_MOST]],
                "id": to_text(each.segment_id.id),
                "object": key_of(each) if has_our_names else None,
            }
            for each in latest
        ],
    }
