"""Replica manager: the partitions that this broker hosts, created, led, followed and deleted by the metadata log.

The manager applies the metadata image and decides nothing itself. Requests look partitions up in one table, `hosted`.

Source: Kafka's ReplicaManager.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.replicas.cluster_view import ClusterView
from ottla.broker.replicas.flushes import Flushes
from ottla.broker.replicas.following.replication_throttle import LeaderThrottle
from ottla.broker.replicas.hosted_partitions import HostedPartitions
from ottla.broker.replicas.leading.delayed_produce import DelayedAcknowledgement, PartitionStatus
from ottla.broker.replicas.log_creator import CreatedLog, LogCreator
from ottla.broker.replicas.moving.log_moves import LogMoves
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.role_changes import RoleChanges
from ottla.broker.replicas.role_listeners import LeadershipListener, NoTier, TierListener
from ottla.broker.replicas.topic_stats import BrokerTopicStats
from ottla.broker.replicas.waiting.delayed_operation import DelayedOperationPurgatory
from ottla.broker.replicas.waiting.delayed_response import DelayedResponse
from ottla.config.log_config import LogConfig
from ottla.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from ottla.protocol.errors import (
    KafkaError,
)
from ottla.protocol.types import TopicPartition
from ottla.replication.replication_quota import ReplicationQuota
from ottla.runtime import Runtime
from ottla.storage.log import Log
from ottla.storage.manager.log_manager import LogManager, NewLog

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Followers(Protocol):
    """The replica fetcher manager, for partitions that other brokers lead (ReplicaFetcherManager)."""

    def follow(self, partition: Partition) -> None:
        """Follow the partition's leader in its epoch; stop following while it has none."""

    def unfollow(self, partition: Partition) -> None:
        """Stop following the partition's leader."""

    def refresh(self, partition: Partition) -> None:
        """Report this replica's log start, which retention has moved, to the leader in the next Fetch."""


