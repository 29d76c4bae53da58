"""Heartbeat (key 12): a member is alive, and hears whether it has to join again.

Who asks: every member of a group, each heartbeat.interval.ms.
Versions: v0-4. v3 group instance id (KIP-345).
Differs from Kafka: nothing; the throttle time is 0.
Touches: broker.groups. Never waits.
"""

from broker.api import Api, RequestContext
from broker.broker import Broker
from protocol.api_keys import ApiKey
from protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, context: RequestContext, broker: Broker) -> HeartbeatResponse:
    """Keep the session of the member."""
    return broker.groups.heartbeat(request)


API = Api(key=ApiKey.HEARTBEAT, versions=range(5), handle=handle)
