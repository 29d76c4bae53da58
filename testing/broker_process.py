"""The operating system's process of a `Broker(process=True)`: `ottla test-broker`, and calls to it over HTTP.

It ends with the test's process, however that ends: its standard input is closed then. A process that is stopped by
SIGSTOP at that moment is continued by the kernel, which sends SIGHUP and SIGCONT to a process group without a parent.
"""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.roles.directories import CannotStart
from ottla.runtime.child_python import command_of, environment
from ottla.testing.faults import FaultNeverStruck

#: The result of a call, whose structure the caller knows.
Result: TypeAlias = Any

#: The line of a process that can be called.
_CONTROL: Final = re.compile(rb"^CONTROL http://127\.0\.0\.1:(\d+)\n", re.MULTILINE)
#: The most bytes of a process's output in which its line is looked for.
_OUTPUT_BYTES: Final = 4096
#: How long that line is waited for.
_START_S: Final = 120.0
#: How long a call may take: a start that waits for its recovery, a stop that closes many logs.
_CALL_S: Final = 120.0
#: How long the end of a process is waited for, before it is killed.
_END_S: Final = 60.0
#: How long the end of a process whose connection has broken may take.
_DEATH_S: Final = 1.0
_KINDS: Final[Mapping[str, type[Exception]]] = {
    each.__name__: each for each in (CannotStart, ClusterError, FaultNeverStruck, RuntimeError, ValueError)
}


class BrokerProcess:
    """A process from its start to its end; the broker in it is started by the call `start`."""

    def __init__(self, arguments: Sequence[str], *, log_file: Path) -> None:
        """Start it; returns when it can be called. Raises CannotStart."""
        self._log_file = log_file
        #: Whether SIGSTOP has stopped it.
        self.is_paused = False
        log_file.parent.mkdir(parents=True, exist_ok=True)
        command = command_of("ottla", "test-broker", "--until-stdin-ends", "--not-started", *arguments)
        self._log_start = log_file.stat().st_size if log_file.exists() else 0
        with log_file.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                # Ctrl-C in a terminal is for the test's process. No session of its own: SIGHUP would not arrive.
                process_group=0,
            )
        try:
            self._control_port = self._wait_for_control()
        except BaseException:
            self.kill()
            raise

    def _wait_for_control(self) -> int:
        """Wait for the line of the process, and return the port of its control. Raises CannotStart."""
        assert self._child.stdout is not None
        output = self._child.stdout.fileno()
        readable = select.poll()
        readable.register(output, select.POLLIN)
        ends_at, printed = time.monotonic() + _START_S, b""
        while (found := _CONTROL.search(printed)) is None:
            data = b""
            if readable.poll(max(0, ends_at - time.monotonic()) * 1000):
                data = os.read(output, _OUTPUT_BYTES)
            if not data:
                if self._ends():
                    raise CannotStart(self.reason())
                raise CannotStart(
                    f"The process of the broker, which is killed, could not be called within {_START_S:g} s; "
                    f"its log is {self._log_file}"
                )
            printed = (printed + data)[-_OUTPUT_BYTES:]
        return int(found[1])

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    def has_ended(self) -> bool:
        """Whether the process does not exist any more."""
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
        if self.is_paused:
            raise RuntimeError(f"{name}: the process of the broker is paused; call resume() first.")
        # Imported here: most brokers are in the test's own process.
        from http.client import OK, HTTPConnection, HTTPException

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

    def pause(self) -> None:
        """Stop it by SIGSTOP; returns when it stands still."""
        self._child.send_signal(signal.SIGSTOP)
        # Without WNOWAIT the end of a process that ends meanwhile would be taken from `Popen`.
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        """Let it continue by SIGCONT."""
        self._child.send_signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._child.kill()
        self._child.communicate()

    def end(self) -> None:
        """Let it stop its broker cleanly; one that does not end in time is killed."""
        self.resume()
        try:
            self._child.communicate(timeout=_END_S)  # closes its standard input, by which it ends
        except subprocess.TimeoutExpired:
            self.kill()
