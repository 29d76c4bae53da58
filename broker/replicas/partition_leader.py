"""Leader's part of a partition: appends, the progress of followers, the ISR, and the high watermark.

    a follower fetches, the ISR or a configuration changes, records are flushed --> `advance_high_watermark`
    a follower has caught up or fallen behind --> `LeaderState.propose` --> AlterPartition --> the metadata log
    a local log of the ISR has changed --> `report_local_logs` --> AlterPartition, with others (draft KIP-1303)

It exists while this broker leads without interruption, over all leader epochs of that time; `LeaderState`, the rules
(`ottla.replication.leader_state`), is of one leader epoch. A new leader epoch of the same leader is no interruption: it
has truncated nothing. The controller begins one when replicas are removed, and below metadata version 3.6 each time the
ISR shrinks, which acks=all may wait for.

Source: Kafka's Partition (appendRecordsToLeader, updateFollowerFetchState, maybeIncrementLeaderHW, maybeShrinkIsr).
"""

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

from ottla.broker.replicas.cluster_view import ClusterView
from ottla.broker.replicas.topic_stats import TopicStats
from ottla.broker.replicas.waiting.watchers import Watchers
from ottla.protocol.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OffsetOutOfRange,
    PolicyViolation,
)
from ottla.protocol.local_log import LocalLog
from ottla.replication.leader_state import FetchClock, LeaderState
from ottla.replication.local_log_reports import is_unreported
from ottla.storage.appending import AppendOrigin
from ottla.storage.log import AppendInfo, Log
from ottla.storage.validation import Turns, ValidatedRecords


class LedPartition(Protocol):
    """The partition (`ottla.broker.replicas.partition`), as its leader's part uses it."""

    node_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    directories: tuple[UUID, ...]
    isr: tuple[int, ...]
    local_logs: Mapping[int, LocalLog]
    watchers: Watchers
    stats: TopicStats

    def notify(self) -> None:
        """Notify waiting fetches and listeners that an offset which consumers see has changed."""

    def propose_isr(self) -> None:
        """Ask the controller for `LeaderState.proposed_isr`."""

    def report_local_logs(self) -> None:
        """Report the local logs of the ISR to the controller soon, if that is due then."""

    def flush(self) -> None:
        """Flush the log in a thread (flush.messages), then call `on_flushed`."""


