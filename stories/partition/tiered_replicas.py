"""Brokers' replicas with a remote tier: as `replicas`, with a directory as store and the metadata of copies in memory.

The brokers have no copy tasks: a test copies (`copy_segments`), and applies local retention. A test may make the store
fail (`Store`), and the metadata late (`Metadata.is_late`).
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.remote_reads import RemoteReads
from ottla.protocol.types import TopicPartition
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.quota import TransferQuota
from ottla.remote.reading.index_cache import IndexCache
from ottla.remote.reading.index_cache_files import IndexFiles
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from ottla.remote.storage_manager import IndexType, RemoteStream
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.runtime.simulated import Simulation
from ottla.storage.files import Files
from ottla.stories.partition.remote_tier import DiskReader
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaBroker, ReplicaCluster
from ottla.stories.partition.tiered_log import Tier, remove_local_segments


class Store(LocalDirectory):
    """The directory that the brokers share; a test decides how it fails."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.configure({"dir": str(directory)})
        self.create()
        #: Called before each index is read: it may raise, or wait.
        self.on_fetch_index: Callable[[RemoteLogSegmentMetadata, IndexType], None] = lambda copy, index: None
        #: Changes what is read.
        self.tamper: Callable[[IndexType, bytes], bytes] = lambda index, data: data

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> RemoteStream:
        """Read an index, unless the test lets it fail."""
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
        """Do nothing, since nothing is open."""


class _ConsumersTier:
    """The remote tier that consumers of one broker read from; a TierListener."""

    def __init__(self, cluster: "TieredCluster", broker: ReplicaBroker) -> None:
        folder = cluster.folder / f"{broker.host}-{broker.runtime.now_ms()}"
        folder.mkdir(exist_ok=True)
        settings = RemoteReadSettings()
        metrics = cluster.metrics.setdefault(broker.node_id, RemoteStorageMetrics(broker.runtime.monotonic))
        self.reads = RemoteReads(
            runtime=broker.runtime,
            reader=RemoteLogReader(
                store=cluster.store,
                metadata=cluster.metadata,
                index_cache=IndexCache(
                    IndexFiles(folder, files=Files(), store=cluster.store),
                    runtime=broker.runtime,
                    settings=lambda: settings,
                ),
                metrics=metrics,
                runtime=broker.runtime,
            ),
            settings=lambda: settings,
            quota=TransferQuota(
                rate=lambda: None,
                window_count=1,
                window_ms=1000,
                throttle=metrics.fetch_throttle,
                runtime=broker.runtime,
            ),
        )

    def on_role(self, partition: Partition) -> None:
        """Implement the method of TierListener."""
        self.reads.on_role(partition)

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """Implement the method of TierListener."""
        self.reads.on_role(partition)


class TieredCluster(ReplicaCluster):
    """A cluster whose topics are tiered, with an interval of local retention of one minute."""

    def __init__(self, simulation: Simulation, broker_ids: Any, **options: Any) -> None:
        self._folder = TemporaryDirectory(prefix="remote-tier-")
        self.folder = Path(self._folder.name)
        self.store = Store(self.folder / "store")
        self._tier = Tier(self.store)
        self.metadata = self._tier.metadata
        self.metrics: dict[int, RemoteStorageMetrics] = {}
        configs = {"remote.storage.enable": "true", "local.retention.ms": "60000"} | (
            options.pop("configs", None) or {}
        )
        super().__init__(simulation, broker_ids, configs=configs, **options)

    def register(self, broker: ReplicaBroker) -> int:
        """Register the broker, with a new view of the remote tier."""
        broker.remote = _ConsumersTier(self, broker)
        broker.replicas.tier = broker.remote
        return super().register(broker)

    def auxiliary(self, broker: ReplicaBroker) -> AuxiliaryStates | None:
        """Return what the broker's followers read from the remote tier."""
        metrics = self.metrics[broker.node_id] = RemoteStorageMetrics(broker.runtime.monotonic)
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
        partition = TopicIdPartition(TOPIC_ID, topic_partition)
        copied = self._tier.copy_closed_segments(
            broker.partition(topic_partition).log,
            partition,
            broker_id=broker.node_id,
            store=DiskReader(self.store, lambda: broker.files, lambda: broker.runtime),
        )
        for other in self.brokers.values():
            if other.is_up:
                self.learn_remote_end(other, topic_partition)
        return copied

    def learn_remote_end(self, broker: ReplicaBroker, topic_partition: TopicPartition) -> None:
        """Set the remote end offset, as the broker's tasks do."""
        partition = TopicIdPartition(TOPIC_ID, topic_partition)
        self._tier.learn_remote_end(broker.partition(topic_partition).log, partition)

    def keep(self, broker: ReplicaBroker, topic_partition: TopicPartition, *, from_offset: int) -> None:
        """Local retention, by size, removes the segments before `from_offset`."""
        remove_local_segments(broker.partition(topic_partition).log, from_offset)
