"""DescribeCluster (key 60): the cluster's id, its controller and its brokers (KIP-700).

Who asks: admin clients.
Versions: v0-2. v1 endpoint type (KIP-919), v2 fenced brokers on demand (KIP-1073).
Differs from Kafka: nothing known; controllers are described by their own listener.
Touches: broker.metadata (read only).
"""

from ottla.broker.api import Api
from ottla.broker.api import authorized_operations as operations
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


def handle(
    request: DescribeClusterRequest, context: RequestContext, broker: BrokerServices
) -> DescribeClusterResponse:
    """Return the brokers that have an endpoint of the request's listener."""
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            error_message=(
                "This is a broker's listener: ask a controller's for controllers."
                if known
                else f"Endpoint type {request.endpoint_type} is none of 1 (brokers) and 2 (controllers)."
            ),
        )
    nodes = [
        (node, node.endpoints[context.listener_name])
        for _, node in sorted(broker.metadata.image.brokers.items())
        if context.listener_name in node.endpoints and (request.include_fenced_brokers or not node.is_fenced)
    ]
    alive = [node.broker_id for node, _ in nodes if not node.is_fenced]
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.runtime.random.choice(alive) if alive else -1,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=node.rack,
                is_fenced=node.is_fenced,
            )
            for node, endpoint in nodes
        ],
        cluster_authorized_operations=(
            operations.CLUSTER if request.include_cluster_authorized_operations else operations.NOT_ASKED
        ),
    )


API = Api(key=ApiKey.DESCRIBE_CLUSTER, versions=range(3), handle=handle)
