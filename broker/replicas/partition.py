"""One replica of a partition on this broker: its role, and what the role lets a request do.

    (created) --image names us leader----> LEADER  in the image's leader epoch
    LEADER    --image names another------> FOLLOWER
    FOLLOWER  --image names us-----------> LEADER  (a new leader epoch)
    any       --topic deleted------------> gone: every request is told to look elsewhere

The role comes from the metadata log only. Requests carry the leader epoch their sender believes in, and
are refused when it is not ours (KIP-320). A leader advances the high watermark to the smallest log end
offset in the *maximal* ISR: the committed one, with members that are about to join (KIP-497).

Source: Kafka's Partition.
"""

from collections.abc import Callable, Hashable
from typing import Final
from uuid import UUID

from broker.replicas.fetch_sessions import FetchedPartition
from protocol.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownLeaderEpoch,
)
from protocol.metadata.image import PartitionImage
from protocol.types import TopicPartition
from storage.append_origin import AppendOrigin
from storage.index import TimestampOffset
from storage.log import AppendInfo, Log
from storage.validation import ValidatedRecords

#: The special timestamps of ListOffsets (KIP-79, KIP-405, KIP-734, KIP-1005, KIP-1023).
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6


class Partition:
    """See the module. Everything is synchronous and belongs to the loop's thread."""

    __slots__ = (
        "_signal",
        "_told_log_start_offset",
        "appended_bytes",
        "follower_end_offsets",
        "is_deleted",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "node_id",
        "partition_epoch",
        "replicas",
        "topic_id",
        "topic_partition",
        "watchers",
    )  # fmt: skip

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
        self.partition_epoch = -1
        #: Where this leader's own epoch begins; None for a follower.
        self.leader_epoch_start_offset: int | None = None
        self.replicas: tuple[int, ...] = ()
        self.isr: frozenset[int] = frozenset()
        #: The other replicas' log end offsets, as far as they have told this leader; 0 before they do.
        self.follower_end_offsets: dict[int, int] = {}
        #: Sessions' partitions that hear of every change (`fetch_sessions`).
        self.watchers: dict[FetchedPartition, None] = {}
        #: Bytes ever appended here by this process: differences of it tell how much came in since.
        self.appended_bytes = 0
        self._told_log_start_offset = log.log_start_offset

    def __str__(self) -> str:
        return str(self.topic_partition)

    # -- role ------------------------------------------------------------------------------------------

    def apply(self, image: PartitionImage) -> bool:
        """Take the role that the metadata log gives; whether it begins a new leader epoch.

        An image that is not newer than what is known changes nothing.
        """
        is_new_epoch = image.leader_epoch > self.leader_epoch
        if not is_new_epoch and image.partition_epoch <= self.partition_epoch:
            return False
        assert image.leader_epoch >= self.leader_epoch, (str(self), image.leader_epoch, self.leader_epoch)
        self.leader_id = image.leader
        self.is_leader = image.leader == self.node_id
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.replicas = tuple(image.replicas)
        self.isr = frozenset(image.isr)
        others = [replica for replica in self.replicas if replica != self.node_id]
        if not self.is_leader:
            self.leader_epoch_start_offset = None
            self.follower_end_offsets = {}
        elif is_new_epoch:
            self.leader_epoch_start_offset = self.log.log_end_offset
            # An entry in the epoch cache for every leadership, also one without a record: a follower that
            # asks for this epoch must learn where it begins (KIP-101).
            self.log.assign_epoch(self.leader_epoch, self.log.log_end_offset)
            self.follower_end_offsets = dict.fromkeys(others, 0)
        else:
            known = self.follower_end_offsets
            self.follower_end_offsets = {replica: known.get(replica, 0) for replica in others}
        if self.is_leader:
            self._advance_high_watermark()
        # Also without a new high watermark: parked requests must hear that the leader changed.
        self.notify()
        return is_new_epoch

    def resign(self) -> None:
        """The topic is gone, or moved away: answer nobody any more."""
        self.is_deleted = True
        self.is_leader = False
        self.leader_id = None
        self.notify()

    def check_leader(self, current_leader_epoch: int | None) -> None:
        """Raise unless this broker leads, in the epoch that the peer believes in (None: any).

        Raises FencedLeaderEpoch, UnknownLeaderEpoch (KIP-320), NotLeaderOrFollower, in this order.
        """
        self.local_log(current_leader_epoch, must_lead=True)

    def local_log(self, current_leader_epoch: int | None, *, must_lead: bool) -> Log:
        """The log, after the checks of `check_leader`; a follower's too unless `must_lead`."""
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

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, but never more than there are replicas to be in sync."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    # -- writing ---------------------------------------------------------------------------------------

    def append_records(
        self,
        records: memoryview | bytes | bytearray | ValidatedRecords,
        *,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        is_quick: bool = False,
    ) -> AppendInfo:
        """Append as leader, and wake those who wait for records.

        With `is_quick` raises TakesLong for a batch whose validation takes long (`storage.validation`). Raises NotLeaderOrFollower, NotEnoughReplicas (with acks -1, before anything is written), and what
        `Log.append_as_leader` raises.
        """
        if not self.is_leader:
            raise NotLeaderOrFollower(f"{self} is not led by broker {self.node_id} but by {self.leader_id}")
        log = self.log
        if required_acks == -1 and self.follower_end_offsets and len(self.isr) < self.effective_min_isr:
            raise NotEnoughReplicas(
                f"{self}: the ISR {sorted(self.isr)} is smaller than min.insync.replicas={self.effective_min_isr}"
            )
        info = log.append_as_leader(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, is_quick=is_quick
        )
        self.appended_bytes += info.size_bytes
        if self._advance_high_watermark():
            self.notify()
        return info

    def is_committed(self, end_offset: int) -> bool:
        """Whether every record before `end_offset` is on the whole ISR.

        Raises NotLeaderOrFollower if nobody here can tell any more, and NotEnoughReplicasAfterAppend if the
        ISR has shrunk below its minimum meanwhile.
        """
        if not self.is_leader:
            raise NotLeaderOrFollower(f"{self} is not led by broker {self.node_id} any more")
        if self.log.high_watermark < end_offset:
            return False
        if len(self.isr) < self.effective_min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"{self}: the ISR is {sorted(self.isr)} and has to have {self.effective_min_isr} members"
            )
        return True

    def delete_records(self, offset: int | None) -> int:
        """Move the log start offset up to `offset` (None: to the high watermark); the low watermark after it.

        The low watermark is the smallest log start offset of all replicas. Raises NotLeaderOrFollower,
        PolicyViolation (a compacted topic's records are not deleted by offset), OffsetOutOfRange.
        """
        log = self.local_log(None, must_lead=True)
        if log.config.is_compacted and not log.config.is_deleting:
            raise PolicyViolation(f"{self}: cleanup.policy=compact deletes records by key only")
        if offset is None:
            offset = log.high_watermark
        if offset < 0:
            raise OffsetOutOfRange(f"{self}: {offset} is not an offset")
        if log.maybe_increment_log_start_offset(offset, reason="DeleteRecords"):
            self.notify()
        return log.log_start_offset

    # -- reading ---------------------------------------------------------------------------------------

    def is_behind_active_segment(self, offset: int) -> bool:
        """Whether a read from `offset` ends with its segment, so that waiting makes it no longer."""
        return offset < self.log.segments.active.base_offset

    def readable_end(self, *, is_read_committed: bool) -> int:
        """The first offset that a consumer must not see yet."""
        return self.log.last_stable_offset if is_read_committed else self.log.high_watermark

    def diverging_epoch(self, *, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a log that ends at `fetch_offset` in `last_fetched_epoch` parts from ours; None: nowhere.

        The answer is (largest epoch of ours that is not newer, its end offset). Raises OffsetOutOfRange if
        nothing is known of epochs that old or new, or the offset is before the log start.
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

        -1 is the epoch of a peer that has none, which ends nowhere.
        """
        log = self.local_log(current_leader_epoch, must_lead=True)
        return None if epoch == -1 else log.end_offset_for_epoch(epoch)

    def offset_for_timestamp(
        self,
        timestamp: int,
        *,
        is_read_committed: bool | None,
        current_leader_epoch: int | None,
        must_lead: bool,
    ) -> TimestampOffset | None:
        """Answer one row of ListOffsets: a time in ms, or one of the special ones above. None: no such offset.

        `is_read_committed` None stands for a replica, which sees up to the log end. Raises what `check_leader`
        raises, and OffsetNotAvailable while a new leader's high watermark is behind where its epoch begins:
        an older leader may have shown consumers more than that (KIP-207).
        """
        log = self.local_log(current_leader_epoch, must_lead=must_lead)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            return self._earliest(log)
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            # No tier: nothing is known of one. (-1, -1, -1) on the wire, the epoch included.
            return None
        if is_read_committed is None:
            end = log.log_end_offset
        else:
            end = self.readable_end(is_read_committed=is_read_committed)
        if timestamp == LATEST:
            self._check_high_watermark_known(log, is_read_committed)
            return TimestampOffset(-1, end, self.leader_epoch)
        found = (
            log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
        )
        if found is None or found.offset >= end:
            self._check_high_watermark_known(log, is_read_committed)
            return None
        return found

    def _earliest(self, log: Log) -> TimestampOffset:
        start = log.log_start_offset
        first = log.leader_epochs.earliest
        # The oldest epoch known may begin after the log start, if what came before had none.
        epoch = first.epoch if first is not None and first.start_offset <= start else None
        return TimestampOffset(-1, start, epoch)

    def _check_high_watermark_known(self, log: Log, is_read_committed: bool | None) -> None:
        start = self.leader_epoch_start_offset
        if is_read_committed is not None and start is not None and start > log.high_watermark:
            raise OffsetNotAvailable(
                f"{self}: the high watermark {log.high_watermark} has not reached this epoch's start {start}"
            )

    def on_config_changed(self) -> None:
        """The topic's configuration has changed: a smaller min.insync.replicas may commit records."""
        if self.is_leader and self._advance_high_watermark():
            self.notify()

    # -- change ----------------------------------------------------------------------------------------

    def notice_retention(self) -> None:
        """Tell sessions if the log start offset has moved without a request's doing."""
        if self.log.log_start_offset != self._told_log_start_offset:
            self.notify()

    def notify(self) -> None:
        """Something that a fetch may wait for has changed: offsets, role or existence."""
        self._told_log_start_offset = self.log.log_start_offset
        signal = self._signal
        for fetched in self.watchers:
            session = fetched.session
            if session is not None:
                session.dirty[fetched] = None
                signal(session)
        signal(self)

    def _advance_high_watermark(self) -> bool:
        log = self.log
        end = log.log_end_offset
        if self.follower_end_offsets:
            if len(self.isr) < self.effective_min_isr:
                # Else what a client is told to be committed could be on fewer replicas than it asked for.
                return False
            for replica, offset in self.follower_end_offsets.items():
                if offset < end and replica in self.isr:
                    end = offset
        return log.maybe_increment_high_watermark(end)
