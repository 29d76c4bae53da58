"""A node that obeys a test: its life, its faults, its disk, its network and its clock.

`ottla.testing.Broker` is one, which is a whole cluster, and so is each broker and controller of a `Cluster`.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Final, Self

from ottla.broker.cluster_client.errors import ClusterError
from ottla.config.broker_config import BrokerConfig
from ottla.remote.errors import MetadataNotReady
from ottla.testing.awaitables import AwaitableMethods, AwaitableOf
from ottla.testing.disk import Disk
from ottla.testing.faults import Fault, Faults
from ottla.testing.in_process import NodeLife, Surroundings
from ottla.testing.lasting_faults import LastingFault
from ottla.testing.network import Clock, Network
from ottla.testing.operations import PATIENCE_S
from ottla.testing.segments import SegmentCopy, segments_of
from ottla.testing.tier import FaultyStore, Tier

_POLL_S: Final = 0.005


class ControlledNode(ABC):
    """A node whose life, faults and clock a test controls; in any thread."""

    def __init__(self, *, name: str, strict: bool, clock: Clock, stores: Sequence[Tier] = ()) -> None:
        """`name` is the name of its thread; `stores` are faults of the object store that concern other nodes, too."""
        self._name = name
        self._strict = strict
        self._life: NodeLife | None = None
        self._network = Network()
        #: Faults between clients and this node.
        self.faults = Faults()
        #: Its disk, which may be full, slow or broken.
        self.disk = Disk()
        #: The object store as this node reaches it, which may be slow, broken or empty.
        self.tier = Tier()
        stores = (self.tier, *stores)
        self._around = Surroundings(
            around_requests=self.faults.around,
            around_store=lambda store, is_dead: FaultyStore(store, stores, is_dead),
            tiers=stores,
            disk=self.disk,
            network=self._network,
            clock=clock,
        )

    @abstractmethod
    def _node_config(self) -> BrokerConfig:
        """Return the configuration for the next start. Raises InvalidConfig."""

    @property
    def aio(self) -> "NodeAwaitables":
        """The same methods as awaitables: `await node.aio.kill()`."""
        return NodeAwaitables(self)

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the node, with the data and at the port of its last life. Raises CannotStart, KafkaError."""
        if not self.is_running:
            self._end_life(NodeLife.kill)  # what a node that has failed has left
            self._life = NodeLife(
                self._node_config(), self._around, name=self._name, on_failure=self._on_failure
            )
        return self

    def stop(self) -> None:
        """Stop the node cleanly."""
        self.let_go_on()  # else it could not leave the cluster
        self._end_life(NodeLife.stop)

    def restart(self) -> None:
        """Stop the node cleanly and start it again, at the same port, with its data."""
        self.let_go_on()
        self._end_life(NodeLife.stop)
        self.start()

    def kill(self) -> None:
        """End the node at once, as SIGKILL does: nothing more is written, and connections break. `start` goes on."""
        self._end_life(NodeLife.kill)

    def pause(self) -> None:
        """Let the node stand still, as after SIGSTOP: connections stay open, and no request is answered."""
        self._running.pause()

    def resume(self) -> None:
        """Let a paused node go on."""
        self._running.resume()

    def isolate(self) -> None:
        """Break all connections of the node, and refuse new ones, until `heal`."""
        self._network.is_isolated = True
        if self._life is not None:
            self._running.isolate()

    def heal(self) -> None:
        """Let the node have connections again."""
        self._network.is_isolated = False

    def let_go_on(self) -> None:
        """Resume the node if it is paused, and heal its network if it is isolated."""
        self._network.is_isolated = False
        if self._life is not None:
            self._life.resume()

    @property
    def is_running(self) -> bool:
        """Whether the node was started, and has neither been stopped or killed since, nor has failed."""
        return self._life is not None and self._life.failure is None

    @property
    def is_reachable(self) -> bool:
        """Whether the node runs, is not paused and not isolated."""
        return (
            self._life is not None
            and self.is_running
            and not self._life.is_paused
            and not self._network.is_isolated
        )

    @property
    def failure(self) -> str | None:
        """The reason, a sentence, for which the node has ended by itself since its last start; None: it has not."""
        return None if self._life is None else self._life.failure

    def wait_for_failure(self, *, timeout_s: float = PATIENCE_S) -> str:
        """Wait until the node has ended by itself, as it does when its disk fails, and return the reason, a sentence.

        Raises ClusterError if it still runs then.
        """
        deadline_s = time.monotonic() + timeout_s
        while (failure := self.failure) is None:
            if time.monotonic() >= deadline_s:
                raise ClusterError(f"The broker has not ended by itself (waited {timeout_s:g} s).")
            time.sleep(_POLL_S)
        return failure

    # -- faults -----------------------------------------------------------------------------------------

    def inject_error(self, api: str, error: str, *, client: str = "", strict: bool = True) -> Fault:
        """Answer requests of the API with the error: `Faults.inject_error`."""
        return self.faults.inject_error(api, error, client=client, strict=strict)

    def delay_on(self, api: str, seconds: float, *, client: str = "", strict: bool = True) -> Fault:
        """Delay the responses of the API: `Faults.delay_on`."""
        return self.faults.delay_on(api, seconds, client=client, strict=strict)

    def disconnect_on(self, api: str, *, client: str = "", strict: bool = True) -> Fault:
        """Break the connection instead of the response: `Faults.disconnect_on`."""
        return self.faults.disconnect_on(api, client=client, strict=strict)

    def blackhole_client(self, substring: str, *, strict: bool = True) -> Fault:
        """Leave the requests of a client without an answer: `Faults.blackhole_client`."""
        return self.faults.blackhole_client(substring, strict=strict)

    def present_faults(self) -> set[Fault | LastingFault]:
        """Return the faults that a reset would end: those that no `with` has ended."""
        return {*self.faults.created, *self.disk.begun, *self.tier.begun}

    def end_faults(self, *, but: Collection[Fault | LastingFault], verify: bool) -> None:
        """End and forget all faults `but` some. With `verify`, raises FaultNeverStruck for one that was never met."""
        with ExitStack() as checks:  # all of them, also behind one that raises
            for fault in self.present_faults() - {*but}:
                if verify and self._strict:
                    checks.callback(fault.verify)
                fault.end()

    # -- what it has ------------------------------------------------------------------------------------

    def segments(self, topic: str, partition: int = 0) -> list[SegmentCopy]:
        """Return the segments of this node's replica in both tiers, by base offset.

        A segment that is in both is there twice. Raises KafkaError if the node has no replica, RuntimeError if it is
        paused, ClusterError if it does not know the remote tier in time.
        """
        life = self._running
        if life.is_paused:
            raise RuntimeError("segments: the broker is paused; call resume() first.")

        async def find() -> list[SegmentCopy]:
            deadline_s = time.monotonic() + PATIENCE_S
            while True:
                try:
                    return segments_of(life.node.broker, topic, partition)
                except MetadataNotReady as error:  # after a start it is read from its topic
                    if time.monotonic() >= deadline_s:
                        raise ClusterError(f"{error} (waited {PATIENCE_S:g} s)") from error
                await asyncio.sleep(_POLL_S)

        return life.call(find())

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _running(self) -> NodeLife:
        if self._life is None:
            raise RuntimeError("The broker does not run: call start(), or use `with`.")
        if self._life.failure is not None:
            raise RuntimeError(f"The broker has ended by itself: {self._life.failure}")
        return self._life

    def _end_life(self, end: Callable[[NodeLife], None]) -> None:
        life, self._life = self._life, None
        if life is not None:
            end(life)

    def _on_failure(self, life: NodeLife) -> None:
        """Do nothing: the node has ended this life by itself. Called in a thread of its own."""
        return

    def heal_stores(self) -> None:
        """Heal the disk and the object store, for which a stop would wait; a reset still checks their faults."""
        self.disk.heal()
        self.tier.heal()

    def _reset_faults(self) -> None:
        """Disarm and heal all faults. Raises FaultNeverStruck if they are strict, for one that was never met."""
        with ExitStack() as resets:  # all of them, also behind one that raises
            for faults in (self.faults, self.disk, self.tier):
                resets.callback(faults.reset, verify=self._strict)


class NodeAwaitables(AwaitableMethods):
    """The methods of a node as awaitables."""

    start = AwaitableOf(ControlledNode.start)
    stop = AwaitableOf(ControlledNode.stop)
    restart = AwaitableOf(ControlledNode.restart)
    kill = AwaitableOf(ControlledNode.kill)
    pause = AwaitableOf(ControlledNode.pause)
    resume = AwaitableOf(ControlledNode.resume)
    isolate = AwaitableOf(ControlledNode.isolate)
    wait_for_failure = AwaitableOf(ControlledNode.wait_for_failure)
    heal = AwaitableOf(ControlledNode.heal)
    segments = AwaitableOf(ControlledNode.segments)
    inject_error = AwaitableOf(ControlledNode.inject_error)
    delay_on = AwaitableOf(ControlledNode.delay_on)
    disconnect_on = AwaitableOf(ControlledNode.disconnect_on)
    blackhole_client = AwaitableOf(ControlledNode.blackhole_client)
