"""PartitionState: the state that the tasks of one partition keep between their runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.log_manager.segment_transfers import Transfer
from ottla.remote.metadata_cache import RemoteLogMetadataCache
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
    #: The leader epoch in which this broker leads or follows the partition; None: it has no role yet.
    leader_epoch: int | None = None
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
    #: Whether all copies are being deleted (remote.log.delete.on.disable); the metadata of some may not say so yet.
    is_deleting_all: bool = False
    #: Whether copying has stopped until the next leader epoch, as the store's custom metadata is too large.
    is_copying_stopped: bool = False
    #: The time, by this broker's monotonic clock, since which it is not tiered and no copy is known (`is_settled`).
    _empty_since_s: float | None = None

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition at present."""
        partition = self.partition
        return self.is_active and self.is_leader and partition.is_leader and not partition.is_deleted

    def take_role(self, partition: TieredPartition) -> bool:
        """Adopt the partition's role and leader epoch; return whether they are new.

        A new role begins without the findings of the former one, which other leaders may have made wrong.
        """
        was = (self.partition, self.is_leader, self.leader_epoch)
        self.partition, self.is_leader = partition, partition.is_leader
        self.leader_epoch = partition.leader_epoch
        if was == (partition, self.is_leader, self.leader_epoch):
            return False
        assert was[2] is None or self.leader_epoch >= was[2], (self.id, self.leader_epoch, was[2])
        self.is_copying_stopped = False
        self._empty_since_s = None
        self.left.clear()
        if not self.is_leader:
            self.cancel_transfer()
        return True

    def note_tiering(self) -> None:
        """Record that the partition is tiered: copies may follow until it has been without tiering for a while."""
        self.was_tiered = True
        self._empty_since_s = None

    def is_settled(self, copies: RemoteLogMetadataCache, *, now_s: float, wait_s: float) -> bool:
        """Whether a partition that is not tiered has no copies, and no record of a copy can follow.

        Another broker may have given up a change of a copy's state: its record is appended within a deadline, or never.
        So the partition has to be empty for `wait_s`, from its first call on that finds it so; but if this broker has
        never held it as a tiered one, and its metadata do not show that it ever had a copy, it is settled at once.
        """
        assert not self.partition.log.is_tiered, self.id
        if len(copies):
            self._empty_since_s = None
            return False
        if not (self.was_tiered or copies.had_copies):
            return True
        if self._empty_since_s is None:
            self._empty_since_s = now_s
        assert self._empty_since_s <= now_s, (self._empty_since_s, now_s)
        return now_s - self._empty_since_s >= wait_s

    def cancel_transfer(self) -> None:
        """Cancel the copy that is under way, if there is one: it is not wanted any more."""
        if self.attempt is not None:
            self.attempt.transfer.is_cancelled = True
