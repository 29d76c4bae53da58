"""Memory for chunks is used again when no view of it is left, and only then."""

import pytest

from ottla.remote.reading.chunk_memory import LIMIT_BYTES, ChunkMemory, held_bytes

_MIB = 1 << 20


@pytest.fixture
def memory():
    return ChunkMemory()


def test_memory_is_used_again_when_its_last_view_is_gone(memory):
    body = memory.take(3 * _MIB)
    assert len(body) == 3 * _MIB
    assert held_bytes(body) == memory.size_bytes == 4 * _MIB
    body[:] = b"a" * len(body)
    sent = body[_MIB : 2 * _MIB]
    del body
    other = memory.take(4 * _MIB)
    other[:] = b"b" * len(other)
    assert sent == b"a" * _MIB
    assert memory.size_bytes == 8 * _MIB
    del sent
    assert memory.take(2 * _MIB + 1)[:1] == b"a"
    assert memory.size_bytes == 8 * _MIB


def test_small_memory_is_not_kept(memory):
    body = memory.take(100_000)
    assert (len(body), held_bytes(body), memory.size_bytes) == (100_000, 100_000, 0)


def test_what_is_not_in_use_is_freed(memory):
    kept = memory.take(_MIB)
    memory.take(2 * _MIB)
    assert memory.size_bytes == 3 * _MIB
    memory.trim()
    assert memory.size_bytes == held_bytes(kept) == _MIB
    del kept
    memory.trim()
    assert memory.size_bytes == 0


def test_other_sizes_make_room_for_a_new_one(memory):
    """Free memory and memory in use together never exceed the limit."""
    sizes = [16, 32, 8, 4]
    for size in sizes:
        memory.take(size * _MIB)
    assert memory.size_bytes == sum(sizes) * _MIB <= LIMIT_BYTES
    kept = [memory.take(16 * _MIB), memory.take(16 * _MIB)]
    assert memory.size_bytes == sum(map(held_bytes, kept))
