"""MetadataBarrier: wait until this broker's image holds everything that was committed before.

An image lags behind the metadata log: what it does not have may be new, or be deleted. To distinguish the
two, a record is committed, and the image that holds it is asked. The record is a block of producer ids, the
only one that any broker may have written without a change to the cluster: 1,000 of 2^63 ids are lost.

    read X -> AllocateProducerIds -> the controller commits ProducerIdsRecord(next id) -> the image's next id reaches it

The controller answers after the commit. The metadata log is one order, and the request follows the reading: what was
committed when X was read is before that record. The answer of DescribeQuorum, or the high watermark of a
Fetch, would not do: both may come from a leader that another one has replaced.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.broker.metadata_cache import MetadataCache
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.remote.errors import RetriableRemoteStorageError

#: The longest wait for the image; the controller's answer has a timeout of its own.
_WAIT_S: Final = 60.0


class MetadataBarrier:
    """Waits until this broker's image holds everything that was committed before. Belongs to the event loop."""

    def __init__(
        self,
        metadata: MetadataCache,
        request: Callable[[AllocateProducerIdsRequest], Awaitable[AllocateProducerIdsResponse]],
        *,
        node_id: int,
    ) -> None:
        """Create the barrier; `request` sends to the active controller."""
        self._metadata = metadata
        self._request = request
        self._node_id = node_id
        self._changed = asyncio.Event()
        metadata.on_change(self._on_change)

    async def wait(self) -> None:
        """Wait until the image holds all that was committed before the call. Raises RetriableRemoteStorageError."""
        own = self._metadata.broker(self._node_id)
        if own is None:
            raise RetriableRemoteStorageError("this broker is not registered")
        try:
            block = await self._request(
                AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=own.epoch)
            )
        except KafkaError as error:
            raise RetriableRemoteStorageError(f"the controller was not reached: {error}") from error
        if block.error_code:
            raise RetriableRemoteStorageError(
                f"the controller has allocated no producer ids: error {block.error_code}"
            )
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._until(block.producer_id_start + block.producer_id_len)
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"the metadata of this broker has not caught up within {_WAIT_S:g} s"
            ) from None

    async def _until(self, next_producer_id: int) -> None:
        while self._metadata.image.next_producer_id < next_producer_id:
            self._changed.clear()
            await self._changed.wait()

    def _on_change(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._changed.set()
