"""What the controller serves: for each request its decision, and the answer if it is refused as a whole."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from controller import (
    acls,
    alter_partition,
    brokers,
    configs,
    controllers,
    directories,
    elections,
    features,
    partitions,
    producer_ids,
    quotas,
    reassignments,
    scram,
    topics,
)
from controller.result import Result
from controller.state import ClusterState
from protocol.api_keys import ApiKey
from protocol.errors import KafkaError
from protocol.messages import (
    allocate_producer_ids,
    alter_configs,
    assign_replicas_to_dirs,
    broker_heartbeat,
    broker_registration,
    controller_registration,
    create_partitions,
    create_topics,
    delete_topics,
    incremental_alter_configs,
    list_partition_reassignments,
    unregister_broker,
)
from protocol.messages.alter_partition import AlterPartitionResponse


class ControllerApi(NamedTuple):
    """One request: (state, request, now_ms of the sessions' clock) -> Result; (request, error) -> response."""

    decide: Callable[[ClusterState, Any, int], Result[Any]]
    refuse: Callable[[Any, KafkaError], Any]


def _refuse_create_topics(
    request: create_topics.CreateTopicsRequest, error: KafkaError
) -> create_topics.CreateTopicsResponse:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    )


def _refuse_delete_topics(
    request: delete_topics.DeleteTopicsRequest, error: KafkaError
) -> delete_topics.DeleteTopicsResponse:
    named = [delete_topics.DeleteTopicState(name=name) for name in request.topic_names]
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message
            )
            for topic in [*named, *request.topics]
        ]
    )


def _refuse_create_partitions(
    request: create_partitions.CreatePartitionsRequest, error: KafkaError
) -> create_partitions.CreatePartitionsResponse:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    )


def _refuse_alter_configs(
    request: alter_configs.AlterConfigsRequest, error: KafkaError
) -> alter_configs.AlterConfigsResponse:
    return alter_configs.AlterConfigsResponse(
        responses=[
            alter_configs.AlterConfigsResourceResponse(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                error_code=error.code,
                error_message=error.message,
            )
            for each in request.resources
        ]
    )


def _refuse_incremental_alter_configs(
    request: incremental_alter_configs.IncrementalAlterConfigsRequest, error: KafkaError
) -> incremental_alter_configs.IncrementalAlterConfigsResponse:
    return incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                error_code=error.code,
                error_message=error.message,
            )
            for each in request.resources
        ]
    )


CONTROLLER_APIS: Final[Mapping[int, ControllerApi]] = {
    ApiKey.CREATE_TOPICS: ControllerApi(
        lambda state, request, _: topics.create_topics(state, request), _refuse_create_topics
    ),
    ApiKey.DELETE_TOPICS: ControllerApi(
        lambda state, request, _: topics.delete_topics(state, request), _refuse_delete_topics
    ),
    ApiKey.CREATE_PARTITIONS: ControllerApi(
        lambda state, request, _: partitions.create_partitions(state, request), _refuse_create_partitions
    ),
    ApiKey.ALTER_CONFIGS: ControllerApi(
        lambda state, request, _: configs.alter(state, request), _refuse_alter_configs
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ControllerApi(
        lambda state, request, _: configs.incremental_alter(state, request), _refuse_incremental_alter_configs
    ),
    ApiKey.UPDATE_FEATURES: ControllerApi(
        lambda state, request, _: features.update_features(state, request), features.refusal
    ),
    ApiKey.CREATE_ACLS: ControllerApi(
        lambda state, request, _: acls.create_acls(state, request), acls.refuse_creation
    ),
    ApiKey.DELETE_ACLS: ControllerApi(
        lambda state, request, _: acls.delete_acls(state, request), acls.refuse_deletion
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ControllerApi(
        lambda state, request, _: quotas.alter_client_quotas(state, request), quotas.refusal
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ControllerApi(
        lambda state, request, _: scram.alter_credentials(state, request), scram.refusal
    ),
    ApiKey.CONTROLLER_REGISTRATION: ControllerApi(
        lambda state, request, _: controllers.register_controller(state, request),
        lambda _, error: controller_registration.ControllerRegistrationResponse(
            error_code=error.code, error_message=error.message
        ),
    ),
    ApiKey.BROKER_REGISTRATION: ControllerApi(
        lambda state, request, now_ms: brokers.register(state, request, now_ms=now_ms),
        lambda _, error: broker_registration.BrokerRegistrationResponse(error_code=error.code),
    ),
    ApiKey.BROKER_HEARTBEAT: ControllerApi(
        lambda state, request, now_ms: brokers.heartbeat(state, request, now_ms=now_ms),
        lambda _, error: broker_heartbeat.BrokerHeartbeatResponse(error_code=error.code),
    ),
    ApiKey.UNREGISTER_BROKER: ControllerApi(
        lambda state, request, _: brokers.unregister(state, request),
        lambda _, error: unregister_broker.UnregisterBrokerResponse(
            error_code=error.code, error_message=error.message
        ),
    ),
    ApiKey.ALTER_PARTITION: ControllerApi(
        lambda state, request, _: alter_partition.alter_partition(state, request),
        lambda _, error: AlterPartitionResponse(error_code=error.code),
    ),
    ApiKey.ELECT_LEADERS: ControllerApi(
        lambda state, request, _: elections.elect_leaders(state, request), elections.refusal
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ControllerApi(
        lambda state, request, _: reassignments.alter_partition_reassignments(state, request),
        reassignments.refusal,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ControllerApi(
        lambda state, request, _: reassignments.list_partition_reassignments(state, request),
        lambda _, error: list_partition_reassignments.ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message
        ),
    ),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: ControllerApi(
        lambda state, request, _: directories.assign_replicas(state, request),
        lambda _, error: assign_replicas_to_dirs.AssignReplicasToDirsResponse(error_code=error.code),
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: ControllerApi(
        lambda state, request, _: producer_ids.allocate(state, request),
        lambda _, error: allocate_producer_ids.AllocateProducerIdsResponse(error_code=error.code),
    ),
}
