"""Heartbeat (key 12): keeps a member's session; the response reports whether it has to rejoin.

Who asks: every member of a group, every heartbeat.interval.ms.
Versions: v0-4. v3 group instance id (KIP-345).
Differs from Kafka: nothing; the throttle time is 0.
Touches: ottla.broker.groups. Never waits.
"""

from ottla.broker.api import Api
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, context: RequestContext, broker: BrokerServices) -> HeartbeatResponse:
    """Extend the member's session."""
    return broker.groups.heartbeat(request)


API = Api(key=ApiKey.HEARTBEAT, versions=range(5), handle=handle)
