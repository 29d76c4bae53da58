"""Delayed response: a delayed operation whose completion is the response to a request.

    try_complete_else_watch --the condition holds--> the response, at once
                            --else-----------------> watch
    watch                   -----------------------> a future of the response

A cancelled future cancels the operation. Delayed Produce and DeleteRecords (`broker.replicas.delayed_produce`), delayed
Fetch (`broker.reads.delayed_fetch`), and JoinGroup and SyncGroup requests that wait for other members
(`broker.groups.delayed_join`) are such operations.

Source: DelayedOperationPurgatory.tryCompleteElseWatch, and the response callbacks of Kafka's delayed operations.
"""

from abc import abstractmethod
from asyncio import AbstractEventLoop, Future
from typing import Generic, TypeVar

from broker.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory

T = TypeVar("T")


class DelayedResponse(DelayedOperation, Generic[T]):
    """See the module."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._future: Future[T] | None = None

    @abstractmethod
    def respond(self) -> T:
        """The response; called once. An exception is raised where the future is awaited."""

    def try_complete_else_watch(
        self, purgatory: DelayedOperationPurgatory, *, timeout_ms: int
    ) -> "T | Future[T]":
        """The response if the condition holds already; else a future of it.

        It checks before it waits: a signal that was sent earlier is not repeated, and the request may have waited for
        a thread since the condition was last checked.
        """
        if self.can_complete():
            self.is_done = True
            return self.respond()
        return self.watch(purgatory, timeout_ms=timeout_ms)

    def watch(self, purgatory: DelayedOperationPurgatory, *, timeout_ms: int) -> "Future[T]":
        """A future of the response. Precondition: that of `DelayedOperationPurgatory.watch`."""
        future = self.create_future()
        purgatory.watch(self, timeout_ms=timeout_ms)
        return future

    def create_future(self) -> "Future[T]":
        """The future that `on_complete` sets."""
        assert self._future is None, "a response is awaited by one future"
        self._future = future = self._loop.create_future()
        # The connection may close before the deadline; a request may ask to wait for weeks.
        future.add_done_callback(self._on_future_done)
        return future

    def on_complete(self) -> None:
        """Set the future's result, unless it was cancelled in this turn of the loop."""
        future = self._future
        assert future is not None
        if future.done():
            return
        try:
            future.set_result(self.respond())
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)

    def _on_future_done(self, future: "Future[T]") -> None:
        self.cancel()
