"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (keys 32, 33, 44) of a controller.

Who asks: admin clients with `bootstrap.controllers`.
Versions: as a broker's.
Differs from Kafka: as a broker's. Loggers belong to this process; the active controller validates all else. A
controller does not know a broker's directories, so it accepts only the removal of entries of cordoned.log.dirs
(KIP-1066).
"""

from collections.abc import Mapping
from typing import Final, cast

from ottla.broker.api import k32_describe_configs
from ottla.broker.api.altering_configs import BROKER_LOGGER, Resource, alter
from ottla.broker.api.k44_incremental_alter_configs import operation_of
from ottla.broker.controller_api.services import ControllerServices
from ottla.broker.request_context import RequestContext
from ottla.config.config_def import merge_operations
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.loggers import alter_loggers, check_logger_resource, validate_logger_alter
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.protocol.errors import InvalidConfig
from ottla.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ottla.protocol.messages.alter_configs import (
    AlterConfigsResourceResponse as ReplacedConfigsResourceResponse,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_CORDONED: Final = "cordoned.log.dirs"


async def describe(
    request: DescribeConfigsRequest, context: RequestContext, services: ControllerServices
) -> DescribeConfigsResponse:
    """Describe configurations in the same way as a broker, with this node's own configuration and metadata."""
    return await k32_describe_configs.handle(request, context, services)


async def alter_incrementally(
    request: IncrementalAlterConfigsRequest, context: RequestContext, services: ControllerServices
) -> IncrementalAlterConfigsResponse:
    """Alter the loggers of this node here, and all other configurations at the active controller."""

    def check(resource: Resource) -> bool:
        operations = [operation_of(cast("AlterableConfig", config)) for config in resource.configs]
        if resource.resource_type != BROKER_LOGGER:
            if resource.resource_type == ConfigResourceType.BROKER:
                asked = [each for each in operations if each.name == _CORDONED]
                stored = _stored(resource.resource_name, services)
                _check_cordoned(stored, merge_operations(stored, asked, BROKER_CONFIGS))
            return False
        check_logger_resource(services.config, resource.resource_name)
        validate_logger_alter(operations)
        if not request.validate_only:
            alter_loggers(operations)
        return True

    return IncrementalAlterConfigsResponse(
        responses=await alter(request, context, services, AlterConfigsResourceResponse, check=check)
    )


async def replace(
    request: AlterConfigsRequest, context: RequestContext, services: ControllerServices
) -> AlterConfigsResponse:
    """Replace configurations at the active controller."""

    def check(resource: Resource) -> bool:
        if resource.resource_type == ConfigResourceType.BROKER:
            wanted = {config.name: config.value for config in resource.configs}
            _check_cordoned(_stored(resource.resource_name, services), wanted)
        return False

    return AlterConfigsResponse(
        responses=await alter(request, context, services, ReplacedConfigsResourceResponse, check=check)
    )


def _stored(broker: str, services: ControllerServices) -> dict[str, str]:
    return dict(services.metadata.image.config(ConfigResource(ConfigResourceType.BROKER, broker)))


def _check_cordoned(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> None:
    """Check that cordoned.log.dirs only loses entries. Raises InvalidConfig.

    A broker validates added directories before it forwards them.
    """
    if not _entries(after.get(_CORDONED)) <= _entries(before.get(_CORDONED)):
        raise InvalidConfig(
            f"A controller can only take entries away from {_CORDONED}; ask the broker itself."
        )


def _entries(text: str | None) -> set[str]:
    return {each.strip() for each in (text or "").split(",")} - {""}
