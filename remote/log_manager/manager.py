"""RemoteLogManager: the second tier's tasks for the partitions of this broker (KIP-405, "RemoteLogManager (RLM)").

    leader    copies closed segments, and deletes expired copies
    follower  learns up to where the log is copied, so that its local retention may remove what is

Source: RemoteLogManager of Kafka 4.3.1.
"""

from collections.abc import Callable

from remote.log_manager.settings import RemoteLogManagerSettings
from remote.log_manager.tiered_partition import TieredPartition, id_of
from remote.metadata_manager import RemoteLogMetadataManager
from remote.metrics import RemoteStorageMetrics
from remote.segment_metadata import TopicIdPartition
from remote.storage_manager import RemoteStorageManager
from runtime import Runtime


class RemoteLogManager:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        *,
        node_id: int,
        store: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        runtime: Runtime,
        settings: Callable[[], RemoteLogManagerSettings],
        metrics: RemoteStorageMetrics,
    ) -> None:
        """`store` and `metadata` are configured, and closed by the caller after `stop`."""
        self._node_id = node_id
        self._store = store
        self._metadata = metadata
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics
        self._partitions: dict[TopicIdPartition, TieredPartition] = {}

    def start(self) -> None:
        """Start the tasks."""

    async def stop(self) -> None:
        """Stop the tasks; copies that are under way are abandoned, and cleaned up by the next leader."""

    def on_leadership(self, partition: TieredPartition) -> None:
        """This broker leads or follows the partition now, in its present leader epoch. Call it after each role change.

        It may be called again for the same role: nothing changes then.
        """
        self._partitions[id_of(partition)] = partition

    def stop_partition(self, partition: TopicIdPartition) -> None:
        """This broker holds the partition no more, or it is not tiered any more. Its copies stay."""
        self._partitions.pop(partition, None)
