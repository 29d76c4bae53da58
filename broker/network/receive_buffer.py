r"""Receive buffers: one buffer shared by all connections, and one of a connection's own for incomplete frames.

Most reads consist of whole requests. They are read into one buffer that all connections of the server share
and processed before the next read of any connection, so an idle connection owns no buffer. The rest of a read
(the beginning of a frame, requests behind a parked one) moves to a buffer of the connection's own:

    shared --a rest remains--> own --all processed--> own, if large and the pool has room for it
       ^                                          \--> shared, otherwise
       '------------- idle for a while ----------------'

A busy sender of large batches thus keeps a buffer into which every frame is read whole, by few system
calls and without copying; the sum of the retained buffers is bounded (`RETAINED_BYTES`).

Cost: one slice for each read; a rest is copied once, or moved once if it does not fit behind the bytes
before it.
"""

from mmap import mmap

#: The shared buffer's size, and the minimum of a buffer that a busy connection keeps. It holds the five
#: requests of 16 KB that Kafka's producers have under way on a connection (batch.size,
#: max.in.flight.requests.per.connection), and what a socket holds by default (socket.receive.buffer.bytes):
#: they are read at once, without a rest that is copied. Each one takes 4 us less, an eighth, than with 64 KB
#: (bench: pipelined-16384b). Larger reads gain nothing, and a connection that sends many small requests would
#: delay the others for longer.
SHARED_BYTES = 128 * 1024

#: An own buffer is at most this many times the bytes that have arrived: a frame's length alone, which costs
#: the peer nothing, allocates no memory.
GROWTH_FACTOR = 2

#: A buffer of this size or more consists of mapped pages, which take memory only when they are written: as
#: many bytes as have arrived. It is allocated rarely: a busy connection keeps its own.
MAPPED_BYTES = 1024 * 1024

#: The minimum size of an own buffer.
MIN_BYTES = 4 * 1024

#: The bound of all own buffers that connections keep between frames; above it, buffers are released at once.
RETAINED_BYTES = 64 * 1024 * 1024

#: A rest up to this size is moved to the front (under 1 µs) to have more room behind it.
_CHEAP_MOVE_BYTES = 8 * 1024


def allowance(frame_bytes: int, arrived_bytes: int) -> int:
    """The memory that a frame of this size may have when so many bytes of it have arrived.

    >>> allowance(100_000_000, 5), allowance(100_000_000, 1_000_000), allowance(1_500_000, 1_000_000)
    (4096, 2000000, 1500000)
    """
    return max(min(frame_bytes, arrived_bytes * GROWTH_FACTOR), MIN_BYTES)


class BufferPool:
    """The shared buffer, and the total size of the connections' own ones."""

    __slots__ = ("owned_bytes", "shared")

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.owned_bytes = 0


class ReceiveBuffer:
    """One connection's bytes that have arrived and are not processed: `view[start:end]`.

    Invariant between reads: the shared buffer holds no unprocessed bytes (start == end == 0).
    """

    __slots__ = ("_pool", "end", "is_own", "start", "view")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self.view = pool.shared
        self.start = 0
        self.end = 0
        self.is_own = False

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that have arrived and are not processed."""
        return self.end - self.start

    def room(self) -> memoryview:
        """Return the memory for the next read; not empty after `prepare`, unless that was enough."""
        return self.view[self.end :]

    def prepare(self, needed_bytes: int, *, is_enough: bool = False) -> None:
        """Prepare the next read, after `start` was moved behind the processed bytes.

        `needed_bytes` is the size that must fit from `start` on: the whole frame that begins there with
        its prefix, or any smaller number while that is unknown. The peer chooses it: it is not
        allocated before enough of it has arrived. With `is_enough` the caller does not read once so many bytes are
        unread, until the next `prepare`, and no room is made: otherwise a buffer that a large frame fills, behind a
        parked one, would be copied into one that is a byte larger, frame after frame.
        """
        unread = self.end - self.start
        if is_enough and self.is_own and unread >= needed_bytes:
            return
        if not unread:
            self.start = self.end = 0
            if self.is_own and (len(self.view) < SHARED_BYTES or self._pool.owned_bytes > RETAINED_BYTES):
                self.release()
            return
        capacity = len(self.view)
        needed_bytes = max(needed_bytes, unread + 1)
        if not self.is_own:
            # A read that filled the shared buffer comes from a busy sender: a larger buffer pays off.
            least = SHARED_BYTES if self.end == capacity else MIN_BYTES
            self._move(self._allowed(needed_bytes, unread=unread, least=least))
        elif needed_bytes > capacity:
            allowed = self._allowed(needed_bytes, unread=unread, least=MIN_BYTES)
            if allowed > capacity:
                self._move(allowed)
            elif self.end == capacity:
                self._shift()
        elif self.start and (unread <= _CHEAP_MOVE_BYTES or self.start + needed_bytes > capacity):
            self._shift()

    def release(self) -> None:
        """Release an own buffer, which must hold no unprocessed bytes."""
        assert self.start == self.end, (self.start, self.end)
        if self.is_own:
            self._pool.owned_bytes -= len(self.view)
            self.view, self.is_own = self._pool.shared, False
            self.start = self.end = 0

    def discard(self) -> None:
        """Drop all bytes: the connection is closed."""
        self.start = self.end = 0
        self.release()

    def _allowed(self, needed_bytes: int, *, unread: int, least: int) -> int:
        """Return the permitted capacity for `needed_bytes`, of which `unread` have arrived."""
        return max(allowance(needed_bytes, unread), least)

    def _move(self, capacity: int) -> None:
        view = memoryview(bytearray(capacity) if capacity < MAPPED_BYTES else mmap(-1, capacity))
        unread = self.end - self.start
        view[:unread] = self.view[self.start : self.end]
        self._pool.owned_bytes += capacity - (len(self.view) if self.is_own else 0)
        self.view, self.is_own = view, True
        self.start, self.end = 0, unread

    def _shift(self) -> None:
        """Move the unread bytes to the front (memoryviews support overlapping moves)."""
        unread = self.end - self.start
        self.view[:unread] = self.view[self.start : self.end]
        self.start, self.end = 0, unread
