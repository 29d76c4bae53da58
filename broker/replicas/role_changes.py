"""Role changes of hosted partitions, in parts, so that the event loop stays responsive: a delta may have thousands.

    changed --few, and none is pending--> applied at once
    changed --else--> pending --in turns of the loop, in the order of the changes--> applied

A step applies the image as it is then: of several changes of a partition that is pending, only the last one
takes effect, as after a snapshot of the metadata log. Until then the partition has its previous role, as on a
broker that has not read the metadata log so far, and that is the offset which this broker reports to the
controller (`applied_offset`).

Kafka's brokers apply a delta in the thread that loads the metadata (ReplicaManager.applyDelta), with the same effect.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ottla.broker.replicas.partition import Partition
from ottla.runtime import Runtime
from ottla.runtime.turns import in_turns

logger = logging.getLogger(__name__)

#: Up to this many steps are made at once. A new leader takes 0.2 ms, most of it for its leader-epoch-checkpoint.
_AT_ONCE: Final = 16

Step = Callable[[Partition], None]


class RoleChanges:
    """Applies role changes to hosted partitions: a few at once, many in turns of the event loop.

    Belongs to the loop's thread.
    """

    def __init__(self, runtime: Runtime, *, last_offset: Callable[[], int]) -> None:
        """`last_offset` returns the last offset of the image."""
        self._runtime = runtime
        self._last_offset = last_offset
        #: In this order; at most one of each step for each partition.
        self._pending: dict[tuple[Step, Partition], None] = {}
        #: The last offset of the image that has no pending steps.
        self._applied_offset = -1
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        #: Called with the reason when a step fails because of a bug: the partition's state is not the log's.
        self.on_failure: Callable[[str], None] = lambda why: None

    @property
    def applied_offset(self) -> int:
        """The last offset of the metadata log up to which all partitions have their roles."""
        return self._applied_offset if self._is_busy else self._last_offset()

    @property
    def _is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def add(self, step: Step, partitions: Iterable[Partition]) -> None:
        """Make this step for each of the partitions, after those that are pending."""
        for partition in partitions:
            self._pending[step, partition] = None

    def begin(self) -> None:
        """All steps of the present image are added: make them, unless others are being made."""
        if self._is_busy:
            return
        if len(self._pending) > _AT_ONCE and not self._is_stopped:
            self._task = self._runtime.create_task(self._work(), name="role-changes")
            return
        for _ in self._steps():
            pass
        self._on_applied()

    async def idle(self) -> None:
        """Wait until no step is pending."""
        while self._task is not None and self._is_busy:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Make the rest, and all later ones at once: the partitions follow the metadata until their logs are closed."""
        self._is_stopped = True
        await self.idle()

    async def _work(self) -> None:
        try:
            await in_turns(self._runtime, self._steps(), goes_first=True)
            self._on_applied()
        except Exception as error:
            logger.exception("The metadata log cannot be applied")
            self.on_failure(f"The metadata log cannot be applied to a partition: {error!r}.")

    def _on_applied(self) -> None:
        """No step is pending. Invariant: the offset that is reported to the controller never goes back."""
        applied_offset = self._last_offset()
        assert applied_offset >= self._applied_offset, (applied_offset, self._applied_offset)
        self._applied_offset = applied_offset

    def _steps(self) -> Iterator[None]:
        while self._pending:
            step, partition = next(iter(self._pending))
            del self._pending[step, partition]
            if not partition.is_deleted:  # nor is its log directory offline, since it was added
                step(partition)
            yield
