"""OffsetFetch (key 9): the committed offsets of groups.

Who asks: consumers before they fetch, admin clients; sent to the groups' coordinator.
Versions: v1-10. v2 null topics for all and an error of the whole group, v5 leader epoch (KIP-320), v7
require_stable (KIP-447), v8 several groups (KIP-709), v9 member (ignored for classic groups), v10 topic ids.
Differs from Kafka: while commits of the group wait for replicas, every OffsetFetch waits with them; Kafka returns
the offsets before them if require_stable is not set. The offset of a deleted topic is not returned for a new one of
the same name, in any version. Duplicates in the request are answered once.
Touches: broker.metadata (read only), broker.groups. Waits for the replication of commits, also of those that a
former leader has appended and this one has loaded. Many rows take several turns of the loop, and are then of several
moments.
"""

from asyncio import Future, shield
from collections.abc import Awaitable, Generator, Iterator
from itertools import islice
from uuid import UUID

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns, when_all
from ottla.broker.groups.answers import Answer
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.steps import Step, listed
from ottla.runtime.turns import FreedInTurns, result_in_turns

_FIRST_VERSION_WITH_GROUP_ERROR = 2
_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_TOPIC_IDS = 10

#: (id, name) of a topic -> its partitions.
_Wanted = dict[tuple[UUID, str], dict[int, None]]


def handle(
    request: OffsetFetchRequest, context: RequestContext, broker: BrokerServices
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """Return a row for each group; up to v7 there is one group, and the response is its row."""
    return at_once_or_in_turns(_answer(request, context, broker), broker.runtime, broker.long_answers)


def _answer(
    request: OffsetFetchRequest, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, OffsetFetchResponse | Awaitable[OffsetFetchResponse]]:
    has_groups = context.version >= _FIRST_VERSION_WITH_GROUPS
    parts = FreedInTurns(broker.runtime)
    asked = request.groups if has_groups else [(yield from _single_group(request, parts))]
    groups = yield from _distinct(asked, parts)
    answers: list[Answer[OffsetFetchResponseGroup]] = []
    left = ROWS_OF_STEP
    for group in groups:
        answer = yield from _fetch(group, request.require_stable, context, broker)
        answers.append(answer)
        parts.hold(answer)
        left -= 1 + _row_count(answer)
        if left < 0:
            left = ROWS_OF_STEP
            yield
    if has_groups:
        return when_all(answers, lambda fetched: OffsetFetchResponse(groups=fetched), broker.runtime)
    if isinstance(answers[0], Future):
        return _single_answer_later(groups[0], answers[0], context.version, broker)
    return (yield from _single_answer(groups[0], answers[0], context.version))


def _row_count(answer: Answer[OffsetFetchResponseGroup]) -> int:
    """The number of rows, at most that of a step; the number of a step if the number of rows is not known
    yet.
    """
    if isinstance(answer, Future) or len(answer.topics) >= ROWS_OF_STEP:
        return ROWS_OF_STEP
    return sum([len(topic.partitions) for topic in answer.topics])


def _distinct(
    groups: list[OffsetFetchRequestGroup], parts: FreedInTurns
) -> Generator[None, None, list[OffsetFetchRequestGroup]]:
    """Return each group once, and in it each partition once.

    A short request must not cause a multiple of a long response.

    A request for some partitions of a group and for all of them returns all.
    """
    wanted: dict[str, _Wanted | None] = {}
    parts.append(wanted)
    step = Step(ROWS_OF_STEP)
    for group in groups:
        topics = wanted.get(group.group_id, {})
        if group.topics is None:
            wanted[group.group_id] = None
        elif topics is not None:
            if group.group_id not in wanted:
                wanted[group.group_id] = topics
                parts.append(topics)
            yield from _add(group.topics, topics, step, parts)
        if step.is_full():
            yield
    found: list[OffsetFetchRequestGroup] = []
    for group_id, topics in wanted.items():
        named = None
        if topics is not None:
            named = yield from listed(_topics(topics), size=ROWS_OF_STEP, parts=parts)
        found.append(OffsetFetchRequestGroup(group_id=group_id, topics=named))
        parts.hold(found[-1])
        if not len(found) % ROWS_OF_STEP:
            yield
    return found


def _add(
    asked: list[OffsetFetchRequestTopics], wanted: _Wanted, step: Step, parts: FreedInTurns
) -> Iterator[None]:
    """Add the partitions of these topics to those of the group."""
    for topic in asked:
        key = topic.topic_id, topic.name
        partitions = wanted.get(key)
        if partitions is None:
            partitions = wanted[key] = {}
            parts.append(partitions)
        indexes = iter(topic.partition_indexes)
        while some := dict.fromkeys(islice(indexes, ROWS_OF_STEP)):
            partitions |= some
            if step.is_full(len(some)):
                yield
        if step.is_full():
            yield


def _topics(wanted: _Wanted) -> Iterator[OffsetFetchRequestTopics]:
    return (
        OffsetFetchRequestTopics(topic_id=topic_id, name=name, partition_indexes=list(partitions))
        for (topic_id, name), partitions in wanted.items()
    )


def _fetch(
    group: OffsetFetchRequestGroup, require_stable: bool, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, Answer[OffsetFetchResponseGroup]]:
    unknown: list[OffsetFetchResponseTopics] = []
    is_of_all = group.topics is None
    has_ids = context.version >= _FIRST_VERSION_WITH_TOPIC_IDS
    if has_ids and group.topics is not None:
        known = []
        for number, asked in enumerate(group.topics):
            if number % ROWS_OF_STEP == ROWS_OF_STEP - 1:
                yield
            topic = broker.metadata.topic_by_id(asked.topic_id)
            if topic is None:
                unknown.append((yield from _unknown_topic(asked)))
            else:
                asked.name = topic.name
                known.append(asked)
        group.topics = known

    def complete(fetched: OffsetFetchResponseGroup) -> Iterator[None]:
        if has_ids and is_of_all:
            yield from _add_ids(fetched, broker)
        fetched.topics += unknown

    return (yield from broker.groups.fetch_offsets(group, require_stable=require_stable, complete=complete))


def _add_ids(fetched: OffsetFetchResponseGroup, broker: BrokerServices) -> Iterator[None]:
    """Name all topics by id; a deleted topic has no id, and is omitted."""
    topics = []
    for number, row in enumerate(fetched.topics):
        if number % ROWS_OF_STEP == ROWS_OF_STEP - 1:
            yield
        topic = broker.metadata.topic(row.name)
        if topic is not None:
            row.topic_id = topic.topic_id
            topics.append(row)
    fetched.topics = topics


def _unknown_topic(asked: OffsetFetchRequestTopics) -> Generator[None, None, OffsetFetchResponseTopics]:
    error = ErrorCode.unknown_topic_id
    rows = yield from listed(
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=error)
        for index in asked.partition_indexes
    )
    return OffsetFetchResponseTopics(topic_id=asked.topic_id, partitions=rows)


