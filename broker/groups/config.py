"""The configurations of the group coordinator, under Kafka's names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from ottla.protocol.records.compression import Compression

#: The topic that holds groups and committed offsets.
OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupConfig:
    """Bounds and delays of groups, and the shape of their topic; the defaults are Kafka's."""

    #: group.min.session.timeout.ms
    min_session_timeout_ms: int = 6_000
    #: group.max.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000
    #: group.initial.rebalance.delay.ms: how long an empty group waits for more members.
    initial_rebalance_delay_ms: int = 3_000
    #: group.max.size
    max_size: int = 2**31 - 1
    #: offset.metadata.max.bytes; Kafka counts characters.
    offset_metadata_max_bytes: int = 4_096
    #: offsets.retention.minutes
    offsets_retention_ms: int = 10_080 * 60_000
    #: offsets.retention.check.interval.ms
    offsets_retention_check_interval_ms: int = 600_000
    #: offsets.commit.timeout.ms: how long a response waits for the replicas.
    offsets_commit_timeout_ms: int = 5_000
    #: offsets.load.buffer.size: bytes per read while a partition is loaded; a larger batch is read whole.
    offsets_load_buffer_bytes: int = 5_242_880
    #: offsets.topic.num.partitions
    offsets_topic_partition_count: int = 50
    #: offsets.topic.replication.factor
    offsets_topic_replication_factor: int = 3
    #: offsets.topic.segment.bytes
    offsets_topic_segment_bytes: int = 104_857_600
    #: offsets.topic.compression.codec
    offsets_topic_compression: Compression = Compression.NONE

    @classmethod
    def from_broker(cls, get: Callable[[str], Any]) -> Self:
        """Read a broker's configuration; `get` returns the parsed value of a key."""
        return cls(
            min_session_timeout_ms=get("group.min.session.timeout.ms"),
            max_session_timeout_ms=get("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=get("group.initial.rebalance.delay.ms"),
            max_size=get("group.max.size"),
            offset_metadata_max_bytes=get("offset.metadata.max.bytes"),
            offsets_retention_ms=get("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=get("offsets.retention.check.interval.ms"),
            offsets_commit_timeout_ms=get("offsets.commit.timeout.ms"),
            offsets_load_buffer_bytes=get("offsets.load.buffer.size"),
            offsets_topic_partition_count=get("offsets.topic.num.partitions"),
            offsets_topic_replication_factor=get("offsets.topic.replication.factor"),
            offsets_topic_segment_bytes=get("offsets.topic.segment.bytes"),
            offsets_topic_compression=Compression(get("offsets.topic.compression.codec")),
        )

    @property
    def topic_configs(self) -> dict[str, str]:
        """The topic configuration with which `__consumer_offsets` is created."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self.offsets_topic_segment_bytes),
        }
