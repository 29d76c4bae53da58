"""An inspection of the store and the cluster, in this order: the store, local log starts, the metadata, log starts.

So what is deleted, copied and expired during the inspection gives no false alarm: an object's metadata is older
than the object, a copy is finished before the local log start passes it, and the log start passes it before
it is deleted. An object that was deleted, or copied, after the store was listed does; only what is
wrong in two inspections in a row is an error.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ottla.broker.cli.tier.comparison import LogRange
from ottla.broker.cli.tier.metadata_topic import metadata_range, metadata_records, partitions_of
from ottla.broker.cli.tier.progress import Progress
from ottla.broker.cluster_client.client import ClusterClient
from ottla.broker.cluster_client.topics import Leader
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.remote.record_codec import UnknownRemoteLogMetadata
from ottla.protocol.special_timestamps import EARLIEST, EARLIEST_LOCAL, LATEST
from ottla.remote.known_copies import KnownCopies
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.stores.object_storage import ListedObject, ObjectStorage
from ottla.remote.stores.stored_segments import StoredSegments
from ottla.remote.topic_metadata.records import from_value
from ottla.remote.topic_metadata.topic import TOPIC
from ottla.runtime import Pool, Runtime


@dataclass(slots=True, frozen=True, kw_only=True)
class Inspection:
    """The contents of the store, and the copies, partitions and logs that the cluster reports."""

    stored: StoredSegments
    known: KnownCopies
    #: All partitions of the cluster's topics; None: no leader.
    partitions: Mapping[TopicIdPartition, Leader | None]
    #: Of the partitions whose leader reports it.
    logs: Mapping[TopicIdPartition, LogRange]


async def inspect(
    runtime: Runtime, client: ClusterClient, storage: ObjectStorage, progress: Progress
) -> Inspection:
    """List the store, then read the offsets and the metadata of the cluster.

    Raises ClusterError, RemoteStorageError. Memory: 1 kB for each copy.
    """
    stored = await runtime.run_blocking(list_store, storage, progress, pool=Pool.REMOTE_READS)
    topics = await client.topics()
    partitions = partitions_of(topics)
    led = {each: leader for each, leader in partitions.items() if leader is not None}
    local_starts = await _offsets(client, led, EARLIEST_LOCAL)
    known = KnownCopies()
    if TOPIC in topics:
        await read_metadata(client, known, topics[TOPIC].leaders, progress)
    return Inspection(
        stored=stored,
        known=known,
        partitions=partitions,
        logs=await _log_ranges(client, led, local_starts),
    )


def list_store(storage: ObjectStorage, progress: Progress) -> StoredSegments:
    """Return all objects of the store, grouped by segment. [any thread]"""

    def listed() -> Iterator[ListedObject]:
        with progress.counting("objects of the store") as count:
            for found in storage.store.list():
                count()
                yield found

    return StoredSegments.of(listed())


async def read_metadata(
    client: ClusterClient, known: KnownCopies, numbers: Collection[int], progress: Progress
) -> None:
    """Apply all records of these partitions of `__remote_log_metadata`. Raises ClusterError."""
    with progress.measuring("metadata", len(numbers)) as done:
        for position, number in enumerate(sorted(numbers)):
            start, end = await metadata_range(client, number)
            known.removed_count += start

            def on_offset(
                read_count: int, *, position: int = position, total_count: int = end - start
            ) -> None:
                done(position + read_count / total_count)

            async for value in metadata_records(
                client, number, start_offset=start, end_offset=end, on_offset=on_offset
            ):
                try:
                    known.apply(from_value(value))
                except (MalformedMessage, UnknownRemoteLogMetadata):
                    known.unread_count += 1


async def log_ranges(
    client: ClusterClient, led: Mapping[TopicIdPartition, Leader]
) -> dict[TopicIdPartition, LogRange]:
    """The logs of partitions, as their leaders report them; those that do not are left out. Raises ClusterError."""
    return await _log_ranges(client, led, await _offsets(client, led, EARLIEST_LOCAL))


async def _log_ranges(
    client: ClusterClient,
    led: Mapping[TopicIdPartition, Leader],
    local_starts: Mapping[TopicIdPartition, int | None],
) -> dict[TopicIdPartition, LogRange]:
    starts, ends = await _offsets(client, led, EARLIEST), await _offsets(client, led, LATEST)
    found = {}
    for each in led:
        start, local_start, end = starts[each], local_starts[each], ends[each]
        if start is not None and local_start is not None and end is not None:
            found[each] = LogRange(
                log_start_offset=start, local_log_start_offset=max(start, local_start), log_end_offset=end
            )
    return found


async def _offsets(
    client: ClusterClient, led: Mapping[TopicIdPartition, Leader], timestamp: int
) -> dict[TopicIdPartition, int | None]:
    partitions = {each.topic_partition: leader for each, leader in led.items()}
    found = (await client.offsets(partitions, timestamp)).reported()
    return {each: found[each.topic_partition] for each in led}
