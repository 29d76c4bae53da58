"""`ottla.testing.Broker`: a whole cluster of one node, in this process or in one of its own.

    with ottla.testing.Broker() as broker:
        producer = confluent_kafka.Producer(broker.config())
        ...
        assert broker.values("orders") == [b"one"]

The methods may be called from any thread. In a coroutine, `broker.aio` has the same methods as awaitables, so that the
caller's own loop goes on: `await broker.aio.wait_for_records("orders", 3)`.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final, Self, cast

from ottla.broker.roles.directories import CannotStart
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_config
from ottla.testing.controlled_cluster import (
    LIVENESS_MS,
    TIER_DEFAULTS,
    ControlledAwaitables,
    ControlledCluster,
)
from ottla.testing.controlled_node import ControlledNode, NodeAwaitables
from ottla.testing.held_port import HeldPort
from ottla.testing.in_process import NodeLife
from ottla.testing.operations import config_text

#: The configuration of a broker in tests, where it differs from a standalone one's; `config` overrides it.
DEFAULTS: Final[Mapping[str, str]] = {
    # `advance` moves the clock by days: no session between the node's own roles ends by it.
    "broker.session.timeout.ms": str(LIVENESS_MS),
    # Fifty internal partitions take a first group 20 ms.
    "offsets.topic.num.partitions": "1",
    "log.initial.task.delay.ms": "0",
}


class Broker(ControlledNode, ControlledCluster):
    """A broker that starts in some 50 ms, and whose faults, disk and clock a test controls."""

    #: The subclass whose broker is in a process of its own.
    _of_process: "ClassVar[type[Broker]]"

    def __init_subclass__(cls, *, is_of_process: bool = False) -> None:
        """Let `Broker(process=True)` create this subclass, if it is the one for that."""
        if is_of_process:
            Broker._of_process = cls

    def __new__(cls, *, process: bool = False, **_: object) -> Self:
        """Create the broker: with `process` one in a process of its own."""
        return cast("Self", super().__new__(cls._of_process if process else cls))

    def __init__(
        self,
        *,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        data_dir: Path | str | None = None,
        tier: bool | Path | str = False,
        keep: bool = False,
        strict: bool = True,
        process: bool = False,
    ) -> None:
        """Describe a broker; `start` or `with` starts it.

        `config` are Kafka's configurations. `port` 0 takes a free one, which a restart keeps. `data_dir` None is a
        temporary folder, which `stop` deletes unless `keep` is true. `tier` True is a remote tier in a folder beside
        the data, a path or URL another one (`ottla broker --tier`). With `strict`, a fault that was armed and never met
        by a request raises FaultNeverStruck when the broker is reset or stopped. `process` runs the broker in a process
        of its own, whose log is in a file beside the data.
        """
        ControlledCluster.__init__(self, data_dir=data_dir, tier=tier, keep=keep, strict=strict)
        ControlledNode.__init__(self, name="ottla-broker", strict=strict, clock=self.clock)
        self._settings = {
            **DEFAULTS,
            **(TIER_DEFAULTS if tier else {}),
            **{key: config_text(value) for key, value in (config or {}).items()},
        }
        self._port = port
        #: The port that was free, from the first start to the stop.
        self._held: HeldPort | None = None
        self._holds_port = not port

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker, with the data and at the port of its last life. Raises CannotStart, KafkaError."""
        is_first = self._folder is None
        try:
            if self._holds_port and self._held is None:
                self._held = _held(self._port)
                self._port = self._held.port
            self._begin_life()
        except BaseException:
            if is_first:
                self._delete_folder()
                self._release_port()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker, cleanly if its data stay, or delete its temporary folder. Raises FaultNeverStruck."""
        with ExitStack() as ends:  # in reverse order, each of them also if another one fails
            ends.callback(self._reset_faults)
            ends.callback(self._delete_folder)
            ends.callback(self._release_port)
            ends.callback(self.close_operations)
            ends.callback(self._end_node)

    # -- what it is -------------------------------------------------------------------------------------

    @property
    def aio(self) -> "BrokerAwaitables":
        """The same methods as awaitables: `await broker.aio.values("orders")`."""
        return BrokerAwaitables(self)

    @property
    def port(self) -> int:
        """The port of the listener of clients, on 127.0.0.1."""
        if not self._port:
            raise RuntimeError("The broker has no port before its first start: call start(), or use `with`.")
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients' `bootstrap.servers`, as HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    # -- inside -----------------------------------------------------------------------------------------

    def _begin_life(self) -> None:
        super().start()

    def _end_node(self) -> None:
        self.heal_stores()
        if self._leaves_nothing:
            super().kill()
        else:
            super().stop()

    def _begin_again(self) -> None:
        self.restart()

    def _run_again(self) -> None:
        self.let_go_on()
        self.start()

    def _lives(self) -> Sequence[NodeLife]:
        return [self._running]

    def _node_config(self) -> BrokerConfig:
        overrides = [f"{key}={value}" for key, value in self._settings.items()]
        return load_config(overrides=overrides, port=self._port, data_dir=self.data_dir, tier=self._tier_text)

    def _release_port(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()


class BrokerAwaitables(NodeAwaitables, ControlledAwaitables):
    """The methods of a broker as awaitables."""


def _held(port: int) -> HeldPort:
    try:
        return HeldPort(port)
    except OSError as error:
        raise CannotStart(f"Cannot listen at 127.0.0.1:{port}: {error.strerror}.") from error
