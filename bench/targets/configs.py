"""Configurations of topics and brokers, set and read by requests."""

from collections.abc import Mapping
from typing import Final

from ottla.bench.targets.wire import RequestFailed, WireClient
from ottla.config.config_def import AlterOperation
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC: Final = 2
BROKER: Final = 4


def alter_configs(client: WireClient, resource_type: int, name: str, configs: Mapping[str, str]) -> None:
    """Set these configurations; the name of all brokers is empty. Raises RequestFailed."""
    resource = AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=AlterOperation.SET, value=value)
            for key, value in configs.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    row = client.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse
    ).responses[0]
    if row.error_code:
        raise RequestFailed(f"{name or 'brokers'}: {ErrorCode(row.error_code).name} {row.error_message}")


def config_of_broker(client: WireClient, broker_id: int, key: str) -> str | None:
    """Return a configuration of the broker that is asked; None if it has none of that name. Raises RequestFailed."""
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(broker_id), configuration_keys=[key]
    )
    request = DescribeConfigsRequest(resources=[resource])
    row = client.request(ApiKey.DESCRIBE_CONFIGS, request, DescribeConfigsResponse).results[0]
    if row.error_code:
        raise RequestFailed(f"broker {broker_id}: {ErrorCode(row.error_code).name} {row.error_message}")
    return row.configs[0].value if row.configs else None
