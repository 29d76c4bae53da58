"""The metadata of one partition's copies in memory: which copy holds an offset of a leader epoch (KIP-405, "RLMM").

A segment belongs to each leader epoch that has records in it. After an unclean election two branches of the
log may be in the remote tier; a reader asks by (epoch, offset), with the epoch from its own lineage, and gets
a copy of its own branch.

For each epoch the cache keeps the *referenced* copies: finished ones, in the order of their offsets, none of which lies
within another one. The remaining copies are unreferenced: not finished, being deleted, or contained in a
referenced one.

    two leaders copied, with different segment boundaries:
        S0 [10, 90)   S1 [5, 100)         -> S1 is referenced; S0, which lies within it, is not
        S0 [0, 200)   S1 [0, 100), later  -> S0 stays referenced; Kafka replaces it by S1, and finds nothing at 150
    S1 of the first row is deleted        -> S0 is referenced again

Source: RemoteLogMetadataCache and RemoteLogLeaderEpochState of Kafka 4.3.1. Differs: as said above; and a
copy that another one replaces at the same start offset stays listed, so that it is deleted one day.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import lt
from typing import Self, assert_never
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import MAX_OFFSET
from ottla.remote.column_codec import ColumnReader, ColumnWriter
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError
from ottla.remote.lineage import epoch_bounds, is_within
from ottla.remote.segment_columns import SegmentColumns
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
    is_segment_transition,
)
from ottla.storage.leader_epoch_cache import EpochEntry


class IllegalStateTransition(RemoteStorageError):
    """A record's new state does not follow its copy's state in the diagram of `ottla.remote.segment_metadata`."""


class _Epoch:
    """The copies of one leader epoch. Invariant: starts and ends of the referenced ones grow."""

    __slots__ = ("end_offset", "ends", "removed", "size_bytes", "slots", "starts", "unreferenced")

    def __init__(self) -> None:
        self.starts = array("q")
        self.ends = array("q")
        self.slots = array("i")
        self.unreferenced: set[int] = set()
        #: The largest end of all copies that were ever finished; the deletion of a copy does not lower it.
        self.end_offset: int | None = None
        #: (start, end) of the offsets that were deleted with referenced copies, and that no other copy had;
        #: ranges that meet are joined, so that there is mostly one.
        self.removed: tuple[tuple[int, int], ...] = ()
        self.size_bytes = 0

    def reference(self, slot: int, start: int, end: int) -> None:
        """Reference a finished copy that has [start, end) of this epoch, unless one copy has all of it."""
        first = bisect_left(self.starts, start)
        if first and self.ends[first - 1] >= end:
            return
        if first < len(self.starts) and self.starts[first] == start and self.ends[first] >= end:
            return
        last = bisect_right(self.ends, end)
        for contained in self.slots[first:last]:
            self.unreferenced.add(contained)
        last = max(first, last)
        self.starts[first:last] = array("q", (start,))
        self.ends[first:last] = array("q", (end,))
        self.slots[first:last] = array("i", (slot,))
        self.unreferenced.discard(slot)
        # A copy within another one would hide it from readers, and retention would count its bytes twice.
        for column in (self.starts, self.ends):
            neighbours = column[max(first - 1, 0) : first + 2]
            assert sorted(set(neighbours)) == list(neighbours), neighbours

    def dereference(self, slot: int, start: int) -> bool:
        """Stop referencing a copy that is going to be deleted; return whether it was referenced."""
        at = bisect_left(self.starts, start)
        was_referenced = at < len(self.slots) and self.slots[at] == slot
        if was_referenced:
            del self.starts[at], self.ends[at], self.slots[at]
        self.unreferenced.add(slot)
        return was_referenced

    def remove(self, start: int, end: int) -> None:
        """Record that a copy that had [start, end) is deleted, and no other one has all of it."""
        assert start < end, (start, end)
        apart = [each for each in self.removed if each[1] < start or end < each[0]]
        joined = [(start, end), *(each for each in self.removed if each not in apart)]
        self.removed = tuple(sorted([*apart, (min(joined)[0], max(last for _, last in joined))]))

    def covered_until(self, offset: int) -> int:
        """Return the end of the offsets from `offset` on that referenced copies have without a gap; if none,
        `offset`.
        """
        at = bisect_right(self.starts, offset) - 1
        while 0 <= at < len(self.ends) and self.starts[at] <= offset:
            offset = max(offset, self.ends[at])
            at += 1
        return offset

    def size_within(
        self, columns: SegmentColumns, *, start: int, end: int, after: int, several: set[int]
    ) -> int:
        """Return the size of the referenced copies within [start, end) that end behind `after`.

        Copies of several epochs are not counted, but added to `several`.
        """
        others = columns.with_several_epochs(self.slots)
        several |= others
        first = max(bisect_left(self.starts, start), bisect_right(self.ends, after))
        slots = self.slots[first : bisect_right(self.ends, end)]
        return columns.total_bytes((each for each in slots if each not in others) if others else slots)

    def floor(self, offset: int) -> int | None:
        """Return the referenced copy that holds `offset`; None: there is none.

        Ends grow with starts: the last one that starts before decides.
        """
        at = bisect_right(self.starts, offset) - 1
        return self.slots[at] if at >= 0 and offset < self.ends[at] else None


class RemoteLogMetadataCache:
    """The copies of one partition in every state, found by leader epoch and offset.

    Not thread-safe: belongs to the event loop.
    """

    def __init__(self, partition: TopicIdPartition) -> None:
        self._columns = SegmentColumns(partition)
        self._epochs: dict[int, _Epoch] = {}
        self._finished_bytes = 0

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def had_copies(self) -> bool:
        """Whether there is, or was, a copy in any state."""
        return bool(self._epochs)

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Add a copy that begins; a repetition is ignored. Raises IllegalStateTransition."""
        slot = self._columns.find(metadata.segment_id.id)
        old = None if slot is None else self._columns.state(slot)
        _check(metadata, old, metadata.state)
        if slot is not None:
            return
        slot = self._columns.add(metadata)
        for epoch, _, _ in self._columns.epoch_ranges(slot):
            state = self._epochs.setdefault(epoch, _Epoch())
            state.unreferenced.add(slot)
            state.size_bytes += metadata.segment_size_bytes

    def restore(self, copy: RemoteLogSegmentMetadata) -> None:
        """Add a copy in any state. Raises IllegalStateTransition for one that is in the cache already."""
        self.add(replace(copy, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
        if copy.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            self.update(
                RemoteLogSegmentMetadataUpdate(
                    segment_id=copy.segment_id,
                    state=copy.state,
                    broker_id=copy.broker_id,
                    event_timestamp_ms=copy.event_timestamp_ms,
                    custom_metadata=copy.custom_metadata,
                )
            )

    def to_bytes(self) -> bytes:
        """Return the encoded cache, for a snapshot: 95 bytes for each copy."""
        writer = ColumnWriter()
        self._columns.put_into(writer)
        epochs = self._epochs.values()
        writer.put(array("q", (self._finished_bytes,)))
        writer.put(array("i", self._epochs))
        # -1 stands for None, in the file only.
        writer.put(array("q", (-1 if each.end_offset is None else each.end_offset for each in epochs)))
        writer.put(array("q", (each.size_bytes for each in epochs)))
        for each in epochs:
            writer.put(each.starts)
            writer.put(each.ends)
            writer.put(each.slots)
            writer.put(array("i", each.unreferenced))
            writer.put(array("q", chain.from_iterable(each.removed)))
        return writer.finished()

    @classmethod
    def from_bytes(cls, partition: TopicIdPartition, data: memoryview) -> Self:
        """Return the cache that `to_bytes` has encoded. Raises ValueError."""
        reader = ColumnReader(data)
        found = cls(partition)
        found._columns = SegmentColumns.read_from(partition, reader)
        (found._finished_bytes,) = reader.integers("q", 1)
        numbers = reader.integers("i")
        ends, sizes = (reader.integers("q", len(numbers)) for _ in range(2))
        for number, end, size in zip(numbers, ends, sizes, strict=True):
            epoch = found._epochs[number] = _Epoch()
            epoch.end_offset = None if end == -1 else end
            epoch.size_bytes = size
            epoch.starts = reader.integers("q")
            epoch.ends = reader.integers("q", len(epoch.starts))
            epoch.slots = reader.integers("i", len(epoch.starts))
            epoch.unreferenced = set(reader.integers("i"))
            removed = reader.integers("q")
            epoch.removed = tuple(zip(removed[::2], removed[1::2], strict=True))
        reader.finish()
        found._check_restored()
        return found

    def _check_restored(self) -> None:
        """Raise ValueError unless epochs and columns fit: a file may have any content. Cost: 0.5 us for each copy."""
        for number, epoch in self._epochs.items():
            for column in (epoch.starts, epoch.ends):
                if not all(map(lt, column, column[1:])):
                    raise ValueError(f"the copies of epoch {number} are not in order")
            bounds = list(chain.from_iterable(epoch.removed))
            if not all(map(lt, bounds, bounds[1:])):
                raise ValueError(f"the deleted copies of epoch {number} are not in order")
            self._columns.check_referenced(number, epoch.slots, epoch.starts, epoch.ends)
            self._columns.check_unreferenced(number, epoch.unreferenced)
        if not self._columns.epoch_numbers() <= self._epochs.keys():
            raise ValueError("copies of an epoch that is missing")
        if (finished_bytes := self._columns.finished_bytes()) != self._finished_bytes:
            raise ValueError(
                f"finished copies of {finished_bytes} bytes, and a column says {self._finished_bytes}"
            )

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Change the state of a copy. Raises RemoteResourceNotFound for an unknown one, and IllegalStateTransition."""
        slot = self._check(update)
        old = self._columns.state(slot)
        self._columns.replace(slot, self._columns[slot].updated(update))
        if old is update.state:
            return
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            self._finished_bytes += self._columns.size_bytes(slot)
        elif old is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            self._finished_bytes -= self._columns.size_bytes(slot)
        # Retention would delete too much by a size that is too large, and nothing by one that is too small.
        assert self._finished_bytes >= 0, (update, self._finished_bytes)
        for epoch, start, end in self._columns.epoch_ranges(slot):
            self._apply(update.state, epoch, slot, start, end)
        if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self._columns.remove(slot)

    def check(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Raise the error that `update` would raise."""
        self._check(update)

    def _check(self, update: RemoteLogSegmentMetadataUpdate) -> int:
        slot = self._columns.find(update.segment_id.id)
        if slot is None:
            raise RemoteResourceNotFound(f"{update.segment_id} is unknown; {update.state.name} is ignored")
        _check(update, self._columns.state(slot), update.state)
        return slot

    def _apply(self, new: RemoteLogSegmentState, epoch: int, slot: int, start: int, end: int) -> None:
        state = self._epochs[epoch]
        match new:
            case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                state.reference(slot, start, end)
                state.end_offset = max(end, state.end_offset or 0)
            case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                was_referenced = state.dereference(slot, start)
                self._reference_contained(epoch, slot)
                if was_referenced and state.covered_until(start) < end:
                    state.remove(start, end)
            case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                state.unreferenced.discard(slot)
                state.size_bytes -= self._columns.size_bytes(slot)
            case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                raise AssertionError(f"{slot=} began twice")
            case _:
                assert_never(new)

    def _reference_contained(self, epoch: int, deleted: int) -> None:
        """Reference the copies again that only the deleted one contained."""
        state = self._epochs[epoch]
        for slot in sorted(state.unreferenced - {deleted}):
            if self._columns.state(slot) is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                for found, start, end in self._columns.epoch_ranges(slot):
                    if found == epoch:
                        state.reference(slot, start, end)

    def find(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return the copy with this id, in any state; None: it is unknown, or deleted."""
        slot = self._columns.find(segment_id.id)
        return None if slot is None else self._columns[slot]

    def with_id(self, segment_id: UUID) -> RemoteLogSegmentMetadata | None:
        """Return the copy with this UUID, in any state; None: it is unknown, or deleted."""
        slot = self._columns.find(segment_id)
        return None if slot is None else self._columns[slot]

    def segment_ids(self) -> Iterator[UUID]:
        """Iterate over the ids of all copies as of the call. Cost: 17 bytes for each copy, then 1 us for each."""
        return self._columns.segment_ids()

    def segment(self, *, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the finished copy that holds `offset` of `epoch`; None: there is none. Cost: O(log n)."""
        state = self._epochs.get(epoch)
        slot = None if state is None else state.floor(offset)
        return None if slot is None else self._columns[slot]

    def covered_until(self, *, epoch: int, offset: int) -> int:
        """Return the end, exclusive, of the offsets from `offset` on that finished copies have of `epoch`
        without a gap.

        `offset` itself if no copy holds it. Cost: O(copies behind `offset`), 0.1 us each.
        """
        state = self._epochs.get(epoch)
        return offset if state is None else state.covered_until(offset)

    def next_segment_with_transaction_index(
        self, *, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the first referenced copy that ends behind `offset` and has a transaction index (KIP-1058)."""
        state = self._epochs.get(epoch)
        if state is not None:
            for at in range(bisect_right(state.ends, offset), len(state.slots)):
                if self._columns.has_transaction_index(state.slots[at]):
                    return self._columns[state.slots[at]]
        return None

    def end_offset_for_epoch(self, epoch: int) -> int | None:
        """Return the end, exclusive, of the offsets of `epoch` that were ever copied; None: nothing was."""
        state = self._epochs.get(epoch)
        return None if state is None else state.end_offset

    def removed_until(self, epoch: int, end_offset: int = MAX_OFFSET) -> int | None:
        """Return the end, exclusive, of the copies of an epoch that were deleted, as their records say; None: none was.

        The epoch ends at `end_offset` in the log: copies that have nothing before, as those of a lost branch,
        do not count, nor does one that another one contained. Offsets before the result that no copy has were
        deleted, not lost.
        """
        state = self._epochs.get(epoch)
        ends = () if state is None else (end for start, end in state.removed if start < end_offset)
        return max((min(end, end_offset) for end in ends), default=None)

    def removed_before_epoch(self, epoch: int) -> int | None:
        """Return the end, exclusive, of the copies of all epochs up to `epoch` that were deleted; None: none was."""
        ends = (self.removed_until(known) for known in self._epochs if known <= epoch)
        return max((each for each in ends if each is not None), default=None)

    def segments(self, epoch: int | None = None) -> Iterator[RemoteLogSegmentMetadata]:
        """Return all copies, or those of one epoch, by start offset; made one by one, as the caller asks for them."""
        if epoch is None:
            slots = list(self._columns)
        elif (state := self._epochs.get(epoch)) is not None:
            slots = [*state.slots, *state.unreferenced]
        else:
            return iter(())
        slots.sort(key=self._columns.start_offset)
        return map(self._columns.__getitem__, slots)

    def referenced(self, epoch: int) -> Iterator[RemoteLogSegmentMetadata]:
        """Return the copies of an epoch that readers get, by start offset."""
        state = self._epochs.get(epoch)
        return iter(()) if state is None else map(self._columns.__getitem__, list(state.slots))

    def unreferenced(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Return the copies that are not finished, being deleted, or contained in another one in at least one epoch."""
        slots = {slot for state in self._epochs.values() for slot in state.unreferenced}
        return map(self._columns.__getitem__, sorted(slots))

    def outside(self, lineage: Sequence[EpochEntry]) -> Iterator[RemoteLogSegmentMetadata]:
        """Return the referenced copies with a record that a log of this lineage does not have, by start offset.

        `lineage` has no empty epochs. Cost: O(epochs + those copies).
        """
        bounds = epoch_bounds(lineage)
        slots: set[int] = set()
        for epoch, state in self._epochs.items():
            start, end = bounds.get(epoch, (MAX_OFFSET, MAX_OFFSET))
            slots.update(state.slots[: bisect_left(state.starts, start)])
            slots.update(state.slots[bisect_right(state.ends, end) :])
        return map(self._columns.__getitem__, sorted(slots, key=self._columns.start_offset))

    def bytes_within(
        self, lineage: Sequence[EpochEntry], *, log_start_offset: int, log_end_offset: int
    ) -> int:
        """Return the bytes of the referenced copies that end behind the log start, and are part of the log
        with this lineage.

        `lineage` is not empty, and has no empty epochs (`lineage.is_within`). Cost: 0.1 us for each copy of
        one epoch, 10 us for one of several.
        """
        ends = [*(entry.start_offset for entry in lineage[1:]), log_end_offset]
        size, several = 0, set[int]()
        for (epoch, start), end in zip(lineage, ends, strict=True):
            if (state := self._epochs.get(epoch)) is None:
                continue
            size += state.size_within(
                self._columns,
                start=start if epoch != lineage[0].epoch else 0,
                end=min(end, log_end_offset),
                after=log_start_offset,
                several=several,
            )
        for slot in several:
            copy = self._columns[slot]
            if copy.end_offset > log_start_offset and is_within(copy, lineage, log_end_offset=log_end_offset):
                size += copy.segment_size_bytes
        return size

    def is_referenced(self, copy: RemoteLogSegmentMetadata) -> bool:
        """Whether a reader of any epoch may get this copy."""
        slot = self._columns.find(copy.segment_id.id)
        return slot is not None and any(
            slot not in self._epochs[epoch].unreferenced for epoch, _, _ in self._columns.epoch_ranges(slot)
        )

    @property
    def finished_bytes(self) -> int:
        """The size of all finished copies, also of other branches and duplicates."""
        return self._finished_bytes

    def size_bytes(self, epoch: int) -> int:
        """Return the size of all segments that have records of `epoch`."""
        state = self._epochs.get(epoch)
        return 0 if state is None else state.size_bytes


def _check(
    record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate,
    old: RemoteLogSegmentState | None,
    new: RemoteLogSegmentState,
) -> None:
    if not is_segment_transition(old, new):
        was = "unknown" if old is None else old.name
        raise IllegalStateTransition(f"{record.segment_id} is {was}: {new.name} is refused")
