"""Transactions of a simulated cluster (KIP-98, KIP-890): producers that commit or abort what they have written.

The brokers have no transaction coordinator yet: they refuse transactional batches, and serve no
WriteTxnMarkers. So in a simulation the gate of Produce is open (`are_served`), and a producer is its own
coordinator: it sends the marker as a control batch to the leader, again and again until it is acknowledged.
All else is the real code: the checks of producers' epochs and sequences, replication, the transaction index,
the last stable offset. As in transaction version 2 each marker has the next producer epoch, so that one that
arrives late or twice does not end the next transaction.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from cluster_clients import Producer

from ottla.broker.api import k00_produce
from ottla.protocol.records.batch import ATTRIBUTES_OFFSET, CONTROL_FLAG
from ottla.protocol.records.control import EndTransactionMarker, build_end_transaction_marker
from ottla.storage.appending import AppendInfo, AppendOrigin
from ottla.storage.log import Log
from ottla.storage.validation import ValidatedRecords
from tests.harness.history import Send, Transaction

#: How long a transaction stays open after its last record; the longest ones span many segments.
_OPEN_S = (0.0, 0.0, 0.1, 0.5, 2.0)


@contextmanager
def are_served() -> Iterator[None]:
    """Brokers take transactional batches, and markers as those of a coordinator."""
    append = Log.append_as_leader

    def append_any(self: Log, records: Any, **named: Any) -> AppendInfo:
        if (
            not isinstance(records, ValidatedRecords)
            and len(records) > ATTRIBUTES_OFFSET + 1
            and records[ATTRIBUTES_OFFSET + 1] & CONTROL_FLAG
        ):
            named |= {"origin": AppendOrigin.COORDINATOR, "transaction_version": 2}
        return append(self, records, **named)

    with (
        patch.object(k00_produce, "_check_request", lambda *_: None),
        patch.object(Log, "append_as_leader", append_any),
    ):
        yield


class TransactionalProducer(Producer):
    """Writes one transaction after the other; its transactions have ended when it ends."""

    async def produce(self, *, pause_s: float, is_over: Callable[[], bool]) -> None:
        """Produce until the story is over."""
        while not is_over():
            if self._producer is None:
                self._producer = await self._init()
            producer_id, epoch = self._producer
            self._sequence = 0
            transaction = Transaction()
            for _ in range(self.random.choice((1, 1, 2, 4))):
                await self._write(transaction)
                await asyncio.sleep(self.random.uniform(0, 2 * pause_s))
                if self._producer is None:
                    break  # an unclean election has taken a batch of the transaction
            await asyncio.sleep(0 if is_over() else self.random.choice(_OPEN_S))
            transaction.decided_s = self.simulation.loop.time()
            transaction.is_committed = self._producer is not None and self.random.random() < 0.5
            await self._end(producer_id, epoch + 1, is_commit=transaction.is_committed)
            self._producer = producer_id, epoch + 1

    async def _end(self, producer_id: int, epoch: int, *, is_commit: bool) -> None:
        marker = build_end_transaction_marker(
            EndTransactionMarker(is_commit, coordinator_epoch=0, timestamp=self.runtime.now_ms()),
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        # Not of the history: no client reads it.
        await self._send(
            marker, Send(client=self.name, topic=self._topic, partition=self._partition, values=[], acks=-1)
        )
