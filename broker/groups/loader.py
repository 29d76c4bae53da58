"""Coordinator loader: replays a partition of the offsets topic when this broker becomes its leader, and builds groups.

The event loop stays responsive: bytes are read in a thread, `offsets.load.buffer.size` at a time, and large batches are
decompressed there; records are replayed on the loop, in turns (`ottla.runtime.turns` explains why not in a thread).
When the replay has reached the log end, groups are restored from the replayed records.

Source: Kafka's CoordinatorLoaderImpl, GroupCoordinatorShard.onLoaded and GroupMetadataManager.onLoaded.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_metadata import group_from_value
from ottla.broker.groups.log_state import LogState
from ottla.broker.groups.shard import Shard
from ottla.protocol.coordinator.record_codec import UnknownRecordKind, decode_group
from ottla.protocol.errors import KafkaError, MalformedMessage
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
#: A group with a larger record is decoded in a thread: thousands of members take tens of milliseconds.
_LARGE_RECORD_BYTES: Final = 32 * 1024


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


async def restore_groups(
    shard: Shard, state: LogState, *, config: GroupConfig, runtime: Runtime, is_wanted: Callable[[], bool]
) -> None:
    """Fill `shard` with the groups of `state`. Stops early, after any group, when `is_wanted` becomes False.

    A group whose record cannot be decoded is skipped with a warning.
    """
    large: dict[str, bytes] = {}

    def small_groups() -> Iterator[None]:
        for group_id, value in list(state.groups.items()):
            if not is_wanted():
                return
            if len(value) > _LARGE_RECORD_BYTES:
                large[group_id] = value
            else:
                _add(shard, _build(state, group_id, value, config))
            yield

    await in_turns(runtime, small_groups())
    for group_id, value in large.items():
        if is_wanted():
            group = await runtime.run_blocking(_build, state, group_id, value, config, pool=Pool.LOADING)
            _add(shard, group)
    await in_turns(runtime, _groups_of_offsets(shard, state, now_ms=runtime.now_ms(), is_wanted=is_wanted))


def _build(state: LogState, group_id: str, value: bytes, config: GroupConfig) -> ClassicGroup | None:
    try:
        return group_from_value(group_id, decode_group(value), config)
    except (UnknownRecordKind, MalformedMessage) as error:
        logger.warning(
            "%s: group %s is skipped, its record cannot be decoded: %s",
            state.topic_partition,
            group_id,
            error,
        )
        return None


def _add(shard: Shard, group: ClassicGroup | None) -> None:
    if group is not None:
        shard.groups[group.group_id] = group


def _groups_of_offsets(
    shard: Shard, state: LogState, *, now_ms: int, is_wanted: Callable[[], bool]
) -> Iterator[None]:
    """Create a group without members for offsets without a group, as consumers with manual assignment commit them."""
    for group_id in state.offsets.group_ids:
        if not is_wanted():
            return
        if group_id not in shard.groups:
            shard.new_group(group_id, now_ms=now_ms)
        yield
