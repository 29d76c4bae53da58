"""The response to a request of a client that fails as a whole, with one error code in every row that has one.

`ottla.protocol.refusals` has those of the requests that a broker forwards; these are of the requests that it handles
itself, whose handlers refuse row by row.

Source: getErrorResponse of the request classes of Kafka 4.3.1.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import alter_replica_log_dirs as log_dirs
from ottla.protocol.messages import (
    delete_groups,
    delete_records,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    list_offsets,
    offset_commit,
    offset_fetch,
    produce,
)
from ottla.protocol.messages import offset_for_leader_epoch as leader_epochs
from ottla.protocol.refusals import refuse
from ottla.protocol.schema import Request, Response

_Builder = Callable[[Any, ErrorCode], Response]


def error_response(request: Request, code: ErrorCode) -> Response:
    """Return the response that has the error code in every row. Raises KafkaError if it has no field for one."""
    build = _BUILDERS.get(request.__api_key__)
    if build is not None:
        return build(request, code)
    return refuse(request, error_of(code))


def error_of(code: ErrorCode) -> KafkaError:
    """Return an error with any code; its message says that a test has asked for it."""
    error = type(code.name, (KafkaError,), {"code": code})
    raised: KafkaError = error("This error was injected by a test.")
    return raised


def _produce(request: produce.ProduceRequest, code: ErrorCode) -> Response:
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                topic_id=topic.topic_id,
                name=topic.name,
                partition_responses=[
                    produce.PartitionProduceResponse(
                        index=row.index, error_code=code, base_offset=-1, log_append_time_ms=-1
                    )
                    for row in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: fetch.FetchRequest, code: ErrorCode) -> Response:
    return fetch.FetchResponse(
        error_code=ErrorCode.none if request.topics else code,
        responses=[
            fetch.FetchableTopicResponse(
                topic_id=topic.topic_id,
                topic=topic.topic,
                partitions=[
                    fetch.PartitionData(
                        partition_index=row.partition, error_code=code, high_watermark=-1, records=b""
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _list_offsets(request: list_offsets.ListOffsetsRequest, code: ErrorCode) -> Response:
    return list_offsets.ListOffsetsResponse(
        topics=[
            list_offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    list_offsets.ListOffsetsPartitionResponse(
                        partition_index=row.partition_index, error_code=code, timestamp=-1, offset=-1
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_commit(request: offset_commit.OffsetCommitRequest, code: ErrorCode) -> Response:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=code
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: offset_fetch.OffsetFetchRequest, code: ErrorCode) -> Response:
    return offset_fetch.OffsetFetchResponse(
        error_code=code,
        groups=[
            offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
            for group in request.groups
        ],
        topics=[
            offset_fetch.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    offset_fetch.OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def _find_coordinator(request: find_coordinator.FindCoordinatorRequest, code: ErrorCode) -> Response:
    return find_coordinator.FindCoordinatorResponse(
        error_code=code,
        node_id=-1,
        port=-1,
        coordinators=[
            find_coordinator.Coordinator(key=key, node_id=-1, port=-1, error_code=code)
            for key in request.coordinator_keys
        ],
    )


def _describe_groups(request: describe_groups.DescribeGroupsRequest, code: ErrorCode) -> Response:
    return describe_groups.DescribeGroupsResponse(
        groups=[
            describe_groups.DescribedGroup(group_id=group_id, error_code=code) for group_id in request.groups
        ]
    )


def _delete_groups(request: delete_groups.DeleteGroupsRequest, code: ErrorCode) -> Response:
    return delete_groups.DeleteGroupsResponse(
        results=[
            delete_groups.DeletableGroupResult(group_id=group_id, error_code=code)
            for group_id in request.groups_names
        ]
    )


def _delete_records(request: delete_records.DeleteRecordsRequest, code: ErrorCode) -> Response:
    return delete_records.DeleteRecordsResponse(
        topics=[
            delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=row.partition_index, low_watermark=-1, error_code=code
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _leader_epochs(request: leader_epochs.OffsetForLeaderEpochRequest, code: ErrorCode) -> Response:
    return leader_epochs.OffsetForLeaderEpochResponse(
        topics=[
            leader_epochs.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    leader_epochs.EpochEndOffset(partition=row.partition, error_code=code)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_configs(request: describe_configs.DescribeConfigsRequest, code: ErrorCode) -> Response:
    return describe_configs.DescribeConfigsResponse(
        results=[
            describe_configs.DescribeConfigsResult(
                error_code=code, resource_type=each.resource_type, resource_name=each.resource_name
            )
            for each in request.resources
        ]
    )


def _alter_replica_log_dirs(request: log_dirs.AlterReplicaLogDirsRequest, code: ErrorCode) -> Response:
    return log_dirs.AlterReplicaLogDirsResponse(
        results=[
            log_dirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    log_dirs.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index in topic.partitions
                ],
            )
            for each in request.dirs
            for topic in each.topics
        ]
    )


def _describe_log_dirs(_: describe_log_dirs.DescribeLogDirsRequest, code: ErrorCode) -> Response:
    """Answer with a directory without a name, too: before version 3 the response has no error code of its own."""
    return describe_log_dirs.DescribeLogDirsResponse(
        error_code=code, results=[describe_log_dirs.DescribeLogDirsResult(error_code=code)]
    )


def _describe_topic_partitions(
    request: describe_topic_partitions.DescribeTopicPartitionsRequest, code: ErrorCode
) -> Response:
    return describe_topic_partitions.DescribeTopicPartitionsResponse(
        topics=[
            describe_topic_partitions.DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code)
            for topic in request.topics
        ]
    )


_BUILDERS: Final[Mapping[int, _Builder]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _leader_epochs,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
}
