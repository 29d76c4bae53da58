"""One broker or controller of an `ottla.testing.Cluster`: `cluster.brokers[0]`, `cluster.broker(1)`."""

import asyncio
import threading
from pathlib import Path
from typing import Protocol, Self

from ottla.broker.cli.cluster_plan import NodePlan
from ottla.config.broker_config import BrokerConfig
from ottla.testing.controlled_node import ControlledNode
from ottla.testing.in_process import NodeLife
from ottla.testing.network import Clock
from ottla.testing.tier import Tier

#: Turns of the controller's loop in which it reads what a dead broker has sent, a heartbeat for instance.
_TURNS = 3


class Surrounding(Protocol):
    """The methods of a cluster that its nodes call."""

    tier: Tier
    clock: Clock

    def on_lost(self, node: "ClusterNode") -> None:
        """Notify the cluster that the node was killed or isolated, or has failed."""

    def on_started(self, node: "ClusterNode") -> None:
        """Notify the cluster that the node has started."""


class ClusterNode(ControlledNode):
    """A broker or controller whose life, faults, disk and network a test controls."""

    def __init__(self, cluster: Surrounding, name: str) -> None:
        super().__init__(name=f"ottla-{name}", strict=True, clock=cluster.clock, stores=(cluster.tier,))
        self._cluster = cluster
        self._plan: NodePlan | None = None
        self._planned_config: BrokerConfig | None = None
        #: Held while a life begins or ends, and while others learn that one has ended by itself.
        self._changing = threading.RLock()
        #: Whether it was killed or isolated, or has failed, and was not started or healed since.
        self.was_lost = False

    def plan(self, plan: NodePlan, config: BrokerConfig) -> None:
        """Give the node its id, port, folder and configuration."""
        self._plan, self._planned_config = plan, config

    # -- what it is -------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """The id of the broker or controller."""
        return self._planned.node_id

    @property
    def port(self) -> int:
        """The port of its listener, on 127.0.0.1."""
        return self._planned.port

    @property
    def rack(self) -> str | None:
        """The rack of the broker."""
        return self._planned.rack

    @property
    def data_dir(self) -> Path:
        """The folder of the log directory."""
        return self._planned.data_dir

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the node, with its data and at its port. Raises CannotStart, KafkaError."""
        with self._changing:
            if not self.is_running:
                super().start()
                self.was_lost = False
                self._cluster.on_started(self)
        return self

    def stop(self) -> None:
        """Stop the node cleanly."""
        with self._changing:
            super().stop()

    def kill(self) -> None:
        """End the node at once, as SIGKILL does; others lead its partitions when this returns. `start` goes on."""
        self.die()
        self._lost()

    def die(self) -> None:
        """End the node at once, and leave it to the controller to notice it by the session's timeout."""
        with self._changing:
            self.was_lost = True
            super().kill()

    def isolate(self) -> None:
        """Break all connections of the node, and refuse new ones; others lead its partitions when this returns."""
        super().isolate()
        self._lost()

    def heal(self) -> None:
        """Let the node have connections again: it joins the cluster, and catches up."""
        super().heal()
        if self.is_running:
            self.was_lost = False

    # -- what the cluster asks --------------------------------------------------------------------------

    @property
    def life(self) -> NodeLife | None:
        """The present life; None: the node does not run."""
        return self._life if self.is_running else None

    def expire_session(self, broker_id: int) -> None:
        """Let this controller fence a broker, as if its session had expired. Raises NotController, RuntimeError."""
        life = self._running
        controller = life.node.controller
        assert controller is not None

        async def expire() -> None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            await controller.expire_session(broker_id)

        life.call(expire())

    @property
    def silence_s(self) -> float:
        """The seconds since this broker's last heartbeat, by its clock; 0 if it is not reachable."""
        life = self.life
        if life is None or not self.is_reachable:
            return 0.0
        return life.ask(lambda: life.node.broker.lifecycle.silence_s)

    def regards_as_fenced(self, broker_id: int) -> bool:
        """Whether this broker has read that the other one is fenced."""
        life = self.life
        if life is None:
            return True
        try:
            known = life.ask(lambda: life.node.broker.metadata.image.brokers.get(broker_id))
        except RuntimeError:  # it ends itself
            return True
        return known is None or known.is_fenced

    def reset_faults(self, *, verify: bool) -> None:
        """Disarm and heal all faults. With `verify`, raises FaultNeverStruck for one that was never met."""
        self._strict = verify
        self._reset_faults()

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _planned(self) -> NodePlan:
        if self._plan is None:
            raise RuntimeError(
                "The cluster has no ports before its first start: call start(), or use `with`."
            )
        return self._plan

    def _node_config(self) -> BrokerConfig:
        assert self._planned_config is not None, "planned by the cluster's start"
        return self._planned_config

    def _on_failure(self, life: NodeLife) -> None:
        """Let others lead, unless the test has already started or stopped the node. Called in a thread of its own."""
        with self._changing:
            if self._life is life:
                self._lost()

    def _lost(self) -> None:
        self.was_lost = True
        self._cluster.on_lost(self)
