"""A data folder of a few logs, with something of everything in it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.manager.log_manager import LogManager
from tests.unit.storage.storage_support import NOW_MS, batch, marker

CONFIG = LogConfig(segment_bytes=7_000, index_interval_bytes=500)
ORDERS = TopicPartition("orders", 0)


def fill(log: Log) -> None:
    """Several segments, epochs, three producers; two of their transactions are aborted, then one more is open."""
    for number in range(120):
        fields = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number // 3 * 2}
        data = batch(2, value=b"v" * 80, timestamp=NOW_MS + number * 7 % 500, is_transactional=True, **fields)
        log.append_as_leader(data, leader_epoch=number // 45, now_ms=NOW_MS)
    for producer_id in range(3):
        data = marker(producer_id=producer_id, commit=producer_id == 1, timestamp=NOW_MS + 600)
        log.append_as_leader(data, leader_epoch=3, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    data = batch(3, producer_id=0, producer_epoch=0, base_sequence=80, is_transactional=True)
    log.append_as_leader(data, leader_epoch=3, now_ms=NOW_MS)


def open_manager(folder: Path) -> LogManager:
    """The folder as a broker opens it."""
    return LogManager.open(
        [folder],
        files=Files(),
        cluster_id="q1Sh-9_ISia_zwGINzRvyQ",
        node_id=1,
        directory_id=lambda: UUID(int=7),
        random=Random(1),
        now_ms=NOW_MS,
        default_config=CONFIG,
    )


def make_folder(folder: Path) -> Path:
    """A data folder as a clean stop leaves it: orders-0 (filled), orders-1 (a few batches), empty-0 (none)."""
    manager = open_manager(folder)
    for number, partition in enumerate([ORDERS, TopicPartition("orders", 1), TopicPartition("empty", 0)]):
        topic_id = UUID(int=100 + (partition.topic == "empty"))
        log = manager.get_or_create(partition, topic_id=topic_id, config=CONFIG, now_ms=NOW_MS)
        if number == 0:
            fill(log)
        elif number == 1:
            log.append_as_leader(batch(5), leader_epoch=0, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)
    manager.shutdown(NOW_MS, broker_epoch=5)
    return folder


def flip(path: Path, position: int, *, bit: int = 0) -> None:
    """Change one bit of a file; a negative position counts from its end."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)
