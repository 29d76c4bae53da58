"""ElectLeaders (key 43): elect the preferred replica, or with an unclean election any replica (KIP-183, KIP-460).

Who asks: admin clients (kafka-leader-election), after a restart of a broker, or when all in-sync replicas are lost.
Versions: v0-2. v1 unclean elections and a top-level error, v2 flexible.
Differs from Kafka: never throttles.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(
    key=ApiKey.ELECT_LEADERS, versions=range(3), handle=forward, refuse=refuse, is_encoded_in_turns=True
)
