"""DescribeLogDirs (key 35): the replicas in this broker's log directories, and the sizes of their volumes.

Who asks: admin clients (kafka-log-dirs.sh); sent to each broker for its own directories.
Versions: v1-5. v2 flexible, v3 a top-level error, v4 sizes of the volume (KIP-827), v5 is_cordoned (KIP-1066).
Differs from Kafka: never throttles.
Touches: ottla.storage.manager.log_manager (read only). Many replicas take several turns of the loop: which
there are, and where, is of one moment, their sizes are not.
"""

from collections.abc import Awaitable, Generator, Iterable, Mapping
from os.path import dirname

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.membership import cordoning
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.steps import NAMES_OF_STEP, Step
from ottla.protocol.types import TopicPartition
from ottla.storage.log import Log
from ottla.storage.manager.log_manager import LogDirInfo

#: The rows of topics by the path of a log directory and the name of a topic.
_Topics = dict[str, dict[str, DescribeLogDirsTopic]]


def handle(
    request: DescribeLogDirsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeLogDirsResponse | Awaitable[DescribeLogDirsResponse]:
    """Describe every directory, with the requested partitions that are in it (null topics: all)."""
    return at_once_or_in_turns(_describe(request, broker), broker.runtime, broker.long_answers)


def _describe(
    request: DescribeLogDirsRequest, broker: BrokerServices
) -> Generator[None, None, DescribeLogDirsResponse]:
    table = broker.replicas.logs
    cordoned = table.cordoned_dirs if cordoning.is_known_to(broker.metadata.image) else ()
    infos = table.describe_dirs()
    topics: _Topics = {str(info.path): {} for info in infos}
    # Of one moment: a move may end between two turns.
    logs, future_logs = dict(table.logs), dict(table.future_logs)
    if request.topics is not None:
        logs = yield from _wanted(request.topics, logs)
        future_logs = yield from _wanted(request.topics, future_logs)
    left = ROWS_OF_STEP
    for some, is_future in ((logs, False), (future_logs, True)):
        for at, log in some.items():
            if not left:
                left = ROWS_OF_STEP
                yield
            left -= 1
            row = DescribeLogDirsPartition(
                partition_index=at.partition,
                partition_size=log.segments.size_bytes,
                # For the current log this is its lag behind its own high watermark, which is always 0.
                offset_lag=_future_lag(logs.get(at), log) if is_future else 0,
                is_future_key=is_future,
            )
            # As `Path.parent`, which takes several times as long.
            of_directory = topics[dirname(str(log.directory)) or "."]  # noqa: PTH120
            of_directory.setdefault(at.topic, DescribeLogDirsTopic(name=at.topic)).partitions.append(row)
    return DescribeLogDirsResponse(
        results=[
            answer_directory(info, topics[str(info.path)], is_cordoned=info.path in cordoned)
            for info in infos
        ]
    )


def _wanted(
    topics: Iterable[DescribableLogDirTopic], logs: Mapping[TopicPartition, Log]
) -> Generator[None, None, dict[TopicPartition, Log]]:
    """Return the requested topics and partitions."""
    wanted: dict[TopicPartition, Log] = {}
    step = Step(NAMES_OF_STEP)
    for topic in topics if logs else ():  # usually there are no future logs
        for index in topic.partitions:
            # Equal to a TopicPartition, which takes longer to create.
            if (log := logs.get((topic.topic, index))) is not None:  # type: ignore[call-overload]
                wanted[log.topic_partition] = log
            if step.is_full():
                yield
        if step.is_full():
            yield
    return wanted


def answer_directory(
    info: LogDirInfo, topics: Mapping[str, DescribeLogDirsTopic], *, is_cordoned: bool
) -> DescribeLogDirsResult:
    """Describe one directory; only KAFKA_STORAGE_ERROR if it is offline."""
    path = str(info.path.absolute())
    if info.error is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=path)
    return DescribeLogDirsResult(
        log_dir=path,
        topics=list(topics.values()),
        total_bytes=-1 if info.total_bytes is None else info.total_bytes,
        usable_bytes=-1 if info.usable_bytes is None else info.usable_bytes,
        is_cordoned=is_cordoned,
    )


def _future_lag(current: Log | None, future: Log) -> int:
    """The number of offsets that a future log lags behind the current log; -1 if the current log is offline."""
    return -1 if current is None else current.log_end_offset - future.log_end_offset


API = Api(key=ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 6), handle=handle, is_encoded_in_turns=True)
