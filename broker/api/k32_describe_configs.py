"""DescribeConfigs (key 32): every configuration of a resource, with its source and documentation.

Who asks: admin clients (kafka-configs, web consoles), per topic, broker, group, metrics subscription.
Versions: v1-4. v1 sources and synonyms, v3 types and documentation, v4 flexible.
Differs from Kafka: the documentation is our own; configurations of a logger are those of Python's logging;
a resource that is named twice is described once.
Touches: ottla.config, broker.metadata (read only). Requests for many resources take several turns of the loop.
"""

from collections.abc import Callable, Collection, Generator, Iterable
from functools import cache, partial
from itertools import islice
from typing import Final, Protocol

from ottla.broker.api import Api
from ottla.broker.api.altering_configs import BROKER_LOGGER
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.request_context import RequestContext
from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import ConfigSource
from ottla.config.describe import (
    ConfigRow,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from ottla.config.loggers import check_logger_resource, logger_levels
from ottla.config.names import node_id_of
from ottla.metadata.image import ConfigResource, ConfigResourceType
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import InvalidRequest, KafkaError, UnknownTopicOrPartition
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ottla.protocol.steps import ROWS_OF_STEP, Step
from ottla.protocol.topic_names import check_topic_name
from ottla.runtime.turns import FreedInTurns, HasTurns, result_in_turns

_LOGGER_TYPE = 0
#: The number of resources that are described in one turn of the loop: a millisecond for topics.
RESOURCES_A_TURN: Final = 20

#: The resources by type and name, with the names of the requested configurations of each; None: all of them.
_Wanted = dict[tuple[int, str], set[str] | None]
_MakeResult = Callable[[ConfigRow], DescribeConfigsResourceResult]


class DescribesConfigs(Protocol):
    """The node that handles the request: a broker, or a controller at its own listener."""

    @property
    def node_id(self) -> int:
        """The id of the node that handles the request."""

    @property
    def config(self) -> BrokerConfig:
        """The effective configuration of this node."""

    @property
    def metadata(self) -> MetadataCache:
        """The node's image of the cluster metadata."""

    @property
    def runtime(self) -> HasTurns:
        """The runtime with the turns of the node's event loop."""


async def handle(
    request: DescribeConfigsRequest, context: RequestContext, broker: DescribesConfigs
) -> DescribeConfigsResponse:
    """Return a result for each resource; an error of one does not affect the others."""
    results: list[DescribeConfigsResult] = []
    parts = FreedInTurns(broker.runtime)
    resources = await result_in_turns(
        _distinct(request.resources, parts), broker.runtime, is_begun_at_once=True
    )
    make: _MakeResult = partial(_result, request)
    if len(resources) > 1:
        make = cache(make)  # what resources do not override is the same in all of them
    for (resource_type, name), wanted in resources.items():
        results.append(_describe(resource_type, name, wanted, broker, make))
        if len(results) % RESOURCES_A_TURN == 0:
            await broker.runtime.turns.share()
    return DescribeConfigsResponse(results=results)


def _distinct(
    resources: Iterable[DescribeConfigsResource], parts: FreedInTurns
) -> Generator[None, None, _Wanted]:
    """Return each resource once: a short request must not cause a multiple of a long response."""
    distinct: _Wanted = {}
    step = Step()
    for resource in resources:
        at = (resource.resource_type, resource.resource_name)
        if not resource.configuration_keys:  # an empty list means all, as null does
            distinct[at] = None
        elif (wanted := distinct.setdefault(at, set())) is not None:
            left = iter(resource.configuration_keys)
            while some := list(islice(left, ROWS_OF_STEP)):
                wanted.update(some)
                if step.is_full(len(some)):
                    yield
        parts.hold(at)
        if step.is_full():
            yield
    return distinct


def _describe(
    resource_type: int,
    name: str,
    wanted: Collection[str] | None,
    broker: DescribesConfigs,
    make: _MakeResult,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource_type, resource_name=name, error_message=None)
    try:
        rows = _rows(resource_type, name, broker)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    result.configs = [make(row) for row in rows if wanted is None or row.name in wanted]
    return result


def _rows(resource_type: int, name: str, broker: DescribesConfigs) -> Iterable[ConfigRow]:
    if resource_type == BROKER_LOGGER:
        check_logger_resource(broker.config, name)
        return _logger_rows()
    try:
        kind = ConfigResourceType(resource_type)
    except ValueError:
        raise InvalidRequest(f"Unsupported resource type: {resource_type}") from None
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
            raise InvalidRequest(f"Unsupported resource type: {resource_type}")


def _logger_rows() -> list[ConfigRow]:
    return [
        ConfigRow(name, level, False, ConfigSource.DYNAMIC_BROKER_LOGGER, False, (), _LOGGER_TYPE, None)
        for name, level in logger_levels().items()
    ]


def _result(request: DescribeConfigsRequest, row: ConfigRow) -> DescribeConfigsResourceResult:
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


API = Api(key=ApiKey.DESCRIBE_CONFIGS, versions=range(1, 5), handle=handle, is_encoded_in_turns=True)
