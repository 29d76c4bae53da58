"""Fetch (key 1): records of the request's partitions, as soon as there are min_bytes of them.

Who asks: consumers, and followers of partitions led here.
Versions: v4-18. v4 isolation level, v5 log_start_offset, v7 sessions (KIP-227), v9 leader epochs
(KIP-320), v11 rack and preferred replica (KIP-392), v12 flexible and diverging epochs (KIP-595), v13
topic ids, v15 replica state (KIP-903), v16 the new leader's address (KIP-951), v17 directory id, v18 the
follower's high watermark.
Differs from Kafka: never throttles; a session's partitions are in the order of their changes; the response to
read-committed consumers has all aborted transactions up to the last stable offset.
Touches: broker.replicas (fetch sessions, purgatory, logs). Waits up to max_wait_ms in the purgatory (Kafka's
DelayedFetch), and in a thread for records that are not in memory.
"""

from typing import Final
from uuid import UUID

from broker.api import Api, Buffers, Reply
from broker.api.current_leader import name_leaders
from broker.reads.fetch import fetch
from broker.reads.fetch_contexts import new_context
from broker.reads.fetch_params import FetchParams
from broker.reads.fetch_sessions import FetchedPartition
from broker.reads.response_rows import ResponseRows
from broker.replicas.hosted_partitions import PartitionKey
from broker.replication.replica_selector import ClientMetadata
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)
from protocol.hot import fetch as codec
from protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
)

READ_COMMITTED: Final = 1
#: The replica id of a copy of a partition between log directories.
FUTURE_REPLICA: Final = -3

_ERRORS_WITH_LEADER: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


def handle_raw(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
    """Look up the fetch session, read its partitions, respond or wait."""
    version = context.version
    request = codec.decode(version, body)
    replicas = broker.replicas
    now_ms = replicas.runtime.now_ms()
    by_id = version >= 13
    replica_id = request.replica_state.replica_id if version >= 15 else request.replica_id
    is_follower = replica_id >= 0
    is_read_committed = request.isolation_level == READ_COMMITTED
    try:
        fetch_context = new_context(
            broker.fetch_sessions,
            session_id=request.session_id,
            epoch=request.session_epoch,
            requested=_requested(request, by_id=by_id),
            forgotten=_forgotten(request, by_id=by_id),
            is_follower=is_follower,
            uses_topic_ids=by_id,
            is_read_committed=is_read_committed,
            now_ms=now_ms,
        )
    except (FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError) as error:
        return codec.encode_response(version, context.correlation_id, FetchResponse(error_code=error.code))
    max_bytes = min(request.max_bytes, replicas.fetch_max_bytes)
    params = FetchParams(
        version=version,
        replica_id=replica_id if is_follower else None,
        replica_epoch=request.replica_state.replica_epoch if version >= 15 else -1,
        client=None if is_follower else _client(request, context, broker),
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        is_read_committed=is_read_committed,
    )

    def respond(rows: ResponseRows) -> Buffers:
        error_code, session_id = fetch_context.update_session(rows, now_ms=replicas.runtime.now_ms())
        response = FetchResponse(
            error_code=error_code, session_id=session_id, responses=_by_topic(rows, is_follower=is_follower)
        )
        if version >= 16:
            _name_leaders(response, rows, context, broker)
        return codec.encode_response(version, context.correlation_id, response)

    return fetch(
        replicas,
        broker.preferred_read_replicas,
        fetch_context,
        params,
        respond,
        remote=None if broker.remote is None else broker.remote.reads,
    )


def _client(request: FetchRequest, context: RequestContext, broker: BrokerServices) -> ClientMetadata | None:
    """The metadata for the choice of a preferred read replica; None without a replica selector (KIP-392)."""
    if (
        broker.preferred_read_replicas.selector is None
        or context.version < 11
        or request.replica_id == FUTURE_REPLICA
    ):
        return None
    return ClientMetadata(
        rack=request.rack_id,
        client_id=context.client_id or "",
        client_address=context.client_host,
        principal=context.principal,
        listener_name=context.listener_name,
    )


def _requested(request: FetchRequest, *, by_id: bool) -> dict[PartitionKey, FetchedPartition]:
    requested: dict[PartitionKey, FetchedPartition] = {}
    for topic in request.topics:
        name: str | UUID = topic.topic_id if by_id else topic.topic
        for row in topic.partitions:
            key = (name, row.partition)
            requested[key] = FetchedPartition(key, row)
    return requested


def _forgotten(request: FetchRequest, *, by_id: bool) -> list[PartitionKey]:
    return [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


def _by_topic(rows: ResponseRows, *, is_follower: bool) -> list[FetchableTopicResponse]:
    """Group consecutive rows of one topic; a topic may occur again later. Counts what is sent to consumers."""
    topics: list[FetchableTopicResponse] = []
    last: str | UUID | None = None
    for fetched, row in rows:
        topic = fetched.key[0]
        if topic != last:
            last = topic
            named = (
                FetchableTopicResponse(topic=topic)
                if isinstance(topic, str)
                else FetchableTopicResponse(topic_id=topic)
            )
            topics.append(named)
        topics[-1].partitions.append(row)
        if row.records and not is_follower:
            assert fetched.partition is not None
            fetched.partition.stats.bytes_out += len(row.records)
    return topics


def _name_leaders(
    response: FetchResponse, rows: ResponseRows, context: RequestContext, broker: BrokerServices
) -> None:
    refused = [(fetched.key, row) for fetched, row in rows if row.error_code in _ERRORS_WITH_LEADER]
    response.node_endpoints = name_leaders(
        refused, context, broker, leader=LeaderIdAndEpoch, endpoint=NodeEndpoint
    )


API = Api(key=ApiKey.FETCH, versions=range(4, 19), handle_raw=handle_raw)
