"""Fetch (key 1): records of the request's partitions, as soon as there are min_bytes of them.

Who asks: consumers, and followers of partitions led here.
Versions: v4-18. v4 isolation level, v5 log_start_offset, v7 sessions (KIP-227), v9 leader epochs
(KIP-320), v11 rack and preferred replica (KIP-392), v12 flexible and diverging epochs (KIP-595), v13
topic ids, v15 replica state (KIP-903), v16 the new leader's address (KIP-951), v17 directory id, v18 the
follower's high watermark.
Differs from Kafka: never throttles; a session's partitions are in the order of their changes; the response to
read-committed consumers has all aborted transactions up to the last stable offset.
Touches: ottla.broker.replicas (fetch sessions, purgatory, logs). Waits up to max_wait_ms in the purgatory (Kafka's
DelayedFetch), and in a thread for records that are not in memory.

The fast path and the general path of the steps that have two are side by side:

    step      fast                                 general                            held equal by
    request   `repeated`: IncrementalRequests      codec.decode                       test_fast_fetch, test_hot_fetch
              `repeated`: FullRequests             codec.decode                       test_fast_fetch, test_hot_fetch
    rows      ImplicitFetchSession                 FetchContext                       test_fast_fetch
    check     LogReads._check_fast                 LogReads._check                    test_fast_fetch
    records   LogReader.read_newest                LogReader.read                     test_fast_fetch, test_log_model
    row       codec.FastRow                        PartitionData                      test_hot_fetch
    response  codec.encode_fast_response           codec.encode_response              test_fast_fetch, test_hot_fetch

The fast path serves a request of a fetch session that names new offsets of some of its partitions, a partition that is
led here in the epoch that its row names, one of the newest batches, and a response without errors. What a connection's
requests begin and end with (session id, limits, replica) is recognised by its bytes. No more than that is
kept from one request to the next: the session is looked up, and its epoch, leadership and everything else is
checked each time, as both paths meet in `_fetch_in`. So no change of these has to invalidate anything. For a
consumer without fetch sessions, the broker keeps an implicit one for its connection
(`ottla.broker.replicas.reading.implicit_fetch_sessions`), which is notified of every change of its partitions, as
other sessions are.

Many rows are read in turns of the event loop (`ottla.broker.replicas.reading.fetch`).
"""

import asyncio
from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeVar, cast
from uuid import UUID

from ottla.broker.api import Api, Buffers, Repeated, Reply
from ottla.broker.api.current_leader import name_leaders
from ottla.broker.api.long_answers import ROWS_OF_STEP
from ottla.broker.network import ReplyInTurns
from ottla.broker.replicas.hosted_partitions import PartitionKey
from ottla.broker.replicas.reading.delayed_fetch import while_wanted
from ottla.broker.replicas.reading.fetch import fetch
from ottla.broker.replicas.reading.fetch_contexts import (
    FetchContext,
    new_context,
    partitions_in_steps,
    update_in_steps,
)
from ottla.broker.replicas.reading.fetch_params import FetchParams
from ottla.broker.replicas.reading.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchedPartition,
    RequestRow,
)
from ottla.broker.replicas.reading.implicit_fetch_sessions import MAX_REQUEST_BYTES, ImplicitFetchSession
from ottla.broker.replicas.reading.response_rows import ResponseRows, count_and_group
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
)
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import Row
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from ottla.protocol.steps import Step
from ottla.replication.replica_selector import ClientMetadata
from ottla.runtime.turns import FreedInTurns, result_in_turns

READ_COMMITTED: Final = 1
#: The replica id of a copy of a partition between log directories.
FUTURE_REPLICA: Final = -3

T = TypeVar("T")

#: More rows are recorded, grouped and encoded in turns of the loop: 3,000 in one take 3 ms.
MANY_ROWS: Final = 2_000
#: A longer body may have more rows than are handled in one turn of the loop.
LONG_BODY_BYTES: Final = 8 * 1024

_ERRORS_WITH_LEADER: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})


