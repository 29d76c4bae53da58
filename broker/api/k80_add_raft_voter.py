"""AddRaftVoter (key 80): a controller that follows the metadata log becomes a voter (KIP-853).

Who asks: admin clients (kafka-metadata-quorum add-controller).
Versions: v0-1. v1 may be answered before the new set of voters is committed.
Differs from Kafka: nothing known.
Touches: the controller, whose quorum answers.
"""

from broker.api import Api
from broker.api.forwarding import forward
from protocol.api_keys import ApiKey

API = Api(key=ApiKey.ADD_RAFT_VOTER, versions=range(2), handle=forward)
