"""FlushCounter: whether all changes of a file or directory are on the disk, while a flush runs beside new changes."""


class FlushCounter:
    """Counts the changes of something that is flushed as a whole, and how many of them are on the disk.

    A flag is not enough: if a flush cleared it before its fsync, a concurrent flush would believe that all is on the
    disk; if it cleared it after its fsync, it would hide changes that were made meanwhile. So a flush reads
    `change_count`, calls fsync, and then `on_flushed` with the number that it has read.

    Invariant: neither number ever decreases; a truncation is one more change.
    """

    __slots__ = ("_flushed_count", "change_count")

    def __init__(self, change_count: int = 0) -> None:
        #: All changes so far. A flush reads it before anything else.
        self.change_count = change_count
        self._flushed_count = 0

    def on_change(self) -> None:
        """Count a change. Called after the change, as a concurrent flush may have run too early to include it."""
        self.change_count += 1

    @property
    def all_flushed(self) -> bool:
        """Whether all changes are on the disk. [any thread]"""
        return self._flushed_count >= self.change_count

    def on_flushed(self, change_count: int) -> None:
        """Record that the first `change_count` changes are on the disk; a flush reads the number before it
        begins. [any thread]
        """
        assert change_count <= self.change_count, (change_count, self.change_count)
        # Two flushes that end at once may leave the lower count: that costs one more flush, and loses nothing.
        self._flushed_count = max(self._flushed_count, change_count)
