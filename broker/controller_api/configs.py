"""DescribeConfigs and IncrementalAlterConfigs (keys 32, 44) of a controller.

Who asks: admin clients that were given `bootstrap.controllers`.
Versions: as a broker's.
Differs from Kafka: as a broker's. Loggers are this process's own; all else is the controller's to check.
"""

from typing import cast

from broker.api import RequestContext, k32_describe_configs
from broker.api.altering_configs import BROKER_LOGGER, Resource, alter
from broker.api.k44_incremental_alter_configs import operation_of
from broker.config.loggers import alter_loggers, check_logger_resource, validate_logger_alter
from broker.controller_api.services import ControllerServices
from protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def describe(
    request: DescribeConfigsRequest, context: RequestContext, services: ControllerServices
) -> DescribeConfigsResponse:
    """As a broker answers it, about this node."""
    return k32_describe_configs.handle(request, context, services)


async def alter_incrementally(
    request: IncrementalAlterConfigsRequest, context: RequestContext, services: ControllerServices
) -> IncrementalAlterConfigsResponse:
    """Loggers here, everything else by the controller."""

    def check(resource: Resource) -> bool:
        if resource.resource_type != BROKER_LOGGER:
            return False
        operations = [operation_of(cast("AlterableConfig", config)) for config in resource.configs]
        check_logger_resource(services.config, resource.resource_name)
        validate_logger_alter(operations)
        if not request.validate_only:
            alter_loggers(operations)
        return True

    outcomes = await alter(request, context, services, check=check)
    return IncrementalAlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(**outcome._asdict()) for outcome in outcomes]
    )
