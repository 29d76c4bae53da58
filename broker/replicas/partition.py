"""Partition on this broker: the role of its replica, and the leader's operations.

    (created) --image names us leader----> LEADER  in the image's leader epoch
    LEADER    --image names another------> FOLLOWER
    FOLLOWER  --image names us-----------> LEADER  (a new leader epoch)
    any       --topic deleted------------> removed: every request fails with NOT_LEADER_OR_FOLLOWER

The role comes from the metadata log only. A partition consists of its log, the follower's part
(`follower_replica`), the leader's part (`broker.replication.leader_state` decides what followers' fetches mean for the
ISR and the high watermark), and its watchers.

A request carries its sender's current leader epoch, and is rejected when it differs from the partition's (KIP-320).

Source: Kafka's Partition.
"""

from collections.abc import Callable, Hashable
from typing import assert_never
from uuid import UUID

from broker.replicas.cluster_view import ClusterView
from broker.replicas.follower_replica import FollowerReplica
from broker.replicas.watchers import Watchers
from broker.replication.follower_reads import OffsetOnFollower, offset_on_follower
from broker.replication.leader_state import FetchClock, LeaderState
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
from storage.appending import AppendOrigin
from storage.log import AppendInfo, Log
from storage.replica_rules import has_diverged
from storage.validation import ValidatedRecords


