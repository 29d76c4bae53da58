"""The receive buffer against a plain queue of bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.network.receive_buffer import (
    GROWTH_FACTOR,
    MIN_BYTES,
    RETAINED_BYTES,
    SHARED_BYTES,
    BufferPool,
    ReceiveBuffer,
)


def receive(buffer, data):
    """Receive bytes as a transport does; returns how many fitted."""
    room = buffer.room()
    assert len(room) > 0
    count = min(len(room), len(data))
    room[:count] = data[:count]
    buffer.end += count
    return count


steps = st.lists(
    st.tuples(
        st.sampled_from([1, 10, 1_000, 10_000, SHARED_BYTES, 300_000]),  # arrives, at most
        st.floats(0, 1),  # which part of what is there is dealt with
        st.sampled_from([4, 100, 5_000, 70_000, 2_000_000]),  # needed for what is left
    ),
    max_size=30,
)


@given(
    st.lists(st.tuples(st.integers(0, 2), steps), min_size=1, max_size=3), st.randoms(use_true_random=True)
)
def test_interleaved_connections_keep_their_bytes(plans, random):
    """Each connection's bytes come out as they went in, however reads of others come between."""
    pool = BufferPool()
    buffers = [ReceiveBuffer(pool) for _ in range(3)]
    models = [b"", b"", b""]
    for which, plan in plans:
        for size, part, needed in plan:
            buffer = buffers[which]
            data = random.randbytes(random.randint(1, size))
            count = receive(buffer, data)
            models[which] += data[:count]
            assert buffer.view[buffer.start : buffer.end] == models[which]
            taken = int(buffer.unread_bytes * part)
            buffer.start += taken
            models[which] = models[which][taken:]
            buffer.prepare(needed)
            assert buffer.view[buffer.start : buffer.end] == models[which]
            assert buffer.is_own or not models[which]
            which = random.randrange(3)
        owned = sum(len(buffer.view) for buffer in buffers if buffer.is_own)
        assert pool.owned_bytes == owned
    for buffer in buffers:
        buffer.discard()
    assert pool.owned_bytes == 0


@given(steps)
def test_growth_is_bounded_by_what_arrived(plan):
    pool = BufferPool()
    buffer = ReceiveBuffer(pool)
    most = 0
    for size, part, needed in plan:
        receive(buffer, bytes(size))
        most = max(most, buffer.unread_bytes)
        buffer.start += int(buffer.unread_bytes * part)
        buffer.prepare(needed)
        assert pool.owned_bytes <= max(SHARED_BYTES, MIN_BYTES, GROWTH_FACTOR * most)


def test_a_large_frame_is_received_whole_and_its_buffer_used_again():
    pool = BufferPool()
    buffer = ReceiveBuffer(pool)
    size = 1_000_004
    views = set()
    for number in range(5):
        left = size
        while left:
            left -= receive(buffer, bytes([number]) * left)
            if left:
                buffer.prepare(size)
        assert buffer.view[buffer.start : buffer.end] == bytes([number]) * size
        views.add(id(buffer.view))
        buffer.start = buffer.end
        buffer.prepare(4)
    assert len(views) == 1
    assert pool.owned_bytes == size


def test_a_large_frame_behind_a_parked_one_is_not_copied():
    """The buffer is as large as one frame: while one is parked, the next one and some of its successor fill it."""
    buffer = ReceiveBuffer(BufferPool())
    size = 1_000_004
    left = size
    while left:
        left -= receive(buffer, bytes(left))
        buffer.prepare(size)
    view = buffer.view
    for _ in range(3):
        buffer.start = 1_000
        buffer.prepare(64 * 1024, is_enough=True)
        assert buffer.view is view
        assert buffer.unread_bytes == size - 1_000
    buffer.prepare(size)  # it goes on
    assert len(buffer.room()) > 0


def test_what_is_kept_between_frames_is_bounded():
    pool = BufferPool()
    buffers = [ReceiveBuffer(pool) for _ in range(100)]
    for buffer in buffers:
        left = 2_000_000
        while left:
            left -= receive(buffer, bytes(left))
            if left:
                buffer.prepare(2_000_000)
        buffer.start = buffer.end
        buffer.prepare(4)
    assert pool.owned_bytes <= RETAINED_BYTES


def test_release_needs_an_empty_buffer():
    buffer = ReceiveBuffer(BufferPool())
    receive(buffer, b"abc")
    buffer.prepare(100)
    with pytest.raises(AssertionError):
        buffer.release()
