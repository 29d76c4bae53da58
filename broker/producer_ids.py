"""Producer id manager: assigns producer ids from blocks that the controller allocates (KIP-730).

    no block --request--> block in use --90 % used: request--> block in use, next one ready --used up--> next one

Ids of a block that a broker did not assign before it stopped are never used.
Source: Kafka's RPCProducerIdManager, which returns COORDINATOR_LOAD_IN_PROGRESS while it has no block;
here the request waits for one.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.protocol.errors import CoordinatorLoadInProgress, KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.runtime import Runtime

#: The next block is requested when this share of the present one is used.
PREFETCH_SHARE: Final = 0.9
RETRY_BACKOFF_S: Final = 0.05
#: After this many failures in a row, waiting requests fail with COORDINATOR_LOAD_IN_PROGRESS.
MAX_ATTEMPTS: Final = 20


class ProducerIdManager:
    """Assigns ids, each at most once in the cluster."""

    def __init__(
        self,
        request: Callable[[AllocateProducerIdsRequest], Awaitable[AllocateProducerIdsResponse]],
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        runtime: Runtime,
    ) -> None:
        self._request = request
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._runtime = runtime
        self._block = range(0)
        self._next_block: range | None = None
        self._prefetch_at = 0
        self._is_fetching = False
        self._waiting: list[Future[int]] = []

    def try_next(self) -> int | None:
        """Return a producer id, or None while no block of ids is left."""
        if not self._block:
            if self._next_block is None:
                self._fetch()
                return None
            self._use(self._next_block)
        producer_id = self._block[0]
        self._block = self._block[1:]
        if producer_id >= self._prefetch_at and self._next_block is None:
            self._fetch()
        return producer_id

    async def next(self) -> int:
        """Return an id; waits for a block if needed.

        Raises CoordinatorLoadInProgress if the controller allocates none.
        """
        producer_id = self.try_next()
        if producer_id is not None:
            return producer_id
        future: Future[int] = self._runtime.loop.create_future()
        self._waiting.append(future)
        return await future

    def _use(self, block: range) -> None:
        self._block, self._next_block = block, None
        self._prefetch_at = block.start + int(len(block) * PREFETCH_SHARE) - 1

    def _fetch(self) -> None:
        if not self._is_fetching:
            self._is_fetching = True
            self._runtime.create_task(self._fetch_block(), name="allocate producer ids")

    async def _fetch_block(self) -> None:
        try:
            for _ in range(MAX_ATTEMPTS):
                block = await self._ask()
                if block:
                    self._next_block = block
                    break
                await asyncio.sleep(RETRY_BACKOFF_S)
        finally:
            self._is_fetching = False
            self._serve_waiting()

    async def _ask(self) -> range | None:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._request(request)
        except KafkaError:
            return None
        if response.error_code:
            return None
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)

    def _serve_waiting(self) -> None:
        has_block = bool(self._block) or self._next_block is not None
        while self._waiting:
            future = self._waiting[0]
            if future.done():
                self._waiting.pop(0)
                continue
            producer_id = self.try_next() if has_block else None
            if producer_id is None and has_block:
                return  # this block is used up too, and the next one has been requested
            self._waiting.pop(0)
            if producer_id is None:
                future.set_exception(CoordinatorLoadInProgress("The controller has assigned no producer ids"))
            else:
                future.set_result(producer_id)