class Partition:
    """See the module. Everything is synchronous and belongs to the loop's thread."""

    __slots__ = (
        "_cluster",
        "_directories",
        "_flush",
        "_leads_since_epoch",
        "_notified_log_start_offset",
        "_propose_isr",
        "appended_bytes",
        "follower",
        "is_deleted",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "leader_state",
        "log",
        "node_id",
        "partition_epoch",
        "replicas",
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
        cluster: ClusterView,
        propose_isr: "Callable[[Partition], None]",
        flush: "Callable[[Partition], None]",
    ) -> None:
        """`propose_isr` asks the controller for `leader_state.proposed_isr`; `flush` flushes the log in a thread
        (flush.messages), then calls `on_flushed`.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.node_id = node_id
        self.log = log
        #: Notified of every change; `signal` notifies the purgatory.
        self.watchers = Watchers(self, signal=signal)
        #: The log as a follower changes it.
        self.follower = FollowerReplica(log, listener=self)
        self._cluster = cluster
        self._propose_isr = propose_isr
        self._flush = flush
        self.leader_id: int | None = None
        self.is_leader = False
        self.is_deleted = False
        # Older than any epoch, so that the first image is a new one.
        self.leader_epoch = -1
        self.partition_epoch = -1
        #: Leader state of the present epoch; None unless it leads.
        self.leader_state: LeaderState | None = None
        #: The first of the leader epochs in which it has led without interruption; without meaning unless it leads.
        self._leads_since_epoch = -1
        self.replicas: tuple[int, ...] = ()
        #: The log directory of each replica; empty if no record names them.
        self._directories: tuple[UUID, ...] = ()
        self.isr: frozenset[int] = frozenset()
        #: Bytes appended here by this process: the difference of two readings is what was appended in between.
        self.appended_bytes = 0
        self._notified_log_start_offset = log.log_start_offset

    def __str__(self) -> str:
        return str(self.topic_partition)

    # -- role -----------------------------------------------------------------------------------------

    def apply(self, image: PartitionImage) -> bool:
        """Take the role that the metadata log assigns; whether it begins a new leader epoch.

        An image that is not newer than the present state changes nothing. Invariant: the leader epoch never decreases.
        """
        is_new_epoch = image.leader_epoch > self.leader_epoch
        if not is_new_epoch and image.partition_epoch <= self.partition_epoch:
            return False
        assert image.leader_epoch >= self.leader_epoch, (str(self), image.leader_epoch, self.leader_epoch)
        self.leader_id = image.leader
        self.is_leader = image.leader == self.node_id
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self._directories = image.directories
        self.isr = frozenset(image.isr)
        if not self.is_leader:
            self.leader_state = None
            self.follower.follow(self.leader_epoch)
        elif is_new_epoch or self.leader_state is None:
            self._begin_leader_epoch()
        else:
            self.leader_state.update(replicas=self.replicas, isr=self.isr)
        self._advance_high_watermark()
        # Also without a new high watermark: parked requests must be checked again, since the leader may have changed.
        self.notify()
        if not is_new_epoch:
            self.check_isr(self._cluster.now_ms())
        return is_new_epoch

    def _begin_leader_epoch(self) -> None:
        self.follower.stop()
        # An entry in the epoch cache for every leader epoch, also one without records: a follower that
        # asks for this epoch must get its start offset (KIP-101).
        start_offset = self.log.log_end_offset
        self.log.assign_epoch(self.leader_epoch, start_offset)
        if self.leader_state is None:
            self._leads_since_epoch = self.leader_epoch
        self.leader_state = LeaderState(
            node_id=self.node_id,
            epoch=self.leader_epoch,
            start_offset=start_offset,
            replicas=self.replicas,
            isr=self.isr,
            is_isr_eligible=self._is_isr_eligible,
            max_lag_ms=self._cluster.max_lag_ms,
            now_ms=self._cluster.now_ms(),
        )

    def replace_log(self, log: Log) -> None:
        """The replica has moved to another log directory; `log` is a complete copy (`log_moves`)."""
        self.log = self.follower.log = log
        self.notify()

    def resign(self) -> None:
        """The topic is deleted, or the replica is not on this broker any more: every later request is rejected."""
        self.is_deleted = True
        self.is_leader = False
        self.leader_id = None
        self.leader_state = None
        self.notify()

    # -- leader epochs --------------------------------------------------------------------------------

    def local_log(self, current_leader_epoch: int | None, *, must_lead: bool) -> Log:
        """The log, if this broker leads in the peer's current leader epoch (None: any); or follows, unless `must_lead`.

        Raises FencedLeaderEpoch, UnknownLeaderEpoch (KIP-320), NotLeaderOrFollower, in this order.
        """
        if current_leader_epoch is not None and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{self}: leader epoch {current_leader_epoch} is fenced, the present one is {self.leader_epoch}"
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
        no epoch that old or new is known, or the offset is before the log start. Raft's leader returns its log end for
        an epoch that is newer than all of its own (`controller.metadata.log`): its followers cannot ask for its bounds.
        Source: KIP-595; Kafka's Partition.readRecords.
        """
        known = self.log.end_offset_for_epoch(last_fetched_epoch)
        if known is None:
            raise OffsetOutOfRange(f"{self}: epoch {last_fetched_epoch} is not known here")
        if fetch_offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self}: {fetch_offset} is before {self.log.log_start_offset}")
        return known if has_diverged(known, last_fetched_epoch, fetch_offset) else None

    def end_offset_for_epoch(self, epoch: int, *, current_leader_epoch: int | None) -> tuple[int, int] | None:
        """(largest known epoch <= `epoch`, its end offset), or None; leaders only (KIP-101, KIP-279).

        -1 is the epoch of a peer that has none; its end is unknown (None).
        """
        log = self.local_log(current_leader_epoch, must_lead=True)
        return None if epoch == -1 else log.end_offset_for_epoch(epoch)

    def check_fetch_offset(self, fetch_offset: int) -> None:
        """Raise if a consumer fetches from this follower at an offset that it does not serve (KIP-392).

        Raises OffsetNotAvailable (cases 1 and 2: the consumer retries), OffsetOutOfRange (cases 3 and 4).
        """
        log = self.log
        case = offset_on_follower(
            fetch_offset,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            leader_high_watermark=self.follower.leader_high_watermark,
        )
        match case:
            case OffsetOnFollower.READABLE:
                return
            case OffsetOnFollower.NOT_KNOWN_COMMITTED | OffsetOnFollower.NOT_REPLICATED:
                raise OffsetNotAvailable(
                    f"{self}: {fetch_offset} is beyond the high watermark {log.high_watermark} of broker {self.node_id}"
                )
            case OffsetOnFollower.DELETED | OffsetOnFollower.NOT_EXISTING:
                raise OffsetOutOfRange(
                    f"{self}: {fetch_offset} is not in the log of broker {self.node_id}, [{log.log_start_offset}, "
                    f"{log.log_end_offset})"
                )
            case _:
                assert_never(case)

    # -- change ---------------------------------------------------------------------------------------

    def on_replicated(self, size_bytes: int) -> None:
        """The follower's part has appended batches."""
        self.appended_bytes += size_bytes

    def notice_retention(self) -> bool:
        """Notify watchers if the log start offset has moved without a request (retention); whether it has."""
        if self.log.log_start_offset == self._notified_log_start_offset:
            return False
        self.notify()
        return True

    def notify(self) -> None:
        """Notify watchers of a change that a fetch may wait for: offsets, role or existence."""
        self._notified_log_start_offset = self.log.log_start_offset
        self.watchers.notify()

    # -- writing --------------------------------------------------------------------------------------

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, limited to the number of replicas."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def append_records(
        self,
        records: memoryview | bytes | bytearray | ValidatedRecords,
        *,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        is_quick: bool = False,
    ) -> AppendInfo:
        """Append as leader, and notify the fetches that wait for records.

        With `is_quick` raises NeedsThread for a batch whose validation takes long (`storage.validation`). Raises
        NotLeaderOrFollower, NotEnoughReplicas (with acks -1, before anything is written), and what
        `Log.append_as_leader` raises.
        """
        leader_state = self.leader_state
        if leader_state is None:
            raise NotLeaderOrFollower(f"{self} is not led by broker {self.node_id} but by {self.leader_id}")
        log = self.log
        if required_acks == -1 and leader_state.followers and len(self.isr) < self.effective_min_isr:
            raise NotEnoughReplicas(
                f"{self}: the ISR {sorted(self.isr)} is smaller than min.insync.replicas={self.effective_min_isr}"
            )
        old_end_offset = log.log_end_offset
        info = log.append_as_leader(
            records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin, is_quick=is_quick
        )
        self.appended_bytes += info.size_bytes
        if is_flush_due := log.flusher.is_due:
            self._flush(self)
        if leader_state.followers:
            for progress in leader_state.followers.values():
                progress.on_append(old_end_offset=old_end_offset)
            self.watchers.notify_followers()
            # The only member of the ISR commits what it appends.
            if len(leader_state.maximal_isr) == 1 and self._advance_high_watermark():
                self.notify()
        elif log.maybe_increment_high_watermark(log.recovery_point if is_flush_due else log.log_end_offset):
            self.notify()
        return info

    def on_flushed(self) -> None:
        """The log was flushed: more may be committed, and requests that wait for the flush are checked again."""
        if self._advance_high_watermark():
            self.notify()
        else:
            self.watchers.check_delayed()

    def is_flushed(self, end_offset: int, *, leader_epoch: int) -> bool:
        """Whether every record before `end_offset` is flushed, as far as flush.messages requires.

        Raises NotLeaderOrFollower if this broker has not led without interruption since `leader_epoch`.
        """
        self._leader_state_since(leader_epoch)
        return self.log.recovery_point >= end_offset or not self.log.flusher.is_due

    def _leader_state_since(self, leader_epoch: int) -> LeaderState:
        """Raises NotLeaderOrFollower unless this broker has led without interruption since `leader_epoch`.

        A new epoch of the same leader is no interruption: it has truncated nothing. The controller begins one when
        replicas are removed, and below metadata version 3.6 each time the ISR shrinks, which acks=all may wait for.
        """
        leader_state = self.leader_state
        if leader_state is None or leader_epoch < self._leads_since_epoch:
            raise NotLeaderOrFollower(
                f"{self} is not led by broker {self.node_id} any more as in leader epoch {leader_epoch}"
            )
        return leader_state

    def is_committed(self, end_offset: int, *, leader_epoch: int) -> bool:
        """Whether every record before `end_offset` of the log as of `leader_epoch` is on the whole ISR.

        Raises NotLeaderOrFollower if this broker has not led without interruption since, and
        NotEnoughReplicasAfterAppend if the ISR has shrunk below its minimum meanwhile.
        """
        leader_state = self._leader_state_since(leader_epoch)
        if self.log.high_watermark < end_offset:
            return False
        if len(leader_state.maximal_isr) < self.effective_min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"{self}: the ISR is {sorted(self.isr)} and has to have {self.effective_min_isr} members"
            )
        return True

    def delete_records(self, offset: int | None) -> int:
        """Move the log start offset up to `offset` (None: to the high watermark); returns that offset.

        The deletion is complete when the low watermark has reached it, too. Raises NotLeaderOrFollower, PolicyViolation
        (a compacted topic's records are not deleted by offset), OffsetOutOfRange.
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
        return offset

    def low_watermark(self, *, leader_epoch: int) -> int:
        """The smallest log start offset of all live replicas.

        Raises NotLeaderOrFollower if this broker has not led without interruption since `leader_epoch`.
        """
        leader_state = self._leader_state_since(leader_epoch)
        return leader_state.low_watermark(self.log.log_start_offset, is_alive=self._cluster.is_alive)

    # -- followers ------------------------------------------------------------------------------------

    def check_follower(self, replica_id: int, broker_epoch: int | None, *, has_leader_epoch: bool) -> None:
        """Raise unless broker `replica_id` is a follower of this partition (CVE-2018-1288, KIP-903).

        A client that claims to be a replica must not move the high watermark. Raises UnknownLeaderEpoch or
        NotLeaderOrFollower.
        """
        leader_state = self.leader_state
        if leader_state is None or replica_id not in leader_state.followers:
            text = f"{self}: broker {replica_id} is not one of the replicas {self.replicas} it could be"
            # With a leader epoch, the pair (replica, epoch) may be unknown here only for now: a real follower retries.
            raise UnknownLeaderEpoch(text) if has_leader_epoch else NotLeaderOrFollower(text)
        if broker_epoch is not None and self._cluster.is_stale(replica_id, broker_epoch):
            raise NotLeaderOrFollower(
                f"{self}: broker {replica_id} has begun a newer epoch than {broker_epoch}"
            )

    def on_follower_fetch(
        self,
        replica_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int | None,
        session: FetchClock | None,
        now_ms: int,
    ) -> None:
        """Record the Fetch of a follower that passed `check_follower`: it has everything before `fetch_offset`."""
        leader_state = self.leader_state
        assert leader_state is not None, str(self)
        progress = leader_state.followers[replica_id]
        if progress.session is not session:
            self.watchers.note_overtaken(progress.session)
        old_end_offset, old_start_offset = progress.log_end_offset, progress.log_start_offset
        progress.on_fetch(
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            leader_end_offset=self.log.log_end_offset,
            broker_epoch=broker_epoch,
            session=session,
            now_ms=now_ms,
        )
        if replica_id not in leader_state.isr:
            self._propose(leader_state.expanded(replica_id, high_watermark=self.log.high_watermark))
        if fetch_offset != old_end_offset and self._advance_high_watermark():
            self.notify()
        elif log_start_offset != old_start_offset:
            self.watchers.check_delayed()  # DeleteRecords waits for the low watermark

    # -- the ISR and the high watermark ---------------------------------------------------------------

    def check_isr(self, now_ms: int) -> None:
        """Propose an ISR without members that have fallen behind, or with a caught-up replica, if there is one.

        A caught-up replica outside the ISR delays the high watermark, until it is fenced or falls behind: so the high
        watermark is computed again here.
        """
        leader_state = self.leader_state
        if leader_state is None or not leader_state.followers:
            return
        log_end_offset = self.log.log_end_offset
        isr = leader_state.shrunk(log_end_offset=log_end_offset, now_ms=now_ms)
        if isr is None and len(leader_state.isr) <= len(leader_state.followers):
            isr = leader_state.returned(
                high_watermark=self.log.high_watermark, log_end_offset=log_end_offset, now_ms=now_ms
            )
        self._propose(isr)
        self._settle_high_watermark()

    def _propose(self, isr: frozenset[int] | None) -> None:
        if isr is not None:
            assert self.leader_state is not None
            self.leader_state.propose(isr)
            self._propose_isr(self)

    def _is_isr_eligible(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Whether a replica may join the ISR: its broker is eligible, and the replica's log directory is not offline.

        Counter-example: a replica was caught up when its disk failed, and its last Fetch arrives after the controller
        has removed it from the ISR. Without the second condition it would rejoin at once.
        """
        directory = dict(zip(self.replicas, self._directories, strict=False)).get(broker_id)
        return self._cluster.is_isr_eligible(broker_id, broker_epoch) and (
            directory is None or self._cluster.is_online(broker_id, directory)
        )

    def on_isr_refused(self, *, leader_epoch: int) -> None:
        """The controller has refused the proposed ISR, or has not attempted it: the ISR is unchanged."""
        if self.leader_state is not None and self.leader_state.epoch == leader_epoch:
            self.leader_state.withdraw()
            self._settle_high_watermark()

    def on_config_changed(self) -> None:
        """The topic's configuration has changed: a smaller min.insync.replicas may commit records."""
        self._settle_high_watermark()

    def _settle_high_watermark(self) -> None:
        """Advance the high watermark where fewer replicas may count than before, without waiting for a fetch.

        Followers may have fetched everything already, so their next fetch may not advance it.
        """
        if self._advance_high_watermark():
            self.notify()

    def _advance_high_watermark(self) -> bool:
        leader_state = self.leader_state
        if leader_state is None:
            return False
        log = self.log
        end: int | None = log.log_end_offset
        if leader_state.followers:
            end = leader_state.high_watermark_candidate(
                log_end_offset=log.log_end_offset,
                min_isr=self.effective_min_isr,
                now_ms=self._cluster.now_ms(),
            )
        if end is None:
            return False
        if (flushed_end := log.flusher.committable_end) < end:
            # An append may not have started a flush: flush.messages was lowered, or records copied as a follower are
            # not flushed yet.
            self._flush(self)
            end = flushed_end
        return log.maybe_increment_high_watermark(end)
