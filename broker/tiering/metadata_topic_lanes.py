"""A lane to a leader: one request at a time, which has all that was asked for while the one before was under way.

    submit, submit, submit --> [request] --> responses --> submit ... --> [request]

So 50 partitions are read with one connection and one Fetch at a time, and concurrent appends to a partition become one
batch. A leader has three lanes, since requests on a connection wait for each other: appends, which wait for replicas;
long polls, which wait for records; and everything that is answered at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.remote.errors import RetriableRemoteStorageError
from ottla.runtime import Runtime

Asked = TypeVar("Asked")
Found = TypeVar("Found")


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class Entry(Generic[Asked, Found]):
    """A read or an append that a leader is asked for, and the future of its result."""

    partition: int
    asked: Asked
    done: "asyncio.Future[Found]"


class Lane(Generic[Asked, Found]):
    """Sends the requests of one kind to a leader, one at a time, each with all entries that have come in meanwhile.

    At most as many entries wait as there are readers and changes, since each waits for its result before the
    next one.
    """

    def __init__(
        self,
        runtime: Runtime,
        send: Callable[[Sequence[Entry[Asked, Found]]], Awaitable[None]],
        *,
        name: str,
        max_entries: int = 500,
    ) -> None:
        """Create the lane. `send` sets the result or the exception of each entry; an entry without either fails."""
        self._runtime = runtime
        self._send = send
        self._name = name
        self._max_entries = max_entries
        self._waiting: list[Entry[Asked, Found]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, partition: int, asked: Asked) -> Found:
        """Add an entry to the next request, and wait for its result. Raises the exception that `send` sets."""
        done: asyncio.Future[Found] = self._runtime.loop.create_future()
        self._waiting.append(Entry(partition=partition, asked=asked, done=done))
        if self._task is None or self._task.done():
            self._task = self._runtime.create_task(self._run(), name=self._name)
        return await done

    async def _run(self) -> None:
        while self._waiting:
            # A reader that got a response in this turn may ask again first: its next poll waits behind no other one.
            await asyncio.sleep(0)
            entries = self._waiting[: self._max_entries]
            del self._waiting[: self._max_entries]
            entries = [each for each in entries if not each.done.done()]  # its caller may have been cancelled
            if not entries:
                continue
            failure: Exception = RetriableRemoteStorageError(f"{self._name}: not in the leader's response")
            try:
                await self._send(entries)
            except asyncio.CancelledError:
                failure = RetriableRemoteStorageError(f"{self._name}: this broker stops")
                entries += self._waiting
                self._waiting = []
                raise
            except Exception as error:  # noqa: BLE001 (those who wait for it get it)
                failure = error
            finally:
                for each in entries:
                    if not each.done.done():
                        each.done.set_exception(failure)
