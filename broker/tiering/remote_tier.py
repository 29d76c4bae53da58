"""RemoteTier: the remote tier of this broker, as one object: its store, its metadata, its tasks (KIP-405).

    role of a replica --on_role----> RemoteLogManager: copies and deletes, or follows; assigns the partition's metadata
    replica removed   --on_stopped-> RemoteLogManager: stops its tasks
    topic deleted     --> PartitionRemovers, on the leader of its metadata: all its copies are deleted

start: the store (a thread) -> replicas get their roles -> the broker serves requests -> the metadata topic is opened
stop:  tasks -> metadata -> store

Source: the uses of RemoteLogManager in BrokerServer and ReplicaManager of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.remote_reads import RemoteReads
from ottla.broker.tiering.partition_removers import PartitionRemovers
from ottla.broker.tiering.settings import remote_log_manager_settings, remote_read_settings, resize_pools
from ottla.broker.tiering.store_checks import StoreChecks
from ottla.config.broker_config import BrokerConfig
from ottla.remote.auxiliary_state import AuxiliaryStates
from ottla.remote.log_manager.manager import RemoteLogManager
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.observed_store import ObservedStore
from ottla.remote.reading.copy_reader import MAX_BATCH_BYTES
from ottla.remote.reading.index_cache import IndexCache
from ottla.remote.reading.index_cache_files import IndexFiles
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.tiered_partition import id_of
from ottla.runtime import Pool, Runtime
from ottla.storage.segment_times import FileTimes, SegmentFile

logger = logging.getLogger(__name__)

#: How long a stop waits for the store to close; one that does not answer is left behind.
_CLOSE_S: Final = 10.0


class RemoteTier:
    """The remote tier of this broker as one object: its store, its metadata and its tasks (KIP-405).

    Belongs to the event loop.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        config: BrokerConfig,
        store: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        index_files: IndexFiles,
        topic_overrides: Callable[[str], Mapping[str, str]] = lambda _: {},
        read_times: Callable[[SegmentFile], FileTimes] | None = None,
    ) -> None:
        """Create the tier of `store` and `metadata`, which are configured; `stop` closes them.

        `topic_overrides` returns a topic's own configuration. `read_times` reads the times of a segment's
        file, for `RemoteLogManager`.
        """
        self._runtime = runtime
        self._use(config)
        #: The store, with the outcome of its last call.
        self.store = store = ObservedStore(store, monotonic=runtime.monotonic)
        self._checks = StoreChecks(runtime, store, node_id=config.node_id)
        self._checking: asyncio.Task[None] | None = None
        self.metadata = metadata
        self.metrics = RemoteStorageMetrics(runtime.monotonic)
        self.manager = RemoteLogManager(
            node_id=config.node_id,
            store=store,
            metadata=metadata,
            runtime=runtime,
            settings=lambda: self._manager_settings,
            metrics=self.metrics,
            on_deleted=self.on_deleted,
            names_tiering=lambda topic: "remote.storage.enable" in topic_overrides(topic),
            read_times=read_times,
        )
        self.index_cache = IndexCache(index_files, runtime=runtime, settings=self._settings_of_reads)
        #: The reads of consumers from the tier.
        self.reads = RemoteReads(
            runtime=runtime,
            reader=RemoteLogReader(
                store=store,
                metadata=metadata,
                index_cache=self.index_cache,
                metrics=self.metrics,
                runtime=runtime,
                # One that was lowered does not make older batches unreadable.
                max_batch_bytes=max(MAX_BATCH_BYTES, config.socket_request_max_bytes),
            ),
            settings=self._settings_of_reads,
            quota=self.manager.fetch_quota,
        )
        #: The auxiliary states that followers read from the tier: leader epochs and producer states.
        self.auxiliary = AuxiliaryStates(
            store=store, metadata=metadata, runtime=runtime, metrics=self.metrics
        )
        #: The removers of the copies of deleted topics; None with a metadata manager that is not topic-based.
        self.removers: PartitionRemovers | None = None
        self._is_stopped = False

    @property
    def config(self) -> BrokerConfig:
        """The broker's configuration; replaced as a whole when a dynamic configuration changes."""
        return self._config

    @config.setter
    def config(self, config: BrokerConfig) -> None:
        self._use(config)
        self.reads.slots.grant()

    def _use(self, config: BrokerConfig) -> None:
        self._config = config
        # Read by each task of each partition: made once.
        self._read_settings = remote_read_settings(config)
        self._manager_settings = remote_log_manager_settings(config)
        resize_pools(self._runtime, config)

    def _settings_of_reads(self) -> RemoteReadSettings:
        return self._read_settings

    def start(self) -> None:
        """Start the tasks; they wait for the metadata."""
        self.manager.start()

    def on_broker_ready(self) -> None:
        """Open the metadata topic, check the store, start the removers: clients are served, this broker's own, too."""
        self.metadata.on_broker_ready()
        self._checking = self._runtime.supervise(self._checks.run, name="remote-store-checks")
        if self.removers is not None:
            self.removers.start()

    def on_role(self, partition: Partition) -> None:
        """Apply the partition's role, or the changed configuration of its topic, to the tier's tasks.

        The tasks ignore it after `stop`: the broker follows the cluster's metadata to its end.

        Ignored by the tasks after `stop`: the broker follows the cluster's metadata to its end.
        """
        if not self._is_stopped:
            self.manager.on_leadership(partition)
        self.reads.on_role(partition)

    def on_stopped(self, partition: Partition, *, is_topic_deleted: bool) -> None:
        """Stop the tasks of a replica that is not on this broker any more, or is offline.

        If its topic is deleted, its last leader also deletes its copies.
        """
        if not self._is_stopped:
            has_led = self.manager.stop_partition(id_of(partition))
            if has_led and is_topic_deleted and self.removers is not None:
                self.removers.on_last_leader(id_of(partition))
        self.reads.on_role(partition)
        if is_topic_deleted:
            self.metrics.remove_topic(partition.topic_partition.topic)

    def on_deleted(self, copy: RemoteLogSegmentMetadata) -> None:
        """Drop the indexes of a copy that this broker has deleted."""
        self.index_cache.remove_segments([copy.segment_id.id])

    async def stop(self) -> None:
        """Stop the tasks, then close the metadata and the store.

        A store that does not respond delays the stop for seconds only.
        """
        self._is_stopped = True
        if self._checking is not None:
            self._checking.cancel()
        self.reads.close()
        self.index_cache.close()
        if self.removers is not None:
            await self.removers.stop()
        await self.manager.stop()
        await self.metadata.close()
        closing = self._runtime.run_blocking(self.store.close, pool=Pool.REMOTE_CLOSING)
        try:
            await asyncio.wait_for(closing, _CLOSE_S)
        except TimeoutError:
            logger.warning("the remote store has not closed within %g s", _CLOSE_S)
