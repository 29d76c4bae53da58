"""`Broker(process=True)`: the same broker in a process of its own, controlled over HTTP.

    test's process                          process of the broker: `ottla test-broker`
    ProcessBroker.kill() ----POST /kill---> ControlServer -> Broker.kill()
    ProcessBroker.values() -----------------Kafka's protocol----> the broker

Its load and its garbage are not those of the test's process. It ends with the test's process, however that ends: its
standard input is closed then.
"""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from ottla.broker.roles.directories import CannotStart
from ottla.runtime.child_python import command_of, environment
from ottla.testing.broker import Broker
from ottla.testing.faults import FaultNeverStruck
from ottla.testing.operations import ClusterError
from ottla.testing.remote_faults import RemoteDisk, RemoteFaults, RemoteTier
from ottla.testing.segments import SegmentCopy

#: The result of a call, whose structure the caller knows.
Result: TypeAlias = Any

#: The line of a process that serves.
_READY: Final = re.compile(r"READY bootstrap=127\.0\.0\.1:(\d+) control=http://127\.0\.0\.1:(\d+) ")
#: How long a call may take: a start that waits for its recovery, a stop that closes many logs.
_CALL_S: Final = 120.0
#: How long the end of a process is waited for, before it is killed.
_END_S: Final = 60.0
#: How long the end of a process that was killed may take.
_DEATH_S: Final = 1.0
_KINDS: Final[Mapping[str, type[Exception]]] = {
    each.__name__: each for each in (CannotStart, ClusterError, FaultNeverStruck, RuntimeError, ValueError)
}


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
        self._process: _Process | None = None
        self._remote_faults = RemoteFaults(self.call)
        self.faults, self.disk, self.tier = self._remote_faults, RemoteDisk(self.call), RemoteTier(self.call)

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker, with the data and at the port of its last life. Raises CannotStart."""
        if self._process is not None and self._process.has_ended():
            self._end_process()
        if self._process is not None:
            self.call("start")
            return self
        is_first = self._folder is None
        try:
            self.clock.ahead_s = 0.0  # another process has another clock
            self._process = _Process(self._arguments(), log_file=self._log_file)
            self._port = self._process.port
        except BaseException:
            if is_first:
                self._delete_folder()
            raise
        return self

    def restart(self) -> None:
        """Stop the broker cleanly and start it again, at the same port, with its data."""
        self.call("restart")

    def kill(self) -> None:
        """End the broker at once, as SIGKILL does: nothing more is written, and connections break. `start` goes on."""
        self.call("kill")

    def pause(self) -> None:
        """Let the broker stand still, as after SIGSTOP: connections stay open, and no request is answered."""
        self.call("pause")

    def resume(self) -> None:
        """Let a paused broker go on."""
        self.call("resume")

    def isolate(self) -> None:
        """Break all connections of the broker, and refuse new ones, until `heal`."""
        self.call("isolate")

    def heal(self) -> None:
        """Let the broker have connections again."""
        self.call("heal")

    @property
    def is_running(self) -> bool:
        """Whether the broker was started, and has neither been stopped or killed since, nor has failed."""
        return self._status("is_running") is True

    @property
    def is_reachable(self) -> bool:
        """Whether the broker runs, is not paused and not isolated."""
        return self._status("is_reachable") is True

    @property
    def failure(self) -> str | None:
        """The reason, a sentence, for which the broker has ended by itself since its last start; None: it has not."""
        if self._process is not None and self._process.has_ended():
            return self._process.reason()
        found: str | None = self._status("failure")
        return found

    def advance(
        self, *, days: float = 0.0, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Move the broker's clock forward; see `Broker.advance`."""
        self.call("advance", days=days, hours=hours, minutes=minutes, seconds=seconds)
        self.clock.ahead_s += ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    def reset(self) -> None:
        """End all faults, and delete all topics and groups; a clock that was moved shows the present again."""
        try:
            self._reset_faults()
        finally:
            self.call("reset")
            self.clock.ahead_s = 0.0

    def segments(self, topic: str, partition: int = 0) -> list[SegmentCopy]:
        """Return the segments of the partition in both tiers, by base offset."""
        return [SegmentCopy(**each) for each in self.call("segments", topic=topic, partition=partition)]

    # -- inside -----------------------------------------------------------------------------------------

    def call(self, name: str, /, **arguments: object) -> Result:
        """Let the process carry out a call of `ottla.testing.control_calls`, and return its result."""
        if self._process is None:
            raise RuntimeError("The broker does not run: call start(), or use `with`.")
        return self._process.call(name, arguments)

    def _status(self, name: str) -> Result:
        if self._process is None or self._process.has_ended():
            return None
        try:
            return self._process.call("status", {})[name]
        except RuntimeError:
            if self._process.has_ended():
                return None
            raise

    @property
    def _log_file(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}.log")

    def _arguments(self) -> Sequence[str]:
        arguments = ["--port", str(self._port), "--data-dir", str(self.data_dir.absolute())]
        if self._tier_text is not None:
            arguments += ["--tier", str(self._tier_text)]
        for key in self._given_config:
            arguments += ["--set", f"{key}={self._settings[key]}"]
        return arguments

    def _end_node(self) -> None:
        self._remote_faults.end_all()
        self.disk.heal()
        self.tier.heal()
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(cleanly=not self._leaves_nothing)


