"""LeaveGroup (key 13): remove members from a group, which then rebalances.

Who asks: dynamic members that close; admins that remove static members (KIP-345).
Versions: v0-5. v3 several members, by id or instance id, v5 reason (KIP-800).
Differs from Kafka: a waiting SyncGroup of a removed member gets UNKNOWN_MEMBER_ID, where Kafka never
responds to it.
Touches: broker.groups. Never waits.
"""

from broker.api import Api
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

_FIRST_VERSION_WITH_MEMBERS = 3


def handle(request: LeaveGroupRequest, context: RequestContext, broker: BrokerServices) -> LeaveGroupResponse:
    """Remove the members; up to v2 there is one, and its error is the response's."""
    if context.version >= _FIRST_VERSION_WITH_MEMBERS:
        return broker.groups.leave(request)
    request.members = [MemberIdentity(member_id=request.member_id)]
    response = broker.groups.leave(request)
    error = response.error_code or next((row.error_code for row in response.members), 0)
    return LeaveGroupResponse(error_code=error)


API = Api(key=ApiKey.LEAVE_GROUP, versions=range(6), handle=handle)
