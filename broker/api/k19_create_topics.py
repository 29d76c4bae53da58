"""CreateTopics (key 19): new topics with their partitions, replicas and configurations.

Who asks: admin clients; brokers themselves for internal and auto-created topics.
Versions: v2-7. v4 -1 for the broker's defaults, v5 configurations in the response, v7 topic ids in the response.
Differs from Kafka: the response waits until this broker has the topic, so a later Metadata request includes it.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(key=ApiKey.CREATE_TOPICS, versions=range(2, 8), handle=forward, refuse=refuse)
