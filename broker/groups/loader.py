"""Coordinator loader: replays one partition of the offsets topic when this broker becomes its leader.

The event loop stays responsive: bytes are read in a thread, `offsets.load.buffer.size` at a time, and large batches are
decompressed there; records are replayed on the loop, in turns (`ottla.runtime.turns` explains why not in a thread).

Source: Kafka's CoordinatorLoaderImpl.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from ottla.broker.groups.log_state import LogState
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.batch import BatchHeader, batches
from ottla.protocol.records.compression import TooLargeToOpen
from ottla.protocol.records.record import OF_BROKERS, payload_of
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import in_turns
from ottla.storage.log_availability import DESCRIPTORS_RETRY_S, TooManyOpenFiles

logger = logging.getLogger(__name__)

#: A batch within both sizes, compressed and decompressed, is decompressed on the loop: that takes a tenth of a
#: millisecond, as much as the use of a thread.
_SMALL_BATCH_BYTES: Final = 4 * 1024
_SMALL_PAYLOAD: Final = OF_BROKERS._replace(max_bytes=64 * 1024)


class ReplicaLog(Protocol):
    """The log of a replica on this broker, as a coordinator reads it."""

    @property
    def log_start_offset(self) -> int:
        """The log start offset of the replica."""

    @property
    def log_end_offset(self) -> int:
        """The log end offset of the replica, exclusive."""

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch in which `offset` was written."""

    def read_for_replay(self, offset: int, *, max_bytes: int) -> bytes:
        """Read batches from the one that contains `offset` on, as `LogReader.read_for_replay` does. [any thread]"""


async def load(
    state: LogState,
    log: Callable[[], ReplicaLog],
    *,
    is_wanted: Callable[[], bool],
    buffer_bytes: int,
    runtime: Runtime,
) -> int:
    """Replay the partition into `state`, from `state.next_offset` to the log end; returns the number of records.

    Stops early, after any record, when `is_wanted` becomes False: then `state` may be in use elsewhere. `log` is called
    for each read, since the replica may move to another log directory meanwhile. Raises KafkaError if the log cannot be
    read.
    """
    count = 0
    try:
        while is_wanted():
            current = log()
            offset = current.log_start_offset if state.next_offset is None else state.next_offset
            end = current.log_end_offset
            if offset >= end:
                break
            read = partial(current.read_for_replay, offset, max_bytes=buffer_bytes)
            try:
                data = await runtime.run_blocking(read, pool=Pool.LOADING)
            except TooManyOpenFiles as error:
                logger.warning("%s cannot be loaded now: %s", state.topic_partition, error)
                await asyncio.sleep(DESCRIPTORS_RETRY_S)
                continue
            if not is_wanted():
                break
            piece = _Piece(state, data, is_wanted)
            await _replay(piece, state, runtime)
            count += piece.records_count
            if is_wanted() and state.next_offset in (None, offset):
                state.next_offset = end  # compaction has removed everything up to there
    finally:
        state.report_skipped()
    return count


async def _replay(piece: "_Piece", state: LogState, runtime: Runtime) -> None:
    """Replay all batches of the piece."""
    await in_turns(runtime, piece.small_batches())
    while (large := piece.take_large()) is not None:
        header, batch = large
        try:
            payload = await runtime.run_blocking(payload_of, header, batch, OF_BROKERS, pool=Pool.LOADING)
        except KafkaError as error:
            if piece.is_wanted():
                state.skip_batch(header, error)
        else:
            await in_turns(runtime, piece.batch(header, payload))
        await in_turns(runtime, piece.small_batches())


class _Piece:
    """The bytes of one read: whole batches; the last one may be incomplete."""

    def __init__(self, state: LogState, data: bytes, is_wanted: Callable[[], bool]) -> None:
        self._state = state
        self._batches = batches(memoryview(data))
        self._large: tuple[BatchHeader, memoryview] | None = None
        self.is_wanted = is_wanted
        self.records_count = 0

    def small_batches(self) -> Iterator[None]:
        """Replay up to a batch that has to be decompressed in a thread, or to the end."""
        while self.is_wanted() and self._large is None:
            found = next(self._batches, None)
            if found is None:
                return
            header, batch = found
            try:
                payload = _small_payload(header, batch)
            except KafkaError as error:
                self._state.skip_batch(header, error)
                continue
            if payload is None:
                self._large = found
            else:
                yield from self.batch(header, payload)

    def batch(self, header: BatchHeader, payload: bytes) -> Iterator[None]:
        """Replay one batch; a few records per step."""
        if not self.is_wanted():
            return
        for _ in self._state.replay_batch(header, payload):
            yield
            if not self.is_wanted():
                return
        self.records_count += header.records_count
        yield

    def take_large(self) -> tuple[BatchHeader, memoryview] | None:
        """Take the batch at which `small_batches` has stopped; None at the end."""
        large, self._large = self._large, None
        return large if self.is_wanted() else None


def _small_payload(header: BatchHeader, batch: memoryview) -> bytes | None:
    """Return the batch's records decompressed, or None if a thread has to decompress them. Raises KafkaError."""
    if header.records_count == 0:
        return b""  # compaction has removed its records
    if not header.is_compressed:
        return payload_of(header, batch, OF_BROKERS)
    if header.size_bytes > _SMALL_BATCH_BYTES:
        return None
    try:
        return payload_of(header, batch, _SMALL_PAYLOAD)
    except TooLargeToOpen:
        return None  # It may be within the bounds of a thread.
