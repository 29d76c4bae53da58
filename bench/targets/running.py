"""Targets that run already, on any machine: known by their answers only, and never started, stopped or killed."""

import socket
from collections.abc import Mapping, Sequence
from typing import Final

import psutil

from ottla.bench.targets.stores import Store
from ottla.bench.targets.target import Broker, Nodes, TargetError
from ottla.bench.targets.wire import Address, RequestFailed, WireClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, MalformedMessage
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

_TIMEOUT_S: Final = 5.0
_BROKER_RESOURCE: Final = 4
#: Programs that listen in the name of a server that is elsewhere: their usage is not the broker's.
_FORWARDERS: Final = {"docker-proxy", "rootlessport", "ssh", "sshd", "kubectl"}


def running(name: str, bootstrap: str) -> "RunningTarget":
    """The cluster at `bootstrap`, all of whose brokers answer. Raises TargetError."""
    reasons = []
    for address in _addresses_of(name, bootstrap):
        try:
            return RunningTarget(name, bootstrap, *_ask(name, address))
        except (OSError, MalformedMessage) as error:
            reasons.append(f"{address}: {_words(error)}")
    raise TargetError(f"--target {name}: no Kafka broker answers ({'; '.join(reasons)})")


def _addresses_of(name: str, bootstrap: str) -> list[Address]:
    addresses = []
    for each in bootstrap.split(","):
        host, _, port = each.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise TargetError(f"--target {name}={bootstrap}: {each.strip() or 'nothing'} is not HOST:PORT")
        addresses.append(Address(host.strip("[]"), int(port)))
    return addresses


def _ask(name: str, address: Address) -> tuple[list[Broker], str, bool]:
    """Return the brokers, the known version, and whether there is a remote tier. Raises OSError, MalformedMessage."""
    with WireClient(address.port, host=address.host, timeout_s=_TIMEOUT_S) as client:
        request = ApiVersionsRequest(client_software_name="ottla-bench", client_software_version="1")
        features = client.request(ApiKey.API_VERSIONS, request, ApiVersionsResponse).finalized_features
        metadata = client.request(ApiKey.METADATA, MetadataRequest(topics=[]), MetadataResponse)
    brokers = [
        Broker(broker_id=row.node_id, address=Address(row.host, row.port), rack=row.rack)
        for row in sorted(metadata.brokers, key=lambda row: row.node_id)
    ]
    if not brokers:
        raise TargetError(f"--target {name}: {address} answers, but knows of no broker of its cluster")
    levels = {feature.name: feature.max_version_level for feature in features}
    level = f", metadata.version {levels['metadata.version']}" if "metadata.version" in levels else ""
    has_tier = [_has_tier(name, broker) for broker in brokers]
    return brokers, f"cluster {metadata.cluster_id}{level}", all(has_tier)


def _has_tier(name: str, broker: Broker) -> bool:
    """Whether a broker has a remote tier, by its own answer, so that each of them has answered. Raises TargetError."""
    host, port = broker.address
    try:
        with WireClient(port, host=host, timeout_s=_TIMEOUT_S) as client:
            value = _config_of_broker(client, broker.broker_id, "remote.log.storage.system.enable")
    except (OSError, MalformedMessage) as error:
        raise TargetError(
            f"--target {name}: broker {broker.broker_id} does not answer at {broker.address}, "
            f"where its cluster says that it listens ({_words(error)})"
        ) from error
    except RequestFailed:
        # It may not be asked: topics are created without tiering.
        return False
    return value == "true"


def _config_of_broker(client: WireClient, broker_id: int, key: str) -> str | None:
    """Return a configuration of the broker that is asked; None if it has none of that name. Raises RequestFailed."""
    resource = DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=str(broker_id), configuration_keys=[key]
    )
    request = DescribeConfigsRequest(resources=[resource])
    row = client.request(ApiKey.DESCRIBE_CONFIGS, request, DescribeConfigsResponse).results[0]
    if row.error_code:
        raise RequestFailed(f"broker {broker_id}: {ErrorCode(row.error_code).name} {row.error_message}")
    return row.configs[0].value if row.configs else None


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class RunningTarget:
    """A cluster that runs already, as a target: it is never started, stopped or killed."""

    def __init__(
        self, name: str, bootstrap: str, brokers: Sequence[Broker], version: str, has_tier: bool
    ) -> None:
        self.name = name
        self.version = version
        self.has_tier = has_tier
        self.nodes: Nodes | None = None
        self.store: Store | None = None
        self.down: set[int] = set()
        self._bootstrap = bootstrap
        self._brokers = brokers
        self._pids: Mapping[str, int] | None = None

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as a client's `bootstrap.servers`."""
        return self._bootstrap

    @property
    def brokers(self) -> Sequence[Broker]:
        """All brokers of the cluster, by their ids."""
        return self._brokers

    def start(self) -> None:
        """Do nothing: the cluster runs."""

    def kill(self) -> None:
        """Do nothing: the cluster is left running."""

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers that run on this machine."""
        return list(self.node_pids().values())

    def node_pids(self) -> Mapping[str, int]:
        """Return the processes of the brokers that listen on this machine, where this user may see them.

        Found once: it takes a look at the files of all processes.
        """
        if self._pids is None:
            self._pids = self._find_pids()
        return self._pids

    def _find_pids(self) -> Mapping[str, int]:
        try:
            listeners = {
                each.laddr.port: each.pid
                for each in psutil.net_connections("tcp")
                if each.status == psutil.CONN_LISTEN and each.pid is not None
            }
        except psutil.AccessDenied:
            return {}
        found = {
            f"broker-{broker.broker_id}": listeners[broker.address.port]
            for broker in self._brokers
            if broker.address.port in listeners and _is_here(broker.address.host)
        }
        return {name: pid for name, pid in found.items() if psutil.Process(pid).name() not in _FORWARDERS}

    def ports(self) -> Mapping[str, int]:
        """Return the ports of the brokers on this machine, by the names of `node_pids`."""
        here = self.node_pids()
        names = {f"broker-{broker.broker_id}": broker.address.port for broker in self._brokers}
        return {name: port for name, port in names.items() if name in here}

    def addresses(self) -> Mapping[int, Address]:
        """Return the addresses of all brokers, by broker id."""
        return {broker.broker_id: broker.address for broker in self._brokers}

    def restore(self) -> None:
        """Do nothing: no event has changed the cluster."""


def _is_here(host: str) -> bool:
    """Whether the host is an address of this machine."""
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and found <= own
