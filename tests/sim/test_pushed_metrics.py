"""Clients push metrics to a whole node on virtual time (KIP-714): in every codec, in pieces, until they are gone."""

import asyncio
import struct

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from ottla.protocol.records.compression import Compression, compress
from ottla.runtime.simulated import SimulatedRuntime
from tests.harness.http_client import HttpClient
from tests.harness.wire import WireClient

PORT = 9404
TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
SHOWN = {"metrics.listeners": f"http://:{PORT}", "metrics.clients.max.series": "500"}


def run(folder, scenario, **settings):
    runtime = SimulatedRuntime(seed=1)

    async def life():
        overrides = [f"{key}={value}" for key, value in settings.items()]
        node = await Node.start(runtime, load_config(data_dir=folder, overrides=overrides))
        client = await WireClient.connect(node.listeners[0].host, node.listeners[0].port)
        await scenario(runtime, client)
        await client.close()
        await node.stop()

    try:
        runtime.run(life())
    finally:
        runtime.simulation.close()


async def subscribe(client):
    configs = [
        AlterableConfig(name=name, config_operation=0, value=value)
        for name, value in (("metrics", "*"), ("interval.ms", "1000"))
    ]
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.CLIENT_METRICS, resource_name="all", configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    [row] = (await client.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
    assert row.error_code == 0


async def advertised(client):
    request = ApiVersionsRequest(client_software_name="sim", client_software_version="1.0")
    response = await client.request(ApiKey.API_VERSIONS, 3, request)
    return {row.api_key for row in response.api_keys} & TELEMETRY


async def page(runtime):
    _, http = await runtime.connect("127.0.0.1", PORT, HttpClient)
    found = await http.get("/metrics", "Accept: application/openmetrics-text", "Connection: close")
    await http.lost
    return {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in open_metrics(found.body.decode())
        for sample in family.samples
    }


async def ask(client, instance_id):
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    response = await client.request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, request)
    assert response.error_code == 0
    return response


async def push(client, asked, metrics, codec):
    request = PushTelemetryRequest(
        client_instance_id=asked.client_instance_id,
        subscription_id=asked.subscription_id,
        compression_type=codec,
        metrics=compress(codec, metrics),
    )
    return ErrorCode((await client.request(ApiKey.PUSH_TELEMETRY, 0, request)).error_code)


def part(number, content):
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content


def sums(count):
    """A counter of 2.0 for each of `count` topics, as changes."""
    points = b"".join(
        part(
            1, part(7, part(1, b"topic") + part(2, part(1, b"t%d" % each))) + b"\x21" + struct.pack("<d", 2.0)
        )
        for each in range(count)
    )
    metric = part(1, b"org.apache.kafka.consumer.records.total") + part(7, points + b"\x10\x01\x18\x01")
    return part(1, part(2, part(2, metric)))


def test_pushes_of_every_codec_are_added_up_and_forgotten(tmp_path):
    name = "kafka_client_consumer_records_total"

    async def scenario(runtime, client):
        assert await advertised(client) == TELEMETRY
        await subscribe(client)
        asked = await ask(client, GetTelemetrySubscriptionsRequest().client_instance_id)
        for codec in Compression:
            assert await push(client, asked, sums(300), codec) == ErrorCode.none
            await asyncio.sleep(1)
        values = await page(runtime)
        assert {values[name, f"t{each}"] for each in range(300)} == {2.0 * len(Compression)}
        assert await push(client, asked, b"\x0b", Compression.NONE) == ErrorCode.invalid_record
        await asyncio.sleep(1)
        assert await push(client, asked, sums(800), Compression.ZSTD) == ErrorCode.none
        values = await page(runtime)
        assert values["ottla_client_metrics_series", ""] == 500
        assert values["ottla_client_metrics_points_left_out_total", ""] >= 0
        assert len([key for key in values if key[0] == name]) == 500
        await asyncio.sleep(61)
        assert not [key for key in await page(runtime) if key[0].startswith("kafka_client_")]

    run(tmp_path, scenario, **SHOWN)


@pytest.mark.logs("clients push these metrics, but this broker does not show them")
def test_without_a_bound_of_series_a_subscription_advertises_the_apis(tmp_path):
    async def scenario(_, client):
        assert await advertised(client) == set()
        await subscribe(client)
        assert await advertised(client) == TELEMETRY
        asked = await ask(client, GetTelemetrySubscriptionsRequest().client_instance_id)
        assert await push(client, asked, sums(1), Compression.ZSTD) == ErrorCode.none

    run(tmp_path, scenario)
