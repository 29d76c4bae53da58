"""Heartbeat (key 12): keeps a member's session; the response reports whether it has to rejoin.

Who asks: every member of a group, every heartbeat.interval.ms.
Versions: v0-4. v3 group instance id (KIP-345).
Differs from Kafka: nothing; the throttle time is 0.
Touches: broker.groups. Never waits.
"""

from broker.api import Api
from broker.request_context import RequestContext
from broker.services import BrokerServices
from protocol.api_keys import ApiKey
from protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, context: RequestContext, broker: BrokerServices) -> HeartbeatResponse:
    """Extend the member's session."""
    return broker.groups.heartbeat(request)


API = Api(key=ApiKey.HEARTBEAT, versions=range(5), handle=handle)
