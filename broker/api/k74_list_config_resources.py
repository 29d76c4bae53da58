"""ListConfigResources (key 74): the resources that have, or may have, configurations (KIP-714, KIP-1142).

Who asks: kafka-configs, kafka-client-metrics, admin clients.
Versions: v0-1. v0 lists client metrics subscriptions only, v1 resources of the requested types, or of all types.
Differs from Kafka: nothing known. All topics and brokers are listed, groups and subscriptions only if configured.
Touches: broker.metadata (read only). Many resources take several turns of the loop, and are of one moment.
"""

from collections.abc import Awaitable, Generator, Iterable

from ottla.broker.api import Api
from ottla.broker.api.long_answers import ROWS_OF_STEP, at_once_or_in_turns
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.metadata.image import ConfigResourceType, MetadataImage
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

#: The listed types of resources, in the order of Kafka's response.
_LISTED = (
    ConfigResourceType.GROUP,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.BROKER,
    ConfigResourceType.TOPIC,
)


def handle(
    request: ListConfigResourcesRequest, context: RequestContext, broker: BrokerServices
) -> ListConfigResourcesResponse | Awaitable[ListConfigResourcesResponse]:
    """The resources, sorted by name. Other types get UNSUPPORTED_VERSION."""
    known = (ConfigResourceType.CLIENT_METRICS,) if context.version == 0 else _LISTED
    if not set(request.resource_types) <= set(known):
        return ListConfigResourcesResponse(error_code=ErrorCode.unsupported_version)
    wanted = [each for each in known if not request.resource_types or each in request.resource_types]
    return at_once_or_in_turns(_list(wanted, context, broker), broker.runtime, broker.long_answers)


def _list(
    wanted: list[ConfigResourceType], context: RequestContext, broker: BrokerServices
) -> Generator[None, None, ListConfigResourcesResponse]:
    image = broker.metadata.image
    names = {each: sorted(_names(image, each, context.listener_name)) for each in wanted}  # of one moment
    response = ListConfigResourcesResponse()
    left = ROWS_OF_STEP
    for each in wanted:
        for name in names[each]:
            if not left:
                left = ROWS_OF_STEP
                yield
            left -= 1
            response.config_resources.append(ConfigResource(resource_name=name, resource_type=each))
    return response


def _names(image: MetadataImage, wanted: ConfigResourceType, listener_name: str) -> Iterable[str]:
    match wanted:
        case ConfigResourceType.TOPIC:
            return image.topics_by_name
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER:
            return [str(id) for id, node in image.brokers.items() if listener_name in node.endpoints]
        case _:
            return [resource.name for resource in image.configs if resource.type is wanted]


API = Api(key=ApiKey.LIST_CONFIG_RESOURCES, versions=range(2), handle=handle, is_encoded_in_turns=True)