class _Process:
    """The process of a broker, from its start to its end."""

    def __init__(self, arguments: Sequence[str], *, log_file: Path) -> None:
        """Start it; returns when the broker serves. Raises CannotStart."""
        self._log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        command = command_of("ottla", "test-broker", "--until-stdin-ends", *arguments)
        self._log_start = log_file.stat().st_size if log_file.exists() else 0
        with log_file.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                # Ctrl-C in a terminal is for the test's process.
                process_group=0,
            )
        try:
            assert self._child.stdout is not None
            line = self._child.stdout.readline().decode()
            found = _READY.match(line)
            if found is None:
                self._child.wait(_END_S)
                raise CannotStart(self.reason())
        except BaseException:
            self.end(cleanly=False)
            raise
        self.port, self._control_port = int(found[1]), int(found[2])

    def has_ended(self) -> bool:
        """Whether the process does not run any more."""
        return self._child.poll() is not None

    def reason(self) -> str:
        """Return the reason why the process has ended: the last error that it has printed."""
        with self._log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
        if errors:
            return errors[-1]
        last = f": {lines[-1]}" if lines else ""
        return f"The process of the broker has ended with status {self._child.returncode}{last}"

    def call(self, name: str, arguments: Mapping[str, object]) -> Result:
        """Carry out a call. Raises the exception of the broker's method, or RuntimeError."""
        if self.has_ended():
            raise RuntimeError(f"The broker has ended by itself: {self.reason()}")
        from http.client import (
            OK,
            HTTPConnection,
            HTTPException,
        )  # imported here: most brokers are in this process

        connection = HTTPConnection("127.0.0.1", self._control_port, timeout=_CALL_S)
        try:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", f"/{name}", json.dumps(arguments), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, HTTPException) as error:
            if self._ends():
                raise RuntimeError(f"The broker has ended by itself: {self.reason()}") from error
            raise RuntimeError(f"The process of the broker does not answer: {error}") from error
        finally:
            connection.close()
        if response.status != OK:
            raise _KINDS.get(answer["kind"], RuntimeError)(answer["error"])
        return answer

    def _ends(self) -> bool:
        """Whether the process, whose connection is broken, has ended, or is about to."""
        try:
            self._child.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, *, cleanly: bool) -> None:
        """End the process; one that does not end in time is killed."""
        child = self._child
        if not cleanly:
            child.kill()
        try:
            child.communicate(timeout=_END_S)  # closes its standard input, by which it ends
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
