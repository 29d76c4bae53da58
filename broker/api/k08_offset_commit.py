"""OffsetCommit (key 8): store the committed offsets of a group.

Who asks: members of a group, consumers with manual assignment, admins that reset offsets.
Versions: v2-10. v2-4 retention time, v6 leader epoch (KIP-320), v7 group instance id, v9 GROUP_ID_NOT_FOUND
(KIP-848), v10 topic ids (KIP-848) instead of names.
Differs from Kafka: nothing; the throttle time is 0.
Touches: broker.metadata (read only), ottla.broker.groups, the offsets topic. Waits for the replicas.
"""

from collections.abc import Awaitable, Generator
from dataclasses import replace
from uuid import UUID

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.groups.answers import Answer, after
from ottla.broker.groups.coordinator import commit_error
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.steps import Step
from ottla.protocol.types import ZERO_UUID
from ottla.runtime.turns import FreedInTurns

_FIRST_VERSION_WITH_TOPIC_IDS = 10

_TopicKey = tuple[UUID, str]


def handle(
    request: OffsetCommitRequest, context: RequestContext, broker: BrokerServices
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit the offsets of existing partitions; an error of one partition does not affect the others."""
    return at_once_or_in_turns(_answer(request, context, broker), broker.runtime)


def _answer(
    request: OffsetCommitRequest, context: RequestContext, broker: BrokerServices
) -> Generator[None, None, Answer[OffsetCommitResponse]]:
    known: list[OffsetCommitRequestTopic] = []
    refused: dict[_TopicKey, list[OffsetCommitResponsePartition]] = {}
    step = Step(ROWS_OF_STEP)
    parts = FreedInTurns(broker.runtime)
    for asked in request.topics:
        rows, error = _resolve(asked, context.version, broker)
        key = (asked.topic_id, asked.name)
        there: list[OffsetCommitRequestPartition] = []
        unknown = refused.setdefault(key, [])
        parts.hold(key)
        for row in asked.partitions:
            if row.partition_index in rows:
                there.append(row)
            else:
                unknown.append(
                    OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error)
                )
            if step.is_full():
                yield
        if there:
            known.append(OffsetCommitRequestTopic(topic_id=asked.topic_id, name=asked.name, partitions=there))
        if step.is_full():
            yield
    known_keys = {(topic.topic_id, topic.name) for topic in known}
    unknown_topics: list[OffsetCommitResponseTopic] = []
    for key, unknown in refused.items():
        if unknown and key not in known_keys:
            unknown_topics.append(OffsetCommitResponseTopic(topic_id=key[0], name=key[1], partitions=unknown))
        if step.is_full():
            yield
    if not known:
        return OffsetCommitResponse(topics=unknown_topics)
    answer = broker.groups.commit_offsets(replace(request, topics=known), version=context.version)
    return after(answer, lambda response: _merge(response, refused, unknown_topics))


def _resolve(
    asked: OffsetCommitRequestTopic, version: int, broker: BrokerServices
) -> tuple[set[int], ErrorCode]:
    """The partitions of the topic, and the error for other ones; fills in the missing name or id."""
    if version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        topic = broker.metadata.topic_by_id(asked.topic_id)
        if topic is None:
            return set(), ErrorCode.unknown_topic_id
        asked.name = topic.name
    else:
        topic = broker.metadata.topic(asked.name)
        asked.topic_id = ZERO_UUID if topic is None else topic.topic_id
    partitions = set() if topic is None else set(topic.partitions)
    return partitions, ErrorCode.unknown_topic_or_partition


def refuse(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    """Return a response with the error in every requested row: the whole request failed."""
    return commit_error(request, error.code)


def _merge(
    response: OffsetCommitResponse,
    refused: dict[_TopicKey, list[OffsetCommitResponsePartition]],
    unknown_topics: list[OffsetCommitResponseTopic],
) -> OffsetCommitResponse:
    """Add the rows of unknown partitions to the others of their topic."""
    for topic in response.topics:
        topic.partitions += refused.pop((topic.topic_id, topic.name), [])
    response.topics += unknown_topics
    return response


API = Api(
    key=ApiKey.OFFSET_COMMIT, versions=range(2, 11), handle=handle, refuse=refuse, is_encoded_in_turns=True
)