def handle_raw(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
    """Look up the fetch session, read its partitions, respond or wait."""
    # Numbers of forgotten partitions are read in one step, however many they are.
    if len(body) > LONG_BODY_BYTES:
        return ReplyInTurns(_decode_and_fetch(bytes(body), context, broker))
    decoding = codec.decode_in_steps(context.version, body, [])
    try:
        next(decoding)
    except StopIteration as done:
        request: FetchRequest = done.value
        by_id = context.version >= 13
        requested = list(_requested(request.topics, by_id=by_id))
        forgotten = list(_forgotten(request.forgotten_topics_data, by_id=by_id))
        return _fetch(request, request.session_epoch, requested, forgotten, context, broker)
    return ReplyInTurns(_decode_and_fetch(bytes(body), context, broker))


async def _decode_and_fetch(body: bytes, context: RequestContext, broker: BrokerServices) -> Reply:
    """Decode a fetch of many rows in turns of the event loop, then fetch its partitions."""
    parts = FreedInTurns(broker.runtime)
    decoding = codec.decode_in_steps(context.version, memoryview(body), parts)
    request = await result_in_turns(decoding, broker.runtime)
    by_id = context.version >= 13
    requested = await result_in_turns(
        _each((_requested([topic], by_id=by_id) for topic in request.topics), parts), broker.runtime
    )
    forgotten = await result_in_turns(
        _each((_forgotten([topic], by_id=by_id) for topic in request.forgotten_topics_data), parts),
        broker.runtime,
    )
    epoch, partitions = request.session_epoch, None
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        partitions = await result_in_turns(partitions_in_steps(requested), broker.runtime)
        parts.append(partitions)
        requested = []
    elif len(requested) + len(forgotten) > MANY_ROWS and await result_in_turns(
        update_in_steps(
            broker.fetch_sessions,
            request.session_id,
            epoch,
            requested,
            forgotten,
            is_read_committed=request.isolation_level == READ_COMMITTED,
            uses_topic_ids=by_id,
        ),
        broker.runtime,
    ):
        requested, forgotten = [], []
    return _fetch(request, epoch, requested, forgotten, context, broker, partitions)


def repeated(version: int, body: memoryview) -> Repeated | None:
    """Return how requests with the same limits and session id are handled.

    The bytes that are compared precede the session epoch. None for a fetch that opens a session, and in old
    versions.
    """
    if codec.is_full(version, body):
        return _repeated_full(version)
    if not codec.is_incremental(version, body):
        return None
    requests = codec.IncrementalRequests(version)

    def handle(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
        incremental = requests.decode(body)
        if incremental is None:
            return handle_raw(body, context, broker)
        request, session_epoch, rows = incremental
        return _fetch(request, session_epoch, rows, (), context, broker)

    return Repeated(requests.size_bytes, handle)


def _repeated_full(version: int) -> Repeated:
    """Return how a consumer's fetches without session are handled while limits and session epoch are the same."""
    requests, implicit_session = codec.FullRequests(version), ImplicitFetchSession()

    def handle(body: memoryview, context: RequestContext, broker: BrokerServices) -> Reply:
        if len(body) > MAX_REQUEST_BYTES:
            implicit_session.close()
        full = None if implicit_session.has_ended else requests.decode(body)
        # Which replica is the nearest one may change without a change of the partition.
        if full is None or _client(full.request, context, broker) is not None:
            return handle_raw(body, context, broker)
        now_ms = broker.replicas.runtime.now_ms()
        fetch_context = implicit_session.context(
            full.topics,
            broker.fetch_sessions,
            host=context.client_host,
            is_read_committed=full.request.isolation_level == READ_COMMITTED,
            now_ms=now_ms,
        )
        if fetch_context is None:
            return handle_raw(body, context, broker)
        return _fetch_in(fetch_context, full.request, context, broker, now_ms=now_ms)

    return Repeated(requests.size_bytes, handle, implicit_session.close)


def _fetch(
    request: FetchRequest,
    session_epoch: int,
    requested: Iterable[tuple[PartitionKey, RequestRow]],
    forgotten: Iterable[PartitionKey],
    context: RequestContext,
    broker: BrokerServices,
    partitions: dict[PartitionKey, FetchedPartition] | None = None,
) -> Reply:
    """Fetch the `requested` rows and remove the `forgotten` ones from the session.

    Everything but the rows is in `request`. `partitions`: those of a full fetch, instead of `requested`.
    """
    version = context.version
    now_ms = broker.replicas.runtime.now_ms()
    replica_id = request.replica_state.replica_id if version >= 15 else request.replica_id
    try:
        fetch_context = new_context(
            broker.fetch_sessions,
            session_id=request.session_id,
            epoch=session_epoch,
            requested=requested,
            forgotten=forgotten,
            is_follower=replica_id >= 0,
            uses_topic_ids=version >= 13,
            is_read_committed=request.isolation_level == READ_COMMITTED,
            now_ms=now_ms,
            partitions=partitions,
        )
    except (FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError) as error:
        return codec.encode_response(version, context.correlation_id, FetchResponse(error_code=error.code))
    return _fetch_in(fetch_context, request, context, broker, now_ms=now_ms)


def _fetch_in(
    fetch_context: FetchContext,
    request: FetchRequest,
    context: RequestContext,
    broker: BrokerServices,
    *,
    now_ms: int,
) -> Reply:
    """Fetch the partitions of `fetch_context`. Everything but the rows is in `request`."""
    version, replicas = context.version, broker.replicas
    replica_id = request.replica_state.replica_id if version >= 15 else request.replica_id
    is_follower = replica_id >= 0
    max_bytes = min(request.max_bytes, replicas.fetch_max_bytes)
    params = FetchParams(
        version=version,
        replica_id=replica_id if is_follower else None,
        replica_epoch=request.replica_state.replica_epoch if version >= 15 else -1,
        client=None if is_follower else _client(request, context, broker),
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        is_read_committed=request.isolation_level == READ_COMMITTED,
        now_ms=now_ms,
    )

    def respond(rows: ResponseRows) -> Buffers | asyncio.Future[Buffers]:
        if len(rows) > MANY_ROWS:
            return while_wanted(
                _respond_in_turns(rows, fetch_context, context, broker, is_follower=is_follower)
            )
        error_code, session_id = fetch_context.update_session(rows, now_ms=replicas.runtime.now_ms)
        topics = count_and_group(rows, fetch_context.session, replicas, is_follower=is_follower)
        if not error_code:
            encoded = codec.encode_fast_response(version, context.correlation_id, session_id, topics)
            if encoded is not None:
                return encoded
        response = FetchResponse(
            error_code=error_code,
            session_id=session_id,
            responses=[_topic_response(topic, partitions) for topic, partitions in topics],
        )
        if version >= 16:
            _name_leaders(response, _refused(rows), context, broker)
        return codec.encode_response(version, context.correlation_id, response)

    return fetch(
        replicas,
        broker.preferred_read_replicas,
        fetch_context,
        params,
        respond,
        remote=None if broker.remote is None else broker.remote.reads,
    )


async def _respond_in_turns(
    rows: ResponseRows,
    fetch_context: FetchContext,
    context: RequestContext,
    broker: BrokerServices,
    *,
    is_follower: bool,
) -> Buffers:
    """Respond to a fetch of very many rows: they are recorded, grouped and encoded in turns of the event loop."""
    replicas, version = broker.replicas, context.version
    parts = FreedInTurns(broker.runtime)
    parts.append(rows)
    error_code, session_id = await result_in_turns(
        fetch_context.update_session_in_steps(rows, now_ms=replicas.runtime.now_ms), broker.runtime
    )

    refused: list[tuple[PartitionKey, Row]] = []

    def topics() -> Generator[None, None, list[FetchableTopicResponse]]:
        found: list[FetchableTopicResponse] = []
        for at in range(0, len(rows), ROWS_OF_STEP):
            some = rows[at : at + ROWS_OF_STEP]
            # A topic's rows may be several entries of the response, as they are where others are read in between.
            grouped = count_and_group(some, fetch_context.session, replicas, is_follower=is_follower)
            found += [_topic_response(topic, partitions) for topic, partitions in grouped]
            refused.extend(_refused(some))
            parts.append(some)
            yield
        parts.append(found)
        parts.append(refused)
        return found

    response = FetchResponse(
        error_code=error_code,
        session_id=session_id,
        responses=await result_in_turns(topics(), broker.runtime),
    )
    if version >= 16:
        _name_leaders(response, refused, context, broker)
    return await result_in_turns(
        codec.encode_response_in_steps(version, context.correlation_id, response), broker.runtime
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


def _each(groups: Iterable[Iterable[T]], parts: FreedInTurns) -> Generator[None, None, list[T]]:
    """The rows of all groups; groups without rows count for a step, too."""
    found: list[T] = []
    step = Step(ROWS_OF_STEP)
    for rows in groups:
        for row in rows:
            found.append(row)
            parts.hold(row)
            if step.is_full():
                yield
        if step.is_full():
            yield
    return found


def _requested(topics: list[FetchTopic], *, by_id: bool) -> Iterator[tuple[PartitionKey, RequestRow]]:
    return (
        ((topic.topic_id if by_id else topic.topic, row.partition), row)
        for topic in topics
        for row in topic.partitions
    )


def _forgotten(topics: list[ForgottenTopic], *, by_id: bool) -> Iterator[PartitionKey]:
    return (
        (topic.topic_id if by_id else topic.topic, index) for topic in topics for index in topic.partitions
    )


def _topic_response(topic: str | UUID, rows: list[Row]) -> FetchableTopicResponse:
    partitions = cast("list[PartitionData]", rows)  # a `FastRow` has the same fields
    if isinstance(topic, str):
        return FetchableTopicResponse(topic=topic, partitions=partitions)
    return FetchableTopicResponse(topic_id=topic, partitions=partitions)


def _refused(rows: ResponseRows) -> list[tuple[PartitionKey, Row]]:
    """The rows that a client is to fetch from another broker."""
    return [(fetched.key, row) for fetched, row in rows if row.error_code in _ERRORS_WITH_LEADER]


def _name_leaders(
    response: FetchResponse,
    refused: list[tuple[PartitionKey, Row]],
    context: RequestContext,
    broker: BrokerServices,
) -> None:
    response.node_endpoints = name_leaders(
        refused, context, broker, leader=LeaderIdAndEpoch, endpoint=NodeEndpoint
    )


API = Api(key=ApiKey.FETCH, versions=range(4, 19), handle_raw=handle_raw, repeated=repeated)
