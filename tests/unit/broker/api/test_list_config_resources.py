"""The resources that are listed: existing topics and brokers, and groups and subscriptions with
configurations.

About KIP-1142.
"""

from types import SimpleNamespace
from uuid import UUID

import pytest

from ottla.broker.api.k74_list_config_resources import handle
from ottla.broker.request_context import RequestContext
from ottla.metadata.image import ConfigResourceType, MetadataImage
from ottla.metadata.records import BrokerEndpoint, ConfigRecord, RegisterBrokerRecord, TopicRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.harness.loop_turns import loop_turns

TOPIC, BROKER, LOGGER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER
METRICS, GROUP = ConfigResourceType.CLIENT_METRICS, ConfigResourceType.GROUP


def configured(of: ConfigResourceType, name: str) -> ConfigRecord:
    return ConfigRecord(resource_type=of, resource_name=name, name="key", value="1")


def node(number: int, listener: str) -> RegisterBrokerRecord:
    endpoint = BrokerEndpoint(name=listener, host="h", port=1)
    return RegisterBrokerRecord(broker_id=number, endpoints=[endpoint], fenced=True)


RECORDS = [
    TopicRecord(name="b", topic_id=UUID(int=2)),
    TopicRecord(name="a", topic_id=UUID(int=1)),
    configured(TOPIC, "a"),
    configured(BROKER, ""),
    configured(GROUP, "g"),
    configured(METRICS, "m"),
    node(1, "PLAINTEXT"),
    node(2, "ELSEWHERE"),
]
EVERYTHING = [(GROUP, "g"), (METRICS, "m"), (LOGGER, "1"), (BROKER, "1"), (TOPIC, "a"), (TOPIC, "b")]


@pytest.mark.parametrize(("version", "asked", "reported"), [
    (1, [],              EVERYTHING),
    (1, [TOPIC],         [(TOPIC, "a"), (TOPIC, "b")]),   # with overrides or without
    (1, [TOPIC, GROUP],  [(GROUP, "g"), (TOPIC, "a"), (TOPIC, "b")]),
    (1, [BROKER],        [(BROKER, "1")]),                # also fenced ones, by the listener of the request
    (0, [],              [(METRICS, "m")]),               # the old ListClientMetricsResources
])  # fmt: skip
def test_what_is_listed(version, asked, reported):
    response = ask(version, asked)
    assert response.error_code == ErrorCode.none
    assert [(row.resource_type, row.resource_name) for row in response.config_resources] == reported


@pytest.mark.parametrize("asked", [[99], [TOPIC, 0]])
def test_a_type_that_is_not_known(asked):
    response = ask(1, asked)
    assert (response.error_code, response.config_resources) == (ErrorCode.unsupported_version, [])


def ask(version, asked):
    image = MetadataImage()
    image.replay_all(RECORDS)
    context = RequestContext(
        api_key=74,
        version=version,
        correlation_id=1,
        client_id=None,
        client_host="h",
        listener_name="PLAINTEXT",
    )
    # Few rows need no turns.
    runtime = SimpleNamespace(turns=loop_turns())
    broker = SimpleNamespace(metadata=SimpleNamespace(image=image), runtime=runtime, long_answers=None)
    return handle(ListConfigResourcesRequest(resource_types=asked), context, broker)
