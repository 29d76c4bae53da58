"""DeleteTopics (key 20): topics and all their records go.

Who asks: admin clients.
Versions: v1-6. v4 flexible, v5 error messages, v6 topics by id.
Differs from Kafka: nothing known.
Touches: the controller; the logs go when the metadata log says so.
"""

from broker.api import Api
from broker.api.forwarding import forward
from protocol.api_keys import ApiKey
from protocol.refusals import refuse

API = Api(key=ApiKey.DELETE_TOPICS, versions=range(1, 7), handle=forward, refuse=refuse)
