"""Which sequences of one stream were seen in one partition: distinct ones, duplicates, and those out of order."""

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt


class Seen:
    """Sequences as disjoint ranges: usually one.

    >>> seen = Seen()
    >>> for sequences in ([5, 6, 7], [9], [7, 8], [20]):
    ...     seen.note(np.array(sequences))
    >>> seen.first, seen.next, seen.distinct, seen.duplicates, seen.out_of_order
    (5, 21, 6, 1, 1)
    """

    def __init__(self) -> None:
        # Sorted; the range at i is [starts[i], ends[i]), and ends[i] < starts[i + 1].
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.duplicates = 0
        #: Sequences that came for the first time after a larger one.
        self.out_of_order = 0

    @property
    def first(self) -> int:
        """The smallest one."""
        return self._starts[0]

    @property
    def next(self) -> int:
        """One after the largest."""
        return self._ends[-1]

    @property
    def distinct(self) -> int:
        """How many different ones."""
        return sum(self._ends) - sum(self._starts)

    def note(self, sequences: npt.NDArray[np.int64]) -> None:
        """In the order in which they came. Cost: O(log n) for each run of consecutive ones."""
        breaks = (np.flatnonzero(np.diff(sequences) != 1) + 1).tolist()
        for first, end in zip([0, *breaks], [*breaks, len(sequences)], strict=True):
            self._note_range(int(sequences[first]), int(sequences[end - 1]) + 1)

    def _note_range(self, start: int, end: int) -> None:
        if self._ends and start == self._ends[-1]:
            self._ends[-1] = end
            return
        largest = self._ends[-1] if self._ends else start
        # The ranges that touch [start, end).
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        touched = list(zip(self._starts[low:high], self._ends[low:high], strict=True))
        known = sum(max(0, min(end, theirs) - max(start, begin)) for begin, theirs in touched)
        late = max(0, min(end, largest) - start)
        self.duplicates += known
        self.out_of_order += max(0, late - known)
        self._starts[low:high] = [min([start, *(begin for begin, _ in touched)])]
        self._ends[low:high] = [max([end, *(theirs for _, theirs in touched)])]
