"""PartitionRemover: the steps of `ottla.remote.partition_deletion` for one partition, until it has no copies.

A step that fails is repeated after a back-off with jitter, without end: the records of the copies stay until
their objects are gone. While other partitions wait, one that has failed some times lets them go first. Calls
of the store run in threads, each with a deadline; one that is abandoned may still delete, which is wanted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from logging import DEBUG, WARNING, getLogger
from typing import Final, assert_never

from ottla.protocol.remote.records import RemoteLogSegmentState, RemotePartitionDeleteState
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.log_manager.backoff import backoff_ms
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.partition_deletion import DeleteCopies, LookFurther, PartitionDeletion, Wait, WriteState
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.runtime import Pool, Runtime

_LOG: Final = getLogger(__name__)

#: Returns the user partitions of a metadata partition, with the state of their deletion; None: this broker
#: does not lead it any more.
Overview = Callable[[], Mapping[TopicIdPartition, RemotePartitionDeleteState | None] | None]

#: The number of copies of the partition that are deleted at a time.
MAX_COPIES: Final = 5
#: The pause while the records of the copies are being read.
_READING_S: Final = 0.2
#: The longest pause: leaders change, and another remover may have finished.
_MAX_WAIT_S: Final = 30.0
#: The failures in a row after which a partition lets others go first; and after which a last leader gives up,
#: half an hour later.
_ATTEMPTS: Final = 5
_LAST_ATTEMPTS: Final = 60


class PartitionRemover:
    """Deletes all copies of a partition whose topic is deleted, step by step. Belongs to the event loop."""

    def __init__(
        self,
        *,
        node_id: int,
        runtime: Runtime,
        metadata: TopicBasedRemoteLogMetadataManager,
        store: RemoteStorageManager,
        settings: Callable[[], RemoteLogManagerSettings],
        metrics: RemoteStorageMetrics,
        on_deleted: Callable[[RemoteLogSegmentMetadata], None] = lambda _: None,
    ) -> None:
        """Create the remover; `on_deleted` is called for each copy whose objects are deleted."""
        self._on_deleted = on_deleted
        self._node_id = node_id
        self._runtime = runtime
        self._metadata = metadata
        self._store = store
        self._settings = settings
        self._metrics = metrics
        #: The partitions that only wait until their copies are not written any more
        #: (`ottla.remote.partition_deletion`).
        self.waiting: set[TopicIdPartition] = set()

    async def run(
        self,
        partition: TopicIdPartition,
        overview: Overview,
        *,
        failures: int = 0,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> int:
        """Take steps until the partition has no copies; return the number of failures in a row.

        Returns 0 when the partition has no copies, or when the overview is another broker's. `failures` is
        the number that the run before has returned. While `others_wait`, the run ends after some failures.
        """
        deletion = PartitionDeletion(unfinished_ms=self._settings().transfer_deadline_ms)
        try:
            while (partitions := overview()) is not None:
                if partition not in partitions:
                    _LOG.info("%s: all copies in the remote tier are deleted", partition)
                    return 0
                pause_s = await self._try_step(partition, partitions[partition], deletion, failures)
                if pause_s is not None:
                    failures = 0
                    await asyncio.sleep(pause_s)
                    continue
                failures += 1
                if failures % _ATTEMPTS == 0 and others_wait():
                    return failures
            return 0
        finally:
            self.waiting.discard(partition)
            self._metadata.on_stop_partitions([partition])

    async def run_as_last_leader(self, partition: TopicIdPartition, permits: asyncio.Semaphore) -> None:
        """Delete the copies of a partition that this broker led when its topic was deleted, as Kafka's brokers do.

        For partitions whose metadata are led by a broker of Kafka, which removes nothing. Where a remover has
        begun, it is left alone. No state of the deletion is stored. Gives up after some attempts: objects may
        be left (`ottla tier orphans`). `permits` bounds the last leaders that do not wait.
        """
        deletion = PartitionDeletion(unfinished_ms=self._settings().transfer_deadline_ms)
        failures = 0
        try:
            while failures < _LAST_ATTEMPTS and not self._metadata.is_being_deleted(partition):
                state = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
                async with permits:
                    pause_s = await self._try_step(
                        partition, state, deletion, failures, is_state_stored=False
                    )
                if pause_s is None:
                    failures += 1
                elif self._is_empty(partition):
                    return
                else:
                    failures = 0
                    await asyncio.sleep(pause_s)
        finally:
            self.waiting.discard(partition)
            self._metadata.on_stop_partitions([partition])

    def _is_empty(self, partition: TopicIdPartition) -> bool:
        return self._metadata.is_ready(partition) and not len(self._metadata.copies(partition))

    async def _try_step(
        self,
        partition: TopicIdPartition,
        state: RemotePartitionDeleteState | None,
        deletion: PartitionDeletion,
        failures: int,
        *,
        is_state_stored: bool = True,
    ) -> float | None:
        """Take the next step, and return the pause before the one after it, in seconds.

        None, after a back-off, if the step has failed.
        """
        try:
            return await self._step(partition, state, deletion, is_state_stored=is_state_stored)
        except Exception as error:  # noqa: BLE001 (whatever a plugin raises: the step is repeated)
            _LOG.log(
                WARNING if failures == 0 else DEBUG,
                "%s: its topic is deleted, its copies in the remote tier cannot be, attempt %d: %s",
                partition, failures + 1, error,
            )  # fmt: skip
            await asyncio.sleep(backoff_ms(failures + 1, self._settings(), self._runtime.random) / 1000)
            return None

    async def _step(
        self,
        partition: TopicIdPartition,
        state: RemotePartitionDeleteState | None,
        deletion: PartitionDeletion,
        *,
        is_state_stored: bool,
    ) -> float:
        """Take the next step, and return the pause before the one after it, in seconds."""
        # Each time: the removal of this broker's own replica, now or later, ends the assignment.
        self._metadata.on_partition_leadership_changes(leaders=[], followers=[partition])
        if not self._metadata.is_ready(partition):
            await asyncio.sleep(_READING_S)
            return 0
        step = deletion.next_step(state, self._metadata.copies(partition), now_ms=self._now_ms())
        if isinstance(step, Wait):
            self.waiting.add(partition)
            return min(max((step.until_ms - self._now_ms()) / 1000, 0), _MAX_WAIT_S)
        self.waiting.discard(partition)
        if not isinstance(step, WriteState) or is_state_stored:
            await self._carry_out(step, partition, deletion)
        return 0

    async def _carry_out(
        self,
        step: WriteState | DeleteCopies | LookFurther,
        partition: TopicIdPartition,
        deletion: PartitionDeletion,
    ) -> None:
        match step:
            case WriteState():
                await self._metadata.put_remote_partition_delete_metadata(
                    RemotePartitionDeleteMetadata(
                        partition=partition,
                        state=step.state,
                        broker_id=self._node_id,
                        event_timestamp_ms=self._runtime.now_ms(),
                    )
                )
            case DeleteCopies():
                await _for_each(step.copies, self._delete)
                await _for_each(step.unfinished, self._remove_objects)
                deletion.on_removed(step.unfinished)
            case LookFurther():
                pass
            case _:
                assert_never(step)

    async def _delete(self, copy: RemoteLogSegmentMetadata) -> None:
        if copy.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            await self._update(copy, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        await self._remove_objects(copy)
        await self._update(copy, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)

    async def _update(self, copy: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        await self._metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                segment_id=copy.segment_id,
                state=state,
                broker_id=self._node_id,
                event_timestamp_ms=self._runtime.now_ms(),
                custom_metadata=copy.custom_metadata,
            )
        )

    async def _remove_objects(self, copy: RemoteLogSegmentMetadata) -> None:
        # Of all topics only: the counters of this one have ended with it.
        counters = self._metrics.all_topics
        counters.remote_delete_requests += 1
        deadline_ms = self._settings().transfer_deadline_ms
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._runtime.run_blocking(
                    self._store.delete_log_segment_data, copy, pool=Pool.REMOTE_DELETIONS
                )
        except TimeoutError:
            counters.remote_delete_errors += 1
            raise RetriableRemoteStorageError(
                f"{copy.segment_id} was not deleted within {deadline_ms} ms"
            ) from None
        except Exception:
            counters.remote_delete_errors += 1
            raise
        self._on_deleted(copy)

    def _now_ms(self) -> int:
        return int(self._runtime.monotonic() * 1000)


async def _for_each(
    copies: Sequence[RemoteLogSegmentMetadata],
    effect: Callable[[RemoteLogSegmentMetadata], Awaitable[None]],
) -> None:
    """Apply `effect` to the copies, a few at a time; a failure of one does not stop the others.

    Raises the first failure.
    """
    failures: list[BaseException] = []
    for start in range(0, len(copies), MAX_COPIES):
        some = copies[start : start + MAX_COPIES]
        results = await asyncio.gather(*map(effect, some), return_exceptions=True)
        failures += [each for each in results if each is not None]
        if len(failures) >= MAX_COPIES:
            break  # the store is down
    if failures:
        raise failures[0]
