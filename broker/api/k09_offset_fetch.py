"""OffsetFetch (key 9): the committed offsets of groups.

Who asks: consumers before they fetch, admin clients; sent to the groups' coordinator.
Versions: v1-10. v2 null topics for all and an error of the whole group, v5 leader epoch (KIP-320), v7
require_stable (KIP-447), v8 several groups (KIP-709), v9 member (ignored for classic groups), v10 topic ids.
Differs from Kafka: while commits of the group wait for replicas, every OffsetFetch waits with them; Kafka returns
the offsets before them if require_stable is not set. The offset of a deleted topic is not returned for a new one of
the same name, in any version. Duplicates in the request are answered once.
Touches: broker.metadata (read only), broker.groups. Waits for the replication of commits, also of those that a
former leader has appended and this one has loaded. Many rows take several turns of the loop; those of a group are of one
moment.
"""

from asyncio import Future
from collections.abc import Awaitable, Generator, Iterator
from uuid import UUID

from broker.api import Api
from broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns, when_all
from broker.groups.answers import Answer, after
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.offset_fetch import (
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
from protocol.steps import Step, listed
from protocol.types import ZERO_UUID

_FIRST_VERSION_WITH_GROUP_ERROR = 2
_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_TOPIC_IDS = 10


def handle(
    request: OffsetFetchRequest, context: RequestContext, broker: BrokerServices
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """One row for each group; up to v7 there is one group, and the response is its row."""
    return at_once_or_in_turns(_answer(request, context, broker), broker.runtime, broker.long_answers)


def _answer(
    request: OffsetFetchRequest, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, OffsetFetchResponse | Awaitable[OffsetFetchResponse]]:
    has_groups = context.version >= _FIRST_VERSION_WITH_GROUPS
    groups = yield from _distinct(request.groups if has_groups else [_single_group(request)])
    answers: list[Answer[OffsetFetchResponseGroup]] = []
    left = ROWS_OF_STEP
    for group in groups:
        answer = yield from _fetch(group, request.require_stable, context, broker)
        answers.append(answer)
        left -= 1 + _row_count(answer)
        if left < 0:
            left = ROWS_OF_STEP
            yield
    if has_groups:
        return when_all(answers, lambda fetched: OffsetFetchResponse(groups=fetched), broker.runtime)
    return after(answers[0], lambda fetched: _single_answer(groups[0], fetched, context.version))


def _row_count(answer: Answer[OffsetFetchResponseGroup]) -> int:
    """The number of rows, as many as a step has if it is not known yet."""
    if isinstance(answer, Future):
        return ROWS_OF_STEP
    return sum([len(topic.partitions) for topic in answer.topics])


def _distinct(
    groups: list[OffsetFetchRequestGroup],
) -> Generator[None, None, list[OffsetFetchRequestGroup]]:
    """Each group once, and in it each partition once: a short request must not cause a multiple of a long response.

    A request for some partitions of a group and for all of them returns all.
    """
    wanted: dict[str, dict[tuple[UUID, str], dict[int, None]] | None] = {}
    step = Step(ROWS_OF_STEP)
    for group in groups:
        topics = wanted.setdefault(group.group_id, {})
        if group.topics is None:
            wanted[group.group_id] = None
        elif topics is not None:
            for topic in group.topics:
                partitions = topics.setdefault((topic.topic_id, topic.name), {})
                partitions.update(dict.fromkeys(topic.partition_indexes))
                if step.is_full():
                    yield
        if step.is_full():
            yield
    found: list[OffsetFetchRequestGroup] = []
    for group_id, topics in wanted.items():
        named = None if topics is None else (yield from listed(_topics(topics), size=ROWS_OF_STEP))
        found.append(OffsetFetchRequestGroup(group_id=group_id, topics=named))
        if not len(found) % ROWS_OF_STEP:
            yield
    return found


def _topics(wanted: dict[tuple[UUID, str], dict[int, None]]) -> Iterator[OffsetFetchRequestTopics]:
    return (
        OffsetFetchRequestTopics(topic_id=topic_id, name=name, partition_indexes=list(partitions))
        for (topic_id, name), partitions in wanted.items()
    )


def _fetch(
    group: OffsetFetchRequestGroup, require_stable: bool, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, Answer[OffsetFetchResponseGroup]]:
    has_ids = context.version >= _FIRST_VERSION_WITH_TOPIC_IDS
    if group.topics is None:
        answer = broker.groups.fetch_offsets(group, require_stable=require_stable)
        return after(answer, lambda fetched: _with_ids(fetched, broker)) if has_ids else answer
    unknown: list[OffsetFetchResponseTopics] = []
    if has_ids:
        known = []
        for number, asked in enumerate(group.topics):
            if number % ROWS_OF_STEP == ROWS_OF_STEP - 1:
                yield
            topic = broker.metadata.topic_by_id(asked.topic_id)
            if topic is None:
                unknown.append(_unknown_topic(asked))
            else:
                asked.name = topic.name
                known.append(asked)
        group.topics = known
    answer = broker.groups.fetch_offsets(group, require_stable=require_stable)
    return after(answer, lambda fetched: _with_unknown(fetched, unknown))


def _with_ids(fetched: OffsetFetchResponseGroup, broker: BrokerServices) -> OffsetFetchResponseGroup:
    """All topics by id; a deleted topic has no id, and is omitted."""
    topics = []
    for row in fetched.topics:
        topic = broker.metadata.topic(row.name)
        if topic is not None:
            row.topic_id = topic.topic_id
            topics.append(row)
    fetched.topics = topics
    return fetched


def _with_unknown(
    fetched: OffsetFetchResponseGroup, unknown: list[OffsetFetchResponseTopics]
) -> OffsetFetchResponseGroup:
    if not fetched.error_code:
        fetched.topics += unknown
    return fetched


def _unknown_topic(asked: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    error = ErrorCode.unknown_topic_id
    rows = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=error)
        for index in asked.partition_indexes
    ]
    return OffsetFetchResponseTopics(topic_id=asked.topic_id, partitions=rows)


def _single_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=asked.name, partition_indexes=asked.partition_indexes)
            for asked in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _single_answer(
    asked: OffsetFetchRequestGroup, fetched: OffsetFetchResponseGroup, version: int
) -> OffsetFetchResponse:
    """The response in the form of v1-7. In v1 an error of the group is in the row of every partition."""
    if fetched.error_code and version < _FIRST_VERSION_WITH_GROUP_ERROR:
        topics = [
            OffsetFetchResponseTopics(
                topic_id=ZERO_UUID,
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, error_code=fetched.error_code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics or ()
        ]
    else:
        topics = fetched.topics
    return OffsetFetchResponse(
        error_code=fetched.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


API = Api(key=ApiKey.OFFSET_FETCH, versions=range(1, 11), handle=handle, is_encoded_in_turns=True)
