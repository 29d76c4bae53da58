"""JoinGroup (key 11): join a group, or its next generation.

Who asks: consumers and Connect workers at their start, and when a Heartbeat returns REBALANCE_IN_PROGRESS.
Versions: v0-9. v1 rebalance timeout, v4 MEMBER_ID_REQUIRED before joining (KIP-394), v5 group instance id
(KIP-345), v7 protocol type, null protocol name, v8 reason (KIP-800), v9 skip assignment (KIP-814).
Differs from Kafka: if a member repeats its JoinGroup over another connection, the first one gets
REBALANCE_IN_PROGRESS, where Kafka never responds to it.
Touches: ottla.broker.groups. Waits for the other members, up to their rebalance timeout.
"""

from ottla.broker.api import Api
from ottla.broker.groups.answers import Answer, after
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


def handle(
    request: JoinGroupRequest, context: RequestContext, broker: BrokerServices
) -> Answer[JoinGroupResponse]:
    """Join the group; fields that old versions lack are filled in."""
    if context.version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    answer = broker.groups.join(
        request,
        version=context.version,
        client_id=context.client_id or "",
        # As Java formats an address; tools show it.
        client_host=f"/{context.client_host}",
    )
    return after(answer, lambda response: _of_version(response, context.version))


def _of_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Return the response as its version has it: no protocol is "" up to v6, null from v7 on."""
    response.protocol_name = response.protocol_name or (None if version >= 7 else "")
    return response


API = Api(key=ApiKey.JOIN_GROUP, versions=range(10), handle=handle)
