"""SyncGroup (key 14): the leader hands in the assignment, every member gets its own.

Who asks: every member after its JoinGroup was answered.
Versions: v0-5. v3 group instance id (KIP-345), v5 protocol type and name, which must be the group's.
Differs from Kafka: a SyncGroup that its member has repeated over another connection is answered
REBALANCE_IN_PROGRESS, where Kafka never answers it.
Touches: broker.groups, the offsets topic. Waits for the leader's request, and for its record's replicas.
"""

from broker.api import Api, RequestContext
from broker.broker import Broker
from broker.groups.answers import Answer
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


def handle(request: SyncGroupRequest, context: RequestContext, broker: Broker) -> Answer[SyncGroupResponse]:
    """Hand in or fetch the assignment."""
    is_named = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= _FIRST_VERSION_WITH_PROTOCOL and not is_named:
        return SyncGroupResponse(error_code=ErrorCode.inconsistent_group_protocol)
    return broker.groups.sync(request)


API = Api(key=ApiKey.SYNC_GROUP, versions=range(6), handle=handle)
