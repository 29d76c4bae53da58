"""Follower replica: appends the leader's records, adopts its high watermark and log start offset.

`broker.replication.follower` decides what a leader's response means; this module changes the log accordingly.

Source: KIP-101, KIP-392; Kafka's Partition.appendRecordsToFollowerOrFutureReplica and ReplicaFetcherThread.
"""

from broker.replicas.copying import adopt_offsets, append_copy
from broker.replicas.replica import Replica
from protocol.errors import OffsetNotAvailable, OffsetOutOfRange


class FollowingReplica(Replica):
    """See the module."""

    __slots__ = ()

    def append_as_follower(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """Append the leader's batches, and adopt its high watermark and log start offset.

        Raises CorruptMessage (nothing is written then), UnexpectedAppendOffset, KafkaStorageError.
        """
        # The second of the TLA+ rules (`broker.replication.follower`): no records of an older epoch's leader.
        assert leader_epoch == self.leader_epoch, (str(self), leader_epoch, self.leader_epoch)
        assert not self.is_leader, str(self)
        log = self.log
        if len(records):
            info = append_copy(log, records, leader_epoch=leader_epoch, now_ms=now_ms)
            self.appended_bytes += info.size_bytes
        self.leader_high_watermark = high_watermark
        if adopt_offsets(
            log, high_watermark=high_watermark, log_start_offset=log_start_offset, reason="the leader's"
        ):
            self.notify()

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Truncate the log to where it agrees with the leader's. Raises KafkaStorageError."""
        assert not self.is_leader, str(self)
        self.log.truncate_to(offset, now_ms=now_ms)
        self.notify()

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove all records and restart at the leader's log start. Raises KafkaStorageError."""
        assert not self.is_leader, str(self)
        self.log.truncate_fully_and_start_at(offset, now_ms=now_ms)
        self.notify()

    def check_offset_is_known(self, offset: int) -> None:
        """Raise if a consumer fetches from a follower at an offset that is not known to be committed (KIP-392).

        Raises OffsetNotAvailable for an offset that is in the log but not known to be committed (case 1), or committed
        but not in the log yet (case 2), and for every offset above its own high watermark until the leader has
        reported its own. Raises OffsetOutOfRange for one that is neither (case 4).
        """
        if offset <= self.log.high_watermark:
            return
        committed = self.leader_high_watermark
        if committed is not None and offset > max(self.log.log_end_offset, committed):
            raise OffsetOutOfRange(f"{self}: {offset} is beyond all that broker {self.node_id} knows of")
        raise OffsetNotAvailable(
            f"{self}: {offset} is beyond the high watermark {self.log.high_watermark} of broker {self.node_id}"
        )
