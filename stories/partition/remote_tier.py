"""The remote tier of the brokers of `replicas`: RemoteLogManagers, a store and the metadata that they share.

    tier = RemoteTier(tmp_path)                     # a LocalDirectory there
    cluster = ReplicaCluster(simulation, [1, 2], configs=TIERED, tier=tier)
    tier.of(1).store.fail(RetriableRemoteStorageError("503"))
    tier.of(1).metadata.is_reading = False          # broker 1 does not see what others write

Managers, tasks and the store are the real ones. The disks of the brokers are in memory,
so `DiskReader` copies a segment's files to the store from there. The metadata are those of `remote_metadata`.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ottla.broker.replicas.partition import Partition
from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.remote.checked_copies import CheckedCopies
from ottla.remote.log_manager.manager import RemoteLogManager
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
    is_segment_transition,
)
from ottla.remote.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    RemoteStream,
    no_limit,
)
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.stores.object_storage import key_of
from ottla.runtime import Runtime
from ottla.storage.files import Files
from ottla.stories.partition.remote_metadata import InMemoryMetadataManager, RemoteMetadataLog

#: Topic configurations: a segment holds few records.
TIERED: Final = {"remote.storage.enable": "true"}


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
        """Implement the method of RemoteStorageManager."""

    def _answer(self) -> None:
        if self.duration_s:
            self._runtime().pause_thread(self.duration_s)
        if self.failure is not None:
            raise self.failure

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        """Implement the method of RemoteStorageManager."""
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
        """Implement the method of RemoteStorageManager."""
        self._answer()
        return self._inner.fetch_log_segment(
            metadata, start_position=start_position, end_position=end_position
        )

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Implement the method of RemoteStorageManager."""
        self._answer()
        return self._inner.fetch_index(metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Implement the method of RemoteStorageManager."""
        self._answer()
        self._inner.delete_log_segment_data(metadata)


class BrokerTier:
    """One broker process's part: a `ottla.broker.replicas.role_listeners.TierListener`."""

    def __init__(
        self, tier: "RemoteTier", node_id: int, runtime: Runtime, files: Callable[[], Files]
    ) -> None:
        self.settings = RemoteLogManagerSettings()
        self.metrics = RemoteStorageMetrics(runtime.monotonic)
        self.metadata = InMemoryMetadataManager(tier.log)
        self.store = DiskReader(tier.store, files, lambda: runtime)
        self.checked = CheckedCopies(self.store, files())
        self.manager = RemoteLogManager(
            node_id=node_id,
            store=self.checked,
            metadata=self.metadata,
            runtime=runtime,
            settings=lambda: self.settings,
            metrics=self.metrics,
            names_tiering=lambda _: tier.names_tiering,
        )
        #: What followers read from the tier.
        self.auxiliary = AuxiliaryStates(
            store=self.store, metadata=self.metadata, runtime=runtime, metrics=self.metrics
        )
        self.manager.start()

    def on_role(self, partition: Partition) -> None:
        """Implement the method of TierListener."""
        self.manager.on_leadership(partition)

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """Implement the method of TierListener."""
        self.manager.stop_partition(TopicIdPartition(partition.topic_id, partition.topic_partition))


class RemoteTier:
    """The store and the metadata that all brokers share."""

    def __init__(self, directory: Path) -> None:
        self.log = RemoteMetadataLog()
        self.store = LocalDirectory()
        self.store.configure({"dir": str(directory)})
        self.store.create()
        #: Whether topics' own configurations have `remote.storage.enable`, with any value.
        self.names_tiering = False
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
