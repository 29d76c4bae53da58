"""What is done next to delete all copies of a partition whose topic is deleted (KIP-405, "Remote partition removers").

    (none) --> MARKED --> STARTED --> while there are copies: delete them --> FINISHED

    a copy that is                is treated so
    COPY_SEGMENT_FINISHED or      deleted: DELETE_SEGMENT_STARTED, its objects, DELETE_SEGMENT_FINISHED
    DELETE_SEGMENT_STARTED
    COPY_SEGMENT_STARTED          its objects are removed at once; and as above, when `unfinished_ms` have passed since
                                  this remover has first seen it

A copy that is not finished may still be written, by a leader that does not know of the deletion yet, or whose store is slow:
what was removed may be there again. Its record stays until no transfer lasts any longer, so that also the next remover finds
it. That time is measured on the remover's own clock: the copy's timestamp is of another broker's.

Everything that has to survive is in the topic `__remote_log_metadata`: a remover that ends is followed by another one, on any
broker, which repeats at most one step of each copy. Invariant: an object is written only after the record of its copy, and
that record is removed only after the objects are, the last time after all writes.

Source: KIP-405. Kafka 4.3.1 has the states and the record, and writes none: the leader that replays the topic's deletion deletes
once what it finds; what a broker that is down or a store that fails leaves is never deleted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from remote.segment_metadata import RemoteLogSegmentMetadata

#: Copies of a step: what a remover does before it reads the list again. A step is repeated if it is interrupted.
MAX_COPIES: Final = 100


@dataclass(slots=True, frozen=True, kw_only=True)
class WriteState:
    """Store the deletion's new state."""

    state: RemotePartitionDeleteState


@dataclass(slots=True, frozen=True, kw_only=True)
class DeleteCopies:
    """Delete each copy, and store its states DELETE_SEGMENT_STARTED and DELETE_SEGMENT_FINISHED."""

    copies: Sequence[RemoteLogSegmentMetadata]


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoveObjects:
    """Remove what is there of each copy, and store nothing; `PartitionDeletion.on_removed` follows."""

    copies: Sequence[RemoteLogSegmentMetadata]


@dataclass(slots=True, frozen=True, kw_only=True)
class Wait:
    """Copies may still be written; continue at this time."""

    until_ms: int


Step = WriteState | DeleteCopies | RemoveObjects | Wait


class PartitionDeletion:
    """The decisions of one remover for one partition. `now_ms` is of a monotonic clock."""

    def __init__(self, *, unfinished_ms: int) -> None:
        """`unfinished_ms`: the longest time that a copy is written after its partition is deleted."""
        self._unfinished_ms = unfinished_ms
        #: When each unfinished copy was first seen.
        self._seen_ms: dict[UUID, int] = {}
        #: Unfinished copies whose objects were removed once.
        self._removed: set[UUID] = set()

    def next_step(
        self,
        state: RemotePartitionDeleteState | None,
        copies: Sequence[RemoteLogSegmentMetadata],
        *,
        now_ms: int,
    ) -> Step:
        """The next step, from the partition's state and all its copies as of the topic's records."""
        if state is not RemotePartitionDeleteState.DELETE_PARTITION_STARTED:
            return WriteState(state=_next_state(state))
        unfinished = [each for each in copies if _is_unfinished(each)]
        self._keep({each.segment_id.id for each in unfinished}, now_ms)
        due = [each for each in copies if self._due_ms(each) <= now_ms][:MAX_COPIES]
        if due:
            return DeleteCopies(copies=due)
        remaining = [each for each in unfinished if each.segment_id.id not in self._removed][:MAX_COPIES]
        if remaining:
            return RemoveObjects(copies=remaining)
        if unfinished:
            return Wait(until_ms=min(map(self._due_ms, unfinished)))
        return WriteState(state=RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)

    def on_removed(self, copies: Collection[RemoteLogSegmentMetadata]) -> None:
        """RemoveObjects has succeeded for these."""
        self._removed.update(each.segment_id.id for each in copies)

    def _due_ms(self, copy: RemoteLogSegmentMetadata) -> int:
        if not _is_unfinished(copy):
            return 0
        return self._seen_ms[copy.segment_id.id] + self._unfinished_ms

    def _keep(self, unfinished: set[UUID], now_ms: int) -> None:
        self._seen_ms = {each: self._seen_ms.get(each, now_ms) for each in unfinished}
        self._removed &= unfinished


def _is_unfinished(copy: RemoteLogSegmentMetadata) -> bool:
    return copy.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED


def _next_state(state: RemotePartitionDeleteState | None) -> RemotePartitionDeleteState:
    """After None, MARKED, or FINISHED: a leader that did not know of the deletion has copied another segment."""
    if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
        return RemotePartitionDeleteState.DELETE_PARTITION_STARTED
    return RemotePartitionDeleteState.DELETE_PARTITION_MARKED
