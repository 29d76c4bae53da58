"""Counts changes that wait for a flush, where two flushes may run at a time while the event loop makes more changes."""


class Changes:
    """Counts the changes of something that is flushed as a whole, and how many of them are on the disk.

    A flag is not enough: if a flush cleared it before its fsync, a concurrent flush would believe that all is on the
    disk; if it cleared it after its fsync, it would hide changes that were made meanwhile.
    """

    __slots__ = ("_flushed_count", "count")

    def __init__(self, count: int = 0) -> None:
        #: All changes so far. A flush reads it before anything else.
        self.count = count
        self._flushed_count = 0

    def note(self) -> None:
        """Count a change. Called after the change, as a concurrent flush may have run too early to include it."""
        self.count += 1

    @property
    def are_flushed(self) -> bool:
        """Whether all changes are on the disk. [any thread]"""
        return self._flushed_count >= self.count

    def note_flushed(self, count: int) -> None:
        """The first `count` changes are on the disk, by a flush that read `count` before it began. [any thread]"""
        # Two flushes that end at once may leave the lower count: that costs one more flush, and loses nothing.
        self._flushed_count = max(self._flushed_count, count)
