"""What one replica holds in local segments, as followers, leaders and the controller exchange it (draft KIP-1303).

    follower --Fetch: `FetchPartition.local_log`--> leader --AlterPartition: `BrokerState.local_log`--> controller
             --PartitionRecord, PartitionChangeRecord: `local_logs`--> every image

Kafka 4.3.1 has none of these fields. They are tagged fields (KIP-482) with a number far from Kafka's own, so that a peer
without them skips them, and a message without them means "unknown". The draft adds LocalLogStartOffset as a field of new
versions of Fetch and AlterPartition; these version numbers may get another meaning in Kafka until the KIP is accepted.
"""

from dataclasses import dataclass, field
from typing import Final

#: The tag of each field that carries a `LocalLogState`.
LOCAL_LOG_TAG: Final = 13030


@dataclass(slots=True, kw_only=True)
class LocalLogState:
    """One replica's local log."""

    #: The earliest offset in local segments.
    local_log_start_offset: int = field(default=0, metadata={"kafka_type": "int64"})
    #: The size of all local segments.
    local_log_bytes: int = field(default=0, metadata={"kafka_type": "int64"})
    #: Timestamp of the first local batch; -1: there is none.
    oldest_local_timestamp: int = field(default=-1, metadata={"kafka_type": "int64"})


@dataclass(slots=True, kw_only=True)
class ReplicaLocalLog:
    """A replica and its local log, as the controller last learnt it from a leader."""

    replica_id: int = field(default=-1, metadata={"kafka_type": "int32"})
    state: LocalLogState = field(default_factory=LocalLogState)
