"""MetadataChanges: changes of copies' states by this broker, each within a deadline.

A change that is not acknowledged in time may be stored all the same: it is made again, which is legal, or the copy is
found unfinished later, and deleted.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from ottla.runtime import Runtime


class MetadataChanges:
    """Stores state changes of copies, each within a deadline. Raises the errors of RemoteLogMetadataManager."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        *,
        node_id: int,
        runtime: Runtime,
        deadline_ms: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._runtime = runtime
        self._deadline_ms = deadline_ms

    async def start(self, copy: RemoteLogSegmentMetadata) -> None:
        """Store COPY_SEGMENT_STARTED, the first state of a copy."""
        assert copy.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED, copy
        await self._in_time(self._metadata.add_remote_log_segment_metadata(copy), copy, copy.state)

    async def change(
        self, copy: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> RemoteLogSegmentMetadata:
        """Store the copy's new state, and its custom metadata; return the copy with it.

        The transition must be legal, by the diagram of `ottla.remote.segment_metadata`.
        """
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=copy.segment_id,
            state=state,
            broker_id=self._node_id,
            event_timestamp_ms=self._runtime.now_ms(),
            custom_metadata=copy.custom_metadata,
        )
        # Before it is stored: this asserts that the transition is legal.
        updated = copy.updated(update)
        await self._in_time(self._metadata.update_remote_log_segment_metadata(update), copy, state)
        return updated

    async def _in_time(
        self,
        change: Coroutine[Any, Any, None],
        copy: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
    ) -> None:
        try:
            async with asyncio.timeout(self._deadline_ms() / 1000):
                await change
        except TimeoutError as error:
            raise RetriableRemoteStorageError(
                f"{state.name} of {copy.segment_id} was not acknowledged within {self._deadline_ms()} ms"
            ) from error
