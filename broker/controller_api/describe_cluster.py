"""DescribeCluster (key 60) of a controller: the controllers of the cluster, and the active one (KIP-919).

Who asks: admin clients with `bootstrap.controllers`.
Versions: v0-2, as a broker's.
Differs from Kafka: nothing known.
"""

from ottla.broker.api import authorized_operations as operations
from ottla.broker.controller_api.services import ControllerServices
from ottla.broker.request_context import RequestContext
from ottla.metadata.features import CONTROLLER_REGISTRATION_3_7_IV0
from ottla.protocol.errors import ErrorCode, UnsupportedVersion
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


def handle(
    request: DescribeClusterRequest, context: RequestContext, services: ControllerServices
) -> DescribeClusterResponse:
    """Return the controllers that have an endpoint of the request's listener."""
    image = services.metadata.image
    if (image.metadata_version or 0) < CONTROLLER_REGISTRATION_3_7_IV0:
        raise UnsupportedVersion(
            "Direct-to-controller communication is not supported with the current MetadataVersion."
        )
    if request.endpoint_type != _CONTROLLERS:
        return _refusal(request.endpoint_type, version=context.version)
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


def _refusal(endpoint_type: int, *, version: int) -> DescribeClusterResponse:
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
