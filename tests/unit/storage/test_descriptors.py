"""How many files a log holds open: thousands of partitions must not use up what a process may have."""

from pathlib import Path

from storage.files import Files
from storage.log_config import LogConfig
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
