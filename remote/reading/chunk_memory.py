"""ChunkMemory: memory for bytes that are read from the remote tier, used again when no view of it is left.

A page that is touched for the first time costs a fault and is zeroed: 0.5 to 0.9 s of CPU for each GB on a
virtual machine, more than to receive the bytes and to verify them. So memory is used again, and has huge
pages, with one fault for 2 MiB.

A view may live longer than its chunk is kept, as in a response that is being sent. Memory that has views cannot be
resized: a resize to the same size shows whether there are any.

Bound: the memory in use, or LIMIT_BYTES. `trim` frees memory that is not in use.
"""

import mmap
from contextlib import suppress
from threading import Lock
from typing import Final, cast

LIMIT_BYTES: Final = 64 * 1024 * 1024
#: The sizes are powers of two from this one on; a view of half of it or less has memory of its own.
_MIN_BYTES: Final = 256 * 1024
#: The advice to use huge pages; None where the system is not Linux: there, views of memory cannot be detected either.
_ADVICE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class ChunkMemory:
    """A pool of large blocks of memory, each of which is used again when no view of it is left. [any thread]"""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: list[mmap.mmap] = []

    @property
    def size_bytes(self) -> int:
        """The memory that is in use, and that is kept to be used again."""
        return sum(map(len, self._blocks))

    def take(self, size_bytes: int) -> memoryview:
        """Return a writable view of some memory, with any content.

        Cost: 1 us, and as much for each block of this size in use.
        """
        if _ADVICE is None or size_bytes <= _MIN_BYTES // 2:
            return memoryview(bytearray(size_bytes))
        wanted = max(_MIN_BYTES, 1 << (size_bytes - 1).bit_length())
        with self._lock:
            for block in self._blocks:
                if len(block) == wanted and not _has_views(block):
                    return memoryview(block)[:size_bytes]
            if self.size_bytes + wanted > LIMIT_BYTES:
                self._blocks = [each for each in self._blocks if _has_views(each)]
            block = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel without huge pages
                block.madvise(_ADVICE)
            self._blocks.append(block)
            return memoryview(block)[:size_bytes]

    def trim(self) -> None:
        """Free the memory of which no view is left."""
        with self._lock:
            self._blocks = [each for each in self._blocks if _has_views(each)]


def held_bytes(view: memoryview) -> int:
    """Return the size of the memory that a view keeps from being used again."""
    return len(cast("bytes", view.obj))


def _has_views(block: mmap.mmap) -> bool:
    try:
        block.resize(len(block))  # to the same size: nothing changes
    except BufferError:
        return True
    return False
