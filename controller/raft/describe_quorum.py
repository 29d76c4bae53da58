"""DescribeQuorum 0-2: the leader, the high watermark, and the progress of each replica (KIP-595, KIP-836, KIP-853).

Times are those of `now_ms`, which starts as the time of day; the leader's own row has the current time in both.
Source: KafkaRaftClient.handleDescribeQuorumRequest of Kafka 4.3.1.
"""

from collections.abc import Iterable
from typing import Final

from ottla.controller.raft.core import Core
from ottla.controller.raft.follower_progress import Progress
from ottla.controller.raft.messages import only_partition
from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import NO_OFFSET, NO_TIMESTAMP, PARTITION, TOPIC
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)

#: Partitions, or topics, of a request that are refused one by one: there is one partition, and a row takes 0.6 us.
MOST_REFUSED: Final = 1000


def handle_describe_quorum_request(core: Core, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """The state of the quorum, as its leader knows it.

    Errors: UNKNOWN_TOPIC_OR_PARTITION for every requested partition unless the metadata partition is the only one;
    INVALID_REQUEST, without rows, if they are more than `MOST_REFUSED`; NOT_LEADER_OR_FOLLOWER.
    """
    topics = request.topics
    if len(topics) > MOST_REFUSED or sum([len(topic.partitions) for topic in topics]) > MOST_REFUSED:
        return DescribeQuorumResponse(
            error_code=ErrorCode.invalid_request,
            error_message=f"More than {MOST_REFUSED} partitions: the metadata quorum has one.",
        )
    if only_partition(request.topics) is None:
        return DescribeQuorumResponse(
            topics=[
                TopicDataResponse(
                    topic_name=topic.topic_name,
                    partitions=[
                        _refusal(row.partition_index, ErrorCode.unknown_topic_or_partition)
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    role = core.role
    if not isinstance(role, Leader):
        row = _refusal(PARTITION, ErrorCode.not_leader_or_follower)
        return DescribeQuorumResponse(topics=[TopicDataResponse(topic_name=TOPIC, partitions=[row])])
    row = PartitionDataResponse(
        partition_index=PARTITION,
        error_message=None,
        leader_id=core.local_key.id,
        leader_epoch=role.epoch,
        high_watermark=NO_OFFSET if role.high_watermark is None else role.high_watermark,
        current_voters=_states(core, role.followers.voters.values()),
        observers=_states(core, role.followers.observers.values()),
    )
    return DescribeQuorumResponse(
        error_message=None,
        topics=[TopicDataResponse(topic_name=TOPIC, partitions=[row])],
        nodes=[
            Node(
                node_id=voter.key.id,
                listeners=[
                    Listener(name=name, host=address.host, port=address.port)
                    for name, address in voter.endpoints.items()
                ],
            )
            for voter in core.voters
        ],
    )


def _refusal(index: int, error: ErrorCode) -> PartitionDataResponse:
    return PartitionDataResponse(partition_index=index, error_code=error, error_message=error.name)


def _states(core: Core, replicas: Iterable[Progress]) -> list[ReplicaState]:
    return [
        ReplicaState(
            replica_id=replica.key.id,
            replica_directory_id=replica.key.directory_id,
            log_end_offset=_offset(core, replica),
            last_fetch_timestamp=_time(core, replica, replica.last_fetch_ms),
            last_caught_up_timestamp=_time(core, replica, replica.last_caught_up_ms),
        )
        for replica in replicas
    ]


def _offset(core: Core, replica: Progress) -> int:
    if replica.key.id == core.local_key.id:
        return core.log.end.offset
    return NO_OFFSET if replica.end_offset is None else replica.end_offset


def _time(core: Core, replica: Progress, time_ms: int | None) -> int:
    if replica.key.id == core.local_key.id:
        return core.now_ms
    return NO_TIMESTAMP if time_ms is None else time_ms
