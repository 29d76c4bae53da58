"""The segments of one log, by base offset (Kafka's LogSegments): never empty, immutable.

A change makes a new object, so that a thread that reads while the event loop rolls or deletes keeps the
segments that it has: their files stay for `file.delete.delay.ms`.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from ottla.storage.segment import Segment


class Segments:
    """Segments in offset order; the last one is the active one."""

    __slots__ = ("_bases", "_closed_bytes", "_items", "active", "first")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._items = tuple(sorted(segments, key=lambda segment: segment.base_offset))
        self._bases = tuple(segment.base_offset for segment in self._items)
        assert self._items, "a log has at least one segment"
        assert len(set(self._bases)) == len(self._bases), self._bases
        assert self._bases[0] >= 0, self._bases
        #: The oldest segment.
        self.first = self._items[0]
        #: The newest segment, the only one that is written. Not a property: each append and each read asks for it.
        self.active = self._items[-1]
        #: Size of all others, which does not change; None: not asked for yet.
        self._closed_bytes: int | None = None

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[Segment]:
        return reversed(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, segment: Segment) -> bool:
        return self.floor(segment.base_offset) is segment

    @property
    def closed(self) -> tuple[Segment, ...]:
        """All segments except the active one."""
        return self._items[:-1]

    def floor(self, offset: int) -> Segment | None:
        """The segment that would hold `offset`; None before the first one."""
        after = bisect_right(self._bases, offset)
        return self._items[after - 1] if after else None

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segment that would hold `offset` and all after it."""
        return self._items[max(bisect_right(self._bases, offset) - 1, 0) :]

    def end_of(self, segment: Segment) -> int | None:
        """Base offset of the next segment; None for the active one."""
        after = bisect_right(self._bases, segment.base_offset)
        return self._bases[after] if after < len(self._bases) else None

    def without(self, removed: Iterable[Segment]) -> tuple[Segment, ...]:
        """All segments except these."""
        bases = {segment.base_offset for segment in removed}  # a set, as thousands may be removed at once
        return tuple(segment for segment in self._items if segment.base_offset not in bases)

    @property
    def size_bytes(self) -> int:
        """Size of all batches. Cost: O(1), but for the first call."""
        if self._closed_bytes is None:
            self._closed_bytes = sum(segment.size for segment in self.closed)
        return self._closed_bytes + self.active.size
