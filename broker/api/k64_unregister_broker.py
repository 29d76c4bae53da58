"""UnregisterBroker (key 64): remove the registration of a decommissioned broker.

Who asks: admin clients (kafka-cluster unregister).
Versions: v0.
Differs from Kafka: nothing known.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey

API = Api(key=ApiKey.UNREGISTER_BROKER, versions=range(1), handle=forward)