def _single_group(
    request: OffsetFetchRequest, parts: FreedInTurns
) -> Generator[None, None, OffsetFetchRequestGroup]:
    topics = None
    if request.topics is not None:
        named = (
            OffsetFetchRequestTopics(name=asked.name, partition_indexes=asked.partition_indexes)
            for asked in request.topics
        )
        topics = yield from listed(named, parts=parts)
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


async def _single_answer_later(
    asked: OffsetFetchRequestGroup,
    answer: Future[OffsetFetchResponseGroup],
    version: int,
    broker: BrokerServices,
) -> OffsetFetchResponse:
    # Shielded: the coordinator completes the answer, also if this connection is closed.
    fetched = await shield(answer)
    return await result_in_turns(
        _single_answer(asked, fetched, version), broker.runtime, is_begun_at_once=True
    )


def _single_answer(
    asked: OffsetFetchRequestGroup, fetched: OffsetFetchResponseGroup, version: int
) -> Generator[None, None, OffsetFetchResponse]:
    """The response in the form of v1-7. In v1 an error of the group is in the row of every partition."""
    response = OffsetFetchResponse(error_code=fetched.error_code)
    step = Step(ROWS_OF_STEP)
    if fetched.error_code and version < _FIRST_VERSION_WITH_GROUP_ERROR:
        for refused in asked.topics or ():
            rows = yield from listed(
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, error_code=fetched.error_code
                )
                for index in refused.partition_indexes
            )
            response.topics.append(OffsetFetchResponseTopic(name=refused.name, partitions=rows))
            if step.is_full(1 + len(rows)):
                yield
    for topic in fetched.topics:
        rows = yield from listed(
            OffsetFetchResponsePartition(
                partition_index=row.partition_index,
                committed_offset=row.committed_offset,
                committed_leader_epoch=row.committed_leader_epoch,
                metadata=row.metadata,
                error_code=row.error_code,
            )
            for row in topic.partitions
        )
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=rows))
        if step.is_full(1 + len(rows)):
            yield
    return response


API = Api(key=ApiKey.OFFSET_FETCH, versions=range(1, 11), handle=handle, is_encoded_in_turns=True)
