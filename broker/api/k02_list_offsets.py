"""ListOffsets (key 2): the offset for a timestamp, or for a special timestamp (earliest, latest, ...).

Who asks: consumers that start or seek, admin clients, followers that bootstrap (KIP-405, KIP-1023).
Versions: v1-11. v2 isolation level, v4 leader epochs (KIP-320), v6 flexible, v7 max timestamp (-3), v8
earliest local (-4), v9 latest tiered (-5), v10 timeout (KIP-1075), v11 earliest pending upload (-6).
Differs from Kafka: never throttles; -3 is the largest timestamp of both tiers.
Touches: broker.partition (read only). Searches a timestamp in threads, since that decompresses records; the result
is valid only if leader and leader epoch are still the same afterwards. What is in the remote tier only is
waited for in the purgatory (Kafka's DelayedRemoteListOffsets). Either takes timeout_ms or
remote.list.offsets.request.timeout.ms at most: then the row has REQUEST_TIMED_OUT, and the next request
continues. Many rows take several turns of the loop.
"""

from typing import Final, NamedTuple

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.delayed_remote_list_offsets import OffsetLookUp
from ottla.broker.replicas.reading.list_offsets import is_searched, offset_for_timestamp, search
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from ottla.protocol.steps import counted
from ottla.protocol.types import TopicPartition
from ottla.runtime.turns import MAX_STEPS, result_in_turns
from ottla.storage.index import TimestampOffset

#: Rows of one step count as so many steps of a turn.
_STEPS: Final = MAX_STEPS // 4

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
    """Answer row by row; each row of a partition that is named twice gets INVALID_REQUEST.

    Rows that need the remote tier are searched for at the same time, and filled in when all of them are done.
    """
    pending: _Pending = []
    timeout_ms = request.timeout_ms if context.version >= 10 and request.timeout_ms > 0 else None
    if timeout_ms is None:
        timeout_ms = broker.config.get("remote.list.offsets.request.timeout.ms")
    deadline_s = broker.runtime.monotonic() + timeout_ms / 1000
    try:
        topics = await _find_locally(request, context, broker, pending, deadline_s)
    except BaseException:  # the connection is closed
        for _, _, look_up in pending:
            look_up.cancel()
        raise
    if pending:
        await _fill_pending(pending, request, context, broker)
    return ListOffsetsResponse(topics=topics)


