"""AlterReplicaLogDirs (key 34): move replicas of this broker between its log directories (KIP-113).

Who asks: admin clients (kafka-reassign-partitions.sh with log_dirs); sent to each broker for its own replicas.
Versions: v1-2. v2 flexible.
The response is sent when the move has begun; DescribeLogDirs reports its progress. A request with the replica's
current directory cancels a move.
Differs from Kafka: never throttles; the requested directory of a partition that this broker does not host yet
(REPLICA_NOT_AVAILABLE) is not kept for its later creation.
Touches: ottla.broker.replicas (log moves). Many moves are begun in several turns of the loop.
"""

from collections.abc import Awaitable, Generator
from pathlib import Path
from typing import Final

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    KafkaError,
    NotLeaderOrFollower,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.steps import Step
from ottla.protocol.types import TopicPartition

#: The number of moves that are begun in one step, and so at once: each creates a directory, in 0.4 to 1.3 ms.
_MOVES_OF_STEP: Final = 2


def handle(
    request: AlterReplicaLogDirsRequest, context: RequestContext, broker: BrokerServices
) -> AlterReplicaLogDirsResponse | Awaitable[AlterReplicaLogDirsResponse]:
    """Handle each partition separately; for a partition that is named twice the last directory applies."""
    return at_once_or_in_turns(_move_each(request, broker), broker.runtime, broker.long_answers)


def _move_each(
    request: AlterReplicaLogDirsRequest, broker: BrokerServices
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    wanted: dict[TopicPartition, Path] = {}
    step = Step(ROWS_OF_STEP)
    for directory in request.dirs:
        path = Path(directory.path)
        for topic in directory.topics:
            for index in topic.partitions:
                wanted[TopicPartition(topic.name, index)] = path
                if step.is_full():
                    yield
            if step.is_full():
                yield
        if step.is_full():
            yield
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    left = _MOVES_OF_STEP
    for topic_partition, path in wanted.items():
        if not left:
            left = _MOVES_OF_STEP
            yield
        left -= 1
        name, index = topic_partition
        row = AlterReplicaLogDirPartitionResult(partition_index=index)
        topics.setdefault(name, AlterReplicaLogDirTopicResult(topic_name=name)).partitions.append(row)
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


API = Api(key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions=range(1, 3), handle=handle, is_encoded_in_turns=True)
