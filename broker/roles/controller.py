"""The controller role of a node: its listeners. The controller itself is in `controller`, created in `roles/quorum.py`.

The sockets are opened first, since their addresses are sent to the other voters; requests wait until the
metadata log has been read. Source: ControllerServer of Kafka 4.3.1.
"""

import errno
import socket
from collections.abc import Mapping

from ottla.broker.controller_api.dispatch import ControllerDispatcher
from ottla.broker.controller_api.services import ControllerServices
from ottla.broker.network import NetworkServer, NetworkSettings
from ottla.broker.network.gate import Gate
from ottla.broker.request_stats import RequestStats
from ottla.broker.roles.directories import CannotStart
from ottla.broker.roles.quorum import QuorumRole, controller_endpoints
from ottla.config.broker_config import BrokerConfig
from ottla.config.cluster_config import ClusterConfig
from ottla.config.listeners import Listener, with_bound_addresses
from ottla.controller.api import CONTROLLER_APIS
from ottla.metadata.image import Endpoint, MetadataDelta, MetadataImage
from ottla.runtime import Runtime


class ControllerRole:
    """Starts and stops the listeners of the controller in this process.

    The controller itself is created by `QuorumRole`.
    """

    def __init__(self, runtime: Runtime, config: BrokerConfig) -> None:
        self._runtime = runtime
        self._config = config
        self._gate = Gate(runtime)
        #: The requests of other nodes and admin clients.
        self.request_stats = RequestStats()
        self.server = NetworkServer(runtime, self._gate, NetworkSettings.from_config(config))
        #: The advertised listeners; with the bound ports where port 0 was configured.
        self.listeners: tuple[Listener, ...] = ()

    async def listen(self) -> Mapping[str, Endpoint]:
        """Open the sockets; returns the advertised endpoints. Raises CannotStart."""
        ports = await open_sockets(self.server, self._config.controller_listeners)
        advertised = self._config.advertised_controller_listeners
        self.listeners = with_bound_addresses(advertised, ports, socket.getfqdn)
        return controller_endpoints(self.listeners)

    def serve(self, role: QuorumRole, cluster_id: str) -> None:
        """Serve requests; the quorum is open and runs."""
        assert role.local is not None
        config = self._config
        cluster_config = ClusterConfig(config, lambda: role.metadata.image)
        services = ControllerServices(
            node_id=config.node_id,
            cluster_id=cluster_id,
            runtime=self._runtime,
            current_config=cluster_config.refresh,
            metadata=role.metadata,
            leader=role.leader,
            controller=role.local,
            controller_apis=frozenset(CONTROLLER_APIS),
        )

        def on_metadata(delta: MetadataDelta, image: MetadataImage) -> None:
            if cluster_config.concerns(delta):
                self.server.settings = NetworkSettings.from_config(cluster_config.refresh())
                if not config.is_broker:  # else the node's broker role logs them
                    cluster_config.log_dynamic_warnings()

        role.metadata.on_change(on_metadata)
        self.server.settings = NetworkSettings.from_config(cluster_config.refresh())
        self._gate.open(ControllerDispatcher(services, self.request_stats))

    async def stop(self) -> None:
        """Finish the requests in progress, and close the sockets."""
        await self.server.stop()


async def open_sockets(server: NetworkServer, listeners: tuple[Listener, ...]) -> dict[str, int]:
    """Listen at each listener; returns the bound ports by listener name. Raises CannotStart."""
    ports = {}
    for listener in listeners:
        try:
            listening = await server.listen(listener.name, listener.host or None, listener.port)
        except OSError as error:
            raise CannotStart(cannot_listen(str(listener), error, keys="listeners, or --port")) from error
        ports[listener.name] = listening.port
    return ports


def cannot_listen(address: str, error: OSError, *, keys: str) -> str:
    """The sentence about an address that cannot be bound: the address, the reason and the remedy.

    `keys` names the configurations that have the address.
    """
    match error.errno:
        case errno.EADDRINUSE:
            remedy = "stop the program that uses it, or choose another port"
        case errno.EACCES | errno.EPERM:
            remedy = "choose a port from 1024 on"
        case _:
            remedy = "choose an address of this machine"
    return f"Cannot listen at {address}: {error.strerror or error}; {remedy} ({keys})."
