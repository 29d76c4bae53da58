"""Partition on this broker: its log, its role, and the parts that lead and follow.

    (created) --image names us leader----> LEADER  in the image's leader epoch
    LEADER    --image names another------> FOLLOWER
    FOLLOWER  --image names us-----------> LEADER  (a new leader epoch)
    any       --topic deleted------------> removed: every request fails with NOT_LEADER_OR_FOLLOWER

The role comes from the metadata log only. A partition consists of its log, the leader's part (`partition_leader`) while
this broker leads, the follower's part (`follower_replica`), and its watchers.

A request carries its sender's current leader epoch, and is rejected when it differs from the partition's (KIP-320).

Source: Kafka's Partition.
"""

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Final, assert_never
from uuid import UUID

from ottla.broker.replicas.cluster_view import ClusterView
from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.partition_leader import PartitionLeader
from ottla.broker.replicas.topic_stats import TopicStats
from ottla.broker.replicas.waiting.watchers import Watchers
from ottla.metadata.image import PartitionImage
from ottla.protocol.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from ottla.protocol.local_log import LocalLog
from ottla.protocol.types import TopicPartition
from ottla.replication.follower_reads import OffsetOnFollower, offset_on_follower
from ottla.replication.replica_rules import has_diverged
from ottla.storage.log import Log

_NONE: Final[Mapping[int, LocalLog]] = MappingProxyType({})


