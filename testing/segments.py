"""The segments of a partition in both tiers, as one broker has and knows them."""

from typing import NamedTuple

from ottla.broker.services import BrokerServices
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.remote.tiered_partition import id_of


class SegmentCopy(NamedTuple):
    """A segment in one tier; `end_offset` is exclusive."""

    base_offset: int
    end_offset: int
    size_bytes: int
    #: "local" or "remote".
    tier: str


def segments_of(broker: BrokerServices, topic: str, partition: int) -> list[SegmentCopy]:
    """Return the segments of the broker's replica, by base offset; of the remote tier the finished copies.

    Raises KafkaError if the broker has no replica of the partition. [the broker's loop]
    """
    replica = broker.replicas.partition(TopicPartition(topic, partition))
    log = replica.log
    found = [
        SegmentCopy(each.base_offset, log.segments.end_of(each) or log.log_end_offset, each.size, "local")
        for each in log.segments
    ]
    if broker.remote is not None and log.config.remote_storage_enable:
        found += [
            SegmentCopy(each.start_offset, each.end_offset, each.segment_size_bytes, "remote")
            for each in broker.remote.metadata.list_remote_log_segments(id_of(replica))
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]
    return sorted(found, key=lambda each: (each.base_offset, each.tier == "local"))
