"""`Broker(process=True)`: the same broker in a process of its own, controlled by signals and over HTTP.

    test's process                            process of the broker: `ottla test-broker`
    ProcessBroker.kill() ----SIGKILL--------> ends
    ProcessBroker.pause() ---SIGSTOP--------> stands still
    ProcessBroker.advance() -POST /advance--> ControlServer -> Broker.advance()
    ProcessBroker.values() --Kafka's protocol-----------------> the broker

Its load and its garbage are not those of the test's process. What a broker in the test's own process keeps over a kill,
the next process is given before its broker starts: the port, the faults with their counts, the moved clock, isolation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.roles.directories import CannotStart
from ottla.testing.broker import Broker
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.controlled_cluster import duration_s
from ottla.testing.remote_faults import RemoteDisk, RemoteFaults, RemoteTier
from ottla.testing.segments import SegmentCopy

#: The result of a call, whose structure the caller knows.
Result: TypeAlias = Any


class ProcessBroker(Broker, is_of_process=True):
    """A broker in a process of its own, with the methods of `Broker`. Made by `Broker(process=True)`."""

    def __init__(
        self,
        *,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        data_dir: Path | str | None = None,
        tier: bool | Path | str = False,
        keep: bool = False,
        strict: bool = True,
        process: bool = True,
    ) -> None:
        """Describe a broker, as `Broker` does; `process` is true."""
        super().__init__(
            config=config,
            port=port,
            data_dir=data_dir,
            tier=tier,
            keep=keep,
            strict=strict,
            process=process,
        )
        self._given_config = tuple(config or ())
        self._process: BrokerProcess | None = None
        #: The calls that a paused process carries out when it continues.
        self._later: list[tuple[str, dict[str, object]]] = []
        self._remote_faults = RemoteFaults(self)
        self._remote_disk, self._remote_tier = RemoteDisk(self), RemoteTier(self)
        self.faults, self.disk, self.tier = self._remote_faults, self._remote_disk, self._remote_tier

    # -- life -------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Stop the broker cleanly and start it again, at the same port, with its data."""
        if self._process is None or self._process.has_ended():
            self.start()
            return
        self.let_go_on()
        self.call("restart")

    def kill(self) -> None:
        """End the process by SIGKILL: nothing more is written, and connections break. `start` goes on."""
        if self._process is not None:
            self._keep_counts()
            self._end_process(cleanly=False)

    def pause(self) -> None:
        """Stop the process by SIGSTOP: connections stay open, and no request is answered."""
        if not self.is_running:
            raise RuntimeError(
                f"The broker has ended by itself: {self.failure}"
                if self.failure
                else "The broker does not run: call start(), or use `with`."
            )
        if self._process is not None and not self._process.is_paused:
            self._keep_counts()
            self._process.pause()

    def resume(self) -> None:
        """Let a paused process continue by SIGCONT, and carry out what was asked of it meanwhile."""
        if self._process is not None and self._process.is_paused:
            self._process.resume()
            later, self._later = self._later, []
            for name, arguments in later:
                self.call(name, **arguments)

    def isolate(self) -> None:
        """Break all connections of the broker, and refuse new ones, until `heal`."""
        self._network.is_isolated = True
        self.call_or_later("isolate")

    def heal(self) -> None:
        """Let the broker have connections again."""
        self._network.is_isolated = False
        self.call_or_later("heal")

    def let_go_on(self) -> None:
        """Resume the process if it is paused, and heal its network if it is isolated."""
        self.resume()
        if self._network.is_isolated:
            self.heal()

    @property
    def is_running(self) -> bool:
        """Whether the broker was started, and has neither been stopped or killed since, nor has failed."""
        return self._is_paused or self._status("is_running") is True

    @property
    def is_reachable(self) -> bool:
        """Whether the broker runs, is not paused and not isolated."""
        return not self._is_paused and self._status("is_reachable") is True

    @property
    def failure(self) -> str | None:
        """The reason, a sentence, for which the broker has ended by itself since its last start; None: it has not."""
        if self._process is not None and self._process.has_ended():
            return self._process.reason()
        found: str | None = None if self._is_paused else self._status("failure")
        return found

    def advance(
        self, *, days: float = 0.0, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Move the broker's clock forward; see `Broker.advance`. That of a paused process moves when it continues."""
        lead_s = duration_s(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if self._process is None:
            raise RuntimeError("The broker does not run: call start(), or use `with`.")
        self.call_or_later("advance", seconds=lead_s)
        self.clock.ahead_s += lead_s

    def reset(self) -> None:
        """End all faults, and delete all topics and groups; a clock that was moved shows the present again."""
        try:
            self._reset_faults()
        finally:
            self.let_go_on()
            self.start()
            self.call("reset")
            self.clock.ahead_s = 0.0

    def segments(self, topic: str, partition: int = 0) -> list[SegmentCopy]:
        """Return the segments of the partition in both tiers, by base offset."""
        return [SegmentCopy(**each) for each in self.call("segments", topic=topic, partition=partition)]

    # -- calls ------------------------------------------------------------------------------------------

    @property
    def can_answer(self) -> bool:
        """Whether the process can be called: it runs, and is not paused."""
        return self._process is not None and not self._process.has_ended() and not self._process.is_paused

    def call(self, name: str, /, **arguments: object) -> Result:
        """Let the process carry out a call of `ottla.testing.control_calls`, and return its result."""
        if self._process is None:
            raise RuntimeError("The broker does not run: call start(), or use `with`.")
        return self._process.call(name, arguments)

    def call_or_later(self, name: str, /, **arguments: object) -> None:
        """Let the process carry out a call, at once or when it is resumed; a process that has ended does not."""
        if self.can_answer:
            self.call(name, **arguments)
        elif self._is_paused:
            self._later.append((name, arguments))

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _is_paused(self) -> bool:
        return self._process is not None and self._process.is_paused and not self._process.has_ended()

    def _status(self, name: str) -> Result:
        process = self._process
        if process is None or not self.can_answer:
            return None
        try:
            return process.call("status", {})[name]
        except RuntimeError:
            if process.has_ended():
                return None
            raise

    @property
    def _log_file(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.log")

    def _begin_life(self) -> None:
        """Start the broker, in a new process if there is none. Raises CannotStart."""
        if self._is_paused:
            return
        try:
            if not self.can_answer:
                self._end_process(cleanly=False)
                self._process = BrokerProcess(self._arguments(), log_file=self._log_file)
                for faults in (self._remote_faults, self._remote_disk, self._remote_tier):
                    faults.begin_again()
                if self._network.is_isolated:
                    self.call("isolate")
            self.call("start")
        except BaseException as error:
            self._end_process(cleanly=False)
            if isinstance(error, RuntimeError | ValueError | ClusterError):
                raise CannotStart(str(error)) from error
            raise

    def _arguments(self) -> Sequence[str]:
        arguments = ["--port", str(self._port), "--data-dir", str(self.data_dir.absolute())]
        if self._tier_text is not None:
            arguments += ["--tier", str(self._tier_text)]
        if self.clock.ahead_s:
            arguments += ["--clock-ahead", str(self.clock.ahead_s)]
        if self._folder is not None and not self._keep:
            arguments += ["--delete", str(self._folder)]
        for key in self._given_config:
            arguments += ["--set", f"{key}={self._settings[key]}"]
        return arguments

    def _keep_counts(self) -> None:
        """Ask for the counts of all faults: the process will not answer from now on."""
        for faults in (self._remote_faults, self._remote_disk, self._remote_tier):
            faults.keep_counts()

    def _end_node(self) -> None:
        self._remote_faults.end_all()
        self.heal_stores()
        self._end_process(cleanly=not self._leaves_nothing)

    def _end_process(self, *, cleanly: bool) -> None:
        process, self._process = self._process, None
        self._later.clear()
        if process is None:
            return
        if cleanly:
            process.end()
        else:
            process.kill()
