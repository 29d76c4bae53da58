"""A cluster whose brokers share a store of segments: Ottla's and Kafka's brokers in any mixture, under one
controller of ours.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self
from uuid import uuid4

from ottla.bench.components.minio import MinioServer
from ottla.bench.components.processes import free_port
from ottla.protocol.kafka_uuid import to_text
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.stores.object_storage import ObjectStorage, StoredObject
from ottla.remote.stores.s3 import S3Storage
from tests.harness.listed_brokers import wait_until_listed
from tests.harness.nodes import KafkaNode, Node, OttlaNode, broker, controller

CONTROLLER = 100
_LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
#: Everything periodic is often, so that a story does not wait.
_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "5",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "remote.log.manager.task.interval.ms": "200",
    "remote.log.manager.task.retry.backoff.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "100",
}


class Store(Protocol):
    """A store of segments that the test can look into."""

    def properties(self) -> Mapping[str, str]:
        """The settings that all brokers of the cluster get."""

    def objects(self) -> Iterator[StoredObject]:
        """All objects in the store."""


class DirectoryTier:
    """A directory that all brokers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.manager: ObjectStorage = LocalDirectory()
        self.manager.configure({"dir": str(folder)})
        self.manager.create()

    def properties(self) -> Mapping[str, str]:
        return {
            "remote.log.storage.manager.class.name": _LOCAL_TIERED_STORAGE,
            "rsm.config.dir": str(self._folder),
        }

    def objects(self) -> Iterator[StoredObject]:
        return self.manager.list_objects()


class MinioTier:
    """A bucket of a MinIO server."""

    def __init__(self, server: MinioServer, bucket: str) -> None:
        server.make_bucket(bucket)
        self._settings = server.settings(bucket)
        self.manager: ObjectStorage = S3Storage()
        self.manager.configure(self._settings)

    def properties(self) -> Mapping[str, str]:
        return {
            "remote.log.storage.manager.class.name": "ottla.remote.stores.s3.S3Storage",
            **{f"rsm.config.{key}": str(value) for key, value in self._settings.items()},
        }

    def objects(self) -> Iterator[StoredObject]:
        return self.manager.list_objects()


class TieredCluster:
    """Brokers 1, 2, ... of these kinds. Left by `with`: all processes end."""

    def __init__(self, folder: Path, kinds: Sequence[str], store: Store, settings: Mapping[str, str]) -> None:
        cluster_id = to_text(uuid4())
        port = free_port()
        voters = f"{CONTROLLER}@127.0.0.1:{port}"
        self.store = store
        every = {
            **_SETTINGS,
            "rlmm.config.remote.log.metadata.topic.replication.factor": str(len(kinds)),
            **store.properties(),
            **settings,
        }
        self.controller = OttlaNode(
            folder / "controller",
            {**controller(CONTROLLER, port, voters=voters), **every},
            cluster_id=cluster_id,
        )
        self.brokers: dict[int, Node] = {}
        for node_id, kind in enumerate(kinds, start=1):
            node_kind = KafkaNode if kind == "kafka" else OttlaNode
            home = folder / f"broker-{node_id}"
            self.brokers[node_id] = node_kind(
                home,
                {**broker(node_id, free_port(), voters=voters), **every},
                cluster_id=cluster_id,
                more_dirs=[home / "more"],
            )

    def __enter__(self) -> Self:
        try:
            self.controller.start()
            for node in self.brokers.values():
                node.spawn()
            for node in self.brokers.values():
                node.wait_ready()
            self._wait_until_listed()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in (*self.brokers.values(), self.controller):
            node.end()

    @property
    def running(self) -> dict[int, Node]:
        """The brokers whose processes run."""
        return {node_id: node for node_id, node in self.brokers.items() if node.child.is_running}

    def start(self, node_id: int) -> None:
        """Start a broker that was stopped or killed, and wait for it."""
        self.brokers[node_id].start()
        self._wait_until_listed()

    def _wait_until_listed(self) -> None:
        wait_until_listed({node_id: node.port for node_id, node in self.running.items()})

    @property
    def bootstrap(self) -> str:
        return ",".join(node.listener for node in self.brokers.values())

    @property
    def has_kafka(self) -> bool:
        """Whether a broker is Kafka's."""
        return any(node.is_kafka for node in self.brokers.values())

    def wipe(self, node_id: int) -> None:
        """Remove the log directories of a broker that does not run."""
        for directory in self.brokers[node_id].log_dirs:
            shutil.rmtree(directory)
