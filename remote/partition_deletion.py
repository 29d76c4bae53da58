"""The steps that delete all copies of a partition whose topic is deleted (KIP-405, "Remote partition removers").

    (none) --> MARKED --> STARTED --> while there are copies: delete them --> FINISHED

    a copy that is                is treated so
    COPY_SEGMENT_FINISHED or      deleted: DELETE_SEGMENT_STARTED, its objects, DELETE_SEGMENT_FINISHED
    DELETE_SEGMENT_STARTED
    COPY_SEGMENT_STARTED          its objects are removed at once; and as above, when `unfinished_ms` have passed since
                                  this remover has first seen it

A copy that is not finished may still be written, by a leader that does not know of the deletion yet, or whose
store is slow: what was removed may be there again. Its record stays until no transfer lasts any longer, so
that also the next remover finds it. That time is measured on the remover's own clock: the copy's timestamp is
of another broker's.

Everything that has to survive is in the topic `__remote_log_metadata`: a remover that ends is followed by
another one, on any broker, which repeats at most one step of each copy. Invariant: an object is written only
after the record of its copy, and that record is removed only after the objects are, the last time after all writes.

Source: KIP-405. Kafka 4.3.1 has the states and the record, and writes none: the leader that replays the
topic's deletion deletes once what it finds; what a broker that is down or a store that fails leaves is never deleted.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata

#: Copies of a step of either kind, and those that are read for it: 5 ms.
MAX_COPIES: Final = 100
MAX_LOOKED: Final = 1000
_NEVER_MS: Final = 2**63


@dataclass(slots=True, frozen=True, kw_only=True)
class WriteState:
    """Step: store the deletion's new state."""

    state: RemotePartitionDeleteState


@dataclass(slots=True, frozen=True, kw_only=True)
class DeleteCopies:
    """Step: delete these copies, then call `PartitionDeletion.on_removed`."""

    #: Copies to delete: store DELETE_SEGMENT_STARTED, remove the objects, store DELETE_SEGMENT_FINISHED.
    copies: Sequence[RemoteLogSegmentMetadata]
    #: Unfinished copies: remove the objects that there are, and store nothing.
    unfinished: Sequence[RemoteLogSegmentMetadata]


@dataclass(slots=True, frozen=True, kw_only=True)
class LookFurther:
    """Step: continue at once, in another turn of the loop; nothing is to be done for the copies that were read."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Wait:
    """Step: continue at `until_ms`, as copies may still be written."""

    until_ms: int


Step = WriteState | DeleteCopies | LookFurther | Wait


class Copies(Protocol):
    """All copies of the partition, by the records of `__remote_log_metadata`."""

    def __len__(self) -> int: ...

    def segment_ids(self) -> Iterator[UUID]:
        """Iterate over the ids of the copies that there are at the time of the call."""

    def with_id(self, segment_id: UUID) -> RemoteLogSegmentMetadata | None:
        """Return the copy with this id; None: there is none any more."""


@dataclass(slots=True, kw_only=True)
class _Unfinished:
    #: The time from which on no broker can write the copy any more.
    due_ms: int
    is_removed: bool = False


class PartitionDeletion:
    """Decides the steps of one remover for one partition. `now_ms` is of a monotonic clock.

    It goes through all copies in rounds, so that each is read a few times, however many there are; a step reads at most
    `MAX_LOOKED` of them. What has failed is tried again in the next round.
    """

    def __init__(self, *, unfinished_ms: int) -> None:
        """`unfinished_ms`: the longest time that a copy is written after its partition is deleted."""
        self._unfinished_ms = unfinished_ms
        #: The unfinished copies: of the round before, and of this one.
        self._known: dict[UUID, _Unfinished] = {}
        self._seen: dict[UUID, _Unfinished] = {}
        #: The ids of the round that are still to be read; None: a new round begins.
        self._round: Iterator[UUID] | None = None
        #: Whether this round has done something: another one follows.
        self._has_acted = False
        #: The earliest due time of this round's copies that are not due yet.
        self._first_due_ms = _NEVER_MS

    def next_step(self, state: RemotePartitionDeleteState | None, copies: Copies, *, now_ms: int) -> Step:
        """Return the next step, from the partition's state and all its copies by the topic's records."""
        if state is not RemotePartitionDeleteState.DELETE_PARTITION_STARTED:
            return WriteState(state=_next_state(state))
        due: list[RemoteLogSegmentMetadata] = []
        unfinished: list[RemoteLogSegmentMetadata] = []
        for _ in range(MAX_LOOKED):
            round_ = self._round or self._begin_round(copies)
            if (segment_id := next(round_, None)) is None:
                if due or unfinished:
                    break
                if not self._has_acted:
                    return self._at_the_end(copies)
                self._round = None
                continue
            if (copy := copies.with_id(segment_id)) is not None:
                self._look_at(copy, due, unfinished, now_ms)
            if max(len(due), len(unfinished)) >= MAX_COPIES:
                break
        if not due and not unfinished:
            return LookFurther()
        self._has_acted = True
        return DeleteCopies(copies=due, unfinished=unfinished)

    def _begin_round(self, copies: Copies) -> Iterator[UUID]:
        self._known, self._seen = self._seen, {}
        self._round = round_ = copies.segment_ids()
        self._has_acted = False
        self._first_due_ms = _NEVER_MS
        return round_

    def _at_the_end(self, copies: Copies) -> Step:
        """Return the step at the end of a round in which there was nothing to be done."""
        self._round = None
        if not len(copies):
            return WriteState(state=RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
        if not self._seen:
            return LookFurther()  # they were begun after the round
        return Wait(until_ms=self._first_due_ms)

    def _look_at(
        self,
        copy: RemoteLogSegmentMetadata,
        due: list[RemoteLogSegmentMetadata],
        unfinished: list[RemoteLogSegmentMetadata],
        now_ms: int,
    ) -> None:
        if copy.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            due.append(copy)
            return
        segment_id = copy.segment_id.id
        found = self._known.get(segment_id) or _Unfinished(due_ms=now_ms + self._unfinished_ms)
        self._seen[segment_id] = found
        if found.due_ms <= now_ms:
            due.append(copy)
            return
        self._first_due_ms = min(self._first_due_ms, found.due_ms)
        if not found.is_removed:
            unfinished.append(copy)

    def on_removed(self, copies: Collection[RemoteLogSegmentMetadata]) -> None:
        """Record that the objects of these unfinished copies are removed."""
        for each in copies:
            if (found := self._seen.get(each.segment_id.id)) is not None:
                found.is_removed = True


def _next_state(state: RemotePartitionDeleteState | None) -> RemotePartitionDeleteState:
    """Return STARTED after MARKED, else MARKED.

    After FINISHED, a leader that did not know of the deletion has copied another segment.
    """
    if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
        return RemotePartitionDeleteState.DELETE_PARTITION_STARTED
    return RemotePartitionDeleteState.DELETE_PARTITION_MARKED
