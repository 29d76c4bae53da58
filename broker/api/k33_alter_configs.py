"""AlterConfigs (key 33): replace all overrides of a resource (KIP-133).

Who asks: old admin clients; new ones use IncrementalAlterConfigs, which changes single keys.
Versions: v0-2. v1 may be throttled, v2 flexible.
Differs from Kafka: never throttles.
Touches: broker.metadata (read only); the controller.
"""

from ottla.broker.api import Api
from ottla.broker.api.altering_configs import Resource, alter, is_forwarded
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.config.dynamic import validate_broker_alter
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from ottla.protocol.refusals import refuse


async def handle(
    request: AlterConfigsRequest, context: RequestContext, broker: BrokerServices
) -> AlterConfigsResponse:
    """Replace the overrides of each resource by those of its row."""

    def check(resource: Resource) -> bool:
        missing = [config.name for config in resource.configs if config.value is None]
        if missing:
            raise InvalidRequest(f"Null value not supported for : {', '.join(missing)}")
        if not is_forwarded(resource):
            overrides = {config.name: config.value for config in resource.configs if config.value is not None}
            validate_broker_alter(broker.config, resource.resource_name, overrides)
        return False

    return AlterConfigsResponse(
        responses=await alter(request, context, broker, AlterConfigsResourceResponse, check=check)
    )


API = Api(key=ApiKey.ALTER_CONFIGS, versions=range(3), handle=handle, refuse=refuse, is_encoded_in_turns=True)
