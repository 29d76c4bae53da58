"""The stores of remote tiers: a directory, for Kafka and Ottla, and a MinIO server, for Ottla.

brokers --> SlowProxy (if the store is to be slowed down) --> MinIO
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from ottla.bench.components.minio import MinioServer
from ottla.bench.targets.slow_proxy import SlowProxy
from ottla.bench.targets.store_clients import BucketClient

DIRECTORY_MANAGER: Final = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
_S3_MANAGER: Final = "ottla.remote.stores.s3.S3Storage"
_BUCKET: Final = "ottla-bench"
#: The name of the store's node in results.
STORE_NODE: Final = "store"


class Store(Protocol):
    """A store to which the segments of a cluster are copied."""

    #: The folder that holds the store's objects, as files of this machine.
    folder: Path
    #: Whether `slow_down` has an effect.
    can_be_slow: bool

    def properties(self) -> Mapping[str, str]:
        """Return the properties with which brokers are configured for this store."""

    def start(self) -> None:
        """Start the store's processes, if it has any."""

    def kill(self) -> None:
        """End the store's processes, if it has any."""

    def pids(self) -> Mapping[str, int]:
        """Return the store's processes by their part."""

    def ports(self) -> Mapping[str, int]:
        """Return the ports on which the store's processes listen, by their part."""

    def slow_down(self, *, delay_s: float, bytes_per_s: float) -> None:
        """Delay each answer, and bound the rate in each direction; 0 is no bound."""


class DirectoryStore:
    """A directory in the layout of LocalTieredStorage, which Kafka's tests have."""

    can_be_slow = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def properties(self) -> Mapping[str, str]:
        """Return the properties with which brokers are configured for this directory."""
        return {
            "remote.log.storage.manager.class.name": DIRECTORY_MANAGER,
            "rsm.config.dir": str(self.folder),
        }

    def start(self) -> None:
        """Do nothing: brokers make the directory."""

    def kill(self) -> None:
        """Do nothing: a directory has no processes."""

    def pids(self) -> Mapping[str, int]:
        """Return no processes: a directory has none."""
        return MappingProxyType({})

    def ports(self) -> Mapping[str, int]:
        """Return no ports: a directory has none."""
        return MappingProxyType({})

    def slow_down(self, *, delay_s: float, bytes_per_s: float) -> None:
        """Raise AssertionError: a directory cannot be slowed down."""
        raise AssertionError("a directory cannot be slowed down")


class MinioStore:
    """A bucket of a MinIO server of its own on this machine."""

    def __init__(self, folder: Path, *, can_be_slow: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.can_be_slow = can_be_slow
        self.folder = folder / "minio" / _BUCKET
        self._server = MinioServer(folder)
        self._is_up = False
        # Its port is part of what brokers are configured with.
        self._proxy = SlowProxy(self._server.endpoint.removeprefix("http://")) if can_be_slow else None

    def settings(self) -> dict[str, object]:
        """Return the settings by which the store is reached, those of remote/stores/s3_settings.py."""
        settings = self._server.settings(_BUCKET)
        if self._proxy is not None:
            settings["endpoint"] = f"http://{self._proxy.address}"
        return settings

    def properties(self) -> Mapping[str, str]:
        """Return the properties with which brokers are configured for this bucket."""
        return {
            "remote.log.storage.manager.class.name": _S3_MANAGER,
            **{f"rsm.config.{key}": str(value) for key, value in self.settings().items()},
        }

    def start(self) -> None:
        """Start the server, and make the bucket."""
        if self._is_up:
            return
        self._server.__enter__()
        self._is_up = True
        self._server.make_bucket(_BUCKET)

    def kill(self) -> None:
        """End the server, and the proxy in front of it, if there is one."""
        if self._proxy is not None:
            self._proxy.stop()
        if self._is_up:
            self._is_up = False
            self._server.__exit__()

    def pids(self) -> Mapping[str, int]:
        """Return the server's process, if it runs."""
        return {STORE_NODE: self._server.pid} if self._is_up else {}

    def ports(self) -> Mapping[str, int]:
        """Return the port on which the server listens."""
        return {STORE_NODE: int(self._server.endpoint.rpartition(":")[2])}

    def slow_down(self, *, delay_s: float, bytes_per_s: float) -> None:
        """Delay each answer, and bound the rate in each direction, in the proxy in front of the server."""
        assert self._proxy is not None, "a store that can be slow was not asked for"
        self._proxy.slow_down(delay_s=delay_s, bytes_per_s=bytes_per_s)

    def client(self) -> BucketClient:
        """Return the bucket for a client without a broker."""
        return BucketClient(self._server.settings(_BUCKET), cpu_s=self._server.cpu_seconds)
