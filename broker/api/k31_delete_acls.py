"""DeleteAcls (key 31): remove all ACLs that filters match (KIP-140, KIP-290).

Who asks: admin clients (kafka-acls --remove).
Versions: v1-3. v1 pattern types, v2 flexible, v3 the resource type USER (KIP-373).
Differs from Kafka: a code of 0 in a filter is refused with INVALID_REQUEST, where Kafka closes the connection.
Touches: the controller; SECURITY_DISABLED without an authorizer.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(key=ApiKey.DELETE_ACLS, versions=range(1, 4), handle=forward, refuse=refuse)
