"""The files that a log holds open: thousands of partitions must not use up a process's descriptors."""

from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.manager.log_manager import LogManager
from tests.unit.storage.storage_support import NOW_MS, batch, offsets_in, open_log

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=1)


class CountingFiles(Files):
    """Knows which paths are open."""

    def __init__(self) -> None:
        self.open_paths: dict[int, Path] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        fd = super().open(path, write=write, create=create)
        self.open_paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        del self.open_paths[fd]

    @property
    def open_names(self) -> list[str]:
        return sorted(path.name for path in self.open_paths.values())


def test_a_log_that_is_only_written_holds_its_segments_open_and_no_index(tmp_path):
    files = CountingFiles()
    log = open_log(tmp_path / "orders-0", files=files, config=CONFIG)
    for _ in range(100):
        log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
    assert len(log.segments) > 1
    assert files.open_names == [path.name for path in sorted((tmp_path / "orders-0").glob("*.log"))]
    log.close()
    assert files.open_names == []


def test_a_log_that_was_opened_holds_nothing_until_it_is_used(tmp_path):
    log = open_log(tmp_path / "orders-0", config=CONFIG)
    for _ in range(100):
        log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    for is_clean in (True, False):
        files = CountingFiles()
        log = open_log(tmp_path / "orders-0", files=files, config=CONFIG, is_clean=is_clean)
        assert files.open_names == []
        assert len(offsets_in(log)) == 100
        assert files.open_names
        log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
        log.close()
        assert files.open_names == []
        log = open_log(tmp_path / "orders-0", config=CONFIG)
        log.truncate_to(100, now_ms=NOW_MS)
        log.close()


def test_a_stop_closes_what_is_deleted_but_not_removed_yet(tmp_path):
    """A process that starts and stops many brokers, as a test suite does, runs out of descriptors otherwise."""
    files = CountingFiles()
    manager = LogManager.open(
        [tmp_path], files=files, cluster_id="c", node_id=1, directory_id=lambda: UUID(int=5), random=Random(1),
        now_ms=NOW_MS, default_config=CONFIG,
    )  # fmt: skip
    deleted, retained, truncated = (TopicPartition(name, 0) for name in ("deleted", "retained", "truncated"))
    for at in (deleted, retained):
        log = manager.get_or_create(at, topic_id=UUID(int=7), now_ms=NOW_MS)
        for _ in range(100):
            log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(100)
    log.update_config(replace(CONFIG, retention_bytes=1))
    assert log.apply_retention(NOW_MS)
    large = replace(CONFIG, segment_bytes=1 << 20)
    log = manager.get_or_create(truncated, topic_id=UUID(int=8), now_ms=NOW_MS, config=large)
    for _ in range(2):
        log.append_as_leader(batch(value=b"x" * 200_000), leader_epoch=0, now_ms=NOW_MS)
    held = log.reader.read(1, max_bytes=1 << 20, lend=True).records
    log.truncate_to(1, now_ms=NOW_MS)  # into a copy: a reader has a slice of the file
    manager.delete(deleted)
    manager.shutdown(NOW_MS + 1, broker_epoch=1)
    assert files.open_names == []
    assert len(held) > 200_000
