"""CopyDeletions: deletes a copy in three steps: DELETE_SEGMENT_STARTED, the objects, DELETE_SEGMENT_FINISHED.

Each step can be repeated. A deletion that ends between two of them is completed by the leader's next
expiration, or by that of the next leader, which finds DELETE_SEGMENT_STARTED.
"""

from collections.abc import Callable

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.log_manager.metadata_changes import MetadataChanges
from ottla.remote.log_manager.segment_transfers import SegmentTransfers
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata


class CopyDeletions:
    """Deletes copies: their objects in the store, and their metadata by state changes before and after."""

    def __init__(
        self,
        *,
        changes: MetadataChanges,
        transfers: SegmentTransfers,
        metrics: RemoteStorageMetrics,
        on_deleted: Callable[[RemoteLogSegmentMetadata], None],
    ) -> None:
        """`on_deleted` is called for each copy whose objects are deleted."""
        self._on_deleted = on_deleted
        self._changes = changes
        self._transfers = transfers
        self._metrics = metrics

    async def delete(self, copy: RemoteLogSegmentMetadata) -> None:
        """Delete a copy in any state. Raises the errors of the store and of the metadata."""
        await self.complete(await self.begin(copy))

    async def begin(self, copy: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """Store DELETE_SEGMENT_STARTED, unless it is stored; return the copy in that state."""
        assert copy.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, copy
        if copy.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return copy
        return await self._changes.change(copy, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)

    async def complete(self, copy: RemoteLogSegmentMetadata) -> None:
        """Delete the objects, and store DELETE_SEGMENT_FINISHED."""
        # No reader and no other broker may take a copy for complete that is being deleted.
        assert copy.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED, copy
        topic = copy.partition.topic_partition.topic
        self._metrics.on_delete_requested(topic)
        try:
            await self._transfers.delete(copy)
            self._on_deleted(copy)
            await self._changes.change(copy, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        except Exception:
            self._metrics.on_delete_failed(topic)
            raise
