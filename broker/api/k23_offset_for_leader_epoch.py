"""OffsetForLeaderEpoch (key 23): where an epoch ends in the leader's log.

Who asks: followers before they truncate (KIP-101), consumers after a rebalance (KIP-320).
Versions: v2-4. v2 current_leader_epoch, v3 replica_id, v4 flexible; Kafka 4.3 serves the same.
For a consumer the end of the current epoch is at most the high watermark: records beyond it may still be lost
(KIP-392). A new leader that does not know the former high watermark yet returns OFFSET_NOT_AVAILABLE then; otherwise
consumers would treat the smaller offset as a truncation, and read records again. The ends of older epochs are final
when a leader is elected. A consumer with a newer epoch than this leader's has read from its successor, or from a
topic that was deleted and created again. In the latter case the response is that this log has no such epoch; in the
former it is UNKNOWN_LEADER_EPOCH, and the consumer looks for the successor. The former is assumed if this broker is
fenced or has had no heartbeat response for a session timeout, so that the controller may have elected a successor.
Differs from Kafka: never throttles; Kafka 4.3.1 returns the log end to consumers, and -1 for any newer epoch.
Touches: broker.partition (read only), ottla.storage.leader_epoch_cache, ottla.broker.membership.lifecycle. Many rows
take several turns of the loop.
"""

from collections.abc import Awaitable, Generator
from typing import Final

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.replicas.reading.list_offsets import check_high_watermark_is_known
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import KafkaError, UnknownLeaderEpoch
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.types import TopicPartition

#: The replica id of a consumer; a follower sends its own, a tool -2.
CONSUMER: Final = -1


def handle(
    request: OffsetForLeaderEpochRequest, context: RequestContext, broker: BrokerServices
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    """Look up the end of the requested epoch, for each partition separately."""
    # Followers, which replicate nothing meanwhile, do not wait for other long answers.
    return at_once_or_in_turns(_answer(request, broker), broker.runtime)


def _answer(
    request: OffsetForLeaderEpochRequest, broker: BrokerServices
) -> Generator[None, None, OffsetForLeaderEpochResponse]:
    is_consumer = request.replica_id == CONSUMER
    topics = []
    left = ROWS_OF_STEP
    for topic in request.topics:
        rows: list[EpochEndOffset] = []
        for asked in topic.partitions:
            if not left:
                left = ROWS_OF_STEP
                yield
            left -= 1
            rows.append(answer_partition(topic.topic, asked, broker, is_consumer=is_consumer))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        if not len(topics) % ROWS_OF_STEP:
            yield
    return OffsetForLeaderEpochResponse(topics=topics)


def answer_partition(
    topic: str, asked: OffsetForLeaderPartition, broker: BrokerServices, *, is_consumer: bool
) -> EpochEndOffset:
    """Return the largest known epoch up to the requested one, with its end offset; -1 for both if there is none."""
    row = EpochEndOffset(partition=asked.partition)
    current = asked.current_leader_epoch
    try:
        partition = broker.replicas.partition(TopicPartition(topic, asked.partition))
        known = partition.end_offset_for_epoch(
            asked.leader_epoch, current_leader_epoch=None if current == -1 else current
        )
        knows_more = is_consumer and asked.leader_epoch > partition.leader_epoch
        if knows_more and broker.lifecycle.may_be_deposed:
            raise UnknownLeaderEpoch(f"{partition} is led in epoch {partition.leader_epoch} here")
        if known is not None:
            epoch, end_offset = known
            if is_consumer and epoch == partition.leader_epoch and end_offset > partition.log.high_watermark:
                check_high_watermark_is_known(partition)
                end_offset = partition.log.high_watermark
            row.leader_epoch, row.end_offset = epoch, end_offset
    except KafkaError as error:
        row.error_code = error.code
    return row


API = Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5), handle=handle, is_encoded_in_turns=True)
