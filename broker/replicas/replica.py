"""Replica of a partition, independent of its role: its log, its leader and epoch, the watchers of its changes.

    Replica            here: checks of leader epochs (KIP-320), reading, notification
      FollowingReplica `following.py`: appends the leader's records
        Partition      `partition.py`: gets its role from the metadata log, and leads

A request carries its sender's current leader epoch, and is rejected when it differs from the replica's.

Source: Kafka's Partition.
"""

from collections.abc import Callable, Hashable
from uuid import UUID

from broker.replicas.watchers import Watcher
from protocol.errors import FencedLeaderEpoch, NotLeaderOrFollower, OffsetOutOfRange, UnknownLeaderEpoch
from protocol.types import TopicPartition
from storage.log import Log


class Replica:
    """See the module. Everything is synchronous and belongs to the loop's thread."""

    __slots__ = (
        "_signal",
        "_told_log_start_offset",
        "appended_bytes",
        "follower_watchers",
        "is_deleted",
        "is_leader",
        "leader_epoch",
        "leader_high_watermark",
        "leader_id",
        "log",
        "node_id",
        "topic_id",
        "topic_partition",
        "watchers",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: UUID,
        node_id: int,
        log: Log,
        signal: Callable[[Hashable], None],
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.node_id = node_id
        self.log = log
        self._signal = signal
        self.leader_id: int | None = None
        self.is_leader = False
        self.is_deleted = False
        # Older than any epoch, so that the first image is a new one.
        self.leader_epoch = -1
        #: The high watermark that this epoch's leader has reported, maybe beyond the own log end; for a follower only.
        self.leader_high_watermark: int | None = None
        #: Partitions of fetch sessions, notified of every change (`fetch_sessions`); followers' ones of appends, too.
        self.watchers: dict[Watcher, None] = {}
        self.follower_watchers: dict[Watcher, None] = {}
        #: Bytes appended here by this process: the difference of two readings is what was appended in between.
        self.appended_bytes = 0
        self._told_log_start_offset = log.log_start_offset

    def __str__(self) -> str:
        return str(self.topic_partition)

    # -- leader epochs --------------------------------------------------------------------------------

    def local_log(self, current_leader_epoch: int | None, *, must_lead: bool) -> Log:
        """The log, if this broker leads in the peer's current leader epoch (None: any); or follows, unless `must_lead`.

        Raises FencedLeaderEpoch, UnknownLeaderEpoch (KIP-320), NotLeaderOrFollower, in this order.
        """
        if current_leader_epoch is not None and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{self}: leader epoch {current_leader_epoch} is over, the present one is {self.leader_epoch}"
                )
            raise UnknownLeaderEpoch(
                f"{self}: leader epoch {current_leader_epoch} is not known here yet, {self.leader_epoch} is"
            )
        if (must_lead and not self.is_leader) or self.is_deleted:
            raise NotLeaderOrFollower(f"{self} is not led by broker {self.node_id} but by {self.leader_id}")
        return self.log

    # -- reading --------------------------------------------------------------------------------------

    def is_behind_active_segment(self, offset: int) -> bool:
        """Whether `offset` is in an inactive segment: a read ends with its segment, so waiting does not extend it."""
        return offset < self.log.segments.active.base_offset

    def readable_end(self, *, is_read_committed: bool) -> int:
        """The first offset that a consumer must not see yet."""
        return self.log.last_stable_offset if is_read_committed else self.log.high_watermark

    def diverging_epoch(self, *, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a log that ends at `fetch_offset` in `last_fetched_epoch` diverges from ours; None: it does not.

        Returns (largest epoch of ours <= `last_fetched_epoch`, its end offset, exclusive). Raises OffsetOutOfRange if
        no epoch that old or new is known, or the offset is before the log start.
        Source: KIP-595; Kafka's Partition.readRecords.
        """
        known = self.log.end_offset_for_epoch(last_fetched_epoch)
        if known is None:
            raise OffsetOutOfRange(f"{self}: epoch {last_fetched_epoch} is not known here")
        if fetch_offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self}: {fetch_offset} is before {self.log.log_start_offset}")
        epoch, end_offset = known
        return known if epoch < last_fetched_epoch or end_offset < fetch_offset else None

    def end_offset_for_epoch(self, epoch: int, *, current_leader_epoch: int | None) -> tuple[int, int] | None:
        """(largest known epoch <= `epoch`, its end offset), or None; leaders only (KIP-101, KIP-279).

        -1 is the epoch of a peer that has none; its end is unknown (None).
        """
        log = self.local_log(current_leader_epoch, must_lead=True)
        return None if epoch == -1 else log.end_offset_for_epoch(epoch)

    # -- change ---------------------------------------------------------------------------------------

    def notice_retention(self) -> bool:
        """Notify watchers if the log start offset has moved without a request (retention); whether it has."""
        if self.log.log_start_offset == self._told_log_start_offset:
            return False
        self.notify()
        return True

    def notify(self) -> None:
        """Notify watchers of a change that a fetch may wait for: offsets, role or existence."""
        self._told_log_start_offset = self.log.log_start_offset
        self._wake(self.watchers)
        self._wake(self.follower_watchers)
        self._signal(self)

    def _notify_followers(self) -> None:
        """Notify followers of appended records, which consumers must not see yet."""
        self._wake(self.follower_watchers)
        self._signal(self)

    def _wake(self, watchers: dict[Watcher, None]) -> None:
        signal = self._signal
        for fetched in watchers:
            session = fetched.session
            if session is not None:
                session.dirty[fetched] = None
                signal(session)
