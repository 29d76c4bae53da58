"""DescribeConfigs (key 32): every configuration of a resource, where it comes from and what it is for.

Who asks: admin clients (kafka-configs, web consoles), per topic, broker, group, metrics subscription.
Versions: v1-4. v1 sources and synonyms, v3 types and documentation, v4 flexible.
Differs from Kafka: the documentation is our own; configurations of a logger are those of Python's logging.
Touches: broker.config, broker.metadata (read only).
"""

from collections.abc import Iterable
from typing import Protocol

from broker.api import Api, RequestContext
from broker.api.altering_configs import BROKER_LOGGER
from broker.config import BrokerConfig
from broker.config.describe import (
    ConfigRow,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from broker.config.loggers import check_logger_resource, logger_levels
from broker.config.names import node_id_of
from broker.metadata_cache import MetadataCache
from protocol.api_keys import ApiKey
from protocol.config_def import ConfigSource
from protocol.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from protocol.metadata.image import ConfigResource, ConfigResourceType
from protocol.topic_names import check_topic_name

_LOGGER_TYPE = 0


class DescribesConfigs(Protocol):
    """A node that is asked: a broker, or a controller at its own listener."""

    @property
    def node_id(self) -> int:
        """Its number."""

    @property
    def config(self) -> BrokerConfig:
        """Its configuration."""

    @property
    def metadata(self) -> MetadataCache:
        """What it knows of the cluster."""


def handle(
    request: DescribeConfigsRequest, context: RequestContext, broker: DescribesConfigs
) -> DescribeConfigsResponse:
    """A result for each resource; one that cannot be described leaves the others alone."""
    return DescribeConfigsResponse(
        results=[_describe(resource, request, broker) for resource in request.resources]
    )


def _describe(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, broker: DescribesConfigs
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
    )
    try:
        rows = _rows(resource, broker)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    wanted = resource.configuration_keys
    result.configs = [
        _result(row, request) for row in rows if not wanted or row.name in wanted
    ]  # an empty list asks for all, as null does
    return result


def _rows(resource: DescribeConfigsResource, broker: DescribesConfigs) -> Iterable[ConfigRow]:
    name = resource.resource_name
    if resource.resource_type == BROKER_LOGGER:
        check_logger_resource(broker.config, name)
        return _logger_rows()
    try:
        kind = ConfigResourceType(resource.resource_type)
    except ValueError:
        raise InvalidRequest(f"Unsupported resource type: {resource.resource_type}") from None
    overrides = broker.metadata.image.config(ConfigResource(kind, name))
    match kind:
        case ConfigResourceType.TOPIC:
            check_topic_name(name)
            if broker.metadata.topic(name) is None:
                raise UnknownTopicOrPartition
            return describe_topic(broker.config, overrides)
        case ConfigResourceType.BROKER:
            if not name:
                return describe_cluster_defaults(broker.config)
            if node_id_of(name, what="Broker id") != broker.node_id:
                raise InvalidRequest(
                    f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}"
                )
            return describe_broker(broker.config)
        case ConfigResourceType.GROUP:
            if not name:
                raise InvalidRequest("Group name must not be empty")
            return describe_group(broker.config, overrides)
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise InvalidRequest("Client metrics subscription name must not be empty")
            return describe_client_metrics(overrides)
        case _:
            raise InvalidRequest(f"Unsupported resource type: {resource.resource_type}")


def _logger_rows() -> list[ConfigRow]:
    return [
        ConfigRow(name, level, False, ConfigSource.DYNAMIC_BROKER_LOGGER, False, (), _LOGGER_TYPE, None)
        for name, level in logger_levels().items()
    ]


def _result(row: ConfigRow, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = row.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.is_read_only,
        config_source=row.source,
        is_sensitive=row.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=row.config_type,
        documentation=row.documentation if request.include_documentation else None,
    )


API = Api(key=ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5), handle=handle)
