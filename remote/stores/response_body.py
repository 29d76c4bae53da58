"""ResponseBody: the body of a GET, as a RemoteStream."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import urllib3

from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError

#: More than one read of a socket returns, and little enough that the allocator uses the same memory again.
_PIECE_BYTES: Final = 256 * 1024


class Response(Protocol):
    """What both clients' responses have."""

    def read(self, size: int, /) -> bytes:
        """`size` bytes, or what remains; empty at the end, also where the connection broke."""

    def read1(self, size: int, /) -> bytes:
        """Up to `size` bytes, as soon as there are some; empty as above."""

    def close(self) -> None:
        """Close the connection, unless it was read to the end."""


class PooledResponse:
    """A response of urllib3, whose connection is used again if it was read to the end, else closed."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def read(self, size: int, /) -> bytes:
        """See Response."""
        return self._response.read(size, decode_content=False)

    def read1(self, size: int, /) -> bytes:
        """See Response."""
        return self._response.read1(size, decode_content=False)

    def close(self) -> None:
        """See Response."""
        if self._response.length_remaining != 0:  # None: the store has not said how long it is
            self._response.close()
        self._response.release_conn()


def unmeasured(key: str) -> RemoteStorageError:
    """The error of a body without Content-Length, as from a proxy that compresses it: its end would not be known."""
    return RemoteStorageError(
        f"{key}: the answer has no Content-Length: no proxy between broker and store may change bodies"
    )


class ResponseBody:
    """The next `size_bytes` of a response; a body that ends early is a retriable error, not the end.

    `errors(key)` is a context manager that translates the client's errors.
    """

    def __init__(
        self,
        key: str,
        response: Response | None,
        size_bytes: int,
        errors: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._key = key
        self._response = response
        self._left = size_bytes
        self._errors = errors

    def read(self, size: int = -1, /) -> bytes:
        """See RemoteStream."""
        wanted = self._left if size < 0 else min(size, self._left)
        return b"" if self._response is None else self._next(self._response.read, wanted)

    def readinto1(self, buffer: memoryview, /) -> int:
        """See `ottla.remote.storage_manager.filling`."""
        if self._response is None:
            return 0
        data = self._next(self._response.read1, min(len(buffer), self._left, _PIECE_BYTES))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, read: Callable[[int], bytes], wanted: int) -> bytes:
        if not wanted:
            return b""
        with self._errors(self._key):
            data = read(wanted)
        if not data:
            raise RetriableRemoteStorageError(f"{self._key}: the body ended {self._left} bytes early")
        self._left -= len(data)
        return data

    def close(self) -> None:
        """See RemoteStream."""
        if self._response is not None:
            self._response.close()
