"""Requests about a controller itself: ApiVersions, DescribeCluster, and the configurations (keys 18, 60, 32, 33, 44).

Who asks: every node and client asks ApiVersions as the first request of a connection; admin clients with
`bootstrap.controllers` ask the others (KIP-919).
Versions: as a broker's.
Differs from Kafka: ApiVersions lists no security APIs and delegation tokens, which are not served; configurations as a
broker's. Loggers belong to this process; the active controller validates all else. A controller does not know a
broker's directories, so it accepts only the removal of entries of cordoned.log.dirs (KIP-1066).
"""

from collections.abc import Mapping
from typing import Final, cast

from ottla.broker.api import authorized_operations as operations
from ottla.broker.api import k32_describe_configs
from ottla.broker.api.altering_configs import BROKER_LOGGER, Resource, alter
from ottla.broker.api.k18_api_versions import finalized_features, is_plausible, supported_features
from ottla.broker.api.k44_incremental_alter_configs import operation_of
from ottla.broker.controller_api.services import QUORUM_REQUESTS, ControllerServices
from ottla.broker.request_context import RequestContext
from ottla.config.config_def import merge_operations
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.loggers import alter_loggers, check_logger_resource, validate_logger_alter
from ottla.metadata.features import CONTROLLER_REGISTRATION_3_7_IV0, UNDERSTOOD_FEATURES
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey, ApiListener, listeners
from ottla.protocol.errors import ErrorCode, InvalidConfig, UnsupportedVersion
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ottla.protocol.messages.alter_configs import (
    AlterConfigsResourceResponse as ReplacedConfigsResourceResponse,
)
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_CORDONED: Final = "cordoned.log.dirs"

#: The APIs that a controller serves besides those of the quorum and of the active controller.
_OWN_APIS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.ENVELOPE, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS}
)

#: DescribeCluster: the types of endpoints.
_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext, services: ControllerServices
) -> DescribeClusterResponse:
    """Return the cluster's controllers that have an endpoint of the request's listener, and the active one."""
    image = services.metadata.image
    if (image.metadata_version or 0) < CONTROLLER_REGISTRATION_3_7_IV0:
        raise UnsupportedVersion(
            "Direct-to-controller communication is not supported with the current MetadataVersion."
        )
    if request.endpoint_type != _CONTROLLERS:
        return _refusal_of_endpoint(request.endpoint_type, version=context.version)
    nodes = [
        DescribeClusterBroker(broker_id=controller_id, host=endpoint.host, port=endpoint.port)
        for controller_id, controller in sorted(image.controllers.items())
        if (endpoint := controller.endpoints.get(context.listener_name)) is not None
    ]
    leader_id = services.leader.leader_id
    is_registered = any(node.broker_id == leader_id for node in nodes)
    return DescribeClusterResponse(
        endpoint_type=_CONTROLLERS,
        cluster_id=services.cluster_id,
        # Clients could not connect to an active controller that is not registered yet.
        controller_id=leader_id if leader_id is not None and is_registered else -1,
        brokers=nodes,
        cluster_authorized_operations=(
            operations.CLUSTER if request.include_cluster_authorized_operations else operations.NOT_ASKED
        ),
    )


def _refusal_of_endpoint(endpoint_type: int, *, version: int) -> DescribeClusterResponse:
    if endpoint_type == _BROKERS:
        code = ErrorCode.mismatched_endpoint_type
        message = (
            "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
        )
    else:
        code = ErrorCode.unsupported_endpoint_type
        message = f"Unsupported endpoint type {endpoint_type}"
    return DescribeClusterResponse(
        error_code=ErrorCode.invalid_request if version == 0 else code, error_message=message
    )


def served_keys(services: ControllerServices) -> list[int]:
    """The API keys of this controller, in order."""
    keys = _OWN_APIS | QUORUM_REQUESTS | services.controller_apis
    return sorted(key for key in keys if ApiListener.CONTROLLER in listeners(key))


def api_versions(
    request: ApiVersionsRequest, context: RequestContext, services: ControllerServices
) -> ApiVersionsResponse:
    """Return the APIs and features that this controller serves; a request from v3 on must be plausible.

    Kafka's controllers, too, do not compare the cluster and the node of v5 with their own.
    """
    if context.version >= 3 and not is_plausible(request):
        return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=key,
                min_version=KAFKA_VERSIONS[ApiKey(key)].start,
                max_version=KAFKA_VERSIONS[ApiKey(key)].stop - 1,
            )
            for key in served_keys(services)
        ],
        supported_features=supported_features(UNDERSTOOD_FEATURES, version=context.version),
        finalized_features_epoch=services.metadata.last_applied_offset,
        finalized_features=finalized_features(services.metadata.finalized_features),
    )


async def describe_configs(
    request: DescribeConfigsRequest, context: RequestContext, services: ControllerServices
) -> DescribeConfigsResponse:
    """Describe configurations in the same way as a broker, with this node's own configuration and metadata."""
    return await k32_describe_configs.handle(request, context, services)


async def alter_configs_incrementally(
    request: IncrementalAlterConfigsRequest, context: RequestContext, services: ControllerServices
) -> IncrementalAlterConfigsResponse:
    """Alter the loggers of this node here, and all other configurations at the active controller."""

    def check(resource: Resource) -> bool:
        operations = [operation_of(cast("AlterableConfig", config)) for config in resource.configs]
        if resource.resource_type != BROKER_LOGGER:
            if resource.resource_type == ConfigResourceType.BROKER:
                asked = [each for each in operations if each.name == _CORDONED]
                stored = _stored(resource.resource_name, services)
                _check_cordoned(stored, merge_operations(stored, asked, BROKER_CONFIGS))
            return False
        check_logger_resource(services.config, resource.resource_name)
        validate_logger_alter(operations)
        if not request.validate_only:
            alter_loggers(operations)
        return True

    return IncrementalAlterConfigsResponse(
        responses=await alter(request, context, services, AlterConfigsResourceResponse, check=check)
    )


async def replace_configs(
    request: AlterConfigsRequest, context: RequestContext, services: ControllerServices
) -> AlterConfigsResponse:
    """Replace configurations at the active controller."""

    def check(resource: Resource) -> bool:
        if resource.resource_type == ConfigResourceType.BROKER:
            wanted = {config.name: config.value for config in resource.configs}
            _check_cordoned(_stored(resource.resource_name, services), wanted)
        return False

    return AlterConfigsResponse(
        responses=await alter(request, context, services, ReplacedConfigsResourceResponse, check=check)
    )


def _stored(broker: str, services: ControllerServices) -> dict[str, str]:
    return dict(services.metadata.image.config(ConfigResource(ConfigResourceType.BROKER, broker)))


def _check_cordoned(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> None:
    """Check that cordoned.log.dirs only loses entries. Raises InvalidConfig.

    A broker validates added directories before it forwards them.
    """
    if not _entries(after.get(_CORDONED)) <= _entries(before.get(_CORDONED)):
        raise InvalidConfig(
            f"A controller can only take entries away from {_CORDONED}; ask the broker itself."
        )


def _entries(text: str | None) -> set[str]:
    return {each.strip() for each in (text or "").split(",")} - {""}
