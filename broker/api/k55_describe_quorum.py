"""DescribeQuorum (key 55): the leader of the metadata quorum, and the log end offsets of its replicas (KIP-595).

Who asks: admin clients (kafka-metadata-quorum describe --status, --replication).
Versions: v0-2. v1 timestamps of the last fetches (KIP-836), v2 directory ids and voters' endpoints (KIP-853).
Differs from Kafka: more than 1,000 topics or partitions are refused as a whole; there is one of each.
Touches: the controller; its quorum handles the request.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey

API = Api(key=ApiKey.DESCRIBE_QUORUM, versions=range(3), handle=forward)
