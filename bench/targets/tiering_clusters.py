"""Clusters with a remote tier (KIP-405): three brokers and a controller, and a directory that the brokers share.

Kafka's store is the LocalTieredStorage of its tests, the only one that it has; Ottla takes the same name for its local
directory, which has the same layout. Ottla flushes what it copies, LocalTieredStorage does not.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count as numbers
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ottla.bench.figures import LoadFailed
from ottla.bench.targets.cluster_client import ClusterClient
from ottla.bench.targets.clusters import Cluster, KafkaCluster, OttlaCluster
from ottla.bench.targets.store_clients import BucketClient
from ottla.bench.targets.stores import DirectoryStore, MinioStore
from ottla.bench.targets.turn_logs import READER
from ottla.bench.targets.wire import TIER_VERSIONS, RequestFailed
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.special_timestamps import EARLIEST_LOCAL, LATEST_TIERED

#: The broker that has every topic of a benchmark.
_LEADER: Final = 1
#: The properties by which everything periodic is frequent, so that a load does not wait for it; equal on both
#: sides.
TIER_PROPERTIES: Final[Mapping[str, str]] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "5",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
}
#: The configuration of a tiered topic: closed segments are removed from the local tier once they are copied.
TIERED: Final[Mapping[str, str]] = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
_POLL_S: Final = 0.005
_PATIENCE_S: Final = 300
_TIMEOUT_MS: Final = 60_000

_topic_numbers = numbers(1)


def _tier_of(folder: Path) -> Mapping[str, str]:
    return DirectoryStore(folder / "tier").properties()


class TieredKafka(KafkaCluster):
    """A cluster of Apache Kafka with LocalTieredStorage."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, {**settings, **_tier_of(folder)}, controllers=1)


class TieredOttla(OttlaCluster):
    """A cluster of this project with its local directory as remote tier."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, {**settings, **_tier_of(folder)}, controllers=1)


TIERED_CLUSTERS: Final[dict[str, type[Cluster]]] = {"kafka": TieredKafka, "ottla": TieredOttla}


@contextmanager
def cluster_on_minio(folder: Path) -> Iterator[tuple[OttlaCluster, BucketClient]]:
    """Start one broker of this project that tiers to a MinIO server of its own; yields its cluster, and the bucket."""
    with TemporaryDirectory(prefix="minio-", dir=folder) as name:
        store = MinioStore(Path(name))
        properties = {**TIER_PROPERTIES, **metadata_topic(1), **store.properties()}
        cluster = OttlaCluster(Path(name) / "cluster", properties, brokers=1, controllers=1)
        try:
            store.start()
            cluster.start()
            yield cluster, store.client()
        finally:
            cluster.kill()
            READER.note()  # its logs are removed with the folder
            store.kill()


def metadata_topic(brokers: int) -> Mapping[str, str]:
    """Return the properties that replicate the topic of the remote log metadata on so many brokers."""
    return {
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(3, brokers)),
        "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    }


def poll_until(is_so: Callable[[], bool], what: str) -> float:
    """Wait, give or take 5 ms; return the time (`perf_counter`) at which the condition held. Raises TimeoutError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S} s for {what}")
        time.sleep(_POLL_S)
    return time.perf_counter()


class TieredTopic:
    """A topic of one partition without followers, on broker 1; `client` is open while the topic is used."""

    def __init__(
        self, client: ClusterClient, cluster: Cluster, load: str, configs: Mapping[str, str]
    ) -> None:
        """Create the topic, and wait until it is served."""
        self.name = f"{load}-{next(_topic_numbers)}"
        self.cluster = cluster
        self._client = client
        self._folder = cluster.data_dir(_LEADER) / f"{self.name}-0"
        topic = CreatableTopic(
            name=self.name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[_LEADER])],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS)
        row = client.broker(_LEADER).request(ApiKey.CREATE_TOPICS, request, CreateTopicsResponse).topics[0]
        if row.error_code:
            raise RequestFailed(f"{self.name}: {ErrorCode(row.error_code).name} {row.error_message}")
        for node in cluster.brokers:
            client.wait_for_isr(self.name, partitions=1, size=1, asking=node.node_id)
        client.wait_until_served(self.name)

    def alter(self, configs: Mapping[str, str]) -> None:
        """Set these configurations of the topic. Raises RequestFailed."""
        self._client.alter_topic(self.name, configs)

    def check(self, count: int) -> None:
        """Raise LoadFailed unless so many records are committed."""
        found = self._client.record_count(self.name)
        if found != count:
            raise LoadFailed(f"{self.cluster.name}: {found} of {count} records are in {self.name}")

    def segments(self) -> list[Path]:
        """Return the files of the local segments, the active one last; not those that are being deleted."""
        return sorted(self._folder.glob("*.log"))

    def wait_until_copied(self) -> float:
        """Wait until all closed segments are in the remote tier; return the time at which it was so."""
        last = self._active_base_offset() - 1
        return poll_until(lambda: self._offset(LATEST_TIERED) == last, f"the copies of {self.name}")

    def wait_until_tail_is_local(self) -> None:
        """Wait until only the active segment is in the local tier, and the files of all others are gone."""
        start = self._active_base_offset()
        poll_until(lambda: self._offset(EARLIEST_LOCAL) == start, f"local retention of {self.name}")
        poll_until(lambda: not any(self._folder.glob("*.deleted")), f"removed files of {self.name}")

    def _active_base_offset(self) -> int:
        return int(self.segments()[-1].stem)

    def _offset(self, timestamp: int) -> int:
        return self._client.offsets(self.name, timestamp)[0]


@contextmanager
def tiered_topic(cluster: Cluster, load: str, configs: Mapping[str, str]) -> Iterator[TieredTopic]:
    """Make a topic for one load, deleted behind it; its copies go later."""
    with ClusterClient(cluster.addresses(), versions=TIER_VERSIONS) as client:
        topic = TieredTopic(client, cluster, load, configs)
        yield topic
        client.delete_topic(topic.name)
