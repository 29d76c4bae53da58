"""Reports of one broker about its replicas, followers included: ListOffsets, Fetch, DescribeLogDirs.

| number | asked by |
|---|---|
| log start, local log start, pending upload, log end | ListOffsets as the debugging replica (-2), at -2, -4, -6, -1 |
| high watermark | Fetch of a consumer, which a follower answers (KIP-392), at the local log start, without waiting |
| oldest local timestamp | the same: the first batch of the response |
| local bytes | DescribeLogDirs |

A follower answers the debugging replica, too. A Fetch contains at least one batch of its first partition, and
else only whole ones; with a limit of one byte for each partition all others are without records. The offsets
are asked for in their order in the log, so that what is appended, uploaded or deleted meanwhile does not
reverse them.

Source: ReplicaManager.fetchOffset (fetchOnlyFromLeader) of Kafka 4.3.1.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.broker.cluster_client.errors import error_name
from ottla.broker.cluster_client.offsets import offsets_request
from ottla.broker.reports.description import ReplicaLog
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import KafkaError, UnsupportedVersion
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.protocol.records.batch import batches
from ottla.protocol.schema import Request
from ottla.protocol.special_timestamps import EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST
from ottla.protocol.types import TopicPartition

#: (API key, request, versions) -> response, of one broker. Raises OSError, TimeoutError, KafkaError.
Ask = Callable[[ApiKey, Request, range], Awaitable[Any]]

#: Replica ids in requests: `ListOffsetsRequest.DEBUGGING_REPLICA_ID` of Kafka, and a consumer's.
_DEBUGGING: Final = -2
_CONSUMER: Final = -1
#: A version before the one that knows the timestamp is not used: the broker could not say.
_OFFSETS_VERSIONS: Final[Mapping[int, range]] = {
    EARLIEST: range(1, 12),
    EARLIEST_LOCAL: range(8, 12),
    EARLIEST_PENDING_UPLOAD: range(11, 12),
    LATEST: range(1, 12),
}
#: Followers answer consumers since 11.
_FETCH_VERSIONS: Final = range(11, 19)
_LOG_DIRS_VERSIONS: Final = range(1, 6)
_NOTHING_KNOWN: Final[Mapping[TopicPartition, int]] = {}
_MAX_BYTES: Final = 50 * 1024 * 1024


class Asked(NamedTuple):
    """A replica whose log a broker is asked for."""

    topic_partition: TopicPartition
    topic_id: UUID
    #: Whether to read the timestamp of its first local batch.
    needs_timestamp: bool


class Reported(NamedTuple):
    """The log of a replica, or the broker's error (its name) instead."""

    log: ReplicaLog
    problem: str | None


async def replica_reports(
    ask: Ask, replicas: Sequence[Asked], *, known_watermarks: Mapping[TopicPartition, int] = _NOTHING_KNOWN
) -> dict[TopicPartition, Reported]:
    """Return the log of each of one broker's replicas, or the broker's error.

    `known_watermarks` has high watermarks that this broker has reported before: the Fetch begins there, where mostly
    nothing is to be read.

    Raises what `ask` raises, but for UnsupportedVersion: that number is not known.
    """
    partitions = [each.topic_partition for each in replicas]
    starts, problems = await _offsets(ask, partitions, EARLIEST)
    local_starts, _ = await _offsets(ask, partitions, EARLIEST_LOCAL)
    pending, _ = await _offsets(ask, partitions, EARLIEST_PENDING_UPLOAD)
    # Without -4 (Kafka before 3.4) a log has no second tier.
    begins = starts | local_starts
    first_read = {each: max(begin, known_watermarks.get(each, 0)) for each, begin in begins.items()}
    fetched = await _fetched(
        ask,
        {each: first_read[each.topic_partition] for each in replicas if each.topic_partition in first_read},
    )
    ends, _ = await _offsets(ask, partitions, LATEST)
    sizes = await _sizes(ask, partitions)
    return {
        each: Reported(
            ReplicaLog(
                log_start_offset=starts.get(each),
                local_log_start_offset=begins.get(each),
                pending_upload_offset=pending.get(each),
                high_watermark=high_watermark,
                log_end_offset=ends.get(each),
                local_bytes=sizes.get(each),
                oldest_local_timestamp_ms=timestamp_ms,
            ),
            problems.get(each),
        )
        for each in partitions
        for high_watermark, timestamp_ms in [fetched.get(each, (None, None))]
    }


