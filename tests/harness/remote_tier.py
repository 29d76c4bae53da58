"""The remote tier of `tests.harness.replicas`' brokers: RemoteLogManagers, a store and the metadata that they share.

    tier = RemoteTier(tmp_path)                     # a LocalDirectory there
    cluster = ReplicaCluster(simulation, [1, 2], configs=TIERED, tier=tier)
    tier.of(1).store.fail(RetriableRemoteStorageError("503"))
    tier.of(1).metadata.is_reading = False          # broker 1 does not see what others write

Managers, tasks and the store are the real ones. The disks of the brokers are in memory, so `DiskReader` copies a segment's
files to the store from there. `InMemoryMetadataManager` keeps what a broker has read of one list of changes: as the one over
`__remote_log_metadata`, without a topic.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from broker.replicas.partition import Partition
from protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from remote.auxiliary_state import AuxiliaryStates
from remote.errors import RemoteStorageError, RetriableRemoteStorageError
from remote.log_manager.manager import RemoteLogManager
from remote.log_manager.settings import RemoteLogManagerSettings
from remote.metadata_cache import RemoteLogMetadataCache
from remote.metadata_manager import RemoteLogMetadataManager
from remote.metrics import RemoteStorageMetrics
from remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
    is_segment_transition,
)
from remote.storage_manager import IndexType, LogSegmentData, RemoteStorageManager, RemoteStream, no_limit
from remote.stores.local_directory import LocalDirectory
from remote.stores.object_storage import key_of
from remote.topic_metadata.records import Change, user_partition_of
from runtime import Runtime
from storage.files import Files

#: Topic configurations: a segment holds few records.
TIERED: Final = {"remote.storage.enable": "true"}


@dataclass
class RemoteMetadataLog:
    """Everything that brokers have written about copies, in order."""

    changes: list[Change] = field(default_factory=list)


class InMemoryMetadataManager(RemoteLogMetadataManager):
    """One broker's view of a RemoteMetadataLog."""

    def __init__(self, log: RemoteMetadataLog) -> None:
        self._log = log
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._read_count = 0
        self._is_reading = True
        #: None: changes are stored; else each attempt raises it.
        self.failure: RemoteStorageError | None = None
        #: The next change is stored, and its acknowledgement is lost.
        self.loses_acknowledgement = False

    @property
    def is_reading(self) -> bool:
        """Whether it reads what is written; while it does not, its partitions are not ready."""
        return self._is_reading

    @is_reading.setter
    def is_reading(self, is_reading: bool) -> None:
        self._is_reading = is_reading
        self.read()

    def read(self) -> None:
        """Read up to the end, unless it is not reading."""
        while self._is_reading and self._read_count < len(self._log.changes):
            self._apply(self._log.changes[self._read_count])
            self._read_count += 1

    def _apply(self, change: Change) -> None:
        cache = self._caches.get(user_partition_of(change))
        if cache is None:
            return
        with suppress(RemoteStorageError):  # refused, as by all brokers
            match change:
                case RemoteLogSegmentMetadata():
                    cache.add(change)
                case RemoteLogSegmentMetadataUpdate():
                    cache.update(change)
                case RemotePartitionDeleteMetadata():
                    pass

    def configure(self, configs: Mapping[str, object]) -> None:
        """See RemoteLogMetadataManager."""

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """See RemoteLogMetadataManager."""
        self._append(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """See RemoteLogMetadataManager."""
        self.copies(update.segment_id.partition).check(update)
        self._append(update)

    async def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """See RemoteLogMetadataManager."""
        self._append(metadata)

    def _append(self, change: Change) -> None:
        if self.failure is not None:
            raise self.failure
        self._log.changes.append(change)
        self.read()
        if self.loses_acknowledgement:
            self.loses_acknowledgement = False
            raise RetriableRemoteStorageError("the acknowledgement is lost")

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """See RemoteLogMetadataManager."""
        return self.copies(partition).segment(epoch=epoch, offset=offset)

    def next_segment_with_transaction_index(
        self, partition: TopicIdPartition, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """See RemoteLogMetadataManager."""
        return self.copies(partition).next_segment_with_transaction_index(epoch=epoch, offset=offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, *, epoch: int) -> int | None:
        """See RemoteLogMetadataManager."""
        return self.copies(partition).end_offset_for_epoch(epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, *, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """See RemoteLogMetadataManager."""
        return list(self.copies(partition).segments(epoch))

    def copies(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """See RemoteLogMetadataManager."""
        self.read()
        if partition not in self._caches:
            raise RemoteStorageError(f"{partition} is not assigned to this broker")
        return self._caches[partition]

    def remote_log_size(self, partition: TopicIdPartition, *, epoch: int) -> int:
        """See RemoteLogMetadataManager."""
        return self.copies(partition).size_bytes(epoch)

    def on_partition_leadership_changes(
        self, *, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """See RemoteLogMetadataManager."""
        for partition in [*leaders, *followers]:
            if partition not in self._caches:
                self._caches[partition] = RemoteLogMetadataCache(partition)
                for change in self._log.changes[: self._read_count]:
                    if user_partition_of(change) == partition:
                        self._apply(change)
        self.read()

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """See RemoteLogMetadataManager."""
        for partition in partitions:
            self._caches.pop(partition, None)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """See RemoteLogMetadataManager."""
        self.read()
        return partition in self._caches and self._read_count == len(self._log.changes)

    async def close(self) -> None:
        """See RemoteLogMetadataManager."""


class DiskReader(RemoteStorageManager):
    """A store that reads a broker's disk in memory, and fails or waits as set below."""

    def __init__(
        self, store: RemoteStorageManager, files: Callable[[], Files], runtime: Callable[[], Runtime]
    ) -> None:
        self._inner = store
        self._files = files
        self._runtime = runtime
        #: None: the store answers; else each call raises it.
        self.failure: Exception | None = None
        #: Each copy and deletion takes so long, seconds. Threads must be on (`Interleaving`).
        self.duration_s = 0.0
        self.custom_metadata: bytes | None = None
        #: Whether it reports the pieces of a copy (`LogSegmentData.on_bytes`), as not every store does.
        self.is_reporting = True

    def configure(self, configs: Mapping[str, object]) -> None:
        """See RemoteStorageManager."""

    def _answer(self) -> None:
        if self.duration_s:
            self._runtime().pause_thread(self.duration_s)
        if self.failure is not None:
            raise self.failure

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """See RemoteStorageManager."""
        self._answer()
        if not self.is_reporting:
            data = replace(data, on_bytes=no_limit)
        with tempfile.TemporaryDirectory() as directory:
            self._inner.copy_log_segment_data(metadata, self._on_real_disk(data, Path(directory)))
        return self.custom_metadata

    def _on_real_disk(self, data: LogSegmentData, directory: Path) -> LogSegmentData:
        def copied(path: Path) -> Path:
            (directory / path.name).write_bytes(self._files().read(path))
            return directory / path.name

        return replace(
            data,
            log_segment=copied(data.log_segment),
            offset_index=copied(data.offset_index),
            time_index=copied(data.time_index),
            transaction_index=data.transaction_index and copied(data.transaction_index),
            producer_snapshot=copied(data.producer_snapshot),
        )

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, *, start_position: int, end_position: int | None = None
    ) -> RemoteStream:
        """See RemoteStorageManager."""
        self._answer()
        return self._inner.fetch_log_segment(
            metadata, start_position=start_position, end_position=end_position
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """See RemoteStorageManager."""
        self._answer()
        return self._inner.fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """See RemoteStorageManager."""
        self._answer()
        self._inner.delete_log_segment_data(metadata)


class BrokerTier:
    """One broker process's part: a `broker.replicas.tier_listener.TierListener`."""

    def __init__(
        self, tier: "RemoteTier", node_id: int, runtime: Runtime, files: Callable[[], Files]
    ) -> None:
        self.settings = RemoteLogManagerSettings()
        self.metrics = RemoteStorageMetrics()
        self.metadata = InMemoryMetadataManager(tier.log)
        self.store = DiskReader(tier.store, files, lambda: runtime)
        self.manager = RemoteLogManager(
            node_id=node_id,
            store=self.store,
            metadata=self.metadata,
            runtime=runtime,
            settings=lambda: self.settings,
            metrics=self.metrics,
        )
        #: What followers read from the tier.
        self.auxiliary = AuxiliaryStates(
            store=self.store, metadata=self.metadata, runtime=runtime, metrics=self.metrics
        )
        self.manager.start()

    def on_role(self, partition: Partition) -> None:
        """See TierListener."""
        self.manager.on_leadership(partition)

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """See TierListener."""
        self.manager.stop_partition(TopicIdPartition(partition.topic_id, partition.topic_partition))


class RemoteTier:
    """What all brokers share."""

    def __init__(self, directory: Path) -> None:
        self.log = RemoteMetadataLog()
        self.store = LocalDirectory()
        self.store.configure({"dir": str(directory)})
        #: Of the present processes, by node id.
        self.brokers: dict[int, BrokerTier] = {}

    def start(self, node_id: int, runtime: Runtime, files: Callable[[], Files]) -> BrokerTier:
        """A broker's process starts."""
        self.brokers[node_id] = BrokerTier(self, node_id, runtime, files)
        return self.brokers[node_id]

    async def stop(self, node_id: int) -> None:
        """A broker's process ends."""
        await self.brokers.pop(node_id).manager.stop()

    def copies(self) -> list[RemoteLogSegmentMetadata]:
        """All copies that are known to the metadata, of all partitions, by start offset and event."""
        states: dict[object, RemoteLogSegmentMetadata] = {}
        for change in self.log.changes:
            match change:
                case RemoteLogSegmentMetadata():
                    states.setdefault(change.segment_id, change)
                case RemoteLogSegmentMetadataUpdate():
                    known = states.get(change.segment_id)
                    if known is not None and is_segment_transition(known.state, change.state):
                        states[change.segment_id] = known.updated(change)
                case RemotePartitionDeleteMetadata():
                    assert change.state in RemotePartitionDeleteState
        alive = [
            each
            for each in states.values()
            if each.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        ]
        return sorted(alive, key=lambda each: (each.start_offset, each.event_timestamp_ms))

    def objects(self) -> set[str]:
        """The keys of all segments in the store."""
        return {stored[0] for stored in self.store.store.list() if stored[0].endswith(".log")}

    def unknown_objects(self) -> set[str]:
        """Segments in the store that the metadata do not know."""
        return self.objects() - {key_of(copy) for copy in self.copies()}
