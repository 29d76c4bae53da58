"""JoinGroup (key 11): become a member of a group, or take part in its next generation.

Who asks: consumers and Connect workers at their start, and whenever a heartbeat tells REBALANCE_IN_PROGRESS.
Versions: v0-9. v1 rebalance timeout, v4 the id must be asked for first (KIP-394), v5 group instance id
(KIP-345), v7 protocol type, null protocol name, v8 reason (KIP-800), v9 skip assignment (KIP-814).
Differs from Kafka: a JoinGroup that its member has repeated over another connection is answered
REBALANCE_IN_PROGRESS, where Kafka never answers it.
Touches: broker.groups. Waits for the other members, up to their rebalance timeout.
"""

from broker.api import Api, RequestContext
from broker.broker import Broker
from broker.groups.answers import Answer, after
from protocol.api_keys import ApiKey
from protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


def handle(request: JoinGroupRequest, context: RequestContext, broker: Broker) -> Answer[JoinGroupResponse]:
    """Join, with the names that a version lacks filled in."""
    if context.version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    answer = broker.groups.join(
        request,
        version=context.version,
        client_id=context.client_id or "",
        # As Java prints an address; tools show it.
        client_host=f"/{context.client_host}",
    )
    return after(answer, lambda response: _of_version(response, context.version))


def _of_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """No protocol is "" up to v6, null since."""
    response.protocol_name = response.protocol_name or (None if version >= 7 else "")
    return response


API = Api(key=ApiKey.JOIN_GROUP, versions=range(10), handle=handle)
