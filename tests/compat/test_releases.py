"""Clusters of older releases: formatted as such, written as their software reads it, and raised to the latest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.metadata.features import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.compat.admin import eventually_equal
from tests.harness.blocking_wire import BlockingWire
from tests.harness.kafka import KafkaServer, run_tool, tool
from tests.harness.ottla import OttlaServer
from tests.harness.release import LEVEL, RELEASE

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs={data}
"""


def formatted(folder: Path, release: str) -> OttlaServer:
    """A server on a folder of a cluster that begins with this release."""
    data = folder / "data"
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(data=data))
    arguments = ("-c", str(properties), "-t", "q1Sh-9_ISia_zwGINzRvyQ", "-r", release)
    subprocess.run([sys.executable, "-m", "ottla", "format", *arguments], check=True, capture_output=True)
    return OttlaServer(folder / "ottla", data_dir=data).start()


def create(wire: BlockingWire, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=3, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    return wire.call(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code


def update(wire: BlockingWire, feature: str, level: int) -> tuple[int, str]:
    key = FeatureUpdateKey(feature=feature, max_version_level=level)
    response = wire.call(ApiKey.UPDATE_FEATURES, 2, UpdateFeaturesRequest(feature_updates=[key]))
    return response.error_code, response.error_message or ""


def finalized(wire: BlockingWire) -> dict[str, int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    rows = wire.call(ApiKey.API_VERSIONS, 4, request).finalized_features
    return {row.name: row.max_version_level for row in rows}


@pytest.mark.parametrize(("release", "level"), [("3.3", 7), ("3.6", 14), ("3.7-IV0", 15), ("3.9", 21)])
def test_from_an_old_release_to_the_latest_and_on_with_kafka(tmp_path: Path, release: str, level: int):
    ottla = formatted(tmp_path, release)
    with BlockingWire(ottla.port) as wire:
        assert finalized(wire) == {METADATA_VERSION: level}
        assert create(wire, "old") == ErrorCode.none
        assert update(wire, ELR_VERSION, 1)[0] == ErrorCode.invalid_update_version
        code, why = update(wire, "group.version", 1)  # not served yet: this broker does not claim it
        assert code == ErrorCode.invalid_update_version
        assert why.endswith("Broker 1 does not support this feature.")
        for feature, newest in ((METADATA_VERSION, LEVEL), (ELR_VERSION, 1), (KRAFT_VERSION, 1)):
            assert update(wire, feature, newest)[0] == ErrorCode.none
        latest = {METADATA_VERSION: LEVEL, ELR_VERSION: 1, KRAFT_VERSION: 1}
        eventually_equal(lambda: finalized(wire), latest)
        assert create(wire, "new") == ErrorCode.none
    ottla.stop()
    ottla.start()
    with BlockingWire(ottla.port) as wire:
        assert finalized(wire) == latest
    ottla.stop()
    if release != "3.3":
        return  # one JVM is enough
    kafka = KafkaServer(tmp_path / "kafka", data_dir=ottla.data_dir).start()
    where = ("--bootstrap-server", kafka.bootstrap)
    assert set(tool("kafka-topics", *where, "--list").split()) == {"old", "new"}
    described = tool("kafka-features", *where, "describe")
    assert [line.split()[-3] for line in described.splitlines() if KRAFT_VERSION in line] == ["1"]
    kafka.stop()


# KIP-1022
def test_kafkas_tool_raises_the_metadata_version_alone(tmp_path: Path):
    """`--release-version` also turns on features that are not served: it is refused as a whole, and names one."""
    ottla = formatted(tmp_path, "4.2")
    where = ("--bootstrap-server", ottla.bootstrap, "upgrade")
    refused = run_tool("kafka-features", *where, "--release-version", RELEASE)
    assert refused.returncode == 1
    assert re.search(r"for feature \S+\. Broker 1 does not support this feature\.", refused.stdout)
    raised = tool("kafka-features", *where, "--feature", f"{METADATA_VERSION}={LEVEL}")
    assert raised == f"{METADATA_VERSION} was upgraded to {LEVEL}.\n"
    ottla.stop()
