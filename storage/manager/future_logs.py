"""Future logs: moves a log to another directory of its broker (KIP-113).

    create             creates an empty `-future` log; the mover of the partition copies into it, as a follower does
    promote            it has caught up: it gets the partition's name, and the old log is deleted
    promote_abandoned  after a start: promotes logs that the previous process could not promote
    delete             the move is cancelled

Source: LogManager.replaceCurrentWithFutureLog and recoverAbandonedFutureLogs of Kafka 4.3.1.
"""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import InconsistentTopicId, KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage import file_names
from ottla.storage.log import Log
from ottla.storage.manager.log_table import LogTable

_LOG = getLogger(__name__)


class FutureLogs:
    """The future logs of a broker: each replaces its partition's log in another directory (KIP-113)."""

    def __init__(self, table: LogTable) -> None:
        self._table = table

    def create(
        self,
        topic_partition: TopicPartition,
        log_dir: Path,
        *,
        topic_id: UUID,
        now_ms: int,
        config: LogConfig | None = None,
    ) -> Log:
        """The partition's future log in `log_dir`, created empty if there is none (KIP-113).

        The mover copies into it as a follower does, and then calls `promote`. `log_dir` is one of `directory_ids`,
        but not the one of the partition's log. Raises KafkaStorageError if either is offline, or if there is a future
        log in another directory: delete it first.
        """
        current = self._table.logs.get(topic_partition)
        if current is None:
            raise KafkaStorageError(
                f"{topic_partition} has no online log on this broker, so it cannot be moved"
            )
        assert log_dir in self._table.directories, log_dir
        assert log_dir != current.directory.parent, current
        if (failure := self._table.offline_dirs.get(log_dir)) is not None:
            raise KafkaStorageError(f"Log directory {log_dir} is offline: {failure}")
        if (future := self._table.future_logs.get(topic_partition)) is not None:
            if future.directory.parent != log_dir:
                raise KafkaStorageError(
                    f"{topic_partition} is being moved to {future.directory.parent} already: cancel that move first"
                )
            future.assign_topic_id(topic_id)
            return future
        self._table.checkpoints.remove_deleted_log(topic_partition, log_dir)
        name = file_names.future_directory(topic_partition, unique=self._table.unique())
        future = self._table.create_log(
            topic_partition, log_dir / name, config or current.config, topic_id=topic_id, now_ms=now_ms
        )
        self._table.add(future)
        return future

    def promote(self, topic_partition: TopicPartition, *, now_ms: int) -> Log:
        """Replace the partition's log by its future log, which has caught up; the old log is deleted.

        A crash between the two renames, or a failure of the old disk in the second, leaves two logs of that name: the
        next start rejects them, as in Kafka. Raises KafkaStorageError if one of them is offline or the new disk fails,
        and InconsistentTopicId if they are not of one topic: then the old log stays the partition's log.
        """
        current, future = self._table.logs.get(topic_partition), self._table.future_logs.get(topic_partition)
        if current is None or future is None:
            raise KafkaStorageError(
                f"The {'current' if current is None else 'future'} log of {topic_partition} is offline"
            )
        if current.topic_id != future.topic_id:
            raise InconsistentTopicId(
                f"{future.directory} belongs to another topic id than {current.directory}"
            )
        assert future.log_end_offset == current.log_end_offset, (
            future.log_end_offset,
            current.log_end_offset,
        )
        # Both offsets may have advanced since the last copy; for readers they never move back.
        future.update_high_watermark(current.high_watermark)
        future.maybe_increment_log_start_offset(current.log_start_offset, reason="the log's that it replaces")
        assert future.high_watermark >= current.high_watermark, (future.offsets, current.offsets)
        assert future.log_start_offset >= current.log_start_offset, (future.offsets, current.offsets)
        if current.offsets.remote_end_offset is not None:
            # The same log, and so the same copies.
            future.update_remote_end_offset(current.offsets.remote_end_offset)
        latest = current.leader_epochs.latest
        if latest is not None and (future.latest_epoch is None or future.latest_epoch < latest.epoch):
            # An epoch without records is in no copied batch.
            future.assign_epoch(latest.epoch, start_offset=latest.start_offset)
        # The last step: a failure before it has changed nothing, and no step after it can fail.
        self._replace(current, future, now_ms)
        return future

    def promote_abandoned(
        self, is_assigned: Callable[[TopicPartition, UUID | None, UUID], bool], *, now_ms: int
    ) -> list[TopicPartition]:
        """After `load`: promote future logs whose directory is already assigned in the metadata (KIP-858).

        Returns their partitions. `is_assigned` is called with the topic's id and the directory's. The previous process
        crashed before it could promote them, and the old log's directory has failed. If that is online, the old log may
        have more records, and the move continues. (Kafka promotes then, too, and loses records not copied yet.)
        """
        promoted = []
        for topic_partition, future in list(self._table.future_logs.items()):
            directory_id = self._table.directories[future.directory.parent].directory_id
            if topic_partition not in self._table.logs and is_assigned(
                topic_partition, future.topic_id, directory_id
            ):
                _LOG.info(
                    "%s: the future log %s replaces the log, whose directory is offline",
                    topic_partition,
                    future.directory,
                )
                self._replace(None, future, now_ms)
                promoted.append(topic_partition)
        return promoted

    def _replace(self, current: Log | None, future: Log, now_ms: int) -> None:
        topic_partition = future.topic_partition
        assert current is not future, future.directory
        assert current is None or current.topic_partition == topic_partition, (current, topic_partition)
        if current is not None and future.recovery_point < current.recovery_point:
            # The part that is flushed in the old log must be flushed in the new one before the renames: whichever of
            # the two a power cut keeps, one of the logs is complete, and the next start keeps that.
            future.flush(current.recovery_point)
        future.rename_directory(future.directory.parent / str(topic_partition))
        del self._table.future_logs[topic_partition]
        self._table.logs[topic_partition] = future
        self._table.check_partition(topic_partition)
        if current is None:
            return
        try:
            # The new log is flushed completely before the old one's files are removed.
            self._table.rename_and_schedule_removal(
                current,
                file_names.DELETE_DIRECTORY,
                now_ms,
                before_removal=lambda: future.flusher.flush_files(future.log_end_offset),
            )
        except KafkaStorageError as error:
            _LOG.error(
                "%s: the replaced log %s cannot be deleted: %s", topic_partition, current.directory, error
            )
            current.close_files()

    def delete(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Delete the future log, if any: the partition stays in its directory."""
        if (future := self._table.future_logs.pop(topic_partition, None)) is not None:
            self._table.rename_and_schedule_removal(future, file_names.DELETE_DIRECTORY, now_ms)
