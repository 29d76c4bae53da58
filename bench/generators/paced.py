"""Loads of small requests: one at a time, at a steady rate, and pipelined on several connections.

Requests are encoded once and sent as they are; answers are counted by their bytes. So the client's share of
a round trip is a send and a receive.
"""

import ctypes
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

#: Timers with this slack of the kernel wake up when asked to, not 50 microseconds later.
_PR_SET_TIMERSLACK: Final = 29
_RECEIVE_BYTES: Final = 1 << 20
#: Percentiles need two values, also of a load of some milliseconds on a busy machine.
_LEAST_ROUND_TRIPS: Final = 2


class BadAnswer(Exception):
    """An answer that is not as long as the first one: an error, most likely."""


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _answer_bytes(connection: socket.socket, frame: bytes) -> int:
    """Return the size of one answer, length included. All answers of a load are as long as the first one."""
    connection.sendall(frame)
    answer = connection.recv(_RECEIVE_BYTES)
    size = 4 + int.from_bytes(answer[:4], "big")
    while len(answer) < size:
        answer += connection.recv(_RECEIVE_BYTES)
    return size


def one_at_a_time(port: int, frame: bytes, *, duration_s: float) -> list[float]:
    """Send, wait for the answer, send; return the seconds of each round trip."""
    took: list[float] = []
    with _connect(port) as connection:
        expected = _answer_bytes(connection, frame)
        end = time.perf_counter() + duration_s
        sent_at = time.perf_counter()
        while sent_at < end or len(took) < _LEAST_ROUND_TRIPS:
            connection.sendall(frame)
            unreceived = expected
            while unreceived > 0:  # Kafka sends the records of a Fetch behind its header
                if not (received := len(connection.recv(_RECEIVE_BYTES))):
                    raise BadAnswer
                unreceived -= received
            if unreceived:
                raise BadAnswer
            now = time.perf_counter()
            took.append(now - sent_at)
            sent_at = now
    return took


def at_rate(port: int, frame: bytes, *, per_s: int, duration_s: float) -> list[float]:
    """Send by the clock, whether or not earlier requests are answered.

    Each took the seconds from when it was *due* to its answer: a broker that stops for a while is charged
    for every request that should have been sent meanwhile, also where its socket takes no more.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    count = int(per_s * duration_s)
    took: list[float] = []
    with _connect(port) as connection:
        expected = _answer_bytes(connection, frame)
        connection.setblocking(False)
        begin = time.perf_counter() + 0.01
        sent = unparsed = 0
        unsent = memoryview(b"")
        while len(took) < count:
            now = time.perf_counter()
            due_at = begin + sent / per_s
            if not unsent and sent < count and now >= due_at:
                unsent = memoryview(frame)
                sent += 1
            if unsent:
                with suppress(BlockingIOError):
                    unsent = unsent[connection.send(unsent) :]
                if not unsent:
                    continue
            patience_s = due_at - now if sent < count and not unsent else 30
            # Not epoll: it counts in milliseconds, and would be late by half of one.
            if select.select([connection], [connection] if unsent else (), (), patience_s)[0]:
                unparsed += len(connection.recv(_RECEIVE_BYTES))
                now = time.perf_counter()
                while unparsed >= expected:
                    took.append(now - (begin + len(took) / per_s))
                    unparsed -= expected
        if unparsed:
            raise BadAnswer
    return took


def pipelined(port: int, frame: bytes, *, connections: int, depth: int, duration_s: float) -> int:
    """Keep `depth` requests under way on each connection; return the requests answered in `duration_s`."""
    sockets = [_connect(port) for _ in range(connections)]
    try:
        expected = [_answer_bytes(connection, frame) for connection in sockets]
        return _keep_full(sockets, expected, frame, depth=depth, duration_s=duration_s)
    finally:
        for connection in sockets:
            connection.close()


def _keep_full(
    sockets: Sequence[socket.socket], expected: Sequence[int], frame: bytes, *, depth: int, duration_s: float
) -> int:
    poll = select.epoll()
    by_fd = {
        connection.fileno(): (connection, size) for connection, size in zip(sockets, expected, strict=True)
    }
    unparsed = dict.fromkeys(by_fd, 0)
    block = memoryview(frame * depth)
    for connection in sockets:
        connection.sendall(block)
        poll.register(connection, select.EPOLLIN)
    answered = 0
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        for fd, _ in poll.poll(1):
            connection, size = by_fd[fd]
            done, unparsed[fd] = divmod(unparsed[fd] + len(connection.recv(_RECEIVE_BYTES)), size)
            if done:
                answered += done
                connection.sendall(block[: done * len(frame)])
    return answered
