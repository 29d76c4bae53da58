"""The local log of one replica, as followers, leaders and the controller exchange it (draft KIP-1303).

    follower --Fetch: `FetchPartition.local_log`--> leader --AlterPartition: `BrokerState.local_log`--> controller
             --PartitionRecord, PartitionChangeRecord: `local_logs`--> every image

Kafka 4.3.1 has none of these fields. They are tagged fields (KIP-482) with a number far from Kafka's own, so
that a peer without them skips them, and a message without them means "unknown". The draft adds
LocalLogStartOffset as a field of new versions of Fetch and AlterPartition; these version numbers may get
another meaning in Kafka until the KIP is accepted.
"""

from collections.abc import Iterable
from dataclasses import field
from typing import Final, NamedTuple

from ottla.protocol.schema_class import schema_class

#: The tag of each field that carries a `LocalLogState`.
LOCAL_LOG_TAG: Final = 13030


@schema_class
class LocalLogState:
    """One replica's local log on the wire: its start offset, size and oldest timestamp."""

    #: The earliest offset in local segments.
    local_log_start_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    #: The size of all local segments.
    local_log_bytes: int = field(default=0, metadata={"kafka_type": "int64"})
    #: Timestamp of the first local batch; -1: there is none.
    oldest_local_timestamp: int = field(default=-1, metadata={"kafka_type": "int64"})


@schema_class
class ReplicaLocalLog:
    """A replica and its local log, as the controller last learnt it from a leader."""

    replica_id: int = field(default=-1, metadata={"kafka_type": "int32"})
    state: LocalLogState = field(default_factory=LocalLogState)


class LocalLog(NamedTuple):
    """One replica's local log, as decisions use it; `LocalLogState` is its form on the wire."""

    #: The earliest offset in local segments.
    start_offset: int
    #: The size of all local segments.
    size_bytes: int
    #: Timestamp of the first local batch; None: there is none.
    oldest_timestamp_ms: int | None

    @classmethod
    def from_state(cls, state: LocalLogState) -> "LocalLog":
        """Create a local log from its fields on the wire.

        A negative start offset counts as 0: an election compares it with that of an unknown local log.
        """
        start, oldest = state.local_log_start_offset, state.oldest_local_timestamp
        return cls(max(start, 0), state.local_log_bytes, None if oldest < 0 else oldest)

    def to_state(self) -> LocalLogState:
        """Return the fields of the local log on the wire; -1 for an unknown timestamp."""
        return LocalLogState(
            local_log_start_offset=self.start_offset,
            local_log_bytes=self.size_bytes,
            oldest_local_timestamp=-1 if self.oldest_timestamp_ms is None else self.oldest_timestamp_ms,
        )


#: The known local logs of a partition: (replica, local log), by replica.
LocalLogs = tuple[tuple[int, LocalLog], ...]


def local_logs_from(replicas: Iterable[ReplicaLocalLog]) -> LocalLogs:
    """A partition's local logs from a metadata record."""
    return tuple(sorted((each.replica_id, LocalLog.from_state(each.state)) for each in replicas))


def replica_local_logs(local_logs: LocalLogs) -> list[ReplicaLocalLog]:
    """A partition's local logs for a metadata record."""
    return [ReplicaLocalLog(replica_id=replica, state=log.to_state()) for replica, log in local_logs]
