"""PartitionRemovers: delete the copies of partitions whose topics are deleted, until none is left (KIP-405).

KIP-405 has a controller that marks partitions, and "remote partition removers" that consume the marks. Here the leader of a
partition of `__remote_log_metadata` does both, for the user partitions that have their metadata there: so there is one
remover for each of them, it changes with the leader, and no broker must have been up when the topic was deleted.

    overview of the metadata partition: user partitions with copies
        '- topic is not in the image --suspect--> barrier --still not in the image--> `remote.partition_deletion`'s steps

**A topic that is missing is deleted, not new.** A record of a copy is written by the partition's leader, whose image had the
topic: its creation was committed before. We have read that record; then the barrier (`metadata_barrier`) brings our image to
an offset that is behind everything committed before it began, so behind that creation. An image at such an offset that does
not have the topic has replayed its deletion, since ids of topics are never used again. So a lagging broker, or one that
loads an old snapshot, deletes nothing of a live topic.

After a change of leaders the old remover may do one step more: all steps may be done twice (`partition_remover`).
"""

import asyncio
from collections.abc import Mapping
from logging import DEBUG, WARNING, getLogger
from typing import Final, Protocol
from uuid import UUID

from broker.metadata_cache import MetadataCache
from broker.tiering.partition_remover import PartitionRemover
from protocol.metadata.image import MetadataDelta, MetadataImage
from protocol.remote.records import RemotePartitionDeleteState
from remote.errors import RetriableRemoteStorageError
from remote.segment_metadata import TopicIdPartition
from remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from remote.topic_metadata.partitioner import metadata_partition
from remote.topic_metadata.topic import TOPIC
from runtime import Runtime
from runtime.jitter import jittered

_LOG: Final = getLogger(__name__)

#: The pause between two comparisons of the overviews with the image; a deleted topic ends it.
_CHECK_S: Final = 10.0
#: The pause while overviews are being read.
_READING_S: Final = 0.5
#: The pauses after failures, and the failures in a row after which they are reported once.
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0
_REPORTED_FAILURES: Final = 5
#: Partitions whose copies are deleted at a time. Those that only wait, for half an hour by default, do not count: they have few
#: copies left, and would delay the deletion of other topics.
MAX_PARTITIONS: Final = 4


class Barrier(Protocol):
    """See `metadata_barrier`."""

    async def wait(self) -> None:
        """Raises RetriableRemoteStorageError."""


class PartitionRemovers:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        *,
        node_id: int,
        runtime: Runtime,
        cluster: MetadataCache,
        barrier: Barrier,
        metadata: TopicBasedRemoteLogMetadataManager,
        remover: PartitionRemover,
    ) -> None:
        """`cluster` is this broker's image of the cluster's metadata, `metadata` that of the copies."""
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
        #: At most MAX_PARTITIONS that do not wait.
        self._removers: dict[TopicIdPartition, asyncio.Task[None]] = {}
        self._service: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()
        cluster.on_change(self._on_metadata)

    def start(self) -> None:
        """The metadata topic is going to be opened."""
        assert self._service is None
        self._service = self._runtime.supervise(self._run, name="partition-removers")

    async def stop(self) -> None:
        """Stop all removers; the next leader of a metadata partition, or this broker's next start, continues."""
        tasks = [*self._removers.values(), *([] if self._service is None else [self._service])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.topics_deleted:
            self._has_work.set()

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
        """Start the removers that are missing; False: not everything is known yet."""
        self._update_led()
        overviews = {number: self._metadata.overview(number) for number in self._led}
        found = {
            partition
            for overview in overviews.values()
            if overview is not None
            for partition in overview.partitions
            if partition.topic_id not in self._cluster.image.topics_by_id
        }
        suspects = {partition.topic_id for partition in found}
        self._deleted &= suspects
        if suspects - self._deleted:
            # Records of these copies are read: only now the barrier may begin.
            await self._barrier.wait()
            self._deleted |= suspects - self._cluster.image.topics_by_id.keys()
        for partition in sorted(found - self._removers.keys()):
            if len(self._removers) - len(self._remover.waiting) >= MAX_PARTITIONS:
                break
            if partition.topic_id in self._deleted:
                self._start_remover(partition)
        return None not in overviews.values()

    def _update_led(self) -> None:
        topic = self._cluster.topic(TOPIC)
        partitions = {} if topic is None else topic.partitions
        led = {number for number, each in partitions.items() if each.leader == self._node_id}
        for number in self._led - led:
            self._metadata.stop_overview(number)
        self._led = led

    def _start_remover(self, partition: TopicIdPartition) -> None:
        _LOG.info("%s: its topic is deleted; its copies in the remote tier are deleted", partition)
        task = self._runtime.create_task(
            self._remover.run(partition, lambda: self._overview_of(partition)), name=f"remover of {partition}"
        )
        self._removers[partition] = task
        task.add_done_callback(lambda _: self._on_end(partition))

    def _overview_of(
        self, partition: TopicIdPartition
    ) -> Mapping[TopicIdPartition, RemotePartitionDeleteState | None] | None:
        self._update_led()
        topic = self._cluster.topic(TOPIC)
        if topic is None:
            return None
        number = metadata_partition(partition, partition_count=len(topic.partitions))
        overview = self._metadata.overview(number) if number in self._led else None
        return None if overview is None else overview.partitions

    def _on_end(self, partition: TopicIdPartition) -> None:
        del self._removers[partition]
        self._has_work.set()
