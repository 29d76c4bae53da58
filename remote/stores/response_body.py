"""ResponseBody: the body of a GET, as a RemoteStream."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from remote.errors import RetriableRemoteStorageError


class Response(Protocol):
    """What both clients' responses have."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; empty at the end, also where the connection broke."""

    def close(self) -> None:
        """Close the connection, unless it was read to the end."""


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
        if self._response is None or not wanted:
            return b""
        with self._errors(self._key):
            data = self._response.read(wanted)
        if not data:
            raise RetriableRemoteStorageError(f"{self._key}: the body ended {self._left} bytes early")
        self._left -= len(data)
        return data

    def close(self) -> None:
        """See RemoteStream."""
        if self._response is not None:
            self._response.close()