class ReplicaManager:
    """Creates, leads, follows and deletes the partitions that the metadata log assigns to this broker.

    Everything belongs to the loop's thread.
    """

    def __init__(
        self,
        *,
        node_id: int,
        logs: LogManager,
        metadata: MetadataCache,
        runtime: Runtime,
        topic_config: Callable[[str], LogConfig],
        propose_isr: Callable[[Partition], None],
        report_local_logs: Callable[[Partition], None],
        followers: Followers,
        leader_quota: ReplicationQuota,
        move_quota: ReplicationQuota,
        max_lag_ms: int = 30_000,
        reports_local_logs: bool = False,
        fetch_max_bytes: int = 55 * 2**20,
    ) -> None:
        self.node_id = node_id
        self.logs = logs
        self._directory_ids = frozenset(logs.directory_ids.values())
        self.metadata = metadata
        self.runtime = runtime
        #: The maximum size of the records in one Fetch response, regardless of the request (fetch.max.bytes).
        self.fetch_max_bytes = fetch_max_bytes
        self._topic_config = topic_config
        self._followers = followers
        self._propose_isr = propose_isr
        self._report_local_logs = report_local_logs
        self._flush = Flushes(runtime).begin
        #: Other brokers, as the partitions see them.
        self.cluster = ClusterView(
            metadata, max_lag_ms=max_lag_ms, now_ms=runtime.now_ms, reports_local_logs=reports_local_logs
        )
        #: Throttles followers of throttled partitions.
        self.throttle = LeaderThrottle(leader_quota, node_id=node_id, monotonic=runtime.monotonic)
        #: The counts of records and bytes that were appended and fetched, by topic.
        self.topic_stats = BrokerTopicStats()
        #: Delayed Fetch, Produce and DeleteRecords requests.
        self.purgatory = DelayedOperationPurgatory(
            call_later=runtime.call_later, call_soon=runtime.loop.call_soon, turns=runtime.turns
        )
        #: Replicas that are being moved to other log directories.
        self.moves = LogMoves(
            runtime=runtime,
            logs=logs,
            node_id=node_id,
            image=lambda: metadata.image,
            quota=move_quota,
            on_promoted=self._on_promoted,
        )
        self._log_creator = LogCreator(runtime, logs, on_created=self._on_created)
        #: The roles that hosted partitions get from the metadata.
        self.roles = RoleChanges(runtime, last_offset=lambda: metadata.last_applied_offset)
        #: Called when `directory_of` replicas becomes known, with their (topic id, index); the broker reports the
        #: directories to the controller.
        self.on_placed: Callable[[Sequence[tuple[UUID, int]]], None] = lambda places: None
        self.hosted = HostedPartitions(
            node_id=node_id, metadata=metadata, is_being_created=self._log_creator.is_wanted
        )
        self._leadership_listeners: list[LeadershipListener] = []
        #: The listener that copies logs to the remote tier; set before the first image is applied.
        self.tier: TierListener = NoTier()

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The partition, if it is hosted here.

        Raises UnknownTopicOrPartition, NotLeaderOrFollower (it is elsewhere), KafkaStorageError.
        """
        return self.hosted.partition(topic_partition)

    def partitions(self) -> Iterator[Partition]:
        """Return each hosted partition once."""
        return iter(self.hosted)

    # -- the ISRs of led partitions ---------------------------------------------------------------------

    async def watch_isrs(self) -> None:
        """Check the ISRs of all led partitions every replica.lag.time.max.ms / 2, until cancelled (maybeShrinkIsr)."""
        while True:
            await asyncio.sleep(self.cluster.max_lag_ms / 2000)
            self._check_isrs()

    def _check_isrs(self) -> None:
        for partition in list(self.partitions()):
            self._check_isr(partition)

    def _check_isr(self, partition: Partition) -> None:
        try:
            partition.check_isr(self.runtime.now_ms())
        except Exception:  # a bug, which must not end the checks of the others
            logger.exception("The ISR of %s cannot be checked", partition)

    # -- metadata --------------------------------------------------------------------------------------

    def is_stray(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether a log on disk is a stray, which this broker should not have: for the opening of logs. [any thread]

        A topic can be deleted, and its name be used again, while the broker or one of its disks is offline.
        """
        topic = self.metadata.image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_id not in (None, topic.topic_id):
            return True
        partition = topic.partitions.get(topic_partition.partition)
        return partition is None or self.node_id not in partition.replicas

    def apply_image(self, image: MetadataImage) -> None:
        """Host the partitions of a whole image, at startup, when none is hosted yet.

        Logs that have become strays while logs were opened are set aside first. `all_created` waits for
        missing logs.
        """
        self.logs.rename_strays(self.is_stray, now_ms=self.runtime.now_ms())
        self.logs.moving.promote_abandoned(
            lambda at, _, directory: self.is_in(at, directory), now_ms=self.runtime.now_ms()
        )
        self._apply_partitions(
            ((topic, topic.partitions) for topic in image.topics_by_id.values()), is_new=False
        )

    def apply_delta(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply a change of the image: deletions first, since a new topic may have the name of a deleted one.

        Many other changes take a while (`roles`, `all_created`).
        """
        for topic in delta.topics_deleted.values():
            for index in topic.partitions:
                self._stop_replica(topic, index, is_topic_deleted=True)
            self.topic_stats.remove(topic.name)
        # Configurations before ISRs: a leader must not commit by a min.insync.replicas that no longer holds.
        for resource in delta.configs_changed:
            if resource.type is ConfigResourceType.TOPIC and resource.name in image.topics_by_name:
                self._update_config(image.topics_by_name[resource.name])
        self._apply_partitions(
            (image.topics_by_id[topic_id], sorted(indexes))
            for topic_id, indexes in delta.partitions_changed.items()
            if topic_id in image.topics_by_id
        )
        if delta.brokers_changed:
            self.roles.add(self._on_brokers_changed, self.partitions())
        self.roles.begin()

    async def all_created(self) -> None:
        """Wait until every partition that is known now has its log, or an error."""
        await self._log_creator.idle()

    async def stop(self) -> None:
        """Create and move no more logs; returns when no thread works on one, and no role is pending."""
        await self.moves.stop()
        await self._log_creator.stop()
        await self.roles.stop()

    def change_defaults(self, topic_config: Callable[[str], LogConfig]) -> None:
        """The broker's own defaults of topic configurations have changed."""
        self._topic_config = topic_config
        topics = self.metadata.image.topics_by_name
        # Only of hosted topics: a configuration takes a while to compute, and that of other topics is not needed.
        for name in dict.fromkeys(log.topic_partition.topic for log in self.logs.all_logs()):
            if name in topics:
                self._update_config(topics[name])

    def handle_log_dir_failure(self, log_dir: Path) -> None:
        """A log directory has failed: requests for its partitions fail with KafkaStorageError from now on."""
        for partition in list(self.partitions()):
            if partition.log.directory.parent != log_dir:
                continue
            self.hosted.take_offline(partition, log_dir)
            self._resign(partition)

    def notice_retention(self) -> None:
        """Notify fetch sessions and fetchers of log starts that retention has moved, in either tier.

        Called after `LogManager.maintain`.
        """
        for partition in self.partitions():
            if partition.notice_retention() and not partition.is_leader:
                self._followers.refresh(partition)

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Notify `listener` of leadership changes of all partitions; at once of those that are led already."""
        self._leadership_listeners.append(listener)
        for partition in list(self.partitions()):
            if partition.is_leader:
                listener.on_election(partition.topic_partition, partition.leader_epoch)

    def is_in(self, topic_partition: TopicPartition, directory: UUID) -> bool:
        """Whether, by the metadata, this broker's replica of the partition is in this directory. [any thread]"""
        topic = self.metadata.image.topics_by_name.get(topic_partition.topic)
        partition = None if topic is None else topic.partitions.get(topic_partition.partition)
        return partition is not None and (self.node_id, directory) in zip(
            partition.replicas, partition.directories, strict=False
        )

    def is_eligible_without_directory(self) -> bool:
        """Whether this broker is in the ELR of a partition whose log directory it does not have.

        That is the directory which the metadata names. An Ottla controller removes the broker from the ELR when it
        registers. Apache Kafka's does not, unless the broker registers as one that was not stopped cleanly, and
        would elect the log that is created in another directory. [any thread]

        """
        return any(
            self.node_id in partition.elr and self._is_absent(self._assigned_directory(partition))
            for topic in self.metadata.image.topics_by_id.values()
            for partition in topic.partitions.values()
        )

    def _assigned_directory(self, image: PartitionImage) -> UUID | None:
        if not image.directories:
            return None
        assert len(image.directories) == len(image.replicas), image
        return image.directories[image.replicas.index(self.node_id)]

    def _is_absent(self, directory: UUID | None) -> bool:
        """Whether this is a directory that the broker does not have: it has been removed from log.dirs, or replaced."""
        return (
            directory not in (None, DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING)
            and directory not in self._directory_ids
        )

    def _has_no_log(self, image: PartitionImage) -> bool:
        """Whether this broker cannot use its replica's log, and no other log may stand in for it.

        The log is in the directory that the metadata names, and

        - the directory has failed since the broker was registered: a log in another one is older, also where
          another replica leads
        - or it is absent, and no other replica leads, which an empty log or an older one could follow

        Else a controller that takes that log for the complete one would elect it.
        """
        directory = self._assigned_directory(image)
        if self._is_absent(directory):
            return image.leader is None
        logs = self.logs
        return bool(logs.offline_dirs) and directory in {
            known for path, known in logs.directory_ids.items() if path in logs.offline_dirs
        }

    def _apply_partitions(
        self, changed: Iterable[tuple[TopicImage, Iterable[int]]], *, is_new: bool = True
    ) -> None:
        """Apply the image to these partitions; new ones get their roles when their logs are created."""
        hosted: list[Partition] = []
        wanted: list[NewLog] = []
        absent: list[TopicPartition] = []
        for topic, indexes in changed:
            config: LogConfig | None = None
            for index in indexes:
                if (partition := self.hosted.get((topic.topic_id, index))) is not None:
                    hosted.append(partition)
                    continue
                image = topic.partitions[index]
                topic_partition = TopicPartition(topic.name, index)
                if self.node_id not in image.replicas:
                    self._stop_replica(topic, index)
                elif self._has_no_log(image):
                    if self.hosted.add_offline(topic, index):
                        absent.append(topic_partition)
                elif not self._log_creator.is_wanted(topic_partition):
                    config = config or self._topic_config(topic.name)
                    wanted.append(
                        NewLog(
                            topic_partition,
                            topic.topic_id,
                            config,
                            is_new=is_new and not self.hosted.is_offline(topic_partition),
                            leader_epoch=image.leader_epoch if image.leader == self.node_id else None,
                        )
                    )
        if absent:
            logger.error(
                "The log directory of %s (and of %d other replicas) cannot be used, or is not in log.dirs and "
                "no other replica leads the partition: it is offline here until the directory is back or, "
                "if it is not in log.dirs, another replica leads",
                absent[0],
                len(absent) - 1,
            )
        self.roles.add(self._apply_present, hosted)
        self.roles.begin()
        self._log_creator.create(wanted)

    def _apply_present(self, partition: Partition) -> None:
        """Apply the present image to a hosted partition."""
        topic, index = (
            self.metadata.image.topics_by_id[partition.topic_id],
            partition.topic_partition.partition,
        )
        image = topic.partitions[index]
        if self.node_id in image.replicas:
            self._apply_role(partition, image)
        else:
            self._stop_replica(topic, index)
            self._log_creator.create(())  # puts the deleted log aside

    def _on_brokers_changed(self, partition: Partition) -> None:
        self._check_isr(partition)  # a broker that was fenced, or had another epoch, may join
        self.purgatory.signal(partition)  # DeleteRecords waits for live replicas only

    def _on_created(self, created: Sequence[CreatedLog]) -> None:
        """Logs were created or failed: the partitions get their roles from the present image."""
        placed = []
        config: tuple[str, LogConfig] | None = None
        for topic_partition, log in created:
            name, index = topic_partition
            topic = self.metadata.image.topics_by_name[name]
            if isinstance(log, KafkaError):
                if self.hosted.add_offline(topic, index):  # else a retry, by a change of the metadata
                    logger.error("%s has no log, and is offline on this broker: %s", topic_partition, log)
                continue
            if config is None or config[0] != name:
                config = name, self._topic_config(name)
            if log.config != config[1]:  # the configuration has changed meanwhile
                log.update_config(config[1])
            partition = self._host(topic, log)
            self._apply_role(partition, topic.partitions[index])
            if topic_partition in self.logs.future_logs:
                self.moves.begin(partition)
            placed.append((topic.topic_id, index))
        self.on_placed(placed)

    def _host(self, topic: TopicImage, log: Log) -> Partition:
        partition = Partition(
            log.topic_partition,
            topic_id=topic.topic_id,
            node_id=self.node_id,
            log=log,
            signal=self.purgatory.signal,
            cluster=self.cluster,
            propose_isr=self._propose_isr,
            report_local_logs=self._report_local_logs,
            flush=self._flush,
            stats=self.topic_stats.topic(topic.name),
        )
        self.hosted.add(partition)
        return partition

    def _apply_role(self, partition: Partition, image: PartitionImage) -> None:
        was_leader, old_epoch = partition.is_leader, partition.leader_epoch
        try:
            is_new_epoch = partition.apply(image)
        except KafkaError as error:
            # Its disk has failed, so its log rejects all writes; the other partitions must still be applied.
            logger.error("%s cannot follow the metadata: %s", partition, error)
            return
        assert partition.leader_epoch >= old_epoch, (str(partition), partition.leader_epoch, old_epoch)
        if partition.is_leader:
            self._followers.unfollow(partition)
        else:
            self._followers.follow(partition)
        if was_leader and not partition.is_leader:
            self._notify_resignation(partition, old_epoch)
        if is_new_epoch:
            self.tier.on_role(partition)
        if partition.is_leader and is_new_epoch:
            for listener in self._leadership_listeners:
                listener.on_election(partition.topic_partition, partition.leader_epoch)

    def _stop_replica(self, topic: TopicImage, index: int, *, is_topic_deleted: bool = False) -> None:
        partition = self.hosted.remove(topic, index)
        topic_partition = TopicPartition(topic.name, index)
        if partition is not None:
            self._resign(partition, is_topic_deleted=is_topic_deleted)
        elif self._log_creator.is_wanted(topic_partition):
            self._log_creator.cancel(topic_partition)
        # Also of an offline partition: the future log of a move whose source is lost is still on this broker.
        self.logs.delete(topic_partition)

    def _resign(self, partition: Partition, *, is_topic_deleted: bool = False) -> None:
        was_leader, epoch = partition.is_leader, partition.leader_epoch
        self._followers.unfollow(partition)
        self.moves.forget(partition)
        partition.resign()
        self.tier.on_stopped(partition, is_topic_deleted=is_topic_deleted)
        if was_leader:
            self._notify_resignation(partition, epoch)

    def _notify_resignation(self, partition: Partition, leader_epoch: int) -> None:
        for listener in self._leadership_listeners:
            listener.on_resignation(partition.topic_partition, leader_epoch)

    def _update_config(self, topic: TopicImage) -> None:
        self.logs.update_config(topic.name, topic.partitions, self._topic_config(topic.name))
        for index in topic.partitions:
            partition = self.hosted.get((topic.topic_id, index))
            if partition is not None:
                partition.on_config_changed()
                if not partition.is_leader:
                    # Its Fetch row has its local log if elections ask for it.
                    self._followers.refresh(partition)
                self.tier.on_role(partition)

    # -- log directories -------------------------------------------------------------------------------

    def move_log(self, topic_partition: TopicPartition, path: Path) -> None:
        """Move the partition's log to another log directory (`LogMoves.move`).

        Raises what that, `LogMoves.destination` and `partition` raise.
        """
        path = self.moves.destination(topic_partition, path)
        self.moves.move(self.partition(topic_partition), path)

    def directory_of(self, topic_partition: TopicPartition) -> Path | None:
        """The log directory to report to the controller for a replica, also if it has failed; None: it has no log.

        For a replica that was about to move, the controller may know another directory, and count the replica online.
        """
        partition = self.hosted.get(topic_partition)
        if partition is None:
            return self.hosted.offline_directory(topic_partition)
        return self.moves.directory_of(partition)

    def _on_promoted(self, partition: Partition) -> None:
        if not partition.is_leader:
            # The fetcher refers to the old log.
            self._followers.unfollow(partition)
            self._followers.follow(partition)

    # -- waiting for replicas --------------------------------------------------------------------------

    def respond_when_complete(
        self, statuses: Sequence[PartitionStatus], *, timeout_ms: int, respond: Callable[[], T]
    ) -> T | DelayedResponse[T]:
        """Return `respond()` if all statuses are complete; else a delayed response.

        That one completes when all statuses are complete, or at the timeout.
        """
        delayed = DelayedAcknowledgement(self.runtime.loop, statuses, respond)
        return delayed.try_complete_else_watch(self.purgatory, timeout_ms=timeout_ms)

    def respond_later(
        self, statuses: Sequence[PartitionStatus], *, timeout_ms: int, respond: Callable[[], T]
    ) -> DelayedResponse[T]:
        """Return a delayed response that completes when all statuses are complete, or at the timeout.

        Precondition: the caller has found in this turn of the loop that none is complete.
        """
        delayed = DelayedAcknowledgement(self.runtime.loop, statuses, respond)
        self.purgatory.watch(delayed, timeout_ms=timeout_ms)
        return delayed
