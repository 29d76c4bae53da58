"""DescribeLogDirs (key 35): the replicas in this broker's log directories, and the sizes of their volumes.

Who asks: admin clients (kafka-log-dirs.sh); sent to each broker for its own directories.
Versions: v1-5. v2 flexible, v3 a top-level error, v4 sizes of the volume (KIP-827), v5 is_cordoned (KIP-1066).
Differs from Kafka: never throttles.
Touches: storage.manager.log_manager (read only). Never waits.
"""

from broker.api import Api
from broker.membership import cordoning
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from protocol.types import TopicPartition
from storage.manager.log_manager import LogDirInfo, LogManager


def handle(
    request: DescribeLogDirsRequest, context: RequestContext, broker: BrokerServices
) -> DescribeLogDirsResponse:
    """Every directory, with the requested partitions that are in it (null topics: all)."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    logs = broker.replicas.logs
    knows_cordoned = cordoning.is_known_to(broker.metadata.image)
    return DescribeLogDirsResponse(
        results=[
            answer_directory(
                info, wanted, logs, is_cordoned=knows_cordoned and info.path in logs.cordoned_dirs
            )
            for info in logs.describe_dirs()
        ]
    )


def answer_directory(
    info: LogDirInfo, wanted: set[tuple[str, int]] | None, logs: LogManager, *, is_cordoned: bool
) -> DescribeLogDirsResult:
    """One directory; only KAFKA_STORAGE_ERROR if it is offline."""
    path = str(info.path.absolute())
    if info.error is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=path)
    topics: dict[str, DescribeLogDirsTopic] = {}
    rows = [(*row, False) for row in info.logs] + [(*row, True) for row in info.future_logs]
    for topic_partition, size_bytes, is_future in rows:
        if wanted is None or topic_partition in wanted:
            name, index = topic_partition
            topics.setdefault(name, DescribeLogDirsTopic(name=name)).partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=size_bytes,
                    # For the current log this is its lag behind its own high watermark, which is always 0.
                    offset_lag=_future_lag(topic_partition, logs) if is_future else 0,
                    is_future_key=is_future,
                )
            )
    return DescribeLogDirsResult(
        log_dir=path,
        topics=list(topics.values()),
        total_bytes=-1 if info.total_bytes is None else info.total_bytes,
        usable_bytes=-1 if info.usable_bytes is None else info.usable_bytes,
        is_cordoned=is_cordoned,
    )


def _future_lag(topic_partition: TopicPartition, logs: LogManager) -> int:
    """The number of offsets that a future log lags behind the current log; -1 if the current log is offline."""
    current, future = logs.get(topic_partition), logs.future_logs[topic_partition]
    return -1 if current is None else current.log_end_offset - future.log_end_offset


API = Api(key=ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 6), handle=handle)
