"""ListOffsets (key 2): the offset for a timestamp, or for a special timestamp (earliest, latest, ...).

Who asks: consumers that start or seek, admin clients, followers that bootstrap (KIP-405, KIP-1023).
Versions: v1-11. v2 isolation level, v4 leader epochs (KIP-320), v6 flexible, v7 max timestamp (-3), v8
earliest local (-4), v9 latest tiered (-5), v10 timeout (KIP-1075), v11 earliest pending upload (-6).
Differs from Kafka: never throttles.
Touches: broker.partition (read only). Searches a timestamp in a thread, since that may decompress records; the result
is valid only if leader and leader epoch are still the same afterwards.
"""

from collections import Counter
from typing import Final

from broker.api import Api
from broker.reads.list_offsets import is_searched, offset_for_timestamp, search
from broker.replicas.partition import Partition
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    NotLeaderOrFollower,
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
from protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from protocol.types import TopicPartition
from runtime import Pool
from storage.index import TimestampOffset

READ_COMMITTED: Final = 1
#: Replica ids: a consumer, or a debugging tool, which may also send to followers.
CONSUMER: Final = -1
DEBUGGING: Final = -2

#: The first version that has each special timestamp.
SPECIAL: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def handle(
    request: ListOffsetsRequest, context: RequestContext, broker: BrokerServices
) -> ListOffsetsResponse:
    """Answer row by row; each row of a partition that is named twice gets INVALID_REQUEST."""
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
    topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest, version: int, broker: BrokerServices
) -> ListOffsetsPartitionResponse:
    """One row; offset and timestamp are -1 if there is no such offset."""
    timestamp = asked.timestamp
    if timestamp < 0 and version < SPECIAL.get(timestamp, version + 1):
        raise UnsupportedVersion(f"ListOffsets v{version} does not know the timestamp {timestamp}")
    partition = broker.replicas.partition(TopicPartition(topic, asked.partition_index))
    is_read_committed = None
    if request.replica_id == CONSUMER:
        is_read_committed = request.isolation_level == READ_COMMITTED
    found = await _find(partition, asked, must_lead=request.replica_id != DEBUGGING, broker=broker)
    answer = offset_for_timestamp(partition, timestamp, found=found, is_read_committed=is_read_committed)
    row = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    if answer is not None:
        row.timestamp, row.offset = answer.timestamp, answer.offset
        row.leader_epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
    return row


async def _find(
    partition: Partition, asked: ListOffsetsPartition, *, must_lead: bool, broker: BrokerServices
) -> TimestampOffset | None:
    """Check that this replica may answer, and search the records if the timestamp needs that.

    Raises what `Partition.local_log` raises, and NotLeaderOrFollower if the leader epoch has changed during the search:
    the log may have been truncated, and the record found removed.
    """
    epoch = None if asked.current_leader_epoch == -1 else asked.current_leader_epoch
    log = partition.local_log(epoch, must_lead=must_lead)
    if not is_searched(asked.timestamp):
        return None
    leader_epoch = partition.leader_epoch
    found = await broker.runtime.run_blocking(search, log, asked.timestamp, pool=Pool.READS)
    partition.local_log(epoch, must_lead=must_lead)
    if partition.leader_epoch != leader_epoch:
        raise NotLeaderOrFollower(f"{partition}: leader epoch {leader_epoch} has ended during the search")
    return found


def _code(error: KafkaError, version: int) -> int:
    if isinstance(error, OffsetNotAvailable) and version < 5:
        # Older clients do not know OFFSET_NOT_AVAILABLE; they also retry after LEADER_NOT_AVAILABLE.
        return LeaderNotAvailable.code
    return error.code


API = Api(key=ApiKey.LIST_OFFSETS, versions=range(1, 12), handle=handle)
