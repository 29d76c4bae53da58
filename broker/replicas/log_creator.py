"""Log creation for new partitions, in parts, so that the event loop stays responsive: a topic may have thousands.

    wanted --few, and no creation is running--> created at once
    wanted --else--> waiting --> planned --in a thread, a few at a time--> ready --in turns--> gets its role
                            '--> existing, as at a start ------------------^
    planned --no descriptor is free--> later --after `DESCRIPTORS_RETRY_S`--> waiting
    any    --the topic is deleted, or the replica is moved away--> cancelled, without notification

Deleted logs are put aside here, a few at once and more in turns of the loop, before the next logs are created.
Until its log exists, a partition has no role and its requests fail with NOT_LEADER_OR_FOLLOWER. Kafka's brokers create
logs in the thread that applies the metadata (LogManager.getOrCreateLog), with the same effect for clients.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ottla.protocol.errors import KafkaError, KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.runtime import Pool, Runtime
from ottla.runtime.turns import in_turns
from ottla.storage.log import Log
from ottla.storage.log_availability import DESCRIPTORS_RETRY_S, TooManyOpenFiles
from ottla.storage.manager.log_creation import LogCreation, NewLog, PlannedLog
from ottla.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

#: Up to this many logs are created on the loop, at 0.2 ms each: a small topic is usable as soon as it is created. The
#: same number of deleted logs is put aside on the loop, at 0.1 ms each.
_AT_ONCE: Final = 16
#: Logs that one call of a thread creates.
_PART: Final = 32
#: How many partitions get their roles in one step of a turn, at up to 0.2 ms each.
_STEP: Final = 4

#: A partition's log, or why it has none.
CreatedLog = tuple[TopicPartition, Log | KafkaError]


class LogCreator:
    """Creates the logs of new partitions, in parts, and removes deleted logs first.

    Everything belongs to the loop's thread.
    """

    def __init__(
        self, runtime: Runtime, logs: LogManager, *, on_created: Callable[[Sequence[CreatedLog]], None]
    ) -> None:
        """`on_created` is called once for each log that was requested and not cancelled."""
        self._runtime = runtime
        self._logs = logs
        self._on_created = on_created
        self._waiting: dict[TopicPartition, NewLog] = {}
        #: Partitions of the running creation for which `on_created` has not been called yet.
        self._planned: set[TopicPartition] = set()
        #: The creation that the task carries out.
        self._creation: LogCreation | None = None
        #: Logs that exist, or errors, for which `on_created` is called next: at most one for each planned partition.
        self._ready: deque[CreatedLog] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        #: Partitions for whose logs no descriptor was free.
        self._later: dict[TopicPartition, NewLog] = {}

    @property
    def _is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def is_wanted(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition's log is waiting to be created, or being created."""
        at = topic_partition
        return at in self._waiting or at in self._planned or at in self._later

    def create(self, wanted: Sequence[NewLog]) -> None:
        """Create the logs, or find existing ones; put deleted ones aside first.

        Up to 16 logs are ready before this returns, unless a creation is running or many logs are deleted.
        """
        if self._is_stopped:
            return  # the node still follows the metadata, but the LogManager may be closing the logs in a thread
        if self._is_busy or self._logs.deleted_count > _AT_ONCE:
            # In order: a deleted topic's logs are put aside before those of a new topic with its name are created.
            self._waiting.update({new.topic_partition: new for new in wanted})
            if not self._is_busy:
                self._begin()
            return
        for _ in self._logs.rename_deleted(self._runtime.now_ms()):
            pass
        if wanted:
            creation = self._plan(wanted)
            if len(wanted) > _AT_ONCE:
                self._begin()
                return
            part = creation.next_part(_AT_ONCE)
            creation.run(part)
            self._finish(creation, part)
            for _ in self._hand_over():
                pass

    def cancel(self, topic_partition: TopicPartition) -> None:
        """The partition is not hosted any more. The caller deletes its log, which is not created again."""
        self._waiting.pop(topic_partition, None)
        self._later.pop(topic_partition, None)
        self._planned.discard(topic_partition)

    async def idle(self) -> None:
        """Wait until no log is left to be created."""
        while self._task is not None and self._is_busy:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Stop creating logs and renaming strays, also in `create`; returns when no thread creates one."""
        self._is_stopped = True
        self._waiting.clear()
        self._later.clear()
        self._ready.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _begin(self) -> None:
        self._task = self._runtime.supervise(self._work, name="log-creator")

    def _plan(self, wanted: Sequence[NewLog]) -> LogCreation:
        self._planned = {new.topic_partition for new in wanted}
        self._creation = creation = self._logs.creation(wanted, now_ms=self._runtime.now_ms())
        self._ready.extend((*creation.logs.items(), *creation.errors.items()))
        return creation

    async def _work(self) -> None:
        while True:
            await in_turns(self._runtime, self._logs.rename_deleted(self._runtime.now_ms()))
            # What a run that has failed has left: before logs are planned again.
            await in_turns(self._runtime, self._hand_over())
            if (creation := self._next_creation()) is None:
                return
            await self._carry_out(creation)

    def _next_creation(self) -> LogCreation | None:
        """The rest of the running creation, else a new one of all logs requested since."""
        if self._creation is None or not self._creation.planned_count:
            wanted, self._waiting = list(self._waiting.values()), {}
            self._creation = self._plan(wanted) if wanted else None
        return self._creation

    async def _carry_out(self, creation: LogCreation) -> None:
        while True:
            await in_turns(self._runtime, self._hand_over())
            if not (part := creation.next_part(_PART)):
                return
            running = asyncio.ensure_future(self._runtime.run_blocking(creation.run, part, pool=Pool.LOGS))
            try:
                # A running thread cannot be stopped, and the caller of `stop` relies on its end.
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
        """The thread has failed with a bug, not an I/O error: the next run plans its missing logs again."""
        creation.finish(part)
        for new, _ in part:
            at = new.topic_partition
            if at in creation.logs:
                self._ready.append((at, creation.logs[at]))
            elif at in self._planned:
                self._planned.discard(at)
                self._waiting[at] = new

    def _finish(self, creation: LogCreation, part: Sequence[PlannedLog]) -> None:
        creation.finish(part)
        for new, _ in part:
            at = new.topic_partition
            error = creation.errors.get(at)
            if isinstance(error, TooManyOpenFiles) and at in self._planned:
                self._planned.discard(at)
                self._want_later(new, error)
            else:
                self._ready.append((at, creation.logs.get(at) or creation.errors[at]))

    def _want_later(self, new: NewLog, error: TooManyOpenFiles) -> None:
        """Create the log after DESCRIPTORS_RETRY_S, as no file descriptor is free.

        Clients of the partition are refused meanwhile (NOT_LEADER_OR_FOLLOWER), and try again, too.
        """
        if not self._later:
            logger.warning(
                "%s has no log yet, and others may have none either: %s", new.topic_partition, error
            )
            self._runtime.call_later(DESCRIPTORS_RETRY_S, self._retry)
        self._later[new.topic_partition] = new

    def _retry(self) -> None:
        self._waiting.update(self._later)
        self._later = {}
        if self._waiting and not self._is_busy and not self._is_stopped:
            self._begin()

    def _hand_over(self) -> Iterator[None]:
        """Call `on_created` for the logs that are ready, a few in each step."""
        while self._ready:
            some = [self._ready.popleft() for _ in range(min(_STEP, len(self._ready)))]
            wanted = [(at, self._present(at, result)) for at, result in some if at in self._planned]
            self._planned.difference_update(at for at, _ in wanted)
            if wanted:
                self._on_created(wanted)
            yield

    def _present(self, topic_partition: TopicPartition, result: Log | KafkaError) -> Log | KafkaError:
        """The result as of now: the log's directory may have failed since the log was created or found."""
        assert isinstance(result, KafkaError) or result.topic_partition == topic_partition, topic_partition
        if isinstance(result, KafkaError) or self._logs.get(topic_partition) is result:
            return result
        return KafkaStorageError(f"The log directory of {result.directory} is offline")
