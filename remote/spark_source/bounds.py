"""Bounds: the ranges of offsets, partitions and times that the filters of a query leave.

They are used to leave out records that cannot match: Spark evaluates all filters again. So a filter that is not
understood here costs time only. An upper bound of the time leaves out nothing: later records may be older (CreateTime).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from ottla.protocol.types import MAX_OFFSET

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Comparison(Enum):
    """The operator by which a filter compares a column with values."""

    ONE_OF = "in"
    AT_LEAST = ">="
    MORE = ">"
    AT_MOST = "<="
    LESS = "<"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A condition of a query on one column: one value, or several of ONE_OF."""

    column: str
    comparison: Comparison
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The topics, partitions, offsets and times of records that may match."""

    #: The topics and partitions that may match; None: all.
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    #: The end, exclusive.
    end_offset: int = MAX_OFFSET
    min_timestamp_ms: int | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Whether records of this partition may match."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def within(self, filters: Iterable[Filter]) -> "Bounds":
        """Return these bounds, narrowed by all of the filters."""
        found = self
        for each in filters:
            found = found._within(each)
        return found

    def _within(self, condition: Filter) -> "Bounds":
        comparison = condition.comparison
        is_equal = comparison is Comparison.ONE_OF
        values = condition.values
        texts = frozenset(each for each in values if isinstance(each, str))
        numbers = frozenset(each for each in values if isinstance(each, int))
        times = [each for each in values if isinstance(each, datetime) and each.tzinfo is not None]
        match condition.column:
            case "topic" if is_equal and len(texts) == len(set(values)):
                return replace(self, topics=texts if self.topics is None else texts & self.topics)
            case "partition" if is_equal and len(numbers) == len(set(values)):
                return replace(
                    self, partitions=numbers if self.partitions is None else numbers & self.partitions
                )
            case "offset" if numbers and len(numbers) == len(set(values)):
                return self._within_offsets(comparison, min(numbers), max(numbers))
            case "timestamp" if times and len(times) == len(values):
                return self._within_times(comparison, min(times))
            case _:
                return self

    def _within_offsets(self, comparison: Comparison, least: int, most: int) -> "Bounds":
        start, end = self.start_offset, self.end_offset
        match comparison:
            case Comparison.ONE_OF:
                start, end = max(start, least), min(end, most + 1)
            case Comparison.AT_LEAST:
                start = max(start, least)
            case Comparison.MORE:
                start = max(start, least + 1)
            case Comparison.AT_MOST:
                end = min(end, most + 1)
            case Comparison.LESS:
                end = min(end, most)
        return replace(self, start_offset=start, end_offset=end)

    def _within_times(self, comparison: Comparison, least: datetime) -> "Bounds":
        if comparison in (Comparison.AT_MOST, Comparison.LESS):
            return self
        # Spark's timestamps have microseconds, records have milliseconds.
        least_ms = (least - _EPOCH) // _MILLISECOND
        known = self.min_timestamp_ms
        return replace(self, min_timestamp_ms=least_ms if known is None else max(known, least_ms))
