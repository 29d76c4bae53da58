"""UpdateFeatures (key 57): finalize feature levels for the whole cluster (KIP-584, KIP-1022).

Who asks: admin clients (kafka-features upgrade, downgrade, disable).
Versions: v0-2. v1 safe and unsafe downgrades, and validate_only; v2 one error for all (KIP-1022).
Differs from Kafka: allow_downgrade of v0 is respected; a feature that is named twice, and more than 100 features, are
refused.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(key=ApiKey.UPDATE_FEATURES, versions=range(3), handle=forward, refuse=refuse)
