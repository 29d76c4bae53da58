"""CreateAcls (key 30): allow or deny operations of principals on resources (KIP-140, KIP-290).

Who asks: admin clients (kafka-acls --add).
Versions: v1-3. v1 pattern types, v2 flexible, v3 the resource type USER (KIP-373).
Differs from Kafka: only the row with a code that is unknown or valid in filters only is refused, with INVALID_REQUEST;
Kafka fails all rows with UNKNOWN_SERVER_ERROR, and closes the connection for a code of 0.
Touches: the controller; SECURITY_DISABLED without an authorizer. ACLs are stored, not enforced yet.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(key=ApiKey.CREATE_ACLS, versions=range(1, 4), handle=forward, refuse=refuse)
