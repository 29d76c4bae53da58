"""The quorum of controllers, as its leader describes it."""

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)
from tests.harness.blocking_wire import BlockingWire


def quorum_at(port: int) -> PartitionDataResponse | None:
    """The quorum as its leader describes it, asked through a broker or controller; None without an answer."""
    request = DescribeQuorumRequest(
        topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])]
    )
    with BlockingWire(port) as wire:
        answer: DescribeQuorumResponse = wire.call(ApiKey.DESCRIBE_QUORUM, 2, request)
    rows = [row for topic in answer.topics for row in topic.partitions]
    return rows[0] if answer.error_code == 0 and rows and rows[0].error_code == 0 else None


def leader_of(port: int) -> int:
    """The leader; -1 while there is none."""
    found = quorum_at(port)
    return -1 if found is None else found.leader_id


def has_all(port: int, node_id: int) -> bool:
    """Whether this voter or observer has everything that is committed."""
    found = quorum_at(port)
    if found is None:
        return False
    ends = {row.replica_id: row.log_end_offset for row in (*found.current_voters, *found.observers)}
    return ends.get(node_id, -1) >= found.high_watermark > 0
