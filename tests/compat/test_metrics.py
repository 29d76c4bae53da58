"""A real broker's page of metrics, scraped while clients work; and Kafka's own MBeans, which its names are
made from.
"""

import re
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from ottla.bench.components.processes import PATIENCE_S, free_port
from tests.compat.admin import create_topic
from tests.compat.clients import CLIENTS, Message
from tests.harness.kafka import KafkaServer, java_command
from tests.harness.ottla import OttlaServer
from tests.unit.broker.metrics.metrics_page import families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

#: Registered by Kafka when they are first used: by an expired request, a copied segment, a throttled transfer.
_WHEN_USED = {
    ("kafka.server", "DelayedDeleteRecordsMetrics"),
    ("kafka.server", "DelayedRemoteFetchMetrics"),
    ("kafka.server", "DelayedRemoteListOffsetsMetrics"),
    ("kafka.log.remote", "RemoteLogManager", "RetentionSizeInPercent"),
    ("kafka.log.remote", "RemoteLogManager", "LocalRetentionSizeInPercent"),
    ("kafka.server", "RemoteLogManager"),
}


class Page:
    """The pages of a broker."""

    def __init__(self, server: OttlaServer) -> None:
        found = re.search(r"metrics=(http://\S+)/metrics ", server.child.output())
        assert found is not None
        self.address = found[1]

    def get(self, path: str, accept: str = "text/plain") -> tuple[int, str]:
        request = urllib.request.Request(self.address + path, headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def samples(self) -> Samples:
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in prometheus(text)
            for sample in family.samples
        }


@pytest.fixture
def ottla(tmp_path: Path) -> Iterator[OttlaServer]:
    server = OttlaServer(tmp_path, settings={"metrics.listeners": "http://127.0.0.1:0"}).start()
    yield server
    if server.child.is_running:
        server.stop()


def of_topic(samples: Samples, name: str, topic: str) -> float:
    """The sum over a topic's partitions."""
    return sum(
        value for (found, labels), value in samples.items() if found == name and ("topic", topic) in labels
    )


def test_a_broker_is_scraped_while_clients_produce_and_consume(ottla: OttlaServer) -> None:
    """Counters never decrease meanwhile; afterwards they are exact."""
    page = Page(ottla)
    create_topic(ottla.bootstrap, "t", partitions=3)
    messages = [Message(f"message {number}".encode() * 10, f"{number}".encode()) for number in range(2_000)]
    is_done = threading.Event()
    pages: list[Samples] = []

    def scrape() -> None:
        while not is_done.is_set() or len(pages) < 2:
            pages.append(page.samples())
            assert page.get("/readyz") == (200, "ready\n")

    scraper = threading.Thread(target=scrape)
    scraper.start()
    for client in CLIENTS:
        client.produce(ottla.bootstrap, "t", messages, codec="none")
    is_done.set()
    scraper.join()
    count = len(messages) * len(CLIENTS)
    samples = page.samples()
    topics = "kafka_server_brokertopicmetrics_"
    assert of_topic(samples, f"{topics}messagesin_total", "t") == count
    assert of_topic(samples, "kafka_log_log_logendoffset", "t") == count
    size_bytes = sum(file.stat().st_size for file in ottla.data_dir.glob("t-*/*.log"))
    assert of_topic(samples, f"{topics}bytesin_total", "t") == size_bytes
    assert of_topic(samples, "kafka_log_log_size", "t") == size_bytes
    assert of_topic(samples, f"{topics}failedproducerequests_total", "t") == 0
    assert len(CLIENTS[0].consume(ottla.bootstrap, "t", count)) == count
    assert of_topic(page.samples(), f"{topics}bytesout_total", "t") >= size_bytes
    assert len(pages) >= 2  # else `scrape` has failed
    for earlier, later in zip(pages, [*pages[1:], samples], strict=True):
        for key, value in earlier.items():
            if key[0].endswith("_total"):
                assert later[key] >= value, key


def test_a_page_in_openmetrics_format(ottla: OttlaServer) -> None:
    """Its parser checks types, units, order and the end."""
    _, text = Page(ottla).get("/metrics", "application/openmetrics-text; version=1.0.0")
    found = {family.name for family in open_metrics(text)}
    assert {"process_cpu_seconds", "process_open_fds", "python_gc_collections", "ottla_loop_stalls"} <= found
    assert re.search(r"^kafka_server_kafkaserver_linux_disk_write_bytes \d+$", text, re.MULTILINE)
    idle = re.search(
        r"^kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent (\S+)", text, re.MULTILINE
    )
    assert idle is not None
    assert 0 <= float(idle[1]) <= 1


def test_a_stopped_broker_has_no_page(ottla: OttlaServer) -> None:
    page = Page(ottla)
    assert page.get("/healthz") == (200, "ok\n")
    assert ottla.stop() == 0
    with pytest.raises(urllib.error.URLError):
        page.get("/healthz")


def mbeans_of_kafka(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str, str | None, str]]:
    """(domain, type, name, attribute) of all MBeans of a Kafka broker with a tiered topic and a group."""
    port = free_port()
    jmx = "-Dcom.sun.management.jmxremote"
    options = [
        f"{jmx}.port={port}",
        f"{jmx}.rmi.port={port}",
        f"{jmx}.authenticate=false",
        f"{jmx}.ssl=false",
    ]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join([*options, "-Djava.rmi.server.hostname=127.0.0.1"]))
    store = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": store,
        "rsm.config.dir": str(folder / "tier"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.min.isr": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    }
    server = KafkaServer(folder / "kafka", settings=settings).start()
    # The tool is a JVM, too, and its port is another one.
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    try:
        create_topic(server.bootstrap, "t", config={"remote.storage.enable": "true"})
        CLIENTS[0].produce(server.bootstrap, "t", [Message(b"x")])
        CLIENTS[0].consume(server.bootstrap, "t", 1)
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
        tool = [*java_command(), "org.apache.kafka.tools.JmxTool", "--jmx-url", url, "--one-time"]
        done = subprocess.run(
            [*tool, "--report-format", "properties"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    finally:
        server.stop()
    found = set()
    for domain, text, attribute in re.findall(r"^(kafka[\w.]*):(.*?):([\w-]+)=", done.stdout, re.MULTILINE):
        properties = dict(each.split("=", 1) for each in text.split(",") if "=" in each)
        found.add((domain, properties.get("type", ""), properties.get("name"), attribute))
    return found


def test_every_name_is_made_from_an_mbean_that_kafka_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics that docs/METRICS.md attributes to Kafka exist in Kafka 4.3.1."""
    kafkas = mbeans_of_kafka(tmp_path, monkeypatch)
    assert len(kafkas) > 500
    missing = []
    for family in families():
        if family.source is None:
            continue
        domain, _, text = family.source[0].partition(":")
        properties = dict(each.split("=", 1) for each in text.split(","))
        kind, name = properties["type"], properties.get("name")
        # The rule of the JMX exporter for a text.
        attribute = family.source[1].removesuffix("-info")
        is_there_at_once = not {(domain, kind), (domain, kind, name)} & _WHEN_USED
        if is_there_at_once and (domain, kind, name, attribute) not in kafkas:
            missing.append(family.source)
    assert missing == []