async def _offsets(
    ask: Ask, partitions: Collection[TopicPartition], timestamp: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
    """The known offsets, and errors by name."""
    request = offsets_request(((each, -1) for each in partitions), timestamp, replica_id=_DEBUGGING)
    try:
        response: ListOffsetsResponse = await ask(ApiKey.LIST_OFFSETS, request, _OFFSETS_VERSIONS[timestamp])
    except UnsupportedVersion:
        return {}, {}
    rows = [
        (TopicPartition(topic.name, row.partition_index), row)
        for topic in response.topics
        for row in topic.partitions
    ]
    offsets = {each: row.offset for each, row in rows if not row.error_code and row.offset >= 0}
    return offsets, {each: error_name(row.error_code) for each, row in rows if row.error_code}


async def _fetched(
    ask: Ask, begins: Mapping[Asked, int]
) -> dict[TopicPartition, tuple[int | None, int | None]]:
    """Fetch (high watermark, timestamp of the first local batch) of each replica.

    Sends one request for all replicas without timestamp, and one for each timestamp.
    """
    together = {each: begin for each, begin in begins.items() if not each.needs_timestamp}
    requests = [together] if together else []
    requests += [{each: begin} for each, begin in begins.items() if each.needs_timestamp]
    found: dict[TopicPartition, tuple[int | None, int | None]] = {}
    for asked in requests:
        try:
            response: FetchResponse = await ask(ApiKey.FETCH, _fetch_request(asked), _FETCH_VERSIONS)
        except UnsupportedVersion:
            break
        by_id = {each.topic_id: each.topic_partition.topic for each in asked}
        for topic in response.responses:
            for row in topic.partitions:
                name = topic.topic or by_id[topic.topic_id]
                found[TopicPartition(name, row.partition_index)] = _fetched_row(row)
    return found


def _fetch_request(begins: Mapping[Asked, int]) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for asked, begin in begins.items():
        name, index = asked.topic_partition
        topics.setdefault(name, FetchTopic(topic=name, topic_id=asked.topic_id)).partitions.append(
            FetchPartition(partition=index, fetch_offset=begin, partition_max_bytes=1)
        )
    return FetchRequest(
        replica_id=_CONSUMER, max_wait_ms=0, min_bytes=0, max_bytes=_MAX_BYTES, topics=list(topics.values())
    )


def _fetched_row(row: PartitionData) -> tuple[int | None, int | None]:
    if row.error_code or row.high_watermark < 0:
        return None, None
    return row.high_watermark, first_timestamp_ms(row.records or b"")


def first_timestamp_ms(records: bytes | memoryview) -> int | None:
    """The largest timestamp of the first batch; None: there is none, or it cannot be parsed."""
    try:
        header, _ = next(iter(batches(memoryview(records))))
    except (StopIteration, KafkaError):
        return None
    return header.max_timestamp if header.max_timestamp >= 0 else None


async def _sizes(ask: Ask, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The bytes of local segments; a copy that is being moved to another directory does not count."""
    topics: dict[str, DescribableLogDirTopic] = {}
    for name, index in partitions:
        topics.setdefault(name, DescribableLogDirTopic(topic=name)).partitions.append(index)
    try:
        response: DescribeLogDirsResponse = await ask(
            ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=list(topics.values())), _LOG_DIRS_VERSIONS
        )
    except UnsupportedVersion:
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_size
        for directory in response.results
        for topic in directory.topics
        for row in topic.partitions
        if not row.is_future_key
    }
