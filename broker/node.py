"""A node: the roles of `process.roles`, started and stopped in the right order.

start: log directories -> HTTP server -> the controller's sockets -> metadata log and quorum -> controller
       -> broker (roles/broker.py)
stop:  broker -> the controller's sockets -> controller, quorum, metadata log -> logs, with the clean-shutdown marker

Source: KafkaRaftServer and SharedServer of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ottla import VERSION
from ottla.broker.flush_times import TimedFiles
from ottla.broker.membership.lifecycle import RegistrationRefused
from ottla.broker.roles.broker import BrokerRole
from ottla.broker.roles.controller import ControllerRole
from ottla.broker.roles.directories import CannotStart, Directories
from ottla.broker.roles.hooks import NO_HOOKS, Hooks
from ottla.broker.roles.quorum import QuorumRole
from ottla.broker.services import BrokerServices
from ottla.config import notices
from ottla.config.broker_config import BrokerConfig
from ottla.config.listeners import Listener
from ottla.controller.quorum.driver import QuorumFailed
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.errors import KafkaError
from ottla.runtime import Pool, Runtime
from ottla.storage.files import Files
from ottla.storage.manager.log_manager import InconsistentMetaProperties

if TYPE_CHECKING:
    from ottla.broker.roles.http import HttpRole
    from ottla.broker.tiering.remote_tier import RemoteTier
    from ottla.controller.controller import Controller

__all__ = ["CannotStart", "Node"]

logger = logging.getLogger(__name__)


class Node:
    """The part of a cluster that runs in one process, or a whole cluster. Created by `start`."""

    def __init__(self, runtime: Runtime, config: BrokerConfig, directories: Directories) -> None:
        self._runtime = runtime
        self._config = config
        self._directories = directories
        self._quorum = QuorumRole(runtime, config, directories)
        self._controller_role = ControllerRole(runtime, config) if config.is_controller else None
        self._broker_role: BrokerRole | None = None
        #: The HTTP server of the node; None without `metrics.listeners`.
        self.http: HttpRole | None = None
        self._is_stopping = False
        #: Done when the node cannot continue; the result is the reason for an operator. The caller ends the process.
        self.failure: asyncio.Future[str] = runtime.loop.create_future()
        directories.on_failure = self._on_dir_failure_in_a_thread

    @classmethod
    async def start(
        cls,
        runtime: Runtime,
        config: BrokerConfig,
        *,
        hooks: Hooks = NO_HOOKS,
    ) -> Self:
        """Start the node's roles; returns when it serves requests. Raises CannotStart.

        With `hooks`, a test puts faults between the node and its clients, its disk and its remote store.
        """
        roles = [
            name for name, has in (("broker", config.is_broker), ("controller", config.is_controller)) if has
        ]
        logger.info(
            "Ottla %s starts node %d (%s); configurations other than the defaults: %s",
            VERSION,
            config.node_id,
            " and ".join(roles),
            ", ".join(notices.changed(config)) or "none",
        )
        for warning in notices.warnings(config):
            logger.warning("%s", warning)
        for info in notices.infos(config):
            logger.info("%s", info)
        files = hooks.files
        if files is None:
            files = TimedFiles(runtime.monotonic) if config.metrics_listeners else Files()
        directories = await Directories.lock(runtime, config, files)
        node = cls(runtime, config, directories)
        try:
            await node._start(files, hooks)
        except BaseException as error:
            await node._abort_start()
            if isinstance(
                error,
                InvalidMetadata | RegistrationRefused | InconsistentMetaProperties | QuorumFailed | OSError,
            ):
                raise CannotStart(str(error)) from error
            raise
        return node

    async def _start(
        self,
        files: Files,
        hooks: Hooks,
    ) -> None:
        runtime, config, controller = self._runtime, self._config, self._controller_role
        if config.metrics_listeners:
            from ottla.broker.roles.http import HttpRole  # imported here: a plain broker does not need it

            self.http = HttpRole(runtime, config, unreadiness=self.unreadiness)
            if isinstance(files, TimedFiles):
                self.http.show_flushes(files.times)
            await self.http.start()
        listeners = await controller.listen() if controller is not None else {}
        await self._quorum.open(listeners, files, on_failure=self._on_quorum_failure)
        if self.http is not None:
            self.http.show_quorum(self._quorum, controller)
        if config.is_broker:
            self._broker_role = BrokerRole(
                runtime,
                config,
                self._directories,
                self._quorum,
                remote=await self._open_remote_tier(files, hooks),
                around_requests=hooks.around_requests,
                on_failure=self._fail,
            )
            if self.http is not None:
                self.http.show_broker(self._broker_role)
        await self._quorum.quorum.start()
        if controller is not None:
            controller.serve(self._quorum, self._directories.cluster_id)
        if self._broker_role is not None:
            await self._until_failed(self._broker_role.start())

    async def _open_remote_tier(self, files: Files, hooks: Hooks) -> "RemoteTier | None":
        """The remote tier; None: it is not enabled. Raises CannotStart, OSError."""
        if not self._config.remote_log_storage_system_enable:
            return None
        from ottla.broker.roles.tiering import (
            open_remote_tier,  # imported here: 65 modules, a tenth of a start
        )

        return await open_remote_tier(
            self._runtime,
            self._config,
            self._quorum,
            self._directories,
            files,
            around_store=hooks.around_store,
        )

    @property
    def broker(self) -> BrokerServices:
        """The services of the broker in this process; only where there is one."""
        assert self._broker_role is not None, "this node is no broker"
        return self._broker_role.broker

    @property
    def controller(self) -> "Controller | None":
        """The controller in this process; None: this node is none."""
        return self._quorum.controller

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The advertised listeners: for clients, or for other nodes if this node serves no clients."""
        return self._broker_role.listeners if self._broker_role is not None else self.controller_listeners

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The controller's listeners; empty if this node is no controller."""
        return self._controller_role.listeners if self._controller_role is not None else ()

    async def run_due_maintenance(self) -> None:
        """Run the maintenance of logs that is due now, as retention: for tests that have moved the clock."""
        if self._broker_role is not None:
            await self._broker_role.maintenance.run_due()

    def break_connections(self) -> None:
        """Break the connections of clients and other nodes, as the end of the process does: for tests that kill it."""
        roles = (self._broker_role, self._controller_role)
        for server in (role.server for role in roles if role is not None):
            for connection in list(server.connections):
                connection.abort()
        if self.http is not None:
            self.http.break_connections()

    def unreadiness(self) -> str | None:
        """The reason why this node does not serve, in one sentence; None: it serves."""
        if self._is_stopping:
            return "The node stops."
        if self.failure.done():
            return self.failure.result()
        if not self._quorum.is_open:
            return "The metadata log is being opened."
        # Not the leader's id: a follower that has lost its leader keeps that while it asks for votes (KIP-996).
        if self._controller_role is not None and not self._quorum.quorum.has_leader:
            return "The metadata quorum has no leader."
        if self._config.is_broker:
            return "The broker starts." if self._broker_role is None else self._broker_role.unreadiness()
        return None

    def ready_line(self) -> str:
        """One line for people and scripts: where to connect, which cluster, where its data is."""
        advertised = self.listeners[0]
        data = ",".join(str(Path(path).resolve()) for path in self._config.log_dirs)
        address = f"{advertised.host}:{advertised.port}"
        connect = (
            f"connect: bootstrap.servers={address} in any Kafka client"
            if self._broker_role is not None
            else f"connect: bootstrap.controllers={address} in Kafka's admin tools"
        )
        addresses = self.http.addresses if self.http is not None else ()
        metrics = "".join(f"page={each}/ metrics={each}/metrics " for each in addresses)
        key = "bootstrap" if self._broker_role is not None else "controller"
        return (
            f"READY {key}={address} cluster.id={self._directories.cluster_id} node.id={self._config.node_id} "
            f"data={data} {metrics}{connect}; stop: Ctrl-C"
        )

    async def stop(self) -> None:
        """Leave the cluster, finish requests that were begun, and close the logs so that they need no recovery."""
        self._is_stopping = True
        began_s, is_clean = self._runtime.monotonic(), True
        if self._broker_role is not None:
            await self._broker_role.stop()
        if self._controller_role is not None:
            await self._controller_role.stop()
        # Before the directories are marked as closed, and unlocked: the marker covers the metadata log, too.
        try:
            await self._quorum.stop()
        except (KafkaError, OSError) as error:
            logger.error("the metadata log was not closed: %s", error)
            self._directories.metadata_log_failed(OSError(str(error)))
            is_clean = False
        epoch = self._broker_role.shutdown_epoch if self._broker_role is not None else -1
        await self._runtime.run_blocking(
            lambda: self._directories.shutdown(self._runtime.now_ms(), broker_epoch=epoch),
            pool=Pool.LOGS,
        )
        if self.http is not None:
            await self.http.stop()
        logger.info(
            "node %d has stopped%s in %.1f s",
            self._config.node_id,
            " cleanly" if is_clean and not self._directories.logs.offline_dirs else ", not cleanly,",
            self._runtime.monotonic() - began_s,
        )

    async def _until_failed(self, starting: Coroutine[Any, Any, None]) -> None:
        """Wait for a role to start, unless the node fails meanwhile: the start would then wait indefinitely."""
        task = asyncio.ensure_future(starting)
        either: list[asyncio.Future[Any]] = [task, self.failure]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise CannotStart(self.failure.result())
            task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _abort_start(self) -> None:
        """The start has failed: release all resources that it has acquired."""
        if self.http is not None:
            await self.http.stop()
        if self._broker_role is not None:
            await self._broker_role.abort_start()
        if self._controller_role is not None:
            await self._controller_role.stop()
        is_closed = True
        try:
            await self._quorum.stop()
        except (KafkaError, OSError) as error:
            logger.error("the metadata log was not closed: %s", error)
            is_closed = False
        await self._runtime.run_blocking(self._release_directories, is_closed, pool=Pool.LOGS)

    def _release_directories(self, is_closed: bool) -> None:
        """Release the directories after a failed start; `is_closed`: the metadata log was closed. [any thread]

        If no log was opened, the marker of the last clean shutdown stays valid: a port in use must not remove the
        broker from ISR and ELR (KIP-966). Damage that this start has refused must be refused by the next start as
        well, and not be treated as a write torn by a crash. If all logs are open they are closed as by `stop`.
        """
        role = self._broker_role
        if is_closed and role is not None and role.are_logs_open:
            self._directories.shutdown(self._runtime.now_ms(), broker_epoch=role.shutdown_epoch)
            return
        epoch = -1 if role is None else role.broker.lifecycle.broker_epoch
        if is_closed and (role is None or role.are_logs_open is None):
            self._directories.keep_clean(broker_epoch=None if epoch < 0 else epoch)
        self._directories.unlock()

    def _on_dir_failure_in_a_thread(self, path: Path, error: OSError) -> None:
        self._runtime.loop.call_soon_threadsafe(self._on_dir_failure, path, error)

    def _on_dir_failure(self, path: Path, error: OSError) -> None:
        if path == self._directories.metadata_log_dir:
            self._fail(f"Log directory {path}, which holds the metadata log, has failed: {error}.")
        elif self._broker_role is not None:
            self._broker_role.on_dir_failure(path, error)

    def _on_quorum_failure(self, error: BaseException) -> None:
        """Fail the node: its replica of the metadata log cannot continue."""
        self._fail(f"The metadata quorum has failed on this node: {str(error).removesuffix('.')}.")

    def _fail(self, why: str) -> None:
        if not self.failure.done():
            logger.critical("%s The node stops.", why)
            self.failure.set_result(why)
