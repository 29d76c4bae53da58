"""PartitionRemovers: delete the copies of partitions whose topics are deleted, until none is left (KIP-405).

KIP-405 has a controller that marks partitions, and "remote partition removers" that consume the marks. Here
the leader of a partition of `__remote_log_metadata` does both, for the user partitions that have their
metadata there: so there is one remover for each of them, it changes with the leader, and no broker must have
been up when the topic was deleted.

    overview of the metadata partition: user partitions with copies
        '- topic is not in the image --suspect--> barrier --still not in the image-->
           the steps of `ottla.remote.partition_deletion`

**A topic that is missing is deleted, not new.** A record of a copy is written by the partition's leader,
whose image had the topic: its creation was committed before. We have read that record; then the barrier
(`MetadataBarrier`) brings our image to an offset that is behind everything committed before it began, so
behind that creation. An image at such an offset that does not have the topic has replayed its deletion, since
ids of topics are never used again. So a lagging broker, or one that loads an old snapshot, deletes nothing of
a live topic.

After a change of leaders the old remover may do one step more: all steps may be done twice (`partition_remover`).

Where a broker of Kafka leads the partition of `__remote_log_metadata`, it removes nothing: there the user
partition's last leader does, as Kafka's does, once its image has replayed the deletion. It begins some
seconds later, and leaves alone what a remover has begun.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from logging import DEBUG, WARNING, getLogger
from typing import Any, Final
from uuid import UUID

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.tiering.partition_remover import PartitionRemover
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.remote.records import RemotePartitionDeleteState
from ottla.remote.errors import RetriableRemoteStorageError
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.topic import TOPIC
from ottla.runtime import Runtime
from ottla.runtime.jitter import jittered
from ottla.runtime.turns import in_turns

_LOG: Final = getLogger(__name__)

#: The pause between two comparisons of the overviews with the image; a deleted topic ends it.
_CHECK_S: Final = 10.0
#: The pause while overviews are being read.
_READING_S: Final = 0.5
#: The pause after which a last leader begins: a remover has stored its first state by then.
_LAST_LEADER_S: Final = 5.0
#: The pauses after failures, and the failures in a row after which they are reported once.
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0
_REPORTED_FAILURES: Final = 5
#: The number of partitions whose copies are deleted at a time. Partitions that only wait, for half an hour by
#: default, do not count: they have few copies left, and would delay the deletion of other topics.
MAX_PARTITIONS: Final = 4
#: The longest wait for the image; the controller's answer has a timeout of its own.
_BARRIER_WAIT_S: Final = 60.0


class MetadataBarrier:
    """Waits until this broker's image holds everything that was committed before. Belongs to the event loop.

    An image lags behind the metadata log: what it does not have may be new, or be deleted. To distinguish the two, a
    record is committed, and the image that holds it is asked. The record is a block of producer ids, the only one that
    any broker may have written without a change to the cluster: 1,000 of 2^63 ids are lost.

        read X -> AllocateProducerIds -> the controller commits ProducerIdsRecord(next id) -> the image has its next id

    The controller answers after the commit. The metadata log is one order, and the request follows the reading: what
    was committed when X was read is before that record. The answer of DescribeQuorum, or the high watermark of a
    Fetch, would not do: both may come from a leader that another one has replaced.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        request: Callable[[AllocateProducerIdsRequest], Awaitable[AllocateProducerIdsResponse]],
        *,
        node_id: int,
    ) -> None:
        """Create the barrier; `request` sends to the active controller."""
        self._metadata = metadata
        self._request = request
        self._node_id = node_id
        self._changed = asyncio.Event()
        metadata.on_change(self._on_change)

    async def wait(self) -> None:
        """Wait until the image holds all that was committed before the call. Raises RetriableRemoteStorageError."""
        own = self._metadata.broker(self._node_id)
        if own is None:
            raise RetriableRemoteStorageError("this broker is not registered")
        try:
            block = await self._request(
                AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=own.epoch)
            )
        except KafkaError as error:
            raise RetriableRemoteStorageError(f"the controller was not reached: {error}") from error
        if block.error_code:
            raise RetriableRemoteStorageError(
                f"the controller has allocated no producer ids: error {block.error_code}"
            )
        try:
            async with asyncio.timeout(_BARRIER_WAIT_S):
                await self._until(block.producer_id_start + block.producer_id_len)
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"the metadata of this broker has not caught up within {_BARRIER_WAIT_S:g} s"
            ) from None

    async def _until(self, next_producer_id: int) -> None:
        while self._metadata.image.next_producer_id < next_producer_id:
            self._changed.clear()
            await self._changed.wait()

    def _on_change(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._changed.set()


class PartitionRemovers:
    """Starts a remover for each partition whose topic is deleted and whose metadata this broker leads (KIP-405).

    Belongs to the event loop.
    """

    def __init__(
        self,
        *,
        node_id: int,
        runtime: Runtime,
        cluster: MetadataCache,
        barrier: MetadataBarrier,
        metadata: TopicBasedRemoteLogMetadataManager,
        remover: PartitionRemover,
    ) -> None:
        """Create the removers; `cluster` is this broker's image of the cluster, `metadata` has the copies."""
        self._node_id = node_id
        self._runtime = runtime
        self._cluster = cluster
        self._barrier = barrier
        self._metadata = metadata
        self._remover = remover
        #: The partitions of the metadata topic that this broker leads, as of the last comparison.
        self._led: set[int] = set()
        #: Topics that are proven to be deleted, and have copies.
        self._deleted: set[UUID] = set()
        #: Partitions of deleted topics without a remover, the next one last; those come first that have not
        #: failed yet.
        self._queue: list[TopicIdPartition] = []
        #: The failures in a row of partitions that have let others go first.
        self._failures: dict[TopicIdPartition, int] = {}
        #: Partition -> the task of its remover; at most MAX_PARTITIONS that do not wait.
        self._removers: dict[TopicIdPartition, asyncio.Task[int]] = {}
        #: The tasks that delete the copies of partitions of which this broker was the last leader.
        self._as_last_leader: set[asyncio.Task[None]] = set()
        self._permits = asyncio.Semaphore(MAX_PARTITIONS)
        self._service: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()
        cluster.on_change(self._on_metadata)

    def start(self) -> None:
        """Start the service that looks for deleted topics; the metadata topic is going to be opened."""
        assert self._service is None
        self._service = self._runtime.supervise(self._run, name="partition-removers")

    async def stop(self) -> None:
        """Stop all removers; the next leader of a metadata partition, or this broker's next start, continues."""
        self._queue.clear()
        tasks: list[asyncio.Task[Any]] = [*self._removers.values(), *self._as_last_leader]
        if self._service is not None:
            tasks.append(self._service)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.topics_deleted:
            self._has_work.set()

    # -- as last leader

    def on_last_leader(self, partition: TopicIdPartition) -> None:
        """Delete, a few seconds later, the copies of a partition that this broker leads and whose topic is deleted."""
        if self._service is not None:
            task = self._runtime.create_task(
                self._delete_as_last_leader(partition), name=f"last leader of {partition}"
            )
            self._as_last_leader.add(task)
            task.add_done_callback(self._as_last_leader.discard)

    async def _delete_as_last_leader(self, partition: TopicIdPartition) -> None:
        await asyncio.sleep(_LAST_LEADER_S)
        if partition not in self._removers and self._number_of(partition) not in self._led:
            await self._remover.run_as_last_leader(partition, self._permits)

    # -- which partitions

    async def _run(self) -> None:
        failures = 0
        while True:
            self._has_work.clear()
            try:
                pause_s = _CHECK_S if await self._check() else _READING_S
                failures = 0
            except RetriableRemoteStorageError as error:
                failures += 1
                pause_s = min(_FIRST_BACKOFF_S * 2 ** min(failures - 1, 10), _MAX_BACKOFF_S)
                _LOG.log(
                    WARNING if failures == _REPORTED_FAILURES else DEBUG,
                    "whether topics are deleted is not known, attempt %d: %s", failures, error,
                )  # fmt: skip
            try:
                async with asyncio.timeout(jittered(pause_s, self._runtime.random)):
                    await self._has_work.wait()
            except TimeoutError:
                pass

    async def _check(self) -> bool:
        """Start the removers that are missing; return False if not everything is known yet."""
        self._update_led()
        overviews = {number: self._metadata.overview(number) for number in self._led}
        found: list[TopicIdPartition] = []
        await in_turns(self._runtime, self._find(overviews, found))
        suspects = {partition.topic_id for partition in found}
        self._deleted &= suspects
        if suspects - self._deleted:
            # Records of these copies are read: only now the barrier may begin.
            await self._barrier.wait()
            self._deleted |= suspects - self._cluster.image.topics_by_id.keys()
        wanted = [each for each in found if each.topic_id in self._deleted and each not in self._removers]
        self._failures = {each: self._failures[each] for each in wanted if each in self._failures}
        self._queue = sorted(wanted, key=lambda each: (self._failures.get(each, 0), each), reverse=True)
        self._start_removers()
        return None not in overviews.values()

    def _find(
        self, overviews: Mapping[int, CopiesOverview | None], found: list[TopicIdPartition]
    ) -> Iterator[None]:
        """Append to `found` the partitions that have copies, and whose topics the image does not have."""
        for number, overview in overviews.items():
            for partition in () if overview is None else list(overview.partitions):
                is_known = partition.topic_id in self._cluster.image.topics_by_id
                # Records in another metadata partition are not of a broker: no cache has them.
                if not is_known and self._number_of(partition) == number:
                    found.append(partition)
                yield

    def _number_of(self, partition: TopicIdPartition) -> int:
        return self._metadata.metadata_partition_of(partition)

    def _update_led(self) -> None:
        topic = self._cluster.topic(TOPIC)
        partitions = {} if topic is None else topic.partitions
        # No records are in partitions that were added to the topic.
        count = self._metadata.partition_count
        led = {
            number for number, each in partitions.items() if each.leader == self._node_id and number < count
        }
        for number in self._led - led:
            self._metadata.stop_overview(number)
        self._led = led

    def _start_removers(self) -> None:
        # Last leaders may wait, too.
        while self._queue and len(self._removers.keys() - self._remover.waiting) < MAX_PARTITIONS:
            self._start_remover(self._queue.pop())

    def _start_remover(self, partition: TopicIdPartition) -> None:
        failures = self._failures.pop(partition, 0)
        if not failures:
            _LOG.info("%s: its topic is deleted; its copies in the remote tier are deleted", partition)
        task = self._runtime.create_task(
            self._remover.run(
                partition,
                lambda: self._overview_of(partition),
                failures=failures,
                others_wait=lambda: bool(self._queue),
            ),
            name=f"remover of {partition}",
        )
        self._removers[partition] = task
        task.add_done_callback(partial(self._on_end, partition))

    def _overview_of(
        self, partition: TopicIdPartition
    ) -> Mapping[TopicIdPartition, RemotePartitionDeleteState | None] | None:
        self._update_led()
        number = self._number_of(partition)
        overview = self._metadata.overview(number) if number in self._led else None
        return None if overview is None else overview.partitions

    def _on_end(self, partition: TopicIdPartition, task: "asyncio.Task[int]") -> None:
        del self._removers[partition]
        if not task.cancelled() and task.exception() is None and (failures := task.result()):
            self._failures[partition] = failures
            self._queue.insert(0, partition)
        self._start_removers()
