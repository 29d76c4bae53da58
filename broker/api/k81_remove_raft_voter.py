"""RemoveRaftVoter (key 81): remove a voter from the metadata quorum (KIP-853).

Who asks: admin clients (kafka-metadata-quorum remove-controller).
Versions: v0.
Differs from Kafka: nothing known.
Touches: the controller; its quorum handles the request.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey

API = Api(key=ApiKey.REMOVE_RAFT_VOTER, versions=range(1), handle=forward)