class PartitionLeader:
    """The leader's part of a partition: appends, the progress of followers, the ISR, and the high watermark."""

    __slots__ = ("_cluster", "_partition", "log", "since_epoch", "state")

    def __init__(self, partition: LedPartition, log: Log, cluster: ClusterView) -> None:
        """Begin to lead in the partition's leader epoch. Raises KafkaStorageError."""
        self._partition = partition
        self._cluster = cluster
        self.log = log
        #: The first of the leader epochs in which this broker has led without interruption.
        self.since_epoch = partition.leader_epoch
        self.state = self._begin_epoch()

    def begin_epoch(self) -> None:
        """Begin a newer leader epoch of the partition. Raises KafkaStorageError."""
        assert self._partition.leader_epoch > self.state.epoch, (
            self._partition.leader_epoch,
            self.state.epoch,
        )
        self.state = self._begin_epoch()

    def _begin_epoch(self) -> LeaderState:
        partition = self._partition
        # An entry in the epoch cache for every leader epoch, also one without records: a follower that
        # asks for this epoch must get its start offset (KIP-101).
        start_offset = self.log.log_end_offset
        self.log.assign_epoch(partition.leader_epoch, start_offset=start_offset)
        return LeaderState(
            node_id=partition.node_id,
            epoch=partition.leader_epoch,
            start_offset=start_offset,
            replicas=partition.replicas,
            isr=partition.isr,
            local_logs=partition.local_logs,
            is_isr_eligible=self._is_isr_eligible,
            max_lag_ms=self._cluster.max_lag_ms,
            now_ms=self._cluster.now_ms(),
        )

    # -- records ------------------------------------------------------------------------------------

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, limited to the number of replicas."""
        configured, replicas_count = self.log.files.config.min_insync_replicas, len(self._partition.replicas)
        return min(configured, replicas_count)

    def append_records(
        self,
        records: memoryview | bytes | bytearray | ValidatedRecords,
        *,
        required_acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        turns: Turns | None = None,
    ) -> AppendInfo:
        """Append as leader, and notify the fetches that wait for records.

        With `turns` raises NeedsThread for a batch whose validation takes long in them
        (`ottla.storage.validation`). Raises NotEnoughReplicas (with acks -1, before anything is written), and
        what `Log.append_as_leader` raises.
        """
        if required_acks == -1 and self._has_too_few_replicas():
            raise NotEnoughReplicas(
                f"{self._partition}: the ISR {sorted(self.state.isr)} is smaller than "
                f"min.insync.replicas={self.effective_min_isr}"
            )
        old_end_offset = self.log.offsets.log_end_offset
        info = self.log.append_as_leader(
            records,
            leader_epoch=self._partition.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            turns=turns,
        )
        if is_flush_due := self.log.flusher.is_due:
            self._partition.flush()
        # The records of a duplicate, too, as in Kafka.
        self._on_appended(
            old_end_offset,
            size_bytes=info.size_bytes,
            records_count=info.records_count,
            is_flush_due=is_flush_due,
        )
        return info

    def append_fast(self, records: memoryview, *, required_acks: int, now_ms: int) -> int | None:
        """Append a batch on the fast path (`ottla.storage.fast_append`) and return its first offset.

        None, with nothing changed, for any other batch, and where `append_records` refuses it. Raises
        KafkaStorageError.
        """
        # Without followers there is nothing to ask: a call less.
        if required_acks == -1 and self.state.followers and self._has_too_few_replicas():
            return None
        log = self.log
        first_offset = log.fast.append_as_leader(
            records, leader_epoch=self._partition.leader_epoch, now_ms=now_ms
        )
        if first_offset is not None:
            self._on_appended(
                first_offset,
                size_bytes=len(records),
                records_count=log.offsets.log_end_offset - first_offset,
                is_flush_due=False,  # a batch of a topic with flush.messages is not on the fast path
            )
        return first_offset

    def _has_too_few_replicas(self) -> bool:
        state = self.state
        return bool(state.followers) and len(state.isr) < self.effective_min_isr

    def _on_appended(
        self, old_end_offset: int, *, size_bytes: int, records_count: int, is_flush_due: bool
    ) -> None:
        """Count the records appended at `old_end_offset`, commit them if there is no follower to wait for, notify."""
        state, log, partition = self.state, self.log, self._partition
        offsets, stats = log.offsets, partition.stats
        stats.bytes_in += size_bytes
        stats.messages_in += records_count
        stats.total_produce_requests += 1
        if state.followers:
            for progress in state.followers.values():
                progress.on_append(old_end_offset=old_end_offset)
            partition.watchers.notify_followers()
            # The only member of the ISR commits what it appends.
            if len(state.maximal_isr) == 1 and self.advance_high_watermark():
                partition.notify()
        elif log.maybe_increment_high_watermark(
            log.flusher.committable_end if is_flush_due else offsets.log_end_offset
        ):
            # Not `Partition.notify`, which also notes the log start offset: an append does not move it.
            partition.watchers.notify()

    def is_flushed(self, end_offset: int) -> bool:
        """Whether every record before `end_offset` is flushed, as far as flush.messages requires."""
        return self.log.recovery_point >= end_offset or not self.log.flusher.is_due

    def is_committed(self, end_offset: int) -> bool:
        """Whether every record before `end_offset` is on the whole ISR.

        Raises NotEnoughReplicasAfterAppend if the ISR has shrunk below its minimum meanwhile.
        """
        if self.log.offsets.high_watermark < end_offset:
            return False
        if len(self.state.maximal_isr) < self.effective_min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"{self._partition}: the ISR is {sorted(self.state.isr)} "
                f"and has to have {self.effective_min_isr} members"
            )
        return True

    def delete_records(self, offset: int | None) -> int:
        """Move the log start offset up to `offset` (None: to the high watermark); returns that offset.

        The deletion is complete when the low watermark has reached it, too. Raises PolicyViolation (a compacted topic's
        records are not deleted by offset), OffsetOutOfRange.
        """
        log = self.log
        if log.config.is_compacted and not log.config.is_deleting:
            raise PolicyViolation(f"{self._partition}: cleanup.policy=compact deletes records by key only")
        if offset is None:
            offset = log.high_watermark
        if offset < 0:
            raise OffsetOutOfRange(f"{self._partition}: {offset} is not an offset")
        if log.maybe_increment_log_start_offset(offset, reason="DeleteRecords"):
            self._partition.notify()
        assert log.log_start_offset >= offset, (str(self._partition), log.offsets, offset)
        return offset

    def low_watermark(self) -> int:
        """The smallest log start offset of all live replicas."""
        return self.state.low_watermark(self.log.log_start_offset, is_alive=self._cluster.is_alive)

    # -- followers ------------------------------------------------------------------------------------

    def on_follower_fetch(
        self,
        replica_id: int,
        *,
        fetch_offset: int,
        log_start_offset: int,
        local_log: LocalLog | None,
        broker_epoch: int | None,
        session: FetchClock | None,
        now_ms: int,
    ) -> None:
        """Record the Fetch of a follower that passed `check_follower`: it has everything before `fetch_offset`."""
        leader_state, log = self.state, self.log
        progress = leader_state.followers[replica_id]
        if progress.session is not session:
            self._partition.watchers.record_overtaken(progress.session)
        old_end_offset, old_start_offset = progress.log_end_offset, progress.log_start_offset
        progress.on_fetch(
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            local_log=local_log,
            leader_end_offset=log.offsets.log_end_offset,
            broker_epoch=broker_epoch,
            session=session,
            now_ms=now_ms,
        )
        if replica_id not in leader_state.isr:
            self._propose(leader_state.expanded(replica_id, high_watermark=log.high_watermark))
        if local_log is not None:
            self._notice_local_log(replica_id, local_log)
        if fetch_offset != old_end_offset and self.advance_high_watermark(now_ms=now_ms):
            self._partition.notify()
        elif log_start_offset != old_start_offset:
            self._partition.watchers.check_delayed()  # DeleteRecords waits for the low watermark

    # -- local logs (draft KIP-1303) ------------------------------------------------------------------

    @property
    def _eligible_bytes(self) -> int | None:
        preference = self.log.files.leader_preference
        return None if preference is None else preference.eligible_local_bytes

    def local_logs(self) -> dict[int, LocalLog]:
        """The known local logs of the proposed ISR, else of the ISR; empty while elections do not ask for them."""
        if self.log.files.leader_preference is None:
            return {}
        state = self.state
        return state.local_logs(
            state.isr if state.proposed_isr is None else state.proposed_isr, self.log.local_log
        )

    def is_report_due(self) -> bool:
        """Whether the controller is to be sent what has changed; a proposed ISR is sent with it anyway."""
        if self.log.files.leader_preference is None or self.state.proposed_isr is not None:
            return False
        return self.state.reports.is_due(self.local_logs(), eligible_bytes=self._eligible_bytes)

    def on_preference(self) -> None:
        """Apply a change of the configuration, which may have changed the leader preference of elections."""
        self.state.reports.on_preference()
        self.check_report()

    def check_report(self) -> None:
        """Report the local logs of the ISR if that is due."""
        if self.is_report_due():
            self._partition.report_local_logs()

    def _notice_local_log(self, replica_id: int, local_log: LocalLog) -> None:
        """A follower's Fetch has its local log, which mostly has only grown."""
        reported = self.state.reports.reported.get(replica_id)
        if is_unreported(local_log, reported, eligible_bytes=self._eligible_bytes):
            self.check_report()

    # -- the ISR and the high watermark ---------------------------------------------------------------

    def check_isr(self, now_ms: int) -> None:
        """Propose an ISR without members that have fallen behind, or with a caught-up replica, if there is one.

        A caught-up replica outside the ISR delays the high watermark, until it is fenced or falls behind: so the high
        watermark is computed again here.
        """
        leader_state = self.state
        leader_state.reports.retry()
        if not leader_state.followers:
            return
        log_end_offset = self.log.log_end_offset
        isr = leader_state.shrunk(log_end_offset=log_end_offset, now_ms=now_ms)
        if isr is None and len(leader_state.isr) <= len(leader_state.followers):
            isr = leader_state.expanded_by_caught_up(
                high_watermark=self.log.high_watermark, log_end_offset=log_end_offset, now_ms=now_ms
            )
        self._propose(isr)
        self.update_high_watermark()

    def _propose(self, isr: frozenset[int] | None) -> None:
        if isr is not None:
            self.state.propose(isr)
            self._partition.propose_isr()

    def _is_isr_eligible(self, broker_id: int, broker_epoch: int | None) -> bool:
        """Whether a replica may join the ISR: its broker is eligible, and the replica's log directory is not offline.

        Counter-example: a replica was caught up when its disk failed, and its last Fetch arrives after the controller
        has removed it from the ISR. Without the second condition it would rejoin at once.
        """
        directory = dict(zip(self._partition.replicas, self._partition.directories, strict=False)).get(
            broker_id
        )
        return self._cluster.is_isr_eligible(broker_id, broker_epoch) and (
            directory is None or self._cluster.is_online(broker_id, directory)
        )

    def on_isr_refused(self, *, leader_epoch: int) -> None:
        """Return to the committed ISR, after the controller has refused the proposed one, or has not
        attempted it.
        """
        if self.state.epoch == leader_epoch:
            self.state.withdraw()
            self.update_high_watermark()

    def update_high_watermark(self) -> None:
        """Advance the high watermark where fewer replicas may count than before, without waiting for a fetch.

        Followers may have fetched everything already, so their next fetch may not advance it.
        """
        if self.advance_high_watermark():
            self._partition.notify()

    def advance_high_watermark(self, *, now_ms: int | None = None) -> bool:
        """Advance the high watermark as far as the candidate and flush.messages allow; whether it has moved."""
        leader_state, log = self.state, self.log
        end: int | None = log.offsets.log_end_offset
        if leader_state.followers:
            end = leader_state.high_watermark_candidate(
                log_end_offset=log.offsets.log_end_offset,
                min_isr=self.effective_min_isr,
                now_ms=self._cluster.now_ms() if now_ms is None else now_ms,
            )
        if end is None:
            return False
        if (flushed_end := log.flusher.committable_end) < end:
            # An append may not have started a flush: flush.messages was lowered, or records copied as a follower are
            # not flushed yet.
            self._partition.flush()
            end = flushed_end
        return log.maybe_increment_high_watermark(end)
