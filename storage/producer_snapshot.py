"""Producer snapshots (`.snapshot` files): producer state at an offset, so that opening a log need not read all of it.

Layout (version 1), big-endian: version 2, CRC-32C 4 (of all that follows it), count 4, and for each producer: id 8,
epoch 2, last sequence 4, last offset 8, offset delta 4, timestamp 8, coordinator epoch 4, first offset of its open
transaction 8; -1 for an absent value. Only the last batch of each producer is kept.

Source: ProducerSnapshot.json and ProducerStateManager of Kafka 4.3.1.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from ottla.protocol.checksum import crc32c
from ottla.storage.producer_append import BatchMetadata, ProducerState

VERSION: Final = 1

_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    """The file is not a valid snapshot: an older snapshot, or the log itself, is read instead."""


def encode(producers: Mapping[int, ProducerState]) -> bytes:
    """The content of a snapshot file with the state of these producers."""
    pieces = [_COUNT.pack(len(producers))]
    for state in _in_javas_order(producers):
        last = state.batches[-1] if state.batches else None
        pieces.append(
            _ENTRY.pack(
                state.producer_id,
                state.epoch,
                -1 if last is None else last.last_sequence,
                -1 if last is None else last.last_offset,
                0 if last is None else last.offset_delta,
                state.last_timestamp,
                -1 if state.coordinator_epoch is None else state.coordinator_epoch,
                -1 if state.transaction_first_offset is None else state.transaction_first_offset,
            )
        )
    body = b"".join(pieces)
    return _HEAD.pack(VERSION, crc32c(body)) + body


def decode(data: bytes | memoryview) -> list[ProducerState]:
    """The producers in a snapshot file. Raises CorruptSnapshot."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"only {len(data)} bytes")
    version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"unknown version {version}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshot(f"stored CRC {crc} is not that of {len(body)} bytes")
    count = _COUNT.unpack_from(body)[0]
    entries = body[_COUNT.size :]
    if count * _ENTRY.size != len(entries):
        raise CorruptSnapshot(f"{count} producers in {len(entries)} bytes")
    return [_state(*row) for row in _ENTRY.iter_unpack(entries)]


def _state(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    transaction_first_offset: int,
) -> ProducerState:
    state = ProducerState(
        producer_id=producer_id,
        epoch=epoch,
        coordinator_epoch=None if coordinator_epoch < 0 else coordinator_epoch,
        last_timestamp=timestamp,
        transaction_first_offset=None if transaction_first_offset < 0 else transaction_first_offset,
    )
    if last_offset >= 0:
        state.batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
    return state


def _in_javas_order(producers: Mapping[int, ProducerState]) -> Iterable[ProducerState]:
    """The order in which a java.util.HashMap of the same keys iterates, so that the same log gives Kafka's bytes.

    Exact as long as no producer has expired (Java's table never shrinks) and every producer id is below 2**32.
    """
    slots = 16
    while len(producers) > slots * 3 // 4:
        slots *= 2

    def slot(state: ProducerState) -> int:
        folded = (state.producer_id ^ state.producer_id >> 32) & 0xFFFFFFFF
        return (folded ^ folded >> 16) & (slots - 1)

    return sorted(producers.values(), key=slot)
