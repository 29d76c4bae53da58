"""DescribeQuorum (key 55): who leads the metadata quorum, and how far its voters and observers have come (KIP-595).

Who asks: admin clients (kafka-metadata-quorum describe --status, --replication).
Versions: v0-2. v1 times of the last fetches (KIP-836), v2 directory ids and where voters listen (KIP-853).
Differs from Kafka: nothing known.
Touches: the controller, whose quorum answers.
"""

from broker.api import Api
from broker.api.forwarding import forward
from protocol.api_keys import ApiKey

API = Api(key=ApiKey.DESCRIBE_QUORUM, versions=range(3), handle=forward)
