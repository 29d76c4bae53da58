"""ChunkMemory: memory for what is read from the remote tier at once, used again when no view of it is left.

A page that is touched for the first time costs a fault and is zeroed: 0.5 to 0.9 s of CPU for each GB on a virtual machine,
more than to receive the bytes and to verify them. So memory is used again, and has huge pages, with one fault for 2 MiB.

A view may live longer than its chunk is kept, as in a response that is being sent. Memory that has views cannot be resized,
which is how it is asked whether there are any.

Bound: what is in use, or LIMIT_BYTES. `trim` frees what is not in use.
"""

import mmap
from contextlib import suppress
from threading import Lock
from typing import Final, cast

LIMIT_BYTES: Final = 64 * 1024 * 1024
#: The sizes are powers of two from this one on; what needs less than half of it has memory of its own.
_MIN_BYTES: Final = 256 * 1024
#: None where the system is not Linux: there, memory cannot be asked for its views either.
_ADVICE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class ChunkMemory:
    """See the module. [any thread]"""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: list[mmap.mmap] = []

    @property
    def size_bytes(self) -> int:
        """What is in use, and what is kept to be used again."""
        return sum(map(len, self._blocks))

    def take(self, size_bytes: int) -> memoryview:
        """A writable view of some memory, with any content. Cost: 1 us, and as much for each block of this size in use."""
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
        """Free what is not in use."""
        with self._lock:
            self._blocks = [each for each in self._blocks if _has_views(each)]


def held_bytes(view: memoryview) -> int:
    """How much memory a view keeps from being used again."""
    return len(cast("bytes", view.obj))


def _has_views(block: mmap.mmap) -> bool:
    try:
        block.resize(len(block))  # to the same size: nothing changes
    except BufferError:
        return True
    return False
