r"""Where a connection's bytes arrive: a buffer shared by all, and an own one while a frame is incomplete.

Most reads bring whole requests. They land in one buffer that all connections of the server share and
are dealt with before the next read of anybody, so an idle connection owns no buffer at all. What is
left of a read (the beginning of a frame, requests behind a parked one) moves to a buffer of the
connection's own:

    shared --a rest remains--> own --all dealt with--> own, if large and the pool has room for it
       ^                                          \--> shared, otherwise
       '------------- idle for a while ----------------'

A busy sender of large batches so keeps a buffer into which every frame is read whole, by few system
calls and without copying; what all of these retain together is bounded (`RETAINED_BYTES`).

Cost: one slice a read; a rest is copied once, or moved once when it would not fit behind what was
before it.
"""

#: The shared buffer's size, and the least that a busy connection keeps of its own. Larger reads gain
#: nothing (a system call costs less than a tenth of copying this much), and a connection that sends
#: many small requests would keep the others waiting for longer.
SHARED_BYTES = 64 * 1024

#: An own buffer is at most this many times what has arrived: a frame's length alone, which a peer can
#: claim for free, makes us allocate nothing.
GROWTH_FACTOR = 4

#: The least that is allocated.
MIN_BYTES = 4 * 1024

#: What connections may keep together between frames; above it, buffers are given back at once.
RETAINED_BYTES = 64 * 1024 * 1024

#: A rest of this size is moved to the front (under 1 µs) rather than left where there is less room.
_CHEAP_MOVE_BYTES = 8 * 1024


class BufferPool:
    """The shared buffer, and the count of what connections own."""

    __slots__ = ("owned_bytes", "shared")

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.owned_bytes = 0


class ReceiveBuffer:
    """One connection's bytes that have arrived and are not dealt with: `view[start:end]`.

    Invariant between reads: in the shared buffer nothing is left (start == end == 0).
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
        """How much has arrived and is not dealt with."""
        return self.end - self.start

    def room(self) -> memoryview:
        """Where the next read may write; never empty after `settle`, unless that was enough."""
        return self.view[self.end :] if self.end else self.view

    def settle(self, needed_bytes: int, *, is_enough: bool = False) -> None:
        """Make ready for the next read, after `start` was moved behind what has been dealt with.

        `needed_bytes` is how much must fit from `start` on: the whole frame that begins there with
        its prefix, or any smaller number if that is not known. It is a claim of the peer: it is not
        allocated before enough of it has arrived. With `is_enough` nothing is read once so much is unread, until the
        next `settle`, and no room is made for it: a buffer that a large frame fills, behind a parked one, would else be
        copied into one that is a byte larger, frame after frame.
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
            # A read that filled the shared buffer is a busy sender's: more will be worth having.
            least = SHARED_BYTES if self.end == capacity else MIN_BYTES
            self._move(self._allowed(unread, needed_bytes, least))
        elif needed_bytes > capacity:
            allowed = self._allowed(unread, needed_bytes, MIN_BYTES)
            if allowed > capacity:
                self._move(allowed)
            elif self.end == capacity:
                self._shift()
        elif self.start and (unread <= _CHEAP_MOVE_BYTES or self.start + needed_bytes > capacity):
            self._shift()

    def release(self) -> None:
        """Give an own buffer back; nothing may be left in it."""
        assert self.start == self.end, (self.start, self.end)
        if self.is_own:
            self._pool.owned_bytes -= len(self.view)
            self.view, self.is_own = self._pool.shared, False
            self.start = self.end = 0

    def discard(self) -> None:
        """Forget everything: the connection is closed."""
        self.start = self.end = 0
        self.release()

    def _allowed(self, unread: int, needed_bytes: int, least: int) -> int:
        """The capacity for `needed_bytes` of which `unread` have arrived."""
        return max(min(needed_bytes, unread * GROWTH_FACTOR), least)

    def _move(self, capacity: int) -> None:
        view = memoryview(bytearray(capacity))
        unread = self.end - self.start
        view[:unread] = self.view[self.start : self.end]
        self._pool.owned_bytes += capacity - (len(self.view) if self.is_own else 0)
        self.view, self.is_own = view, True
        self.start, self.end = 0, unread

    def _shift(self) -> None:
        """Move what is unread to the front (an overlapping move is fine with memoryviews)."""
        unread = self.end - self.start
        self.view[:unread] = self.view[self.start : self.end]
        self.start, self.end = 0, unread
