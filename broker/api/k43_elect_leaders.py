"""ElectLeaders (key 43): let the preferred replica lead, or any replica at all (KIP-183, KIP-460).

Who asks: admin clients (kafka-leader-election), after a broker has come back, or when all that was in sync is lost.
Versions: v0-2. v1 unclean elections and a top-level error, v2 flexible.
Differs from Kafka: never throttles.
Touches: the controller.
"""

from broker.api import Api
from broker.api.forwarding import forward
from protocol.api_keys import ApiKey
from protocol.refusals import refuse

API = Api(key=ApiKey.ELECT_LEADERS, versions=range(3), handle=forward, refuse=refuse)
