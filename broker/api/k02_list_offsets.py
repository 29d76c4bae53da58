"""ListOffsets (key 2): the offset at a time, or at one of the special places of a log.

Who asks: consumers that start or seek, admin clients, followers that bootstrap (KIP-405, KIP-1023).
Versions: v1-11. v2 isolation level, v4 leader epochs (KIP-320), v6 flexible, v7 max timestamp (-3), v8
earliest local (-4), v9 latest tiered (-5), v10 timeout (KIP-1075), v11 earliest pending upload (-6).
Differs from Kafka: never throttles.
Touches: broker.partition (read only). Looks for a time in a thread, since it may have to decompress.
"""

from collections import Counter
from typing import Final

from broker.api import Api, RequestContext
from broker.broker import Broker
from broker.replicas.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    offset_for_timestamp,
)
from broker.runtime import Pool
from protocol.api_keys import ApiKey
from protocol.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.types import TopicPartition

READ_COMMITTED: Final = 1
#: Who asks, in the replica id: a consumer, or a tool that may ask followers too.
CONSUMER: Final = -1
DEBUGGING: Final = -2

#: Special timestamp -> the first version that has it.
SPECIAL: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def handle(request: ListOffsetsRequest, context: RequestContext, broker: Broker) -> ListOffsetsResponse:
    """Row by row; a partition that is named twice is answered INVALID_REQUEST each time."""
    named = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
    topics = []
    for topic in request.topics:
        rows = []
        for asked in topic.partitions:
            try:
                if named[topic.name, asked.partition_index] > 1:
                    raise InvalidRequest(f"{topic.name}-{asked.partition_index} is named more than once")
                rows.append(await answer_partition(topic.name, asked, request, context.version, broker))
            except KafkaError as error:
                rows.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index, error_code=_code(error, context.version)
                    )
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
    return ListOffsetsResponse(topics=topics)


async def answer_partition(
    topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest, version: int, broker: Broker
) -> ListOffsetsPartitionResponse:
    """One row; offset and timestamp -1 if there is no such offset."""
    timestamp = asked.timestamp
    if timestamp < 0 and version < SPECIAL.get(timestamp, version + 1):
        raise UnsupportedVersion(f"ListOffsets v{version} does not know the timestamp {timestamp}")
    partition = broker.replicas.partition(TopicPartition(topic, asked.partition_index))
    is_read_committed = None
    if request.replica_id == CONSUMER:
        is_read_committed = request.isolation_level == READ_COMMITTED
    epoch = asked.current_leader_epoch

    def look_up() -> ListOffsetsPartitionResponse:
        found = offset_for_timestamp(
            partition,
            timestamp,
            is_read_committed=is_read_committed,
            current_leader_epoch=None if epoch == -1 else epoch,
            must_lead=request.replica_id != DEBUGGING,
        )
        row = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        if found is not None:
            row.timestamp, row.offset = found.timestamp, found.offset
            row.leader_epoch = -1 if found.leader_epoch is None else found.leader_epoch
        return row

    if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        return await broker.runtime.run_blocking(look_up, pool=Pool.READS)
    return look_up()


def _code(error: KafkaError, version: int) -> int:
    if isinstance(error, OffsetNotAvailable) and version < 5:
        # Older clients do not know that error; this one they answer by asking again, too.
        return LeaderNotAvailable.code
    return error.code


API = Api(key=ApiKey.LIST_OFFSETS, versions=range(1, 12), handle=handle)
