"""AddRaftVoter (key 80): make an observer controller a voter of the metadata quorum (KIP-853).

Who asks: admin clients (kafka-metadata-quorum add-controller).
Versions: v0-1. v1 ack_when_committed: the response may be sent before the new voter set is committed.
Differs from Kafka: nothing known.
Touches: the controller; its quorum handles the request.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey

API = Api(key=ApiKey.ADD_RAFT_VOTER, versions=range(2), handle=forward)
