"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from single configurations (KIP-339).

Who asks: admin clients (kafka-configs --alter).
Versions: v0-1. v1 flexible.
Differs from Kafka: never throttles.
Touches: broker.metadata (read only); log levels of this process; the controller.
"""

from typing import cast

from ottla.broker.api import Api
from ottla.broker.api.altering_configs import BROKER_LOGGER, Resource, alter, is_forwarded, stored_overrides
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.config.config_def import AlterOperation, ConfigOperation, merge_operations
from ottla.config.definitions import BROKER_CONFIGS
from ottla.config.dynamic import validate_broker_alter
from ottla.config.loggers import alter_loggers, check_logger_resource, validate_logger_alter
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.refusals import refuse


async def handle(
    request: IncrementalAlterConfigsRequest, context: RequestContext, broker: BrokerServices
) -> IncrementalAlterConfigsResponse:
    """Apply each operation to one key of its resource; other keys stay unchanged."""

    def check(resource: Resource) -> bool:
        operations = [operation_of(cast("AlterableConfig", config)) for config in resource.configs]
        if resource.resource_type == BROKER_LOGGER:
            check_logger_resource(broker.config, resource.resource_name)
            validate_logger_alter(operations)
            if not request.validate_only:
                alter_loggers(operations)
            return True
        if not is_forwarded(resource):
            overrides = stored_overrides(resource, broker)
            for name, value in merge_operations(overrides, operations, BROKER_CONFIGS).items():
                if value is None:
                    overrides.pop(name, None)
                else:
                    overrides[name] = value
            validate_broker_alter(broker.config, resource.resource_name, overrides)
        return False

    return IncrementalAlterConfigsResponse(
        responses=await alter(request, context, broker, AlterConfigsResourceResponse, check=check)
    )


def operation_of(config: AlterableConfig) -> ConfigOperation:
    """The operation of one row of a request. Raises InvalidRequest."""
    name, code, value = config.name, config.config_operation, config.value
    if code not in AlterOperation.__members__.values():
        raise InvalidRequest(f"Unknown operation {code} for the configuration {name}")
    if value is None and code != AlterOperation.DELETE:
        raise InvalidRequest(f"Null value not supported for : {name}")
    return ConfigOperation(name, AlterOperation(code), value)


API = Api(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=range(2),
    handle=handle,
    refuse=refuse,
    is_encoded_in_turns=True,
)
