"""The copies of a topic's partitions, as they are found either by metadata records or by the store's objects."""

from dataclasses import dataclass

from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCopies:
    """The copies of one partition, in any state; the bounds of its log, if a broker has reported them."""

    partition: TopicIdPartition
    copies: tuple[RemoteLogSegmentMetadata, ...]
    log_start_offset: int | None = None
    log_end_offset: int | None = None
