"""ControllerApis: the requests that the controller serves, each with its decision.

The response to a request that fails as a whole is in `ottla.protocol.refusals`. Source: ControllerApis of Kafka 4.3.1.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.controller import acls, configs, features, producer_ids, quotas, scram
from ottla.controller.membership import brokers, controllers
from ottla.controller.partitions import (
    alter_partition,
    create_partitions,
    directory_assignment,
    elect_leaders,
    reassignments,
    topics,
)
from ottla.controller.result import Result
from ottla.controller.state import ClusterState
from ottla.controller.steps import InSteps, Steps
from ottla.protocol.api_keys import ApiKey


class ControllerApi(NamedTuple):
    """One request: (state, request, now_ms of the sessions' clock) -> Result, or its steps."""

    decide: Callable[[ClusterState, Any, int], Steps[Any] | Result[Any]]


def _timeless(decide: Callable[[ClusterState, Any], Result[Any]]) -> ControllerApi:
    """Wrap a decision that does not use the sessions' clock; in steps, if it is made in steps."""
    if isinstance(decide, InSteps):
        return ControllerApi(lambda state, request, _now_ms: decide.steps(state, request))
    return ControllerApi(lambda state, request, _now_ms: decide(state, request))


CONTROLLER_APIS: Final[Mapping[int, ControllerApi]] = {
    ApiKey.CREATE_TOPICS: _timeless(topics.create_topics),
    ApiKey.DELETE_TOPICS: _timeless(topics.delete_topics),
    ApiKey.CREATE_PARTITIONS: _timeless(create_partitions.create_partitions),
    ApiKey.ALTER_CONFIGS: _timeless(configs.alter),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _timeless(configs.incremental_alter),
    ApiKey.UPDATE_FEATURES: _timeless(features.update_features),
    ApiKey.DESCRIBE_ACLS: _timeless(acls.describe_acls),
    ApiKey.CREATE_ACLS: _timeless(acls.create_acls),
    ApiKey.DELETE_ACLS: _timeless(acls.delete_acls),
    ApiKey.ALTER_CLIENT_QUOTAS: _timeless(quotas.alter_client_quotas),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _timeless(scram.alter_credentials),
    ApiKey.CONTROLLER_REGISTRATION: _timeless(controllers.register_controller),
    ApiKey.UNREGISTER_CONTROLLER: _timeless(controllers.unregister_controller),
    ApiKey.BROKER_REGISTRATION: ControllerApi(
        lambda state, request, now_ms: brokers.register.steps(state, request, now_ms=now_ms)
    ),
    ApiKey.BROKER_HEARTBEAT: ControllerApi(
        lambda state, request, now_ms: brokers.heartbeat.steps(state, request, now_ms=now_ms)
    ),
    ApiKey.UNREGISTER_BROKER: _timeless(brokers.unregister),
    ApiKey.ALTER_PARTITION: _timeless(alter_partition.alter_partition),
    ApiKey.ELECT_LEADERS: _timeless(elect_leaders.elect_leaders),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _timeless(reassignments.alter_partition_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _timeless(reassignments.list_partition_reassignments),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _timeless(directory_assignment.assign_replicas),
    ApiKey.ALLOCATE_PRODUCER_IDS: _timeless(producer_ids.allocate),
}
