"""PartitionState: the state that the tasks of one partition keep between their runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.log_manager.segment_transfers import Transfer
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.tiered_partition import TieredPartition
from ottla.storage.tiered_log import SegmentToCopy


@dataclass(slots=True, kw_only=True)
class Attempt:
    """An attempt to copy a segment; its COPY_SEGMENT_STARTED is stored, or is being stored.

    STARTED --the store has copied--> COPIED --COPY_SEGMENT_FINISHED is stored--> (ended)
       ^ |                               |
       | +--------- the copy is not wanted any more, or has failed for good ----> (deleted in the store)
       '-' a retriable failure

    What is stored decides, before each further step: a change that has failed may be stored, and another
    leader may have deleted the copy meanwhile.
    """

    segment: SegmentToCopy
    #: The metadata of the copy; with the store's custom metadata, once it is copied.
    metadata: RemoteLogSegmentMetadata
    #: The time index as `LogSegmentData` has it; None: the file is copied. At most `segment.index.bytes`.
    time_index_of_records: bytes | None = None
    transfer: Transfer = field(default_factory=Transfer)
    #: Whether the store was called for this copy before.
    is_repeated: bool = False
    is_copied: bool = False
    is_discarded: bool = False


class UnfinishedCopies:
    """Measures for how long each copy is in COPY_SEGMENT_STARTED, by the leader's own monotonic clock.

    The copy's timestamp is of another broker's clock, or of this one's before it was set: with an hour
    between two of them a copy under way would count as abandoned, or one of a dead broker would never.
    """

    def __init__(self) -> None:
        #: Bound: the copies that are not finished.
        self._seen_s: dict[UUID, float] = {}

    def abandoned(
        self,
        copies: Iterable[RemoteLogSegmentMetadata],
        *,
        now_s: float,
        wait_s: float,
        own_node_id: int,
        own_wait_s: float,
    ) -> set[UUID]:
        """Return the ids of those that have not been finished for `wait_s`. `copies` has all unfinished ones.

        A copy of this broker, `own_node_id`, is one that it makes now, which the caller knows, or one that it, or its
        former process, has given up: it waits for `own_wait_s` only.
        """
        unfinished = {
            copy.segment_id.id: own_wait_s if copy.broker_id == own_node_id else wait_s
            for copy in copies
            if copy.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        }
        self._seen_s = {each: self._seen_s.get(each, now_s) for each in unfinished}
        return {each for each, seen_s in self._seen_s.items() if now_s - seen_s >= unfinished[each]}


@dataclass(slots=True, eq=False)
class PartitionState:
    """A partition whose segments are in the remote tier, or will be. Belongs to the event loop."""

    partition: TieredPartition
    id: TopicIdPartition
    is_leader: bool = False
    #: The leader epoch in which this broker leads or follows the partition.
    leader_epoch: int = -1
    #: False once this broker holds the partition no more.
    is_active: bool = True
    #: The leader epoch in which log start and remote end were found (`seeding`).
    seeded_epoch: int | None = None
    #: The copy that is under way, or that is repeated after a failure.
    attempt: Attempt | None = None
    #: Copies, of any broker, that are not finished.
    unfinished: UnfinishedCopies = field(default_factory=UnfinishedCopies)
    #: Unfinished copies that are not complete, and stay as they are in this leader epoch (`lost_finishes`).
    left: set[UUID] = field(default_factory=set)
    #: Whether the partition was tiered while this broker held it: then another broker may be finishing a copy.
    was_tiered: bool = False
    #: Since when it is not tiered and no copy is known, by the leader's monotonic clock.
    empty_since_s: float | None = None
    #: Whether all copies are being deleted (remote.log.delete.on.disable); the metadata of some may not say so yet.
    is_deleting_all: bool = False
    #: Whether copying has stopped until the next leader epoch, as the store's custom metadata is too large.
    is_copying_stopped: bool = False

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition at this moment."""
        partition = self.partition
        return self.is_active and self.is_leader and partition.is_leader and not partition.is_deleted

    def cancel_transfer(self) -> None:
        """Cancel the copy that is under way, if there is one: it is not wanted any more."""
        if self.attempt is not None:
            self.attempt.transfer.is_cancelled = True
