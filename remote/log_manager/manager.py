"""RemoteLogManager: the second tier's tasks for the partitions of this broker (KIP-405, "RemoteLogManager (RLM)").

    leader    copies closed segments (`copy_task`), and deletes copies (`expiration_task`)
    follower  learns up to where the log is copied, so that its local retention may remove what is (`seeding`)

Each kind of task has a lane (`lane`), which runs it for many partitions: in each
`remote.log.manager.task.interval.ms`, at once while there is more to do, and after a back-off when it has
failed. No task stops because of a failure.

Source: RemoteLogManager of Kafka 4.3.1.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from uuid import UUID

from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.log_manager.copy_task import CopyTask
from ottla.remote.log_manager.copying import copy_lag
from ottla.remote.log_manager.deletions import CopyDeletions
from ottla.remote.log_manager.expiration_task import ExpirationTask
from ottla.remote.log_manager.lane import Lane, Work
from ottla.remote.log_manager.lost_finishes import LostFinishes
from ottla.remote.log_manager.metadata_changes import MetadataChanges
from ottla.remote.log_manager.partition_state import PartitionState
from ottla.remote.log_manager.seeding import ready_copies, seed_follower
from ottla.remote.log_manager.segment_transfers import ThreadTransfers
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.quota import TransferQuota
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.tiered_partition import TieredPartition, id_of
from ottla.runtime import Runtime
from ottla.storage.segment_times import FileTimes, SegmentFile
from ottla.storage.tiered_log import can_be_tiered


class RemoteLogManager:
    """Runs the copies, deletions and follower tasks of this broker's tiered partitions. Belongs to the event loop."""

    def __init__(
        self,
        *,
        node_id: int,
        store: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        runtime: Runtime,
        settings: Callable[[], RemoteLogManagerSettings],
        metrics: RemoteStorageMetrics,
        on_deleted: Callable[[RemoteLogSegmentMetadata], None] = lambda _: None,
        names_tiering: Callable[[str], bool] = lambda _: False,
        read_times: Callable[[SegmentFile], FileTimes] | None = None,
    ) -> None:
        """`store` and `metadata` are configured, and closed by the caller after `stop`.

        `on_deleted` is called for each copy whose objects are deleted. `names_tiering`: whether a topic's own
        configuration has `remote.storage.enable`, with any value. `read_times`: of a segment, in another
        process; None: in a thread of this one.
        """
        self._metadata = metadata
        self._names_tiering = names_tiering
        #: Partitions here whose metadata were read, and that never had a copy; as long as they are not tiered.
        self._never_tiered: set[TopicIdPartition] = set()
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics
        self._partitions: dict[TopicIdPartition, PartitionState] = {}
        self._services: list[asyncio.Task[None]] = []
        now = settings()
        #: The quota of copies, and that of reads for consumers.
        self.copy_quota = TransferQuota(
            rate=lambda: settings().copy_max_bytes_per_second,
            window_count=now.copy_quota_window_count,
            window_ms=now.copy_quota_window_ms,
            throttle=metrics.copy_throttle,
            runtime=runtime,
        )
        self.fetch_quota = TransferQuota(
            rate=lambda: settings().fetch_max_bytes_per_second,
            window_count=now.fetch_quota_window_count,
            window_ms=now.fetch_quota_window_ms,
            throttle=metrics.fetch_throttle,
            runtime=runtime,
        )
        self._transfers = ThreadTransfers(
            store,
            runtime=runtime,
            quota=self.copy_quota,
            deadline_ms=lambda: settings().transfer_deadline_ms,
            on_leftover=self._on_leftover,
        )
        changes = MetadataChanges(
            metadata, node_id=node_id, runtime=runtime, deadline_ms=lambda: settings().metadata_deadline_ms
        )
        deletions = CopyDeletions(
            changes=changes, transfers=self._transfers, metrics=metrics, on_deleted=on_deleted
        )
        self._copy_task = CopyTask(
            node_id=node_id,
            metadata=metadata,
            changes=changes,
            transfers=self._transfers,
            deletions=deletions,
            read_times=read_times,
            runtime=runtime,
            settings=settings,
            metrics=metrics,
            on_leftover=self._on_leftover,
        )
        self._expiration_task = ExpirationTask(
            node_id=node_id,
            metadata=metadata,
            deletions=deletions,
            finishes=LostFinishes(changes=changes, transfers=self._transfers),
            runtime=runtime,
            settings=settings,
            metrics=metrics,
            being_copied=self._being_copied,
            stop_if_settled=self._stop_if_settled,
        )
        self._copies = self._lane("the copying", self._copy_task.prepare, self._copy_permits)
        self._expirations = self._lane(
            "the expiration", self._expiration_task.prepare, self._expiration_permits
        )
        self._followers = self._lane("the follower task", self._follow, lambda: settings().follower_pool_size)
        #: Copies whose objects could not be deleted when they ended, and are named by no metadata, perhaps.
        self._leftovers: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._late_deletions: Lane[RemoteLogSegmentId] = Lane(
            "the late deletion",
            runtime=runtime,
            settings=settings,
            permits=self._expiration_permits,
            prepare=self._prepare_late_deletion,
        )
        metrics.tasks_idle_ratio = self._idle_ratio
        metrics.update_gauges = self._measure_copy_lag

    def _lane(
        self, name: str, prepare: Callable[[PartitionState], Work | None], permits: Callable[[], int]
    ) -> Lane[TopicIdPartition]:
        return Lane(
            name,
            runtime=self._runtime,
            settings=self._settings,
            permits=permits,
            prepare=lambda key: prepare(self._partitions[key]),
        )

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the tasks of all lanes."""
        lanes = {
            "remote-log-copies": self._copies,
            "remote-log-expiration": self._expirations,
            "remote-log-followers": self._followers,
        }
        self._services = [
            *(self._runtime.supervise(lane.run, name=name) for name, lane in lanes.items()),
            self._runtime.supervise(self._late_deletions.run, name="remote-log-late-deletions"),
        ]

    async def stop(self) -> None:
        """Stop the tasks. Copies under way are given up, and deleted by the next leader, or by this broker later."""
        for state in self._partitions.values():
            state.cancel_transfer()
        for service in self._services:
            service.cancel()
        await asyncio.gather(*self._services, return_exceptions=True)
        self._services = []

    # -- partitions --------------------------------------------------------------------------------

    def on_leadership(self, partition: TieredPartition) -> None:
        """Start or wake the tasks of a partition after a change of its leader, leader epoch or configuration.

        To be called for each partition after each such change, also for those that are not tiered: they are ignored,
        unless there may be copies that are still to be deleted (`remote.log.delete.on.disable`).
        """
        self.on_leaderships([partition])

    def on_leaderships(self, partitions: Collection[TieredPartition]) -> None:
        """Start or wake the tasks of several partitions, each as by `on_leadership`."""
        leaders: list[TopicIdPartition] = []
        followers: list[TopicIdPartition] = []
        for partition in partitions:
            state = self._partitions.get(id_of(partition))
            if partition.is_deleted or (state is None and not self._may_have_copies(partition)):
                if state is not None:
                    self._stop(state)
                continue
            if state is None:
                state = self._partitions[id_of(partition)] = PartitionState(partition, id_of(partition))
            if state.take_role(partition):
                if not partition.is_leader:
                    self._metrics.remove_partition(partition.topic_partition)
                (leaders if partition.is_leader else followers).append(state.id)
        if leaders or followers:
            self._metadata.on_partition_leadership_changes(leaders=leaders, followers=followers)
        for partition in partitions:
            if (state := self._partitions.get(id_of(partition))) is not None:
                self._run_tasks(state)

    def _may_have_copies(self, partition: TieredPartition) -> bool:
        """Whether the partition is tiered, or was, as far as the configuration shows it after a restart.

        One that is not tiered and has no copies is forgotten when its metadata are read. If it never had any,
        that is not repeated in later leader epochs: all records of a partition of `__remote_log_metadata` are
        read for it. Nor is it done for topics that cannot be tiered, as that one itself, which is created
        with `remote.storage.enable=false`.
        """
        log, topic = partition.log, partition.topic_partition.topic
        if log.is_tiered:
            self._never_tiered.discard(id_of(partition))
            return True
        return (
            can_be_tiered(topic)
            and id_of(partition) not in self._never_tiered
            and (log.config.remote_log_delete_on_disable or self._names_tiering(topic))
        )

    def _run_tasks(self, state: PartitionState) -> None:
        """Start the tasks of the partition's role, and stop the others; tasks that run already are woken."""
        if state.partition.log.is_tiered:
            state.note_tiering()
        for lane, is_wanted in (
            (self._copies, state.is_leader),
            (self._expirations, state.is_leader),
            (self._followers, not state.is_leader),
        ):
            if is_wanted:
                lane.add(state.id)
            else:
                lane.remove(state.id)

    def stop_partition(self, partition: TopicIdPartition) -> bool:
        """Stop the tasks of a partition that this broker holds no more; its copies stay.

        Returns whether this broker led the partition, and ran tasks for it.
        """
        self._never_tiered.discard(partition)
        if (state := self._partitions.get(partition)) is None:
            return False
        self._stop(state)
        return state.is_leader

    def _stop_if_settled(self, state: PartitionState, copies: RemoteLogMetadataCache) -> None:
        """Stop the tasks of a partition that is not tiered, once it has no copies and none can follow."""
        wait_s = 2 * self._settings().metadata_deadline_ms / 1000
        if state.is_settled(copies, now_s=self._runtime.monotonic(), wait_s=wait_s):
            if not (state.was_tiered or copies.had_copies):
                self._never_tiered.add(state.id)
            self._stop(state)

    def _stop(self, state: PartitionState) -> None:
        state.is_active = False
        state.cancel_transfer()
        if self._partitions.get(state.id) is state:
            del self._partitions[state.id]
            for lane in (self._copies, self._expirations, self._followers):
                lane.remove(state.id)
            self._metadata.on_stop_partitions([state.id])
            self._metrics.remove_partition(state.id.topic_partition)

    # -- tasks -------------------------------------------------------------------------------------

    def _follow(self, state: PartitionState) -> None:
        if state.partition.log.is_tiered:
            seed_follower(state, self._metadata)
        else:
            self._stop_if_settled(state, ready_copies(state, self._metadata))

    def _on_leftover(self, copy: RemoteLogSegmentMetadata) -> None:
        self._leftovers[copy.segment_id] = copy
        self._late_deletions.add(copy.segment_id)

    def _prepare_late_deletion(self, segment_id: RemoteLogSegmentId) -> Work | None:
        """Return the deletion of a copy's objects; None: a leader has found the copy complete, and it stays.

        The deletion is repeated until it succeeds, also while another broker leads.
        """
        copy = self._leftovers[segment_id]
        if self._metadata.is_ready(copy.partition):
            known = self._metadata.copies(copy.partition).find(segment_id)
            if known is not None and known.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                self._end_late_deletion(segment_id)
                return None
        return self._delete_late(copy)

    async def _delete_late(self, copy: RemoteLogSegmentMetadata) -> bool:
        await self._transfers.delete(copy)
        self._end_late_deletion(copy.segment_id)
        return False

    def _end_late_deletion(self, segment_id: RemoteLogSegmentId) -> None:
        del self._leftovers[segment_id]
        self._late_deletions.remove(segment_id)

    def _being_copied(self, state: PartitionState) -> Collection[UUID]:
        if state.attempt is None:
            return self._transfers.running
        return {*self._transfers.running, state.attempt.metadata.segment_id.id}

    def _copy_permits(self) -> int:
        """Return the number of copies that may run; each abandoned one occupies a thread.

        Without that, others would wait for a thread, and exceed their deadline.
        """
        return self._settings().copier_pool_size - self._transfers.abandoned

    def _expiration_permits(self) -> int:
        """Return the number of deletions that may run; each abandoned one occupies a thread, or waits for one."""
        return self._settings().expiration_pool_size - self._transfers.abandoned_deletions

    def _measure_copy_lag(self) -> Iterator[None]:
        """Measure the lag of one partition in each step.

        The copy task does not measure it: it waits while the store does not answer.
        """
        for state in list(self._partitions.values()):
            if state.leads and (log := state.partition.log).is_tiered:
                gauges = self._metrics.partition(state.partition.topic_partition)
                gauges.remote_copy_lag_bytes, gauges.remote_copy_lag_segments = copy_lag(log)
            yield

    def _idle_ratio(self) -> float:
        return max(0.0, 1 - self._copies.running / self._settings().copier_pool_size)
