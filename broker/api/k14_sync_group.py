"""SyncGroup (key 14): the leader submits the assignment, every member receives its own.

Who asks: every member after the response to its JoinGroup.
Versions: v0-5. v3 group instance id (KIP-345), v5 protocol type and name, which must be the group's.
Differs from Kafka: if a member repeats its SyncGroup over another connection, the first one gets
REBALANCE_IN_PROGRESS, where Kafka never responds to it.
Touches: ottla.broker.groups, the offsets topic. Waits for the leader's request, and for its record's replication.
"""

from ottla.broker.api import Api
from ottla.broker.groups.answers import Answer
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


def handle(
    request: SyncGroupRequest, context: RequestContext, broker: BrokerServices
) -> Answer[SyncGroupResponse]:
    """Submit or receive the assignment."""
    is_named = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= _FIRST_VERSION_WITH_PROTOCOL and not is_named:
        return SyncGroupResponse(error_code=ErrorCode.inconsistent_group_protocol)
    return broker.groups.sync(request)


API = Api(key=ApiKey.SYNC_GROUP, versions=range(6), handle=handle)
