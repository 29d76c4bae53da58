"""LeaveGroup (key 13): remove members from a group, which then rebalances.

Who asks: dynamic members that close; admins that remove static members (KIP-345).
Versions: v0-5. v3 several members, by id or instance id, v5 reason (KIP-800).
Differs from Kafka: a waiting SyncGroup of a removed member gets UNKNOWN_MEMBER_ID, where Kafka never
responds to it. A request of more than `MEMBERS_OF_STEP` members counts as several, of so many each.
Touches: ottla.broker.groups. Never waits. Many members take several turns of the loop.
"""

from collections.abc import Awaitable, Generator
from dataclasses import replace
from typing import Final

from ottla.broker.api import Api
from ottla.broker.api.long_answers import at_once_or_in_turns
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

#: Members that leave together, and cause one rebalance: a millisecond where none of them is known.
MEMBERS_OF_STEP: Final = 500

_FIRST_VERSION_WITH_MEMBERS: Final = 3


def handle(
    request: LeaveGroupRequest, context: RequestContext, broker: BrokerServices
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    """Remove the members; up to v2 there is one, and its error is the response's."""
    if context.version >= _FIRST_VERSION_WITH_MEMBERS:
        if len(request.members) <= MEMBERS_OF_STEP:
            return broker.groups.leave(request)
        return at_once_or_in_turns(_leave_in_steps(request, broker), broker.runtime, broker.long_answers)
    request.members = [MemberIdentity(member_id=request.member_id)]
    response = broker.groups.leave(request)
    error = response.error_code or next((row.error_code for row in response.members), 0)
    return LeaveGroupResponse(error_code=error)


def _leave_in_steps(
    request: LeaveGroupRequest, broker: BrokerServices
) -> Generator[None, None, LeaveGroupResponse]:
    """Remove the members in steps of those that leave together; an error of the group is that of the whole request."""
    answer = LeaveGroupResponse()
    for at in range(0, len(request.members), MEMBERS_OF_STEP):
        if at:
            yield
        left = broker.groups.leave(replace(request, members=request.members[at : at + MEMBERS_OF_STEP]))
        if left.error_code:
            return left
        answer.members += left.members
    return answer


API = Api(key=ApiKey.LEAVE_GROUP, versions=range(6), handle=handle)
