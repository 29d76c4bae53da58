"""Batches and logs for the tests of storage."""

from __future__ import annotations

from pathlib import Path
from random import Random

from ottla.config.log_config import LogConfig
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import ControlRecordType, control_key
from ottla.protocol.records.record import Record
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.log import Log

NOW_MS = 1_700_000_000_000
TP = TopicPartition("orders", 0)


def batch(count: int = 1, *, value: bytes = b"value", timestamp: int = NOW_MS, **fields) -> bytearray:
    """A batch as a producer sends it."""
    base = fields.get("base_offset", 0)
    return bytearray(
        build_batch([Record(base + i, timestamp + i, b"key", value) for i in range(count)], **fields)
    )


def marker(*, producer_id: int, commit: bool, epoch: int = 0, timestamp: int = NOW_MS) -> bytearray:
    """An end-of-transaction marker as a coordinator writes it."""
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    return bytearray(
        build_batch(
            [Record(0, timestamp, control_key(kind), b"\x00\x00\x00\x00\x00\x00")],
            producer_id=producer_id,
            producer_epoch=epoch,
            is_control=True,
            is_transactional=True,
        )
    )


def open_log(directory: Path, *, files: Files | None = None, **options) -> Log:
    """The log in `directory`; `config` by default with small segments and an index entry for each batch."""
    config = options.pop("config", None) or LogConfig(segment_bytes=1000, index_interval_bytes=1)
    return Log.open(
        directory,
        config=config,
        topic_partition=options.pop("topic_partition", TP),
        now_ms=options.pop("now_ms", NOW_MS),
        files=files or Files(),
        random=options.pop("random", None) or Random(1),
        **options,
    )


def offsets_in(log: Log) -> list[int]:
    """The base offsets of all batches, read as a consumer would."""
    return [header.base_offset for header, _ in log.reader.records_since(log.log_start_offset)]


def state_of(log):
    """All that an append may change, in memory."""
    offsets, producers = log.offsets, log.producers
    return {
        "offsets": {name: getattr(offsets, name) for name in offsets.__slots__},
        "producers": {number: repr(state) for number, state in producers.producers.items()},
        "covered": (producers.map_end_offset, producers.last_snapshot_offset, producers.first_unstable_offset),
        "epochs": log.leader_epochs.entries,
        "is writable": log.availability.is_writable,
        "due": (log.flusher.is_due, log.flusher.due_end(NOW_MS)),
        "changes": (log.files.generation, log.files.entry_changes.change_count),
        "segments": [
            {
                "log": (it.base_offset, it.size, it.created_ms, it.log.is_closed, dict(it.log.recent)),
                "first timestamp": it._first_timestamp,
                "indexes": (it.indexes.known_largest, it.indexes._bytes_since_entry),
                **{
                    type(index).__name__: (index.count, index._last, bytes(index._warm[1]), index.is_changed)
                    for index in (it.indexes.offsets, it.indexes.times)
                },
            }
            for it in log.segments
        ],
    }  # fmt: skip
