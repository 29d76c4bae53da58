"""`ottla.testing.Broker`: a whole cluster of one node, in this process or in one of its own.

    with ottla.testing.Broker() as broker:
        producer = confluent_kafka.Producer(broker.config())
        ...
        assert broker.values("orders") == [b"one"]

The methods may be called from any thread. In a coroutine, `broker.aio` has the same methods as awaitables, so that the
caller's own loop goes on: `await broker.aio.wait_for_records("orders", 3)`.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_config
from ottla.testing.cluster_methods import ClusterMethods
from ottla.testing.faults import Fault, Faults
from ottla.testing.in_process import NodeLife

#: Sessions of brokers in tests, so that `advance` fences none: twenty days.
LIVENESS_MS: Final = 20 * 24 * 3600 * 1000
#: The configuration of a broker in tests, where it differs from a standalone one's; `config` overrides it.
DEFAULTS: Final[Mapping[str, str]] = {
    # `advance` moves the clock by days: no session between the node's own roles ends by it.
    "broker.session.timeout.ms": str(LIVENESS_MS),
    # Fifty internal partitions take a first group 20 ms.
    "offsets.topic.num.partitions": "1",
    "log.initial.task.delay.ms": "0",
}


class Broker(ClusterMethods):
    """A broker that starts in some 50 ms, and whose faults, disk and clock a test controls."""

    def __init__(
        self,
        *,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        data_dir: Path | str | None = None,
        tier: bool | Path | str = False,
        keep: bool = False,
        strict: bool = True,
    ) -> None:
        """Describe a broker; `start` or `with` starts it.

        `config` are Kafka's configurations. `port` 0 takes a free one, which a restart keeps. `data_dir` None is a
        temporary folder, which `stop` deletes unless `keep` is true. `tier` True is a remote tier in a folder beside
        the data, a path or URL another one (`ottla broker --tier`). With `strict`, a fault that was armed and never met
        by a request raises FaultNeverStruck when the broker is reset or stopped.
        """
        super().__init__()
        self._settings = {**DEFAULTS, **{key: _text(value) for key, value in (config or {}).items()}}
        self._port = port
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._folder: Path | None = None
        self._tier = tier
        self._keep = keep
        self._strict = strict
        self._life: NodeLife | None = None
        #: Faults between clients and this broker.
        self.faults = Faults()

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker, with the data and at the port of its last life. Raises CannotStart, KafkaError."""
        if self._life is None:
            self._life = NodeLife(self._node_config(), self.faults, name="ottla-broker")
            self._port = self._life.node.listeners[0].port
        return self

    def stop(self) -> None:
        """Stop the broker cleanly, and delete its temporary folder. Raises FaultNeverStruck."""
        self._end_life(lambda life: life.stop())
        self.close_operations()
        if self._folder is not None and not self._keep:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._check_faults()

    def restart(self) -> None:
        """Stop the broker cleanly and start it again, at the same port, with its data."""
        self._end_life(lambda life: life.stop())
        self.start()

    def kill(self) -> None:
        """End the broker at once, as SIGKILL does: nothing more is written, and connections break. `start` goes on."""
        self._end_life(lambda life: life.kill())

    def pause(self) -> None:
        """Let the broker stand still, as after SIGSTOP: connections stay open, and no request is answered."""
        self._running.pause()

    def resume(self) -> None:
        """Let a paused broker go on."""
        self._running.resume()

    @property
    def is_running(self) -> bool:
        """Whether the broker has been started, and neither stopped nor killed since."""
        return self._life is not None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._strict = False  # the test has failed: a fault that it did not reach is no further finding
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # -- what it is -------------------------------------------------------------------------------------

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

    @property
    def data_dir(self) -> Path:
        """The folder of the broker's log directory."""
        if self._given_dir is not None:
            return self._given_dir
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ottla-"))
        return self._folder / "data"

    @property
    def tier_dir(self) -> Path | None:
        """The folder of the remote tier; None: it has none, or one that is not a folder."""
        if self._tier is True:
            return self.data_dir.with_name(f"{self.data_dir.name}-tier")
        return self._tier if isinstance(self._tier, Path) else None

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

    def reset(self) -> None:
        """Delete all topics and groups, and disarm all faults. Raises FaultNeverStruck if no request has met one."""
        super().reset()
        self._check_faults()

    # -- time -------------------------------------------------------------------------------------------

    def advance(
        self, *, days: float = 0.0, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Move the broker's clock forward: sessions and time-outs end, retention deletes, delayed answers are sent.

        Returns when retention has been applied to all logs. The clocks of clients do not move.
        """
        duration_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        if duration_s < 0:
            raise ValueError("The clock cannot be moved back: give a positive time.")
        while duration_s > 0:
            step_s = min(duration_s, LIVENESS_MS / 2000)
            self._running.advance(step_s)
            duration_s -= step_s

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _running(self) -> NodeLife:
        if self._life is None:
            raise RuntimeError("The broker does not run: call start(), or use `with`.")
        return self._life

    def _end_life(self, end: Callable[[NodeLife], None]) -> None:
        life, self._life = self._life, None
        if life is not None:
            end(life)

    def _node_config(self) -> BrokerConfig:
        tier = self.tier_dir if self._tier is True else self._tier or None
        overrides = [f"{key}={value}" for key, value in self._settings.items()]
        return load_config(overrides=overrides, port=self._port, data_dir=self.data_dir, tier=tier)

    def _check_faults(self) -> None:
        self.faults.reset(verify=self._strict)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
