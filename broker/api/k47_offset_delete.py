"""OffsetDelete (key 47): delete a group's committed offsets of single partitions (KIP-496).

Who asks: admin clients (kafka-consumer-groups.sh --delete-offsets); sent to the group's coordinator.
Versions: v0.
Differs from Kafka: nothing; the throttle time is 0.
Touches: broker.metadata (read only), ottla.broker.groups, the offsets topic. Waits for the replication of the
tombstones.
"""

from collections.abc import Awaitable, Generator

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.groups.answers import Answer, after
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.steps import Step


def handle(
    request: OffsetDeleteRequest, context: RequestContext, broker: BrokerServices
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Delete existing offsets; the response has a row for each requested partition."""
    return at_once_or_in_turns(_answer(request, broker), broker.runtime)


def _answer(
    request: OffsetDeleteRequest, broker: BrokerServices
) -> Generator[None, None, Answer[OffsetDeleteResponse]]:
    known: list[OffsetDeleteRequestTopic] = []
    refused: dict[str, list[OffsetDeleteResponsePartition]] = {}
    step = Step(ROWS_OF_STEP)
    for asked in request.topics:
        topic = broker.metadata.topic(asked.name)
        there = topic.partitions if topic is not None else {}
        rows: list[OffsetDeleteRequestPartition] = []
        for row in asked.partitions:
            if row.partition_index in there:
                rows.append(row)
            else:
                refused.setdefault(asked.name, []).append(_unknown(row.partition_index))
            if step.is_full():
                yield
        if rows:
            known.append(OffsetDeleteRequestTopic(name=asked.name, partitions=rows))
        if step.is_full():
            yield
    answer = broker.groups.delete_offsets(OffsetDeleteRequest(group_id=request.group_id, topics=known))
    return after(answer, lambda response: _merge(response, refused))


def _unknown(partition: int) -> OffsetDeleteResponsePartition:
    error = ErrorCode.unknown_topic_or_partition
    return OffsetDeleteResponsePartition(partition_index=partition, error_code=error)


def _merge(
    response: OffsetDeleteResponse, refused: dict[str, list[OffsetDeleteResponsePartition]]
) -> OffsetDeleteResponse:
    """Add the rows of unknown partitions to the others; an error of the whole group has no rows."""
    if response.error_code:
        return response
    for topic in response.topics:
        topic.partitions += refused.pop(topic.name, [])
    response.topics += [
        OffsetDeleteResponseTopic(name=name, partitions=rows) for name, rows in refused.items()
    ]
    return response


API = Api(key=ApiKey.OFFSET_DELETE, versions=range(1), handle=handle, is_encoded_in_turns=True)
