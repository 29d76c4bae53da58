"""The folder of a broker with many tiered partitions and many copies of each, in a process of its own.

python -m ottla.bench.internals.tier_scale_folder FOLDER PARTITIONS COPIES READ

The topic is made by a broker. Then its logs are moved behind their tiered part, which no broker has copied:
each copy is a row of the metadata, and only the first ones of the first READ partitions are in the store, to
be read. All of it is in snapshots of the metadata, none in `__remote_log_metadata`: a start reads the
snapshots, and finds that the topic has no more. Prints what the snapshots took, as JSON.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from ottla.bench.internals.loop_turns import LoopTurns
from ottla.bench.internals.storage_support import NOW_MS, append, batch_of, open_log
from ottla.bench.internals.tier_scale_phases import COUNT, Phases
from ottla.broker.node import Node
from ottla.broker.replicas.partition import Partition
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_config
from ottla.config.log_config import LogConfig
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.plugins import load_storage_manager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
)
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager
from ottla.remote.topic_metadata.partitioner import metadata_partition
from ottla.remote.topic_metadata.snapshots import Snapshots
from ottla.remote.topic_metadata.subscriber import Subscriber, UserPartition
from ottla.remote.topic_metadata.topic import TOPIC as METADATA_TOPIC
from ottla.remote.topic_metadata.topic import Position
from ottla.runtime import Runtime
from ottla.runtime.garbage import collect_rarely
from ottla.runtime.production import ProductionRuntime, allow_open_files, run
from ottla.storage import producer_snapshot
from ottla.storage.files import Files
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.remote_restart import RemoteState
from ottla.storage.tiered_log import SegmentToCopy

TOPIC: Final = "tiered"
#: The number of copies, of a partition that is read, whose objects are in the store.
READ_COPIES: Final = 4
#: The number of batches in each segment.
BATCH_COUNT: Final = 16
BATCH_BYTES: Final = 64 * 1024
_METADATA_PARTITIONS: Final = 50
_EPOCH: Final = EpochEntry(0, 0)
_POLL_S: Final = 0.01
#: The configuration of the topic: its retention keeps everything, and has to check it.
_TOPIC_CONFIGS: Final = {
    "remote.storage.enable": "true",
    "retention.ms": str(10**14),
    "retention.bytes": str(10**17),
    "local.retention.bytes": str(10**9),
}


def config_of(folder: Path, *, task_interval_s: float) -> BrokerConfig:
    """Return the configuration of a broker that is a whole cluster, with the remote tier in a directory."""
    overrides = {
        "remote.log.manager.task.interval.ms": round(task_interval_s * 1000),
        "rlmm.config.remote.log.metadata.topic.num.partitions": _METADATA_PARTITIONS,
    }
    return load_config(
        overrides=[f"{key}={value}" for key, value in overrides.items()],
        port=0,
        data_dir=folder / "data",
        tier=folder / "tier",
    )


def places_of(node: Node) -> list[TopicIdPartition]:
    """Return the tiered partitions, by number."""
    hosted = [each for each in node.broker.replicas.partitions() if each.topic_partition.topic == TOPIC]
    return sorted(TopicIdPartition(each.topic_id, each.topic_partition) for each in hosted)


def copies_of(node: Node, partition: int) -> Sequence[RemoteLogSegmentMetadata]:
    """Return the copies of a tiered partition that the broker knows."""
    assert node.broker.remote is not None
    return node.broker.remote.metadata.list_remote_log_segments(places_of(node)[partition])


async def until_known(node: Node, partition_count: int) -> int:
    """Wait until the metadata of all partitions is known; return the number of their copies."""
    assert node.broker.remote is not None
    metadata, places = node.broker.remote.metadata, places_of(node)
    assert len(places) == partition_count, places
    for place in places:
        while not metadata.is_ready(place):  # noqa: ASYNC110 (nothing notifies of it)
            await asyncio.sleep(_POLL_S)
    return sum(len(metadata.copies(place)) for place in places)


async def _build(
    runtime: ProductionRuntime, folder: Path, partition_count: int, copy_count: int, read_count: int
) -> dict[str, dict[str, float]]:
    allow_open_files()
    collect_rarely()
    segments = list(_segments(folder / "source"))
    per_segment = segments[0].end_offset
    partitions, metadata_topic_id = await _make_partitions(
        runtime, folder, partition_count, end_offset=copy_count * per_segment
    )
    subscribers = []
    for place in partitions:
        number = metadata_partition(place, partition_count=_METADATA_PARTITIONS)
        subscriber = UserPartition(place, metadata_partition=number)
        for copy in _copies(place, copy_count, segments[0]):
            subscriber.cache.restore(copy)
        subscribers.append(subscriber)
        await asyncio.sleep(0)
    store = load_storage_manager("directory", {"dir": str(folder / "tier")}, creates_store=True)
    for subscriber in subscribers[:read_count]:
        for copy, segment in zip(subscriber.cache.segments(), segments, strict=False):
            _store(store, copy, segment)
    gc.freeze()  # else a collection visits what the broker has left, in the middle of a phase
    phases = Phases(LoopTurns())
    await _snapshots(runtime, folder, subscribers, metadata_topic_id, phases)
    phases.stop()
    return phases.figures


async def _make_partitions(
    runtime: ProductionRuntime, folder: Path, count: int, *, end_offset: int
) -> tuple[list[TopicIdPartition], UUID]:
    """Make a topic whose logs begin at 0 and have a tiered part only; return it with the metadata topic's id."""
    node = await Node.start(runtime, config_of(folder, task_interval_s=600))
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in _TOPIC_CONFIGS.items()]
    topic = CreatableTopic(name=TOPIC, num_partitions=count, replication_factor=1, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    response = await node.broker.controller.request(ApiKey.CREATE_TOPICS, request)
    assert not response.topics[0].error_code, response
    await node.broker.replicas.all_created()
    await until_known(node, count)
    places = places_of(node)
    for place in places:
        partition = node.broker.replicas.partition(place.topic_partition)
        _restart(partition, end_offset, now_ms=runtime.now_ms())
        await asyncio.sleep(0)
    metadata_topic = node.broker.metadata.topic(METADATA_TOPIC)
    assert metadata_topic is not None
    await node.stop()
    return places, metadata_topic.topic_id


def _restart(partition: Partition, end_offset: int, *, now_ms: int) -> None:
    state = RemoteState.of(
        offset=end_offset,
        log_start_offset=0,
        leader_epochs=[_EPOCH],
        producer_snapshot=producer_snapshot.encode({}),
    )
    partition.log.restart_from_remote(state, now_ms=now_ms)


def _segments(folder: Path) -> Iterator[SegmentToCopy]:
    """Yield closed segments of 1 MB; the offsets of each are those of the first one, moved."""
    batch, _ = batch_of(BATCH_BYTES, value_bytes=1000)
    log = open_log(folder, LogConfig(remote_storage_enable=True, segment_bytes=len(batch) * BATCH_COUNT))
    append(log, batch, READ_COPIES * BATCH_COUNT + 1)
    log.update_high_watermark(log.log_end_offset)
    for segment in log.segments_to_copy(0):
        if segment.snapshot_job is not None:
            segment.snapshot_job.complete()
        yield segment


def _copies(
    place: TopicIdPartition, count: int, segment: SegmentToCopy
) -> Iterator[RemoteLogSegmentMetadata]:
    index, size = place.topic_partition.partition, segment.end_offset
    for number in range(count):
        yield RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(place, UUID(int=(index + 1) << 64 | number)),
            start_offset=number * size,
            end_offset=(number + 1) * size,
            max_timestamp_ms=NOW_MS,
            broker_id=1,
            event_timestamp_ms=NOW_MS,
            segment_size_bytes=segment.size_bytes,
            leader_epochs=(EpochEntry(_EPOCH.epoch, number * size),),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            is_transaction_index_empty=True,
        )


