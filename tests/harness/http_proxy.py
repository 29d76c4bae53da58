"""A store behind a bad network: an HTTP proxy, in a thread of its own, that does to requests what a test says.

    with FaultyProxy("http://127.0.0.1:9000") as proxy:
        proxy.rules = [Rule(Refused(503, "SlowDown", retry_after_s=1), method="PUT")]   # the first that applies
        proxy.rules = []                                                                # all is well again

A rule applies to requests that arrive from then on. Requests are forwarded as they are, so that their signatures
hold, each by a connection of its own; the client's connections are kept alive. Bodies are in memory as a whole.
"""

import asyncio
import struct
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

_END_OF_HEAD = b"\r\n\r\n"
_MAX_HEAD_BYTES = 64 * 1024

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Refused:
    """Answered with an error of S3, without asking the store."""

    status: int
    code: str
    retry_after_s: int | None = None


@dataclass(slots=True, frozen=True)
class Unanswered:
    """A request that is neither read further nor answered; the connection stays open."""


@dataclass(slots=True, frozen=True)
class Reset:
    """The connection is reset."""


@dataclass(slots=True, frozen=True)
class Delayed:
    """Forwarded after so many seconds."""

    delay_s: float


@dataclass(slots=True, frozen=True)
class Truncated:
    """The body of the answer ends after so many bytes, and the connection with it."""

    size_bytes: int


@dataclass(slots=True, frozen=True)
class WrongRange:
    """The answer says that it is of another range of the object."""


@dataclass(slots=True, frozen=True)
class RangeIgnored:
    """The answer has status 200 and says of no range, as from a server that knows none."""


@dataclass(slots=True, frozen=True)
class Unmeasured:
    """The answer comes in chunks, without its length."""


@dataclass(slots=True, frozen=True)
class AnswerFlipped:
    """One bit in the middle of the answer's body is another one."""


@dataclass(slots=True, frozen=True)
class RequestFlipped:
    """One bit in the middle of the request's body is another one."""


Effect = (
    Refused | Unanswered | Reset | Delayed | Truncated | WrongRange | RangeIgnored | Unmeasured
    | AnswerFlipped | RequestFlipped
)  # fmt: skip


@dataclass(slots=True, frozen=True, kw_only=True)
class Request:
    """The first line of a request; the target is decoded."""

    method: str
    target: str


@dataclass(slots=True, frozen=True)
class Rule:
    """A fault, and the requests to which it applies."""

    effect: Effect
    #: One of these, separated by spaces; empty: any.
    method: str = ""
    #: A part of the target: of bucket, key or parameters.
    part: str = ""

    def applies(self, request: Request) -> bool:
        return (not self.method or request.method in self.method.split()) and self.part in request.target


class FaultyProxy:
    """An HTTP proxy that injects faults. `rules` and `requests` may be used from any thread."""

    def __init__(self, target: str) -> None:
        url = urlsplit(target)
        assert url.hostname is not None
        assert url.port is not None
        self._target = url.hostname, url.port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Replaced as a whole.
        self.rules: Sequence[Rule] = ()
        #: All requests so far, with what was done to them.
        self.requests: list[tuple[Request, Effect | None]] = []
        self.endpoint = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(
            asyncio.start_server(self._on_connected, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        )
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: "Coroutine[Any, Any, T]") -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def count(self, method: str, part: str = "") -> int:
        """The number of such requests that have arrived."""
        return sum(it.method == method and part in it.target for it, _ in list(self.requests))

    # -- connections -------------------------------------------------------------------------------

    async def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._exchange(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False: the connection is over."""
        head = await reader.readuntil(_END_OF_HEAD)
        line, headers = _parse(head)
        method, target, _ = line.split(" ")
        request = Request(method=method, target=unquote(target))
        effect = next((rule.effect for rule in self.rules if rule.applies(request)), None)
        self.requests.append((request, effect))
        match effect:
            case Unanswered():
                await asyncio.Event().wait()
            case Reset():
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, linger)
                return False
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, headers)
        if isinstance(effect, Refused):
            writer.write(_refusal(effect, is_head=method == "HEAD"))
            await writer.drain()
            return True
        if isinstance(effect, Delayed):
            await asyncio.sleep(effect.delay_s)
        if isinstance(effect, RequestFlipped):
            body = _flipped(body)
        answer = await self._forward(head, body)
        return await _send(writer, answer, effect)

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        """The store's whole answer."""
        lines = [
            line for line in head.removesuffix(_END_OF_HEAD).split(b"\r\n")
            if not line.lower().startswith((b"connection:", b"expect:"))
        ]  # fmt: skip
        reader, writer = await asyncio.open_connection(*self._target)
        try:
            writer.write(b"\r\n".join([*lines, b"Connection: close"]) + _END_OF_HEAD + body)
            return await reader.read(-1)
        finally:
            writer.transport.abort()


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    line, *rows = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (row.partition(":") for row in rows)
    return line, {name.lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body, in chunks if it came in chunks."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        body += line + await reader.readexactly(size + 2)
        if not size:
            return body


def _refusal(effect: Refused, *, is_head: bool) -> bytes:
    body = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>by the test</Message></Error>" % (
        effect.code.encode()
    )
    lines = [
        f"HTTP/1.1 {effect.status} {HTTPStatus(effect.status).phrase}",
        "Content-Type: application/xml",
        f"Content-Length: {len(body)}",
    ]
    if effect.retry_after_s is not None:
        lines.append(f"Retry-After: {effect.retry_after_s}")
    return "\r\n".join(lines).encode() + _END_OF_HEAD + (b"" if is_head else body)


async def _send(writer: asyncio.StreamWriter, answer: bytes, effect: Effect | None) -> bool:
    """Send the answer, changed; False: the connection is over."""
    head, _, body = answer.partition(_END_OF_HEAD)
    first, *rows = [row for row in head.split(b"\r\n") if not row.lower().startswith(b"connection:")]
    goes_on = True
    match effect:
        case Truncated(size_bytes):
            body, goes_on = body[:size_bytes], False
        case AnswerFlipped():
            body = _flipped(body)
        case WrongRange():
            rows = [row.replace(b"bytes ", b"bytes 1") if _is_range(row) else row for row in rows]
        case Unmeasured():
            rows = [row for row in rows if not row.lower().startswith(b"content-length:")]
            rows.append(b"Transfer-Encoding: chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        case RangeIgnored():
            rows = [row for row in rows if not _is_range(row)]
            first = first.replace(b"206 Partial Content", b"200 OK")
    writer.write(b"\r\n".join([first, *rows]) + _END_OF_HEAD)
    writer.write(body)
    await writer.drain()
    if not goes_on:
        writer.close()
        await writer.wait_closed()
    return goes_on


def _is_range(row: bytes) -> bool:
    return row.lower().startswith(b"content-range:")


def _flipped(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else body