async def _find_locally(
    request: ListOffsetsRequest,
    context: RequestContext,
    broker: BrokerServices,
    pending: "_Pending",
    deadline_s: float,
) -> list[ListOffsetsTopicResponse]:
    """Begin the look-ups of the remote tier, added to `pending`, and answer the other rows until `deadline_s`."""
    rows_of_all = ((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
    named = await result_in_turns(counted(rows_of_all), broker.runtime)
    topics = []
    left = ROWS_OF_STEP
    for topic in request.topics:
        left = max(0, left - 1)
        rows: list[ListOffsetsPartitionResponse] = []
        for asked in topic.partitions:
            if not left:
                left = ROWS_OF_STEP
                await broker.runtime.turns.share(steps=_STEPS)
            left -= 1
            response = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
            rows.append(response)
            try:
                if named[topic.name, asked.partition_index] > 1:
                    raise InvalidRequest(f"{topic.name}-{asked.partition_index} is named more than once")
                row = _row(topic.name, asked, request, context.version, broker)
                look_up, found = _remote_look_up(row, broker), None
                if look_up is None and is_searched(row.timestamp):
                    found = await _find(row, broker, deadline_s)
                    # Local retention may have removed segments before the thread had read them.
                    look_up = _remote_look_up(row, broker)
                if look_up is not None:
                    pending.append((response, row, look_up))
                else:
                    _fill(response, row, found)
            except KafkaError as error:
                response.error_code = _code(error, context.version)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        if not left:
            left = ROWS_OF_STEP
            await broker.runtime.turns.share(steps=_STEPS)
    return topics


class _Row(NamedTuple):
    """One row of the request, whose partition this replica may answer for."""

    partition: Partition
    timestamp: int
    #: The leader epoch that the sender expects; None: any.
    current_leader_epoch: int | None
    must_lead: bool
    #: Whether the offset must be below the last stable offset; None: the sender is a replica.
    is_read_committed: bool | None


#: Rows that are filled in when their look-ups have ended.
_Pending = list[tuple[ListOffsetsPartitionResponse, _Row, OffsetLookUp]]


def _row(
    topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest, version: int, broker: BrokerServices
) -> _Row:
    """Check a row and return it with its partition. Raises UnsupportedVersion, KafkaError.

    The errors are those of `Partition.local_log` and `ReplicaManager.partition`.
    """
    if asked.timestamp < 0 and version < SPECIAL.get(asked.timestamp, version + 1):
        raise UnsupportedVersion(f"ListOffsets v{version} does not know the timestamp {asked.timestamp}")
    row = _Row(
        partition=broker.replicas.partition(TopicPartition(topic, asked.partition_index)),
        timestamp=asked.timestamp,
        current_leader_epoch=None if asked.current_leader_epoch == -1 else asked.current_leader_epoch,
        must_lead=request.replica_id != DEBUGGING,
        is_read_committed=(
            request.isolation_level == READ_COMMITTED if request.replica_id == CONSUMER else None
        ),
    )
    row.partition.local_log(row.current_leader_epoch, must_lead=row.must_lead)
    return row


def _fill(
    response: ListOffsetsPartitionResponse, row: _Row, found: TimestampOffset | None
) -> ListOffsetsPartitionResponse:
    """Fill in offset and timestamp of a row; both stay -1 if there is no such offset."""
    answer = offset_for_timestamp(
        row.partition, row.timestamp, found=found, is_read_committed=row.is_read_committed
    )
    if answer is not None:
        response.timestamp, response.offset = answer.timestamp, answer.offset
        response.leader_epoch = -1 if answer.leader_epoch is None else answer.leader_epoch
    return response


async def _find(row: _Row, broker: BrokerServices, deadline_s: float) -> TimestampOffset | None:
    """Search the local records. Raises what `_check_unchanged` and `search` raise."""
    leader_epoch = row.partition.leader_epoch
    found = await search(row.partition, row.timestamp, broker.runtime, deadline_s=deadline_s)
    _check_unchanged(row, leader_epoch)
    return found


def _check_unchanged(row: _Row, leader_epoch: int) -> None:
    """Raise NotLeaderOrFollower if the leader epoch has changed during the search, or what `local_log` raises.

    The log may have been truncated, and the record found removed.
    """
    row.partition.local_log(row.current_leader_epoch, must_lead=row.must_lead)
    if row.partition.leader_epoch != leader_epoch:
        raise NotLeaderOrFollower(f"{row.partition}: leader epoch {leader_epoch} has ended during the search")


def _remote_look_up(row: _Row, broker: BrokerServices) -> OffsetLookUp | None:
    """Begin to search both tiers, if the log has records in the remote tier only; None: the local log is enough."""
    offsets = row.partition.log.offsets
    if (
        broker.remote is None
        or offsets.local_log_start_offset == offsets.log_start_offset
        or not is_searched(row.timestamp)
    ):
        return None
    return broker.remote.reads.look_up(row.partition, row.timestamp)


async def _fill_pending(
    pending: "_Pending",
    request: ListOffsetsRequest,
    context: RequestContext,
    broker: BrokerServices,
) -> None:
    """Wait for the look-ups, and fill in their rows."""
    assert broker.remote is not None
    has_timeout = context.version >= 10 and request.timeout_ms > 0
    await broker.remote.reads.wait_for(
        [look_up for _, _, look_up in pending], timeout_ms=request.timeout_ms if has_timeout else None
    )
    for response, row, look_up in pending:
        try:
            _check_unchanged(row, look_up.leader_epoch)
            _fill(response, row, look_up.result())
        except KafkaError as error:
            response.error_code = _code(error, context.version)


def _code(error: KafkaError, version: int) -> int:
    if isinstance(error, OffsetNotAvailable) and version < 5:
        # Older clients do not know OFFSET_NOT_AVAILABLE; they also retry after LEADER_NOT_AVAILABLE.
        return LeaderNotAvailable.code
    return error.code


API = Api(
    key=ApiKey.LIST_OFFSETS, versions=range(1, 12), handle=handle, is_encoded_in_turns=True, only_reads=True
)
