"""ResponseBody: the body of a GET, as a RemoteStream."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import urllib3

from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError

#: The most bytes of one read: more than a socket returns at once, and few enough that the allocator uses the
#: same memory again.
_PIECE_BYTES: Final = 256 * 1024


class Response(Protocol):
    """The reads that the responses of both clients have, boto3's and minio's."""

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, or the rest; empty at the end, also where the connection broke."""

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes, as soon as there are some; empty at the end, also where the connection broke."""

    def close(self) -> None:
        """Close the connection, unless it was read to the end."""


class PooledResponse:
    """A response of urllib3, whose connection is used again if it was read to the end, else closed."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, or the rest; empty at the end, also where the connection broke."""
        return self._response.read(size, decode_content=False)

    def read1(self, size: int, /) -> bytes:
        """Return up to `size` bytes, as soon as there are some; empty at the end, also where the connection broke."""
        return self._response.read1(size, decode_content=False)

    def close(self) -> None:
        """Return the connection to the pool if the response was read to its end, else close it."""
        if self._response.length_remaining != 0:  # None: the store has not said how long it is
            self._response.close()
        self._response.release_conn()


def unmeasured(key: str) -> RemoteStorageError:
    """Return the error of a body without Content-Length, as from a proxy that compresses it: its end is not known."""
    return RemoteStorageError(
        f"{key}: the answer has no Content-Length: no proxy between broker and store may change bodies"
    )


class ResponseBody:
    """A stream of the next `size_bytes` of a response; a body that ends early is a retriable error, not the end.

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
        """Return up to `size` bytes, or all that remain; empty at the end only. Raises RemoteStorageError."""
        wanted = self._left if size < 0 else min(size, self._left)
        return b"" if self._response is None else self._next(self._response.read, wanted)

    def readinto1(self, buffer: memoryview, /) -> int:
        """Read into the buffer; return the number of bytes, 0 at the end only. Raises RemoteStorageError."""
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
        """Release the connection, also before the end."""
        if self._response is not None:
            self._response.close()
