"""Client metrics (KIP-714): the APIs and Kafka's tool as Kafka with a plug-in serves them, and clients that push."""

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from ottla.bench.components import fetch
from ottla.bench.components.processes import PATIENCE_S, Child, wait_until
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
from ottla.protocol.types import ZERO_UUID
from tests.compat.admin import create_topic
from tests.compat.conftest import IS_ORACLE
from tests.harness.blocking_wire import BlockingWire
from tests.harness.kafka import KafkaServer, java_command, tool, tool_command
from tests.harness.ottla import OttlaServer

MAX_BYTES = 10_000
CLIENT_METRICS = 16
#: A gauge `a` of 1.0, as protobuf.
PUSHED = bytes.fromhex("0a16 1214 1212 0a0161 2a0d 0a0b 21 000000000000f03f 4801")

Server = OttlaServer | KafkaServer


class KafkaWithReceiver(KafkaServer):
    """Kafka with the plug-in `MetricsReceiver.java`, which is compiled when it starts."""

    def command(self, properties: Path) -> list[str]:
        java, *options, class_path = java_command(heap="1g")
        source, classes = Path(__file__).parent / "MetricsReceiver.java", properties.parent / "classes"
        jars = ":".join(map(str, fetch.kafka_jars().glob("*.jar")))  # the module does not expand a wildcard
        compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", jars, "-d", str(classes)]
        subprocess.run([*compiler, str(source)], check=True, timeout=PATIENCE_S)
        return [java, *options, f"{class_path}:{classes}", "kafka.Kafka", str(properties)]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    settings = {"telemetry.max.bytes": str(MAX_BYTES)}
    started: Server
    if IS_ORACLE:
        reporter = {"metric.reporters": "MetricsReceiver"}
        started = KafkaWithReceiver(folder, settings=settings | reporter)
    else:
        shown = {"metrics.listeners": "http://127.0.0.1:0", "metrics.clients.max.series": "1000"}
        started = OttlaServer(folder, settings=settings | shown)
    started.start()
    yield started
    started.stop()


def alter(server: Server, name: str, **configs: str) -> None:
    rows = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=CLIENT_METRICS, resource_name=name, configs=rows)
    with BlockingWire(server.port) as wire:
        request = IncrementalAlterConfigsRequest(resources=[resource])
        [row] = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert row.error_code == 0, row


class Client:
    """An instance of a client on a connection of its own."""

    def __init__(self, wire: BlockingWire, instance_id: UUID | None = None) -> None:
        self.wire = wire
        self.id = instance_id or uuid4()
        self.subscription_id = 0

    def ask(self) -> ErrorCode:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=self.id)
        self.response = self.wire.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, request)
        if not self.response.error_code:
            self.subscription_id = self.response.subscription_id
        return ErrorCode(self.response.error_code)

    def push(
        self, metrics: bytes = b"", *, codec: int = 0, wrong: int = 0, terminating: bool = False
    ) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=self.id,
            subscription_id=self.subscription_id ^ wrong,
            terminating=terminating,
            compression_type=codec,
            metrics=metrics,
        )
        return ErrorCode(self.wire.call(ApiKey.PUSH_TELEMETRY, 0, request).error_code)


@pytest.fixture
def wire(own_server: Server) -> Iterator[BlockingWire]:
    alter(own_server, "all", metrics="org.apache.kafka.", interval_ms="300000")
    with BlockingWire(own_server.port) as wire:
        # A moment may pass until the broker knows the subscription.
        wait_until(lambda: Client(wire).ask() is ErrorCode.none and asked(wire) == ["org.apache.kafka."])
        yield wire


def asked(wire: BlockingWire) -> list[str]:
    client = Client(wire)
    assert client.ask() is ErrorCode.none
    return sorted(client.response.requested_metrics)


def test_the_apis_are_advertised(wire: BlockingWire) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    rows = {row.api_key: row for row in wire.call(ApiKey.API_VERSIONS, 3, request).api_keys}
    for key in (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY):
        assert (rows[key].min_version, rows[key].max_version) == (0, 0)


def test_the_answer_to_a_new_client(wire: BlockingWire) -> None:
    client = Client(wire, ZERO_UUID)
    assert client.ask() is ErrorCode.none
    response = client.response
    assert response.client_instance_id != ZERO_UUID
    assert response.accepted_compression_types == [4, 3, 1, 2]
    assert (response.push_interval_ms, response.telemetry_max_bytes) == (300_000, MAX_BYTES)
    assert (response.delta_temporality, response.throttle_time_ms) == (True, 0)


def test_codes_of_requests(wire: BlockingWire) -> None:
    throttled, invalid = ErrorCode.throttling_quota_exceeded, ErrorCode.invalid_request
    for reserved in (ZERO_UUID, UUID(int=1)):
        assert Client(wire, reserved).push() is invalid
    client = Client(wire)
    assert client.push() is ErrorCode.unknown_subscription_id
    assert [client.ask(), client.ask(), client.push()] == [ErrorCode.none, throttled, throttled]
    client = Client(wire)
    assert [client.ask(), client.push(wrong=1)] == [ErrorCode.none, ErrorCode.unknown_subscription_id]
    assert [client.ask(), client.ask(), client.push()] == [ErrorCode.none, throttled, throttled]
    client = Client(wire)
    assert [client.ask(), client.push(codec=9)] == [ErrorCode.none, ErrorCode.unsupported_compression_type]
    client = Client(wire)
    assert [client.ask(), client.push(bytes(MAX_BYTES + 1))] == [
        ErrorCode.none,
        ErrorCode.telemetry_too_large,
    ]
    client = Client(wire)
    assert [client.ask(), client.push(), client.push(terminating=True), client.push()] == [
        ErrorCode.none, ErrorCode.none, ErrorCode.none, invalid,
    ]  # fmt: skip


