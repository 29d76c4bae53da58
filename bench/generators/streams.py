"""Sequences of each stream that were seen in each partition: distinct ones, duplicates, and those out of order."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ottla.bench.generators.records import Stamps, shown_stream
from ottla.bench.generators.rows import Kind, Row
from ottla.bench.generators.tally import Tally


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
        #: The number of sequences that came for the first time after a larger one.
        self.out_of_order = 0

    @property
    def first(self) -> int:
        """The smallest sequence that was seen."""
        return self._starts[0]

    @property
    def next(self) -> int:
        """The sequence after the largest one."""
        return self._ends[-1]

    @property
    def distinct(self) -> int:
        """The number of different sequences."""
        return sum(self._ends) - sum(self._starts)

    def note(self, sequences: npt.NDArray[np.int64]) -> None:
        """Note sequences in the order in which they came. Cost: O(log n) for each run of consecutive ones."""
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


class Streams:
    """The sequences of all streams that a reader has seen."""

    def __init__(self) -> None:
        #: (stream, partition) -> its sequences.
        self._seen: dict[tuple[int, int], Seen] = {}
        #: Partition -> records whose CRC is wrong.
        self._corrupt: dict[int, int] = {}

    def note(self, stamps: Stamps, partitions: npt.NDArray[np.int64]) -> None:
        """Note values in the order in which they came, each with its partition."""
        for partition in partitions[~stamps.is_valid].tolist():
            self._corrupt[partition] = self._corrupt.get(partition, 0) + 1
        partitions = partitions[stamps.is_valid]
        if not len(partitions):
            return
        streams, sequences = stamps.streams, stamps.sequences
        # Stable: the order in each partition remains.
        order = np.lexsort((streams, partitions))
        streams, partitions, sequences = streams[order], partitions[order], sequences[order]
        is_new = (np.diff(streams) != 0) | (np.diff(partitions) != 0)
        breaks = (np.flatnonzero(is_new) + 1).tolist()
        for first, end in zip([0, *breaks], [*breaks, len(sequences)], strict=True):
            key = (int(streams[first]), int(partitions[first]))
            self._seen.setdefault(key, Seen()).note(sequences[first:end])

    def rows(self, tally: Tally) -> Iterator[Row]:
        """Yield a row for each stream in each partition, and one for the corrupt records of a partition."""
        for (stream, partition), seen in self._seen.items():
            yield tally.row(
                Kind.STREAM,
                partition=partition,
                stream=shown_stream(stream),
                first_sequence=seen.first,
                next_sequence=seen.next,
                distinct_records=seen.distinct,
                duplicates=seen.duplicates,
                out_of_order=seen.out_of_order,
                corrupt=0,
            )
        for partition, count in self._corrupt.items():
            # Whose they were is not known: no byte of them may be relied on.
            yield tally.row(Kind.STREAM, partition=partition, corrupt=count)


def joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Join the rows of several tasks about the same streams: one row for each stream in each partition.

    A record that two tasks have seen is a duplicate: there are at least as many as are seen beyond what their
    ranges have room for. Without that, what one task reads twice would make up for what another one misses.
    """
    by_stream: dict[tuple[str | None, int | None], list[Row]] = {}
    for row in rows:
        if row.kind is Kind.STREAM and row.stream is not None:
            by_stream.setdefault((row.stream, row.partition), []).append(row)
        else:
            yield row
    for parts in by_stream.values():
        ranges = sorted((part.first_sequence or 0, part.next_sequence or 0) for part in parts)
        room = end = 0
        for first, following in ranges:
            room += max(0, following - max(first, end))
            end = max(end, following)
        seen = sum(part.distinct_records or 0 for part in parts)
        yield replace(
            parts[0],
            first_sequence=ranges[0][0],
            next_sequence=end,
            distinct_records=min(seen, room),
            duplicates=sum(part.duplicates or 0 for part in parts) + max(0, seen - room),
            out_of_order=sum(part.out_of_order or 0 for part in parts),
        )
