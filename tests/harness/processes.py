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

import psutil


class StartFailed(Exception):
    """A child ended, or stayed silent, before it was ready; the message has its output."""


class Child:
    """A process whose output goes to a file, ended with its whole group."""

    def __init__(self, command: list[str], *, log: Path, env: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        # A test that is interrupted before its fixtures are set up leaves nothing behind either.
        atexit.register(self._end_quietly)

    def _end_quietly(self) -> None:
        if self.is_running:
            self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.01) -> None:
        """Poll until ready; StartFailed with the output if the child ends or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                raise StartFailed(f"exited with {self._process.returncode}:\n{self.output()[-4000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise StartFailed(f"not ready after {timeout_s} s:\n{self.output()[-4000:]}")
            time.sleep(interval_s)

    def stop(self, *, timeout_s: float = 30.0) -> int:
        """SIGTERM, then SIGKILL when that does not end it in time; the exit status."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: the others come to believe that it has crashed."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT"""
        self.send_signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        return psutil.Process(self.pid).memory_info().rss

    def private_bytes(self) -> int:
        """Resident memory of its own, without files that it has mapped and read."""
        memory = psutil.Process(self.pid).memory_info()
        return memory.rss - memory.shared

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


#: Ports that have been given to nodes, which may be down at the moment.
_steady: set[int] = set()
#: Of the system: whoever seeds Python's own must not make all workers look for the same ports.
_CHANCE = random.SystemRandom()


def steady_ports(count: int) -> list[int]:
    """So many free ports of 127.0.0.1, no port twice, that stay free while their node is down.

    They lie below those that the system gives to outgoing connections (from 32768 on): one of these would now and
    then sit on the port of a node that is to be restarted.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _CHANCE.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _steady:
                ports.append(port)
                _steady.add(port)
    return sorted(ports)


def free_port() -> int:
    """One of them."""
    return steady_ports(1)[0]


def answers(port: int) -> bool:
    """Whether somebody accepts connections at this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
