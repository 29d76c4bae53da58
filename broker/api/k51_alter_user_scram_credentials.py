"""AlterUserScramCredentials (key 51): set and delete SCRAM credentials of users (KIP-554).

Who asks: admin clients (kafka-configs --alter --entity-type users), which send the salted password.
Versions: v0.
Differs from Kafka: an empty salted password is refused with UNACCEPTABLE_CREDENTIAL, not UNKNOWN_SERVER_ERROR.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.refusals import refuse

API = Api(key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=range(1), handle=forward, refuse=refuse)
