"""A metadata log with many partitions: replayed into an image, and a controller that starts with it."""

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ottla.bench.components import fetch
from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import LoadFailed, Sample
from ottla.bench.targets.clusters import Cluster, KafkaCluster
from ottla.bench.targets.wire import WireClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

_PARTITIONS: Final = 100_000
_PARTITIONS_PER_TOPIC: Final = 100
_CONTROLLER: Final = 101
_TIMEOUT_S: Final = 180
_POLL_S: Final = 0.01
_SETTLE_S: Final = 1.0
_JAVA_REPLAY: Final = Path(__file__).parent / "ImageReplay.java"


def replay(cluster: Cluster, scale: float) -> Sample:
    """Replay a log's file into an image, in a new process; the memory is measured after a garbage collection."""
    alone, count = _with_log(cluster, scale)
    data_dir = str(alone.node(_CONTROLLER).data_dir)
    if isinstance(cluster, KafkaCluster):
        # One gigabyte, as Kafka's start script gives; System.gc() must collect at once.
        command = [
            fetch.java(), "-Xmx1G", "-XX:+UseG1GC", "-cp", f"{fetch.kafka_jars()}/*", str(_JAVA_REPLAY), data_dir
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    else:
        command = [sys.executable, "-m", "ottla.bench.internals.quorum_replay_image", data_dir]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            cwd=REPOSITORY,
        )
    shutil.rmtree(alone.folder)
    if done.returncode:
        raise LoadFailed(f"{cluster.name}: {done.stderr[-2000:]}")
    sample: Sample = json.loads(done.stdout.splitlines()[-1])
    if sample.pop("partitions") != count:
        raise LoadFailed(f"{cluster.name}: {done.stdout}, not {count} partitions")
    return sample


def start(cluster: Cluster, scale: float) -> Sample:
    """Start the only controller of a quorum, until it answers a CreateTopics that it has processed as leader."""
    alone, _ = _with_log(cluster, scale)
    began = time.perf_counter()
    try:
        alone.spawn(_CONTROLLER)
        deadline = began + _TIMEOUT_S
        while not _serves(alone.node(_CONTROLLER).port):
            if time.perf_counter() > deadline:
                raise LoadFailed(f"{cluster.name}: the controller does not serve after {_TIMEOUT_S} s")
            time.sleep(_POLL_S)
        took_s = time.perf_counter() - began
        cpu_s = alone.node_usage(_CONTROLLER).cpu_s
        time.sleep(_SETTLE_S)
        private_bytes = alone.node_usage(_CONTROLLER).private_bytes
    finally:
        alone.kill()
    shutil.rmtree(alone.folder)
    return {"start_s": took_s, "cpu_s": cpu_s, "private_bytes": private_bytes}


def _with_log(cluster: Cluster, scale: float) -> tuple[Cluster, int]:
    """Return a controller that is alone, with the log, not started; and the number of partitions."""
    folder = cluster.folder.parent / f"{cluster.name}-alone"
    alone = type(cluster)(folder, cluster.settings, brokers=1, controllers=1)
    topics = max(1, int(_PARTITIONS * scale) // _PARTITIONS_PER_TOPIC)
    data_dir = str(alone.node(_CONTROLLER).data_dir)
    command = [
        sys.executable,
        "-m",
        "ottla.bench.internals.quorum_log",
        data_dir,
        str(topics),
        str(_PARTITIONS_PER_TOPIC),
    ]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=_TIMEOUT_S)
    return alone, topics * _PARTITIONS_PER_TOPIC


def _serves(port: int) -> bool:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=True)
    with suppress(OSError), WireClient(port) as client:
        row = client.request(ApiKey.CREATE_TOPICS, request, CreateTopicsResponse).topics[0]
        return row.error_code != ErrorCode.not_controller
    return False
