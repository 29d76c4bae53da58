"""Making the logs of new partitions while the loop serves others: a topic may have thousands.

    wanted --few, and nobody waits--> made at once
    wanted --else--> waiting --its turn--> planned --in a thread, a few at a time--> made: it gets its role
    any    --the topic is deleted, or the replica goes elsewhere--> given up; nobody is told

A partition has no role, and requests are told to look elsewhere, until its log is there. Kafka's brokers make logs in
the thread that follows the metadata, with the same effect for clients.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from broker.runtime import Pool, Runtime
from protocol.errors import KafkaError
from protocol.types import TopicPartition
from storage.log import Log
from storage.log_creation import LogCreation, NewLog, PlannedLog
from storage.log_manager import LogManager

#: So many are made on the loop, at 0.2 ms each: who creates a small topic finds it there at once.
_AT_ONCE: Final = 16
#: Logs that one call of a thread makes; then they get their roles.
_PART: Final = 32

#: A partition's log, or why it has none.
Made = tuple[TopicPartition, Log | KafkaError]


class LogMaking:
    """See the module. Everything belongs to the loop's thread."""

    def __init__(
        self, runtime: Runtime, logs: LogManager, *, on_made: Callable[[Sequence[Made]], None]
    ) -> None:
        """`on_made` is told of each log that was asked for and not given up, once."""
        self._runtime = runtime
        self._logs = logs
        self._on_made = on_made
        self._waiting: dict[TopicPartition, NewLog] = {}
        #: Partitions of the creation that is under way, of which nobody has been told yet.
        self._planned: set[TopicPartition] = set()
        #: What the task works at.
        self._creation: LogCreation | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def _is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def is_wanted(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's log is on its way."""
        return topic_partition in self._waiting or topic_partition in self._planned

    def make(self, wanted: Sequence[NewLog]) -> None:
        """Make the logs, or find those that are there; the latter, and a few new ones, before this returns."""
        if self._is_busy:
            # In order: a deleted topic's logs are out of the way before those of the next one of its name are made.
            self._waiting.update({new.topic_partition: new for new in wanted})
        elif wanted:
            creation = self._plan(wanted)
            if creation.planned_count <= _AT_ONCE:
                part = creation.next_part(_AT_ONCE)
                creation.run(part)
                self._finish(creation, part)
            else:
                self._creation = creation
                self._task = self._runtime.supervise(self._work, name="log-making")

    def give_up(self, topic_partition: TopicPartition) -> None:
        """The partition is not this broker's any more; whoever says so deletes its log, which stays away then."""
        self._waiting.pop(topic_partition, None)
        self._planned.discard(topic_partition)

    async def idle(self) -> None:
        """Wait until nothing is left to be made."""
        while self._task is not None and self._is_busy:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Make no more; returns when no thread is busy with it."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _plan(self, wanted: Sequence[NewLog]) -> LogCreation:
        self._planned = {new.topic_partition for new in wanted}
        creation = self._logs.creation(wanted, now_ms=self._runtime.now_ms())
        self._tell([*creation.logs.items(), *creation.errors.items()])
        return creation

    async def _work(self) -> None:
        while (creation := self._next_creation()) is not None:
            await self._carry_out(creation)

    def _next_creation(self) -> LogCreation | None:
        """What is left of the one that is under way, or one of all that has come since."""
        if self._creation is None or not self._creation.planned_count:
            wanted, self._waiting = list(self._waiting.values()), {}
            self._creation = self._plan(wanted) if wanted else None
        return self._creation

    async def _carry_out(self, creation: LogCreation) -> None:
        while part := creation.next_part(_PART):
            running = asyncio.ensure_future(self._runtime.run_blocking(creation.run, part, pool=Pool.LOGS))
            try:
                # A thread cannot be stopped half way, and whoever stops us must know that it has ended.
                await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])
                creation.finish(part)
                raise
            except Exception:
                self._want_again(creation, part)
                raise
            self._finish(creation, part)

    def _want_again(self, creation: LogCreation, part: Sequence[PlannedLog]) -> None:
        """The thread has failed in a way that no disk does: what it has not made is planned again by the next run."""
        creation.finish(part)
        self._tell(
            [(at, creation.logs[at]) for new, _ in part if (at := new.topic_partition) in creation.logs]
        )
        for new, _ in part:
            if new.topic_partition in self._planned:
                self._planned.discard(new.topic_partition)
                self._waiting[new.topic_partition] = new

    def _finish(self, creation: LogCreation, part: Sequence[PlannedLog]) -> None:
        creation.finish(part)
        places = [new.topic_partition for new, _ in part]
        self._tell([(at, creation.logs.get(at) or creation.errors[at]) for at in places])

    def _tell(self, made: Sequence[Made]) -> None:
        told = [(at, result) for at, result in made if at in self._planned]
        self._planned.difference_update(at for at, _ in told)
        if told:
            self._on_made(told)
