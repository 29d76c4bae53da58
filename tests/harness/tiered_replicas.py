"""Brokers' replicas with a remote tier: as `replicas`, with a directory as store and the metadata of copies in memory.

The brokers have no copy tasks: a test copies (`copy_segments`), and applies local retention. A test may make the store
fail (`Store`), and the metadata late (`Metadata.is_late`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from protocol.remote.records import RemoteLogSegmentState
from protocol.types import TopicPartition
from remote.auxiliary_state import AuxiliaryStates
from remote.lineage import highest_remote_offset
from remote.metadata_cache import RemoteLogMetadataCache
from remote.metadata_manager import RemoteLogMetadataManager
from remote.metrics import RemoteStorageMetrics
from remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from remote.storage_manager import IndexType, LogSegmentData, RemoteStream
from remote.stores.local_directory import LocalDirectory
from runtime.simulated import Simulation
from storage.log import Log
from storage.log_config import LogConfig, default_topic_values
from tests.harness.replicas import TOPIC_ID, ReplicaBroker, ReplicaCluster


class Store(LocalDirectory):
    """The directory that the brokers share; a test decides how it fails."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.configure({"dir": str(directory)})
        #: Called before each index is read: it may raise, or wait.
        self.on_fetch_index: Callable[[RemoteLogSegmentMetadata, IndexType], None] = lambda copy, index: None
        #: Changes what is read.
        self.tamper: Callable[[IndexType, bytes], bytes] = lambda index, data: data

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        self.on_fetch_index(metadata, index_type)
        stream = super().fetch_index(metadata, index_type)
        data = stream.read()
        stream.close()
        return _Bytes(self.tamper(index_type, data))


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int = -1, /) -> bytes:
        size = len(self._data) if size < 0 else size
        found, self._data = self._data[:size], self._data[size:]
        return found

    def close(self) -> None:
        """Nothing is open."""


class Metadata(RemoteLogMetadataManager):
    """The metadata of all partitions, as every broker has it that has read the topic to its end."""

    def __init__(self) -> None:
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        #: Not read to the end: look-ups may not be believed.
        self.is_late = False

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        return self._caches.setdefault(partition, RemoteLogMetadataCache(partition))

    def configure(self, configs: Mapping[str, object]) -> None:
        """Nothing to configure."""

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.cache(metadata.partition).add(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self.cache(update.segment_id.partition).update(update)

    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        raise AssertionError(metadata)

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self.cache(partition).segment(epoch=epoch, offset=offset)

    def next_segment_with_transaction_index(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self.cache(partition).next_segment_with_transaction_index(epoch=epoch, offset=offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, *, epoch: int) -> int | None:
        return self.cache(partition).end_offset_for_epoch(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, *, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        return list(self.cache(partition).segments(epoch))

    def remote_log_size(self, partition: TopicIdPartition, *, epoch: int) -> int:
        return self.cache(partition).size_bytes(epoch)

    def on_partition_leadership_changes(
        self, *, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """All partitions are known."""

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """All partitions are known."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return not self.is_late

    async def close(self) -> None:
        """Nothing is open."""


class TieredCluster(ReplicaCluster):
    """A cluster whose topics are tiered, with an interval of local retention of one minute."""

    def __init__(self, simulation: Simulation, broker_ids: Any, **options: Any) -> None:
        self._folder = TemporaryDirectory(prefix="remote-tier-")
        self.store = Store(Path(self._folder.name))
        self.metadata = Metadata()
        self.metrics: dict[int, RemoteStorageMetrics] = {}
        self._copies = 0
        configs = {"remote.storage.enable": "true", "local.retention.ms": "60000"} | (
            options.pop("configs", None) or {}
        )
        super().__init__(simulation, broker_ids, configs=configs, **options)

    def auxiliary(self, broker: ReplicaBroker) -> AuxiliaryStates | None:
        metrics = self.metrics[broker.node_id] = RemoteStorageMetrics()
        return AuxiliaryStates(
            store=self.store, metadata=self.metadata, runtime=broker.runtime, metrics=metrics
        )

    def close(self) -> None:
        """Remove the store's directory."""
        self._folder.cleanup()

    def copy_segments(
        self, broker: ReplicaBroker, topic_partition: TopicPartition
    ) -> list[RemoteLogSegmentMetadata]:
        """The broker copies the closed segments of its log that have no copy, as its copy task would."""
        log = broker.partition(topic_partition).log
        partition = TopicIdPartition(log.topic_id or TOPIC_ID, topic_partition)
        cache = self.metadata.cache(partition)
        self.learn_remote_end(log, partition)
        copied = []
        start = max(log.local_log_start_offset, log.offsets.remote_end_offset or 0)
        for segment in log.segments_to_copy(start):
            self._copies += 1
            with TemporaryDirectory(dir=self._folder.name) as folder:
                paths = {
                    name: _exported(broker, getattr(segment, name), Path(folder))
                    for name in ("log_segment", "offset_index", "time_index", "producer_snapshot")
                }
                transactions = segment.transaction_index
                copy = RemoteLogSegmentMetadata(
                    segment_id=RemoteLogSegmentId(partition, UUID(int=self._copies)),
                    start_offset=segment.base_offset,
                    end_offset=segment.end_offset,
                    max_timestamp_ms=segment.largest_timestamp_ms(),
                    broker_id=broker.node_id,
                    event_timestamp_ms=broker.runtime.now_ms(),
                    segment_size_bytes=segment.size_bytes,
                    leader_epochs=tuple(segment.leader_epochs),
                    is_transaction_index_empty=transactions is None,
                )
                cache.add(copy)
                data = LogSegmentData(
                    **paths,
                    transaction_index=None
                    if transactions is None
                    else _exported(broker, transactions, Path(folder)),
                    leader_epoch_index=segment.leader_epoch_checkpoint,
                )
                custom = self.store.copy_log_segment_data(copy, data)
            finished = RemoteLogSegmentMetadataUpdate(
                segment_id=copy.segment_id,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                broker_id=broker.node_id,
                event_timestamp_ms=copy.event_timestamp_ms,
                custom_metadata=custom,
            )
            cache.update(finished)
            copied.append(copy.updated(finished))
        for other in self.brokers.values():
            if other.is_up:
                self.learn_remote_end(other.partition(topic_partition).log, partition)
        return copied

    def keep(self, broker: ReplicaBroker, topic_partition: TopicPartition, *, from_offset: int) -> None:
        """Local retention, by size, removes the segments before `from_offset`."""
        log = broker.partition(topic_partition).log
        kept_bytes = sum(each.size for each in log.segments if each.base_offset >= from_offset)
        config = log.config
        overrides = {**self.configs, "local.retention.bytes": str(kept_bytes)}
        log.update_config(LogConfig.from_overrides(default_topic_values(), overrides))
        log.apply_retention(broker.runtime.now_ms())
        log.update_config(config)

    def learn_remote_end(self, log: Log, partition: TopicIdPartition) -> None:
        """What the leader's and the followers' tasks do: they find what is copied of the log's lineage."""
        end = highest_remote_offset(
            log.leader_epochs.entries,
            self.metadata.cache(partition).end_offset_for_epoch,
            log_end_offset=log.log_end_offset,
        )
        if end is not None:
            log.update_remote_end_offset(end)


def _exported(broker: ReplicaBroker, path: Path, folder: Path) -> Path:
    """A file of the broker's simulated disk as a real one."""
    real = folder / path.name
    real.write_bytes(broker.files.read(path))
    return real
