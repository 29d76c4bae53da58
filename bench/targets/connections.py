"""Bytes on the connections that others have opened to ports of this machine, counted by Linux (sock_diag(7)).

    dump            connections that are open: what each of them has carried so far
    destroy events  connections that have ended since: their last count

Both are from TCP's own counters, so no packet is captured and no process is touched; they count the end of a
connection as a byte. A connection counts at the port that listens; what a broker exchanges on connections
that it has opened is counted at the other end's port.
"""

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
#: The multicast groups of sockets that are destroyed: TCP on IPv4, on IPv6.
_DESTROYED: Final = (1, 3)
_REQUEST, _DUMP = 0x1, 0x300
_DONE, _ERROR = 3, 2
_INET_DIAG_INFO: Final = 2
_INET_DIAG_REQ_BYTECODE: Final = 1
_ALL_STATES: Final = 0xFFFFFFFF
#: The header nlmsghdr: length, type, flags, sequence, port.
_HEADER: Final = struct.Struct("=IHHII")
#: The request inet_diag_req_v2 up to the states; the rest is the id of a single socket.
_QUESTION: Final = struct.Struct("=BBBxI48x")
#: The answer inet_diag_msg: family, state, timer, retransmits, then the id: ports, addresses, interface,
#: cookie; five counters.
_ANSWER: Final = struct.Struct("=4B2s2s16s16sI8s20x")
_ATTRIBUTE: Final = struct.Struct("=HH")
#: The counters bytes_acked and bytes_received of tcp_info.
_COUNTERS: Final = struct.Struct("=120xQQ")
_BUFFER_BYTES: Final = 256 << 10
_EVENT_BUFFER_BYTES: Final = 16 << 20
_SO_RCVBUFFORCE: Final = 33
#: How long the end of a connection may take to be reported.
_ENDING_S: Final = 5.0
#: Codes of inet_diag_bc_op: a local port at least, or at most, as much as that of the next one.
_PORT_GE, _PORT_LE = 2, 3
_OPERATION: Final = struct.Struct("=BBH")


class Carried(NamedTuple):
    """The bytes of connections in both directions, as the listening side counts them."""

    received: int
    sent: int


class Connection(NamedTuple):
    """A connection to one of the ports, with the bytes that it has carried since it was opened."""

    cookie: bytes
    port: int
    carried: Carried


class Connections:
    """Counts the bytes on all connections to some ports since the first `carried`; `close` ends it."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Begin to count. Raises OSError where the kernel has no such counters for this user."""
        self._ports = frozenset(ports)
        self._before: dict[bytes, Carried] = {}
        #: The connections that are not open any more: the kernel reports their end a moment later.
        self._ending: dict[bytes, tuple[float, Carried]] = {}
        self._is_first = True
        self._events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        try:
            _enlarge_buffer(self._events)
            self._events.bind((0, sum(1 << group - 1 for group in _DESTROYED)))
            self._events.setblocking(False)
            self.carried()
        except OSError:
            self._events.close()
            raise

    def close(self) -> None:
        """End the subscription to the kernel's events."""
        self._events.close()

    def carried(self) -> dict[int, Carried]:
        """Return the bytes by port since the last call, or since the object was made."""
        open_now = {each.cookie: each for port in self._ports for each in _dump(port)}
        # A connection that ended in the meantime may be in both: the event's count is the later one.
        ended = {each.cookie: each for each in self._destroyed() if each.port in self._ports}
        totals = dict.fromkeys(self._ports, Carried(0, 0))
        for each in {**open_now, **ended}.values():
            before = self._count_before(each.cookie)
            if not self._is_first:
                total = totals[each.port]
                totals[each.port] = Carried(
                    total.received + each.carried.received - before.received,
                    total.sent + each.carried.sent - before.sent,
                )
        self._remember(open_now, ended)
        self._is_first = False
        return totals

    def _count_before(self, cookie: bytes) -> Carried:
        if cookie in self._ending:
            return self._ending[cookie][1]
        return self._before.get(cookie, Carried(0, 0))

    def _remember(self, open_now: Mapping[bytes, Connection], ended: Mapping[bytes, Connection]) -> None:
        now_s = time.monotonic()
        ending = self._before.keys() - open_now.keys()
        self._ending |= {cookie: (now_s, self._before[cookie]) for cookie in ending}
        self._ending = {
            cookie: (since_s, carried)
            for cookie, (since_s, carried) in self._ending.items()
            if cookie not in ended and since_s > now_s - _ENDING_S
        }
        self._before = {cookie: each.carried for cookie, each in open_now.items() if cookie not in ended}

    def _destroyed(self) -> Iterator[Connection]:
        while True:
            try:
                data = self._events.recv(_BUFFER_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue  # events were lost: what those connections have carried since the last call is not counted
            for _, body in _messages(data):
                yield from _connection(body)


def _enlarge_buffer(events: socket.socket) -> None:
    """Enlarge the event buffer, beyond the system's bound if this user may.

    Thousands of connections may end at the same time.
    """
    try:
        events.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _EVENT_BUFFER_BYTES)
    except PermissionError:
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _EVENT_BUFFER_BYTES)


def _dump(port: int) -> Iterator[Connection]:
    """Yield the connections with this local port."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
        for family in (socket.AF_INET, socket.AF_INET6):
            asked.send(_question(family, port))
            yield from _answers(asked)


def _question(family: int, port: int) -> bytes:
    # Each operation says how far the next one is if it holds, and if it does not: behind the end, which refuses.
    size = _OPERATION.size
    conditions = b"".join(
        _OPERATION.pack(code, 2 * size, rest) + _OPERATION.pack(0, 0, port)
        for code, rest in ((_PORT_GE, 4 * size + 4), (_PORT_LE, 2 * size + 4))
    )
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(conditions), _INET_DIAG_REQ_BYTECODE) + conditions
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 1 << _INET_DIAG_INFO - 1, _ALL_STATES) + attribute
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 1, 0) + body


def _answers(asked: socket.socket) -> Iterator[Connection]:
    while True:
        for kind, body in _messages(asked.recv(_BUFFER_BYTES)):
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -int.from_bytes(body[:4], "little", signed=True)
                raise OSError(number, os.strerror(number))
            yield from _connection(body)


def _messages(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, body) of each message in a datagram."""
    at, view = 0, memoryview(data)
    while at < len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        yield kind, view[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _connection(body: memoryview) -> Iterator[Connection]:
    """Yield the connection that a message is about.

    None for sockets that have no counters: listening ones, and those in TIME_WAIT.
    """
    *_, local_port, _, _, _, _, cookie = _ANSWER.unpack_from(body)
    at = _ANSWER.size
    while at < len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        at_value = at + _ATTRIBUTE.size
        if kind == _INET_DIAG_INFO and at + length >= at_value + _COUNTERS.size:
            acked, received = _COUNTERS.unpack_from(body, at_value)
            yield Connection(cookie, int.from_bytes(local_port), Carried(received, acked))
        at += (length + 3) & ~3
