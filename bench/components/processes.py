"""Child processes of the tests: started, waited for by what they print or answer, and always ended."""

import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import psutil

#: How long a test waits for an expected event, in seconds: longer than a busy machine needs, and shorter than the
#: test's timeout, so that the failure names what was expected.
PATIENCE_S = 90.0


class StartFailed(Exception):
    """A child ended, or stayed silent, before it was ready; the message has its output."""


class Child:
    """A process whose output goes to a file, ended with its whole group."""

    #: The logs of all children of this run, with their sizes at each start of a child.
    logs: ClassVar[dict[Path, list[int]]] = {}

    def __init__(
        self, command: list[str], *, log: Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        """`env` is added to the environment of this process; `cwd` None is its current folder."""
        self.log = log
        with log.open("ab") as output:
            self.logs.setdefault(log, []).append(log.stat().st_size)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
                start_new_session=True,
            )
        # A test that is interrupted before its fixtures are set up leaves nothing behind either.
        atexit.register(self._end_quietly)

    def _end_quietly(self) -> None:
        if self.is_running:
            self.kill()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return the output of the process so far."""
        return self.log.read_text(errors="replace")

    def warnings(self) -> list[str]:
        """Return the WARNINGs of a node's output, but for those of turns of its event loop.

        How long a turn takes depends on the machine.
        """
        lines = self.output().splitlines()
        return [
            line for line in lines if " WARNING " in line and " WARNING ottla.runtime.stalls: " not in line
        ]

    def errors(self) -> list[str]:
        """Return the ERRORs of a node's output."""
        return [line for line in self.output().splitlines() if " ERROR " in line]

    def wait_until(
        self, is_ready: Callable[[], bool], *, timeout_s: float = PATIENCE_S, interval_s: float = 0.01
    ) -> None:
        """Poll until ready; StartFailed with the output if the child ends or the time is over."""

        def is_over() -> bool:
            if is_ready():
                return True
            if not self.is_running:
                raise StartFailed(f"exited with {self._process.returncode}:\n{self.output()[-4000:]}")
            return False

        if not comes_true(is_over, timeout_s=timeout_s, interval_s=interval_s):
            self.kill()
            raise StartFailed(f"not ready after {timeout_s} s:\n{self.output()[-4000:]}")

    def stop(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Send SIGTERM, then SIGKILL if the process does not end in time; return the exit status."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self._process.returncode

    def kill(self) -> None:
        """Send SIGKILL to the whole group, like a crash."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the process ends by itself; return the exit status."""
        return self._process.wait(timeout_s)

    def send_signal(self, number: int) -> None:
        """Send the process a signal, one of the module `signal`."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Send SIGSTOP: the other nodes detect the node as crashed."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT: the process continues."""
        self.send_signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return the resident memory of the process, shared pages included."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def private_bytes(self) -> int:
        """Return the resident memory of the process's own, without files that it has mapped and read."""
        memory = psutil.Process(self.pid).memory_info()
        return int(memory.rss - memory.shared)

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used, in its own code and in the kernel."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


#: Ports that have been given to nodes, which may be down at the moment.
_steady: set[int] = set()
#: The system's random source: a seed of Python's own would make all workers try the same ports.
_CHANCE = random.SystemRandom()
_PORTS = range(15_000, 31_000)
if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # Processes that run tests at the same time have ports of their own: a node that is down holds none.
    _PORTS = _PORTS[2_000 * (int(_worker.removeprefix("gw")) % 8) :][:2_000]


def steady_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1, one after the other, none given before; they stay free while their node
    is down.

    They lie below those that the system gives to outgoing connections (from 32768 on): one of these would now and
    then sit on the port of a node that is to be restarted.
    """
    while True:
        first = _CHANCE.choice(_PORTS[:-count])
        ports = list(range(first, first + count))
        if _steady.isdisjoint(ports) and all(map(_is_free, ports)):
            _steady.update(ports)
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return one free port of 127.0.0.1, as `steady_ports` returns several."""
    return steady_ports(1)[0]


def wait_until(
    condition: Callable[[], object],
    *,
    timeout_s: float = PATIENCE_S,
    interval_s: float = 0.02,
    detail: object | Callable[[], object] = "",
) -> None:
    """Poll until the condition holds; AssertionError with `detail` if it never does."""
    holds = comes_true(condition, timeout_s=timeout_s, interval_s=interval_s)
    assert holds, detail() if callable(detail) else detail


def comes_true(
    condition: Callable[[], object], *, timeout_s: float = PATIENCE_S, interval_s: float = 0.02
) -> bool:
    """Poll until the condition holds; False if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


def has_ended(process: psutil.Process) -> bool:
    """Whether a process runs no more. A zombie has ended: in a container, no process may collect it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answers(port: int) -> bool:
    """Whether a server accepts connections at this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
