"""AlterReplicaLogDirs (key 34): move replicas of this broker between its log directories (KIP-113).

Who asks: admin clients (kafka-reassign-partitions.sh with log_dirs); sent to each broker for its own replicas.
Versions: v1-2. v2 flexible.
The response is sent when the move has begun; DescribeLogDirs reports its progress. A request with the replica's
current directory cancels a move.
Differs from Kafka: never throttles; the requested directory of a partition that this broker does not host yet
(REPLICA_NOT_AVAILABLE) is not kept for its later creation.
Touches: broker.replicas (log moves). Never waits.
"""

from pathlib import Path

from broker.api import Api
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError, NotLeaderOrFollower, ReplicaNotAvailable, UnknownTopicOrPartition
from protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from protocol.types import TopicPartition


def handle(
    request: AlterReplicaLogDirsRequest, context: RequestContext, broker: BrokerServices
) -> AlterReplicaLogDirsResponse:
    """Handle each partition separately; for a partition that is named twice the last directory applies."""
    wanted = {
        TopicPartition(topic.name, index): Path(directory.path)
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for topic_partition, path in wanted.items():
        topic, index = topic_partition
        row = AlterReplicaLogDirPartitionResult(partition_index=index)
        topics.setdefault(topic, AlterReplicaLogDirTopicResult(topic_name=topic)).partitions.append(row)
        try:
            move(topic_partition, path, broker)
        except KafkaError as error:
            row.error_code = error.code
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def move(topic_partition: TopicPartition, path: Path, broker: BrokerServices) -> None:
    """Begin the move of one replica. Raises what `ReplicaManager.move_log` raises, and ReplicaNotAvailable."""
    try:
        broker.replicas.move_log(topic_partition, path)
    except (NotLeaderOrFollower, UnknownTopicOrPartition) as error:
        raise ReplicaNotAvailable(str(error)) from error


API = Api(key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions=range(1, 3), handle=handle)
