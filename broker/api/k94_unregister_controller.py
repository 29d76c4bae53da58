"""UnregisterController (key 94): remove the registration of a controller that will not return.

Who asks: admin clients (Admin.unregisterController; `ottla` has no command for it).
Versions: v0.
Differs from Kafka: nothing known.
Touches: the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.forwarding import forward
from ottla.protocol.api_keys import ApiKey

API = Api(key=ApiKey.UNREGISTER_CONTROLLER, versions=range(1), handle=forward)
