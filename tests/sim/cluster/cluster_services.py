"""Services that fail: an unexpected exception comes from what a background task waits for."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Injected(Exception):
    """The exception with which services are made to fail."""


class Interruptible:
    """A coroutine that can be made to raise where it waits."""

    __slots__ = ("_coroutine", "_failure", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._failure: Injected | None = None
        self._task: asyncio.Task[Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._task is not None and not self._task.done() and self._coroutine.cr_frame is not None

    def fail(self, error: Injected) -> None:
        """Let what it waits for raise this."""
        assert self.is_running
        assert self._task is not None
        self._failure = error
        self._task.cancel()

    def __await__(self) -> Generator[Any, Any, None]:
        self._task = asyncio.current_task()
        error: BaseException | None = None
        while True:
            try:
                awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration:
                return
            error = None
            try:
                yield awaited
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001 (the coroutine's to handle)
                error = self._instead_of(raised)

    def _instead_of(self, raised: BaseException) -> BaseException:
        if self._failure is None or not isinstance(raised, asyncio.CancelledError):
            return raised
        assert self._task is not None
        self._task.uncancel()
        failure, self._failure = self._failure, None
        return failure
