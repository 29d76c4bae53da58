"""Free memory is used once before anything is measured: most of it, by the page cache, without a trace on the disk."""

import mmap
from pathlib import Path

import pytest

from ottla.bench.free_memory import LEFT_BYTES, MOST_BYTES, free_bytes, held, touch, touch_free_memory

MIB = 1 << 20


def test_free_is_what_not_even_files_are_in(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal:       24684000 kB\nMemFree:        18000000 kB\nMemAvailable:   20000000 kB\n"
    )
    assert free_bytes(meminfo) == 18_000_000 * 1024
    assert free_bytes() > 0


@pytest.mark.parametrize(("free", "touched"), [(0, 0), (20 * MIB, 18 * MIB), (3 * MIB, 2 * MIB)])
def test_most_of_it_is_read_from_a_file_that_is_gone_afterwards(tmp_path, free, touched):
    lines = []
    assert touch_free_memory(tmp_path, say=lines.append, free=lambda: free) == touched
    assert list(tmp_path.iterdir()) == []
    assert lines == [f"free memory is used once: {touched / 1e9:.1f} GB"]


def test_it_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("ottla.bench.free_memory.MOST_BYTES", 5 * MIB)
    assert touch_free_memory(tmp_path, say=lambda _: None, free=lambda: 1 << 50) == 5 * MIB
    assert MOST_BYTES == 16 << 30


@pytest.mark.parametrize(
    ("wanted", "free", "touched"),
    [
        (5 * MIB, 1 << 50, 5 * MIB),
        (5.5 * MIB, 1 << 50, 5 * MIB),
        (5 * MIB, 3 * MIB, 2 * MIB),
        (5 * MIB, 0, 0),
    ],
)
def test_before_a_load_it_is_as_much_as_that_writes_if_there_is(tmp_path, wanted, free, touched):
    assert touch(tmp_path, wanted, free=lambda: free) == touched
    assert list(tmp_path.iterdir()) == []


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_held_memory_is_in_use_until_the_block_ends():
    before = resident_bytes()
    with held(64 * MIB, free=lambda: 1 << 50):
        assert resident_bytes() - before >= 48 * MIB
    assert resident_bytes() - before < 48 * MIB


@pytest.mark.parametrize("free", [0, LEFT_BYTES + 60 * MIB])
def test_nothing_is_held_where_little_is_free(free):
    before = resident_bytes()
    with held(64 * MIB, free=lambda: free):
        assert resident_bytes() - before < 48 * MIB
