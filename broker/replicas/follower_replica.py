"""Follower's part of a replica: its log as a copy of another one, which `ottla.replication.follower` decides about.

A partition's log follows its leader's; the future log of a log directory move follows the partition's current log.

Source: KIP-101, KIP-405; Kafka's Partition.appendRecordsToFollowerOrFutureReplica,
ReplicaFetcherThread.processPartitionData, UnifiedLog.appendAsFollower.
"""

from typing import Protocol

from ottla.storage.log import Log
from ottla.storage.remote_restart import RemoteState


class FollowerListener(Protocol):
    """A listener that is notified when a follower replica's log has changed."""

    def on_replicated(self, size_bytes: int) -> None:
        """Notify that batches of this size were appended."""

    def notify(self) -> None:
        """An offset that consumers see has changed."""


class FollowerReplica:
    """Follower replica: appends the leader's records, adopts its high watermark and log start offset.

    Belongs to the loop's thread.

    Invariant: only batches that were requested in the present leader epoch are appended, the second of the TLA+ rules
    (`ottla.replication.follower`); none while this broker leads.
    """

    __slots__ = ("_listener", "_reason", "leader_epoch", "leader_high_watermark", "log")

    def __init__(
        self, log: Log, *, source: str = "the leader", listener: FollowerListener | None = None
    ) -> None:
        """`source` names the other replica in log lines."""
        self.log = log
        self._reason = f"that of {source}"
        self._listener = listener
        #: The leader epoch in which it follows; None: it does not, since this broker leads.
        self.leader_epoch: int | None = None
        #: The high watermark that this epoch's leader has reported, maybe beyond the own log end; None until it has.
        self.leader_high_watermark: int | None = None

    def follow(self, leader_epoch: int) -> None:
        """Follow in this leader epoch. Invariant: it never decreases."""
        if self.leader_epoch != leader_epoch:
            assert self.leader_epoch is None or leader_epoch > self.leader_epoch, (leader_epoch, str(self))
            self.leader_epoch = leader_epoch
            self.leader_high_watermark = None

    def stop(self) -> None:
        """Stop following the leader; no records are appended until the next `follow`."""
        self.leader_epoch = None
        self.leader_high_watermark = None

    def __str__(self) -> str:
        return f"{self.log.topic_partition} (follows in leader epoch {self.leader_epoch})"

    def append(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """Append whole batches unchanged, and adopt the other replica's high watermark and log start offset.

        Raises CorruptMessage (nothing is written then), UnexpectedAppendOffset, KafkaStorageError.
        """
        assert leader_epoch == self.leader_epoch, (leader_epoch, str(self))
        log, listener = self.log, self._listener
        size_bytes = len(records)
        if size_bytes:
            if not log.fast.append_as_follower(records, leader_epoch=leader_epoch, now_ms=now_ms):
                size_bytes = log.append_as_follower(
                    records, leader_epoch=leader_epoch, now_ms=now_ms
                ).size_bytes
            if listener is not None:
                listener.on_replicated(size_bytes)
        self.leader_high_watermark = high_watermark
        # Both are limited to this log. Invariant: log start offset <= high watermark <= log end offset.
        offsets, has_moved = log.offsets, False
        if high_watermark > offsets.high_watermark:
            has_moved = log.maybe_increment_high_watermark(min(high_watermark, offsets.log_end_offset))
        if log_start_offset > offsets.log_start_offset:
            log_start_offset = min(log_start_offset, offsets.high_watermark)
            has_moved |= log.maybe_increment_log_start_offset(log_start_offset, reason=self._reason)
        if has_moved and listener is not None:
            listener.notify()

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Truncate the log to where it agrees with the other one. Raises KafkaStorageError."""
        assert self.leader_epoch is not None, str(self)
        self.log.truncate_to(offset, now_ms=now_ms)
        assert self.log.log_end_offset <= offset, (offset, self.log.offsets, str(self))
        if self._listener is not None:
            self._listener.notify()

    def restart_from_remote(self, state: RemoteState, *, now_ms: int) -> None:
        """Remove all records and continue after the tiered ones (KIP-405). Raises KafkaStorageError."""
        assert self.leader_epoch is not None, str(self)
        self.log.restart_from_remote(state, now_ms=now_ms)
        assert self.log.log_end_offset == state.offset, (state.offset, self.log.offsets, str(self))
        if self._listener is not None:
            self._listener.notify()

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove all records and restart at the other log's start. Raises KafkaStorageError."""
        assert self.leader_epoch is not None, str(self)
        self.log.truncate_fully_and_start_at(offset, now_ms=now_ms)
        assert self.log.log_start_offset == self.log.log_end_offset == offset, (
            offset,
            self.log.offsets,
            str(self),
        )
        if self._listener is not None:
            self._listener.notify()
