"""What waits for its flush, where two flushes may run at a time, beside the event loop that changes more."""


class Changes:
    """Counts the changes of something that is flushed as a whole, and how many of them are on the disk.

    Not a flag: the flush that took it down before it has waited for the disk would let another one believe that all is
    there; and the one that took it down afterwards would hide what has changed meanwhile.
    """

    __slots__ = ("_flushed_count", "count")

    def __init__(self, count: int = 0) -> None:
        #: All so far. A flush reads it before it looks at anything else.
        self.count = count
        self._flushed_count = 0

    def note(self) -> None:
        """Something has changed: to be said afterwards, since a flush beside the change may have come too early for it."""
        self.count += 1

    @property
    def are_flushed(self) -> bool:
        """Whether all are on the disk. [any thread]"""
        return self._flushed_count >= self.count

    def note_flushed(self, count: int) -> None:
        """So many are on the disk, by a flush that has read `count` before it began. [any thread]"""
        # Two flushes that end at once may leave the lower count: that costs another flush, and loses nothing.
        self._flushed_count = max(self._flushed_count, count)
