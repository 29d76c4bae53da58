"""Free memory is used once before anything is measured: most of it, by the page cache, without a trace on the disk."""

import pytest

from bench.free_memory import MOST_BYTES, free_bytes, touch_free_memory

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
    monkeypatch.setattr("bench.free_memory.MOST_BYTES", 5 * MIB)
    assert touch_free_memory(tmp_path, say=lambda _: None, free=lambda: 1 << 50) == 5 * MIB
    assert MOST_BYTES == 16 << 30
