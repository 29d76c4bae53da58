"""AlterClientQuotas (key 49): set and remove quotas of users, clients and addresses (KIP-546, KIP-612).

Who asks: admin clients (kafka-configs --alter --entity-type users, clients or ips).
Versions: v0-1. v1 flexible.
Differs from Kafka: an ip is an address, never a host name. Quotas are stored, not enforced yet.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(key=ApiKey.ALTER_CLIENT_QUOTAS, versions=range(2), handle=forward, refuse=refuse)