def _store(store: RemoteStorageManager, copy: RemoteLogSegmentMetadata, segment: SegmentToCopy) -> None:
    assert (copy.start_offset, copy.end_offset) == (segment.base_offset, segment.end_offset), (copy, segment)
    data = LogSegmentData(
        log_segment=segment.log_segment,
        offset_index=segment.offset_index,
        time_index=segment.time_index,
        transaction_index=None,
        producer_snapshot=segment.producer_snapshot,
        leader_epoch_index=segment.leader_epoch_checkpoint,
    )
    store.copy_log_segment_data(copy, data)


async def _snapshots(
    runtime: Runtime,
    folder: Path,
    subscribers: Sequence[UserPartition],
    metadata_topic_id: UUID,
    phases: Phases,
) -> None:
    """Measure snapshots: all written; none, as nothing has changed; a tenth, as so much has changed; all read."""

    def directory(subscriber: Subscriber) -> Path:
        assert isinstance(subscriber, UserPartition)
        return folder / "data" / str(subscriber.partition.topic_partition)

    async def save(name: str) -> None:
        # A new file each: of two within a tick of the file system's clock, the time of the change is the same.
        before = {path: path.stat().st_ino for path in paths if path.exists()}
        with phases.phase(name) as figures:
            await snapshots.save(
                subscribers, position=lambda _: Position(0), metadata_topic_id=metadata_topic_id
            )
        figures[COUNT] = sum(
            len(each)
            for each, path in zip(subscribers, paths, strict=True)
            if before.get(path) != path.stat().st_ino
        )

    snapshots = Snapshots(runtime, Files(), directory)
    paths = [directory(each) / each.file_name for each in subscribers]
    for path in paths:
        path.unlink()  # of the broker that has made the partitions
    await snapshots.load(subscribers, metadata_topic_id)
    await save("all snapshots written")
    await save("nothing has changed")
    changed = subscribers[-1]
    copies = list(changed.cache.segments())
    for copy in copies[: -(-len(copies) // 10)]:
        changed.apply(
            RemoteLogSegmentMetadataUpdate(
                segment_id=copy.segment_id,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                broker_id=1,
                event_timestamp_ms=NOW_MS,
            ),
            offset=0,
        )
    await save("a tenth of one has changed")
    readers = [
        UserPartition(each.partition, metadata_partition=each.metadata_partition) for each in subscribers
    ]
    with phases.phase("all snapshots read") as figures:
        await Snapshots(runtime, Files(), directory).load(readers, metadata_topic_id)
    figures[COUNT] = sum(map(len, readers))


def main() -> None:
    """Make the folder, and print the figures of its phases as JSON."""
    folder, (partitions, copies, read) = Path(sys.argv[1]), map(int, sys.argv[2:])
    print(json.dumps(run(lambda runtime: _build(runtime, folder, partitions, copies, read))))


if __name__ == "__main__":
    main()