class Partition:
    """A partition on this broker: its log, its role by the metadata log, and its leader's or follower's part.

    Everything is synchronous and belongs to the loop's thread.
    """

    __slots__ = (
        "_cluster",
        "_flush",
        "_noticed_local_log",
        "_notified_log_start_offset",
        "_propose_isr",
        "_report_local_logs",
        "directories",
        "follower",
        "is_deleted",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leader_id",
        "local_logs",
        "log",
        "node_id",
        "partition_epoch",
        "replicas",
        "stats",
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
        report_local_logs: "Callable[[Partition], None]",
        flush: "Callable[[Partition], None]",
        stats: TopicStats | None = None,
    ) -> None:
        """`propose_isr` asks the controller for `leader.state.proposed_isr`; `report_local_logs` sends it
        `leader.local_logs()` soon, if it `is_report_due` then; `flush` flushes the log in a thread
        (flush.messages), then calls `on_flushed`; `stats` are those of the topic, None: of this partition
        alone.
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
        self._report_local_logs = report_local_logs
        self._flush = flush
        self.leader_id: int | None = None
        self.is_leader = False
        self.is_deleted = False
        # Older than any epoch, so that the first image is a new one.
        self.leader_epoch = -1
        self.partition_epoch = -1
        #: None unless it leads.
        self.leader: PartitionLeader | None = None
        self.replicas: tuple[int, ...] = ()
        #: The log directory of each replica; empty if no record names them.
        self.directories: tuple[UUID, ...] = ()
        self.isr: tuple[int, ...] = ()
        #: What the metadata log has of its replicas' local logs (draft KIP-1303).
        self.local_logs: Mapping[int, LocalLog] = _NONE
        self.stats = TopicStats() if stats is None else stats
        self._notified_log_start_offset = log.log_start_offset
        #: Local log start and oldest timestamp at the last `notice_retention`; None: not reported.
        self._noticed_local_log: tuple[int, int | None] | None = None

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
        assert image.partition_epoch >= self.partition_epoch, (str(self), image, self.partition_epoch)
        self.leader_id = image.leader
        self.is_leader = image.leader == self.node_id
        self.leader_epoch = image.leader_epoch
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.directories = image.directories
        if self.leader is not None and self.leader.state.proposed_isr == frozenset(image.isr):
            self.stats.isr_shrinks += len(image.isr) < len(self.isr)
            self.stats.isr_expands += len(image.isr) > len(self.isr)
        self.isr = image.isr
        self.local_logs = dict(image.local_logs) if image.local_logs else _NONE
        if not self.is_leader:
            self.leader = None
            self.follower.follow(self.leader_epoch)
        elif is_new_epoch or self.leader is None:
            self._begin_leader_epoch()
        else:
            self.leader.state.update(replicas=self.replicas, isr=self.isr, local_logs=self.local_logs)
        # A replica leads or follows, in the metadata's leader epoch, and never both.
        assert (self.leader is not None) == self.is_leader, (str(self), image)
        assert self.follower.leader_epoch == (None if self.is_leader else self.leader_epoch), (
            str(self),
            image,
        )
        if self.leader is not None:
            assert self.leader.state.epoch == self.leader_epoch, (str(self), self.leader.state.epoch, image)
            self.leader.advance_high_watermark()
        # Also without a new high watermark: delayed requests must be checked again, since the leader may have changed.
        self.notify()
        if not is_new_epoch:
            self.check_isr(self._cluster.now_ms())
        if self.leader is not None:
            self.leader.check_report()
        return is_new_epoch

    def _begin_leader_epoch(self) -> None:
        self.follower.stop()
        # A leader's log is authoritative: followers copy it as it is, and its high watermark may pass the gap.
        self.log.ignore_gap()
        if self.leader is None:
            self.leader = PartitionLeader(self, self.log, self._cluster)
        else:
            self.leader.begin_epoch()

    def replace_log(self, log: Log) -> None:
        """The replica has moved to another log directory; `log` is a complete copy (`log_moves`)."""
        old = self.log
        assert log.topic_partition == self.topic_partition, (str(self), log.topic_partition)
        assert log.log_end_offset == old.log_end_offset, (str(self), log.offsets, old.offsets)
        assert log.high_watermark >= old.high_watermark, (str(self), log.offsets, old.offsets)
        assert log.log_start_offset >= old.log_start_offset, (str(self), log.offsets, old.offsets)
        if (remote_end_offset := old.offsets.remote_end_offset) is not None:
            # More may have been copied to the remote tier since the copy began.
            log.update_remote_end_offset(remote_end_offset)
        self.log = self.follower.log = log
        if self.leader is not None:
            self.leader.log = log
        self.notify()

    def resign(self) -> None:
        """The topic is deleted, or the replica is not on this broker any more: every later request is rejected."""
        self.is_deleted = True
        self.is_leader = False
        self.leader_id = None
        self.leader = None
        self.notify()

    @property
    def reported_local_log(self) -> LocalLog | None:
        """The local log that this replica reports to its leader; None: neither elections nor readers ask for it.

        Where elections do not (draft KIP-1303), a replica selector may: it needs the start only (KIP-392).
        """
        log = self.log
        if log.files.leader_preference is not None:
            return log.local_log
        if self._cluster.reports_local_logs and log.is_tiered:
            return LocalLog(log.local_log_start_offset, log.segments.size_bytes, None)
        return None

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
        return offset < self.log.files.segments.active.base_offset

    def readable_end(self, *, is_read_committed: bool) -> int:
        """The first offset that a consumer must not see yet."""
        return self.log.last_stable_offset if is_read_committed else self.log.high_watermark

    def diverging_epoch(self, *, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return where a log that ends at `fetch_offset` in `last_fetched_epoch` diverges; None: it does not.

        Returns (largest epoch of ours <= `last_fetched_epoch`, its end offset, exclusive). Raises OffsetOutOfRange if
        no epoch that old or new is known, or the offset is before the log start. Raft's leader returns its log end for
        an epoch that is newer than all of its own (`ottla.controller.metadata_log.log`): its followers cannot
        ask for its bounds.
        Source: KIP-595; Kafka's Partition.readRecords.
        """
        known = self.log.end_offset_for_epoch(last_fetched_epoch)
        if known is None:
            raise OffsetOutOfRange(f"{self}: epoch {last_fetched_epoch} is not known here")
        if fetch_offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self}: {fetch_offset} is before {self.log.log_start_offset}")
        has_other_records = has_diverged(
            known, last_fetched_epoch=last_fetched_epoch, fetch_offset=fetch_offset
        )
        return known if has_other_records else None

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
        """Notify the partition that its follower's part has appended batches."""
        self.stats.replication_bytes_in += size_bytes

    def notice_retention(self) -> bool:
        """Notify watchers if the log start offset has moved without a request (retention), and report the local log.

        Whether a follower's Fetch row has changed. A local log grows unnoticed here: each append changes the
        row anyway.
        """
        local_log = self.reported_local_log
        noticed = None if local_log is None else (local_log.start_offset, local_log.oldest_timestamp_ms)
        has_changed = noticed != self._noticed_local_log
        self._noticed_local_log = noticed
        if local_log is not None and self.leader is not None:
            self.leader.check_report()
        if self.log.log_start_offset != self._notified_log_start_offset:
            self.notify()
            return True
        return has_changed

    def notify(self) -> None:
        """Notify watchers of a change that a fetch may wait for: offsets, role or existence."""
        self._notified_log_start_offset = self.log.offsets.log_start_offset
        self.watchers.notify()

    def propose_isr(self) -> None:
        """Ask the controller for the ISR that the leader's part has proposed."""
        self._propose_isr(self)

    def report_local_logs(self) -> None:
        """Report the local logs of the ISR to the controller soon, if that is due then (draft KIP-1303)."""
        self._report_local_logs(self)

    def flush(self) -> None:
        """Flush the log in a thread, then call `on_flushed`."""
        self._flush(self)

    # -- leading --------------------------------------------------------------------------------------

    def as_leader(self) -> PartitionLeader:
        """The leader's part. Raises NotLeaderOrFollower unless this broker leads."""
        leader = self.leader
        if leader is None:
            raise NotLeaderOrFollower(f"{self} is not led by broker {self.node_id} but by {self.leader_id}")
        return leader

    def leader_since(self, leader_epoch: int) -> PartitionLeader:
        """The leader's part. Raises NotLeaderOrFollower unless this broker has led without interruption since then."""
        leader = self.leader
        if leader is None or leader_epoch < leader.since_epoch:
            raise NotLeaderOrFollower(
                f"{self} has not been led by broker {self.node_id} without interruption "
                f"since leader epoch {leader_epoch}"
            )
        return leader

    def check_isr(self, now_ms: int) -> None:
        """If this broker leads, propose an ISR without members that fell behind, or with a caught-up replica."""
        if self.leader is not None:
            self.leader.check_isr(now_ms)

    def on_config_changed(self) -> None:
        """Apply a changed configuration of the topic: a smaller min.insync.replicas may commit records."""
        if self.leader is not None:
            self.leader.update_high_watermark()
            self.leader.on_preference()

    def on_isr_refused(self, *, leader_epoch: int) -> None:
        """Return to the committed ISR, after the controller has refused the proposed one, or has not
        attempted it.
        """
        if self.leader is not None:
            self.leader.on_isr_refused(leader_epoch=leader_epoch)

    def on_flushed(self) -> None:
        """Check requests that wait for a flush again, since the log was flushed, and more records may be
        committed.
        """
        if self.leader is not None and self.leader.advance_high_watermark():
            self.notify()
        else:
            self.watchers.check_delayed()

    # -- followers ------------------------------------------------------------------------------------

    def check_follower(self, replica_id: int, broker_epoch: int | None, *, has_leader_epoch: bool) -> None:
        """Raise unless broker `replica_id` is a follower of this partition (CVE-2018-1288, KIP-903).

        A client that claims to be a replica must not move the high watermark. Raises UnknownLeaderEpoch or
        NotLeaderOrFollower.
        """
        leader = self.leader
        if leader is None or replica_id not in leader.state.followers:
            text = f"{self}: broker {replica_id} is not one of the replicas {self.replicas} it could be"
            # With a leader epoch, the pair (replica, epoch) may be unknown here only for now: a real follower retries.
            raise UnknownLeaderEpoch(text) if has_leader_epoch else NotLeaderOrFollower(text)
        if broker_epoch is not None and self._cluster.is_stale(replica_id, broker_epoch):
            raise NotLeaderOrFollower(
                f"{self}: broker {replica_id} is registered with a newer broker epoch than {broker_epoch}"
            )
