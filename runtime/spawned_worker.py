"""SpawnedWorker: a `Worker` that is a process of the operating system, started by `python -m`.

Started, not forked: a fork would have the broker's memory, and locks that its other threads hold. The process
has a lower priority than the node, and a process group of its own, so that Ctrl-C in a terminal reaches the node only.
"""

import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Final

from ottla.runtime import child_python
from ottla.runtime.worker_main import ANSWER, ASK, CANCEL, RESULT
from ottla.runtime.workers import WorkerFailed

_LOG: Final = getLogger(__name__)

#: The time that a worker has to end by itself.
_END_S: Final = 2.0


class SpawnedWorker:
    """A `Worker` in a process of the operating system. Nothing is started before the first call."""

    def __init__(self, module: str, setup: object, *, niceness: int) -> None:
        """`python -m module` calls `ottla.runtime.worker_main.serve`, whose `make_handler` gets `setup`."""
        self._module = module
        self._setup = setup
        self._niceness = niceness
        self._lock = Lock()
        #: The process of new calls.
        self._process: _Process | None = None
        #: Processes that were replaced: they end with the last of their calls.
        self._replaced: set[_Process] = set()
        self._is_closed = False

    def call(self, request: object, *, answer: Callable[[Any], object], silence_s: float) -> Any:  # noqa: ANN401
        """Have a request handled in the process of new calls; `answer` is called for each of its questions.

        Raises WorkerFailed, and what `answer` raises.
        """
        process = self._enter()
        has_failed = False
        try:
            return process.converse(request, answer, silence_s)
        except WorkerFailed:
            has_failed = True
            raise
        finally:
            self._leave(process, has_failed=has_failed)

    def close(self) -> None:
        """End the worker's processes; calls under way, and later ones, raise WorkerFailed."""
        with self._lock:
            self._is_closed = True
            processes = [*self._replaced, *([] if self._process is None else [self._process])]
            self._process = None
            self._replaced.clear()
        for process in processes:
            process.end()

    @property
    def process_id(self) -> int | None:
        """The id of the process that gets new calls; None: there is none at the moment."""
        process = self._process
        return None if process is None else process.id

    def _enter(self) -> "_Process":
        with self._lock:
            if self._is_closed:
                raise WorkerFailed("the worker is closed")
            if self._process is None:
                self._process = _Process(self._module, self._setup, self._niceness)
            self._process.call_count += 1
            return self._process

    def _leave(self, process: "_Process", *, has_failed: bool) -> None:
        with self._lock:
            assert process.call_count > 0, process.id  # else a process could be ended under another call
            process.call_count -= 1
            if has_failed and self._process is process:
                self._process = None
                self._replaced.add(process)
            is_over = process in self._replaced and not process.call_count
            if is_over:
                self._replaced.discard(process)
        if is_over:
            process.end()


class _Process:
    """One process of a worker, until its end."""

    def __init__(self, module: str, setup: object, niceness: int) -> None:
        #: Calls that are under way.
        self.call_count = 0
        self._sending = Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(  # noqa: S603 (no input of others)
                child_python.command_of(module, str(theirs.fileno()), str(niceness)),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_python.environment(),
                process_group=0,
            )
        self.id = self._child.pid
        # Not waited for: imports take up to a second, and the first call waits for them anyway.
        with suppress(WorkerFailed), self._conversation() as ours:
            self._send(ours, setup)

    def converse(self, request: object, answer: Callable[[Any], object], silence_s: float) -> Any:  # noqa: ANN401
        """Send a request over a socket of its own, answer the questions, and return the result.

        Raises WorkerFailed, and what `answer` raises.
        """
        with self._conversation() as ours:
            self._send(ours, request)
            while True:
                kind, value = self._receive(ours, silence_s)
                if kind == RESULT:
                    return value
                if kind != ASK:
                    raise WorkerFailed(f"the worker has failed: {value}")
                try:
                    message = (ANSWER, answer(value))
                except Exception:
                    self._send(ours, (CANCEL, None))
                    # It removes what the call has begun; what that returns is of no interest.
                    while self._receive(ours, silence_s)[0] == ASK:
                        self._send(ours, (CANCEL, None))
                    raise
                self._send(ours, message)

    def _conversation(self) -> Connection:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                with self._sending:
                    socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            except OSError as error:
                raise self._failed("has ended") from error
            return Connection(ours.detach())

    def _send(self, ours: Connection, message: object) -> None:
        try:
            ours.send(message)
        except OSError as error:
            raise self._failed("has ended") from error

    def _receive(self, ours: Connection, silence_s: float) -> tuple[str, Any]:
        try:
            if not ours.poll(silence_s):
                raise self._failed(f"was silent for {silence_s:g} s")
            kind, value = ours.recv()
        except (EOFError, OSError) as error:
            raise self._failed("has ended") from error
        return kind, value

    def _failed(self, what: str) -> WorkerFailed:
        return WorkerFailed(f"worker process {self.id} {what}")

    def end(self) -> None:
        """End the process, by force if it does not end by itself; several calls do no harm."""
        with self._sending:  # else a descriptor that is in use could be that of another file by now
            self._control.close()
        try:
            code = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                self._child.kill()
            code = self._child.wait()
        _LOG.info("worker process %d has ended with %d", self.id, code)
