"""DescribeConfigs: each resource once, and others have their turn while many are described."""

import asyncio
from types import SimpleNamespace

from ottla.broker.api import k32_describe_configs as describe_configs
from ottla.broker.api.k32_describe_configs import RESOURCES_A_TURN
from ottla.config.broker_config import BrokerConfig
from ottla.config.describe import describe_broker, describe_topic
from ottla.config.load import standalone_profile
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tests.harness.loop_turns import loop_turns

TOPIC, BROKER = 2, 4


class Node:
    """A broker whose topics are all that are asked for; t1 has an override."""

    node_id = 1

    def __init__(self):
        self.runtime = SimpleNamespace(turns=loop_turns())
        self.config = BrokerConfig(standalone_profile())
        image = SimpleNamespace(config=lambda at: {"retention.ms": "7"} if at.name == "t1" else {})
        self.metadata = SimpleNamespace(image=image, topic=lambda name: None if name == "unknown" else name)


def resource(kind, name, *keys):
    return DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )


async def ask(*resources) -> DescribeConfigsResponse:
    return await describe_configs.handle(DescribeConfigsRequest(resources=list(resources)), None, Node())


def reported(response):
    return [(each.resource_name, [row.name for row in each.configs]) for each in response.results]


async def test_what_is_asked_for_again_is_described_once():
    response = await ask(
        resource(TOPIC, "t1", "retention.ms"),
        resource(TOPIC, "unknown"),
        resource(BROKER, "1", "no.such"),
        resource(TOPIC, "t1", "segment.ms", "retention.ms"),
        *[resource(TOPIC, "unknown"), resource(BROKER, "1", "node.id")] * 9,
    )
    assert reported(response) == [("t1", ["segment.ms", "retention.ms"]), ("unknown", []), ("1", ["node.id"])]
    assert [row.value for row in response.results[0].configs] == ["604800000", "7"]
    assert response.results[1].error_code == ErrorCode.unknown_topic_or_partition


async def test_who_asks_for_some_names_and_for_all_gets_all():
    some, everything = resource(TOPIC, "t", "retention.ms"), resource(TOPIC, "t")
    (whole,) = reported(await ask(everything))
    assert len(whole[1]) > 20
    assert reported(await ask(some, everything)) == reported(await ask(everything, some)) == [whole]


async def test_others_have_their_turn():
    answer = asyncio.ensure_future(ask(*[resource(TOPIC, f"t{number}") for number in range(1_000)]))
    turns = 0
    while not answer.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1_000 // RESOURCES_A_TURN
    assert len((await answer).results) == 1_000


def test_what_the_brokers_configuration_decides_is_made_once():
    config = BrokerConfig(standalone_profile())
    assert describe_broker(config) is describe_broker(config)
    inherited, overridden = describe_topic(config, {}), describe_topic(config, {"retention.ms": "7"})
    differing = [one.name for one, other in zip(inherited, overridden, strict=True) if one is not other]
    assert differing == ["retention.ms"]
    altered = config.with_dynamic({}, {"log.retention.ms": "5"})
    assert {row.name: row.value for row in describe_topic(altered, {})}["retention.ms"] == "5"
    assert {row.name: row.value for row in describe_broker(altered)}["log.retention.ms"] == "5"