@pytest.mark.parametrize("codec", list(Compression))
def test_codecs(wire: BlockingWire, codec: Compression) -> None:
    client = Client(wire)
    assert [client.ask(), client.push(compress(codec, PUSHED), codec=codec)] == [ErrorCode.none] * 2
    if codec is not Compression.NONE:
        client = Client(wire)
        assert [client.ask(), client.push(b"\x01" * 50, codec=codec)] == [
            ErrorCode.none, ErrorCode.invalid_record,
        ]  # fmt: skip
        bomb = compress(codec, bytes(50 * MAX_BYTES))
        client = Client(wire)
        if len(bomb) <= MAX_BYTES:
            assert [client.ask(), client.push(bomb, codec=codec)] == [
                ErrorCode.none,
                ErrorCode.invalid_record,
            ]


def test_an_instance_is_forgotten_with_its_connection(own_server: Server, wire: BlockingWire) -> None:
    with BlockingWire(own_server.port) as first:
        client = Client(first)
        assert [client.ask(), client.ask()] == [ErrorCode.none, ErrorCode.throttling_quota_exceeded]
    client.wire = wire
    wait_until(lambda: client.ask() is ErrorCode.none)


def test_kafkas_tool(own_server: Server, wire: BlockingWire) -> None:
    """The tool creates, lists, describes and deletes a subscription, which selects clients."""
    at = ("--bootstrap-server", own_server.bootstrap)
    tool(
        "kafka-client-metrics", *at, "--alter", "--name", "mine", "--metrics", "x.,y.", "--interval", "5000",
        "--match", "client_id=blocking.*,client_source_address=127[.]0[.]0[.]1",
    )  # fmt: skip
    wait_until(lambda: asked(wire) == ["org.apache.kafka.", "x.", "y."])
    assert sorted(tool("kafka-client-metrics", *at, "--list").split()) == ["all", "mine"]
    described = tool("kafka-client-metrics", *at, "--describe", "--name", "mine")
    assert {line.strip().partition(" ")[0] for line in described.splitlines()[1:]} >= {
        "interval.ms=5000", "metrics=x.,y.",
    }  # fmt: skip
    tool("kafka-client-metrics", *at, "--delete", "--name", "mine")
    wait_until(lambda: asked(wire) == ["org.apache.kafka."])


# Clients that push to Ottla


@pytest.fixture
def ottla(tmp_path: Path) -> Iterator[OttlaServer]:
    settings = {"metrics.listeners": "http://127.0.0.1:0", "metrics.clients.max.series": "10000"}
    server = OttlaServer(tmp_path, settings=settings).start()
    create_topic(server.bootstrap, "t", partitions=2)
    alter(server, "all", metrics="*", interval_ms="200")
    yield server
    server.stop()


def page(server: OttlaServer) -> dict[str, dict[tuple[str, ...], float]]:
    found = re.search(r"metrics=(http://\S+)", server.child.output())
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=PATIENCE_S) as response:
        text = response.read().decode()
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return values


def test_librdkafka_pushes(ottla: OttlaServer) -> None:
    producer = Producer({"bootstrap.servers": ottla.bootstrap, "client.id": "c", "enable.metrics.push": True})
    producer.produce("t", b"x")
    producer.flush()
    wait_until(lambda: "kafka_client_producer_connection_creation_total" in page(ottla))
    del producer  # pushes a last time
    wait_until(lambda: page(ottla)["ottla_client_metrics_pushes_total"].get(("NONE",), 0) >= 2)
    values = page(ottla)
    [labels] = values["ottla_client_instance_info"]
    assert "c" in labels
    assert "confluent-kafka-python" in labels
    assert set(values["ottla_client_metrics_pushes_total"]) == {("NONE",)}


def test_javas_producer_pushes(ottla: OttlaServer, tmp_path: Path) -> None:
    """The sum of the changes that it has pushed grows, and is never more than the number of its records."""
    arguments = ("--topic", "t", "--num-records", "100000", "--record-size", "10", "--throughput", "1000")
    properties = (f"bootstrap.servers={ottla.bootstrap}", "client.id=java", "compression.type=none")
    producer = Child(
        tool_command("kafka-producer-perf-test", *arguments, "--producer-props", *properties),
        log=tmp_path / "producer.log",
    )
    sums: list[float] = []

    def has_grown() -> bool:
        assert producer.is_running, producer.output()
        sums.extend(page(ottla).get("kafka_client_producer_record_send_total", {}).values())
        return len(set(sums)) >= 3

    wait_until(has_grown)
    producer.stop()
    values = page(ottla)
    assert sums == sorted(sums)
    assert 0 < sums[-1] <= sum(values["kafka_server_brokertopicmetrics_messagesin_total"].values())
    assert ("java", "apache-kafka-java") in {
        (labels[0], labels[2]) for labels in values["ottla_client_instance_info"]
    }
    assert set(values["ottla_client_metrics_pushes_total"]) == {("NONE",)}
    assert not any(values["ottla_client_metrics_points_left_out_total"].values())
