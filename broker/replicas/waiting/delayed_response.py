"""Delayed response: a delayed operation whose completion is the response to a request.

    try_complete_else_watch --the condition holds--> the response, at once
                            --else-----------------> watch
    watch                   -----------------------> the operation itself: an awaitable of the response
    waiting --completed--> has a response, or an error --> the receiver is called
            --cancel-----> has neither                 --> the receiver is called

The receiver, which is the connection of the request (`add_done_callback`), is called by the completion
itself: the response is sent in the turn of the loop in which the condition is found to hold. The callback of
an asyncio future would run a turn later, and a turn is a system call and as much work as a small response.
What is called that way must neither dispatch a request nor complete another operation: it runs while the
purgatory checks the operations of a key. Code that is not written for that awaits the operation, or takes a
future of it (`as_future`), and continues in a later turn.

Such operations are delayed Produce and DeleteRecords (`ottla.broker.replicas.leading.delayed_produce`), delayed
Fetch (`ottla.broker.replicas.reading.delayed_fetch`), and JoinGroup and SyncGroup requests that wait for other
members (`ottla.broker.groups.delayed_join`).

Source: DelayedOperationPurgatory.tryCompleteElseWatch, and the response callbacks of Kafka's delayed operations,
which the thread that completes an operation calls, too.
"""

from abc import abstractmethod
from asyncio import AbstractEventLoop, CancelledError, Future
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from ottla.broker.replicas.waiting.delayed_operation import DelayedOperation, DelayedOperationPurgatory

T = TypeVar("T")


class DelayedResponse(DelayedOperation, Generic[T]):
    """A delayed operation that yields the response to a request: awaited, or received by one callback."""

    __slots__ = ("_error", "_is_cancelled", "_loop", "_receiver", "_result")

    #: Set before the receiver is called, unless `_error` is or the operation is cancelled.
    _result: T

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._receiver: Callable[[DelayedResponse[T]], object] | None = None
        self._error: Exception | None = None
        self._is_cancelled = False

    @abstractmethod
    def respond(self) -> T:
        """The response; called once. An exception is raised where the operation is awaited."""

    def try_complete_else_watch(
        self, purgatory: DelayedOperationPurgatory, *, timeout_ms: int
    ) -> "T | DelayedResponse[T]":
        """The response if the condition holds already; else this operation, which waits.

        It checks before it waits: a signal that was sent earlier is not repeated, and the request may have waited for
        a thread since the condition was last checked.
        """
        if self.can_complete():
            self.is_done = True
            return self.respond()
        return self.watch(purgatory, timeout_ms=timeout_ms)

    def watch(self, purgatory: DelayedOperationPurgatory, *, timeout_ms: int) -> "DelayedResponse[T]":
        """Begin to wait, and return this operation. Precondition: that of `DelayedOperationPurgatory.watch`."""
        purgatory.watch(self, timeout_ms=timeout_ms)
        return self

    # -- for the receiver --------------------------------------------------------------------------

    def add_done_callback(self, receiver: Callable[["DelayedResponse[T]"], object], /) -> None:
        """Call `receiver(self)` when this operation is completed or cancelled; once, and not within this call."""
        assert self._receiver is None, "a response has one receiver"
        if self.is_done:
            self._loop.call_soon(receiver, self)
        else:
            self._receiver = receiver

    def result(self) -> T:
        """The response. Raises CancelledError, or what `respond` has raised. Precondition: `is_done`."""
        assert self.is_done, "a response has no result yet"
        if self._is_cancelled:
            raise CancelledError
        if self._error is not None:
            raise self._error
        return self._result

    def as_future(self) -> "Future[T]":
        """A future of the response, whose callbacks run in a later turn; cancelled, it cancels this operation."""
        future: Future[T] = self._loop.create_future()
        # The connection may close before the deadline; a request may ask to wait for weeks.
        future.add_done_callback(self._on_future_done)
        self.add_done_callback(partial(_pass_on, future))
        return future

    def __await__(self) -> Generator[Any, None, T]:
        return self.as_future().__await__()

    # -- called by the operation -------------------------------------------------------------------

    def on_complete(self) -> None:
        """Call the receiver with the response."""
        try:
            self._result = self.respond()
        except Exception as error:  # noqa: BLE001 - raised where the response is awaited
            self._error = error
        self._call_receiver()

    def cancel(self) -> None:
        """End the operation without a response, which is not awaited any more, and call the receiver."""
        if not self.is_done:
            self._is_cancelled = True
            super().cancel()
            self._call_receiver()

    def _call_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            try:
                receiver(self)
            except Exception as error:  # noqa: BLE001 - a bug of the receiver does not stop the operations behind it
                self._loop.call_exception_handler(
                    {"message": f"the receiver of a delayed {self.kind} failed", "exception": error}
                )

    def _on_future_done(self, future: "Future[T]") -> None:
        self.cancel()


def _pass_on(future: "Future[T]", operation: DelayedResponse[T]) -> None:
    """Complete the future as the operation was."""
    if future.done():
        return  # cancelled in this turn of the loop
    try:
        result = operation.result()
    except CancelledError:
        future.cancel()
    except Exception as error:  # noqa: BLE001 - raised where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
