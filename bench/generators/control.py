"""The control channel between the driver and the tasks of a phase: JSON lines over TCP, one connection for each task.

from a task     hello (index, token) | ready | progress (counts by client) | produced | done | failed (text)
to all tasks    start (at_us) | ends (topic -> partition -> offset) | over | stop

A task is `ready` when all of its clients are connected, and has `produced` when its producers have an answer
for all records.
"""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

#: The maximum size of a line; the longest ones have the ends of all partitions.
_MOST_BYTES: Final = 4 << 20
_HELLO_TIMEOUT_S: Final = 10

Message = dict[str, Any]


class _Line:
    """A socket over which messages are sent and received, each as a line."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = connected.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message, from any thread. Raises OSError."""
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """Return the next message; None at the end of the connection, and for anything but a message."""
        try:
            line = self._stream.readline(_MOST_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set the timeout of `receive`."""
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        """Close the socket, also from another thread than the one that receives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._socket.close()


class Control:
    """The driver's side of the control channel: the states of all tasks, and orders to them."""

    def __init__(self, host: str, *, tasks: int) -> None:
        """Listen at a free port of `host`, which the tasks can reach."""
        self.token = secrets.token_hex(16)
        #: Guards the attributes below, and is notified of each change.
        self.changed = threading.Condition()
        self.ready: set[int] = set()
        self.produced: set[int] = set()
        self.done: set[int] = set()
        #: The sentences with which tasks have failed, in their order.
        self.failures: list[str] = []
        #: Client -> records, bytes, errors.
        self.progress: dict[str, tuple[int, int, int]] = {}
        self._lines: dict[int, _Line] = {}
        self._tasks = tasks
        self._listener = socket.create_server((host, 0), backlog=tasks)
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True, name="bench-control").start()

    @property
    def address(self) -> tuple[str, int]:
        """The address to which the tasks connect."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        # A socket that is only closed would leave `accept` waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self.changed:
            lines = list(self._lines.values())
        for line in lines:
            line.close()

    def broadcast(self, kind: str, **fields: object) -> None:
        """Send a message to all tasks; one whose connection is lost is skipped, since its end was noticed
        already.
        """
        with self.changed:
            lines = list(self._lines.values())
        for line in lines:
            with contextlib.suppress(OSError):
                line.send({"kind": kind, **fields})

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        line = _Line(connected)
        line.set_timeout(_HELLO_TIMEOUT_S)
        hello = line.receive() or {}
        line.set_timeout(None)
        index = hello.get("index")
        # A stranger, or a task that Spark has started again: its first run is a part of the phase, and failed.
        is_ours = secrets.compare_digest(str(hello.get("token")), self.token)
        with self.changed:
            if not is_ours or not isinstance(index, int) or index in self._lines:
                line.close()
                return
            self._lines[index] = line
        while message := line.receive():
            with self.changed:
                self._note(index, message)
                self.changed.notify_all()
        with self.changed:
            if index not in self.done and not self._is_closed:
                self.failures.append(f"task {index} has ended before its clients were done")
            self.changed.notify_all()

    def _note(self, index: int, message: Message) -> None:
        match message.get("kind"):
            case "ready":
                self.ready.add(index)
            case "produced":
                self.produced.add(index)
            case "done":
                self.done.add(index)
            case "failed":
                self.failures.append(str(message.get("text")))
            case "progress":
                self.progress.update(
                    {client: tuple(counts) for client, counts in message.get("counts", {}).items()}
                )


class ControlClient:
    """A task's side of the control channel; a context manager."""

    def __init__(self, address: tuple[str, int], *, index: int, token: str) -> None:
        """Connect to the driver. Raises OSError."""
        self._line = _Line(socket.create_connection(address, _HELLO_TIMEOUT_S))
        self._line.send({"kind": "hello", "index": index, "token": token})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()

    def listen(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        """Call `on_message` for each message, in another thread, and `on_lost` at the end."""

        def read() -> None:
            while message := self._line.receive():
                on_message(message)
            on_lost()

        self._line.set_timeout(None)
        threading.Thread(target=read, daemon=True, name="bench-control").start()

    def send(self, kind: str, **fields: object) -> None:
        """Send a message to the driver. If it is gone, `on_lost` is called anyway."""
        with contextlib.suppress(OSError):
            self._line.send({"kind": kind, **fields})
