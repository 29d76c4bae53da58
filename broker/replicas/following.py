"""A replica that follows: it takes over what its leader has, and knows no more of it than it was told.

What a follower makes of its leader's answers is decided in `broker.replication.follower`; here it is done to the log.

Source: KIP-101, KIP-392; Kafka's Partition and ReplicaFetcherThread.
"""

from broker.replicas.copying import append_copy, take_over_offsets
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
        """Append what the leader has sent, and take over its offsets.

        Raises CorruptMessage (nothing is written then), UnexpectedAppendOffset, KafkaStorageError.
        """
        # The second of the TLA+ rules (`broker.replication.follower`): nothing of an older epoch's leader is taken.
        assert leader_epoch == self.leader_epoch, (str(self), leader_epoch, self.leader_epoch)
        assert not self.is_leader, str(self)
        log = self.log
        if len(records):
            info = append_copy(log, records, leader_epoch=leader_epoch, now_ms=now_ms)
            self.appended_bytes += info.size_bytes
        self.leader_high_watermark = high_watermark
        if take_over_offsets(
            log, high_watermark=high_watermark, log_start_offset=log_start_offset, reason="the leader's"
        ):
            self.notify()

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Cut the log back to where it agrees with the leader's. Raises KafkaStorageError."""
        assert not self.is_leader, str(self)
        self.log.truncate_to(offset, now_ms=now_ms)
        self.notify()

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Begin anew where the leader's log begins. Raises KafkaStorageError."""
        assert not self.is_leader, str(self)
        self.log.truncate_fully_and_start_at(offset, now_ms=now_ms)
        self.notify()

    def check_offset_is_known(self, offset: int) -> None:
        """Raise if a consumer asks a follower for more than it knows to be committed (KIP-392).

        Raises OffsetNotAvailable for what is here but not known to be committed (case 1) or committed but not
        here yet (case 2), and for everything until the leader has told what is; OffsetOutOfRange for what neither
        is (case 4).
        """
        if offset <= self.log.high_watermark:
            return
        committed = self.leader_high_watermark
        if committed is not None and offset > max(self.log.log_end_offset, committed):
            raise OffsetOutOfRange(f"{self}: {offset} is beyond all that broker {self.node_id} knows of")
        raise OffsetNotAvailable(
            f"{self}: {offset} is beyond the high watermark {self.log.high_watermark} of broker {self.node_id}"
        )
