"""AbstractRequest.getErrorResponse: the response to a request that fails as a whole, with the error in every row.

The request is not processed, because the controller cannot be reached or the request itself is invalid; its
sender still expects a row for everything that it has named.
Source: getErrorResponse of the request classes of Kafka 4.3.1.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import alter_client_quotas as quotas
from ottla.protocol.messages import alter_configs as replaced
from ottla.protocol.messages import alter_partition_reassignments as reassignments
from ottla.protocol.messages import alter_user_scram_credentials as scram
from ottla.protocol.messages import (
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_client_quotas,
    response_class,
    update_features,
)
from ottla.protocol.messages import elect_leaders as elections
from ottla.protocol.messages import incremental_alter_configs as altered
from ottla.protocol.schema import Request, Response
from ottla.protocol.steps import ROWS_OF_STEP, at_once, listed

#: Builds a response, of any number of rows, in steps.
_Building = Generator[None, None, Response]


def refuse(request: Request, error: KafkaError) -> Response:
    """The error response; raises `error` itself if the response has no error field."""
    return at_once(refuse_in_steps(request, error))


def refuse_in_steps(request: Request, error: KafkaError) -> Generator[None, None, Response]:
    """Build the error response of any number of rows in short steps; raises `error` if it has no error field."""
    build = _BUILDERS.get(request.__api_key__)
    if build is not None:
        return (yield from build(request, error))
    response: Any = response_class(request.__api_key__)()
    if not hasattr(response, "error_code"):
        raise error
    response.error_code = error.code
    if hasattr(response, "error_message"):
        response.error_message = error.message
    made: Response = response
    return made


def _create_topics(request: create_topics.CreateTopicsRequest, error: KafkaError) -> _Building:
    rows = yield from listed(
        create_topics.CreatableTopicResult(
            name=topic.name, error_code=error.code, error_message=error.message
        )
        for topic in request.topics
    )
    return create_topics.CreateTopicsResponse(topics=rows)


def _delete_topics(request: delete_topics.DeleteTopicsRequest, error: KafkaError) -> _Building:
    named = [delete_topics.DeleteTopicState(name=name) for name in request.topic_names]
    rows = yield from listed(
        delete_topics.DeletableTopicResult(
            name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
        )
        for topic in [*named, *request.topics]
    )
    return delete_topics.DeleteTopicsResponse(responses=rows)


def _create_partitions(request: create_partitions.CreatePartitionsRequest, error: KafkaError) -> _Building:
    rows = yield from listed(
        create_partitions.CreatePartitionsTopicResult(
            name=topic.name, error_code=error.code, error_message=error.message
        )
        for topic in request.topics
    )
    return create_partitions.CreatePartitionsResponse(results=rows)


def _alter_configs(request: replaced.AlterConfigsRequest, error: KafkaError) -> _Building:
    rows = yield from listed(
        replaced.AlterConfigsResourceResponse(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            error_code=error.code,
            error_message=error.message,
        )
        for each in request.resources
    )
    return replaced.AlterConfigsResponse(responses=rows)


def _incremental_alter_configs(
    request: altered.IncrementalAlterConfigsRequest, error: KafkaError
) -> _Building:
    rows = yield from listed(
        altered.AlterConfigsResourceResponse(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            error_code=error.code,
            error_message=error.message,
        )
        for each in request.resources
    )
    return altered.IncrementalAlterConfigsResponse(responses=rows)


def _create_acls(request: create_acls.CreateAclsRequest, error: KafkaError) -> _Building:
    rows = yield from listed(
        create_acls.AclCreationResult(error_code=error.code, error_message=error.message)
        for _ in request.creations
    )
    return create_acls.CreateAclsResponse(results=rows)


def _delete_acls(request: delete_acls.DeleteAclsRequest, error: KafkaError) -> _Building:
    rows = yield from listed(
        delete_acls.DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
        for _ in request.filters
    )
    return delete_acls.DeleteAclsResponse(filter_results=rows)


def _alter_client_quotas(request: quotas.AlterClientQuotasRequest, error: KafkaError) -> _Building:
    rows = yield from listed(
        quotas.EntryDataResponse(error_code=error.code, error_message=error.message, entity=entry.entity)
        for entry in request.entries
    )
    return quotas.AlterClientQuotasResponse(entries=rows)


def _describe_client_quotas(_request: Request, error: KafkaError) -> _Building:
    yield
    return describe_client_quotas.DescribeClientQuotasResponse(
        error_code=error.code, error_message=error.message, entries=None
    )


def _alter_user_scram_credentials(
    request: scram.AlterUserScramCredentialsRequest, error: KafkaError
) -> _Building:
    users: set[str] = set()
    for each in (request.deletions, request.upsertions):
        users.update((yield from listed(row.name for row in each)))
    rows = yield from listed(
        scram.AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
        for user in sorted(users)
    )
    return scram.AlterUserScramCredentialsResponse(results=rows)


def _elect_leaders(request: elections.ElectLeadersRequest, error: KafkaError) -> _Building:
    rows: list[elections.ReplicaElectionResult] = []
    for number, topic in enumerate(request.topic_partitions or ()):
        if number % ROWS_OF_STEP == ROWS_OF_STEP - 1:
            yield
        partitions = yield from listed(
            elections.PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            for index in topic.partitions
        )
        rows.append(elections.ReplicaElectionResult(topic=topic.topic, partition_result=partitions))
    return elections.ElectLeadersResponse(error_code=error.code, replica_election_results=rows)


def _alter_partition_reassignments(
    request: reassignments.AlterPartitionReassignmentsRequest, error: KafkaError
) -> _Building:
    rows: list[reassignments.ReassignableTopicResponse] = []
    for number, topic in enumerate(request.topics):
        if number % ROWS_OF_STEP == ROWS_OF_STEP - 1:
            yield
        partitions = yield from listed(
            reassignments.ReassignablePartitionResponse(
                partition_index=partition.partition_index,
                error_code=error.code,
                error_message=error.message,
            )
            for partition in topic.partitions
        )
        rows.append(reassignments.ReassignableTopicResponse(name=topic.name, partitions=partitions))
    return reassignments.AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=error.message, responses=rows
    )


def _update_features(_request: Request, error: KafkaError) -> _Building:
    # No rows: one error stands for all features. The sentence is Kafka's.
    message = f"The update failed for all features since the following feature had an error: {error.message}"
    yield
    return update_features.UpdateFeaturesResponse(error_code=error.code, error_message=message)


_BUILDERS: Final[Mapping[int, Callable[[Any, KafkaError], _Building]]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_user_scram_credentials,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_partition_reassignments,
    ApiKey.UPDATE_FEATURES: _update_features,
}
