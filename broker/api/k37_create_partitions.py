"""CreatePartitions (key 37): add partitions to an existing topic.

Who asks: admin clients.
Versions: v0-3. v2 flexible, v3 may be throttled.
Differs from Kafka: never throttles.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(
    key=ApiKey.CREATE_PARTITIONS, versions=range(4), handle=forward, refuse=refuse, is_encoded_in_turns=True
)
