"""The part of the LogManager that moves a log to another directory (KIP-113).

    create_future        an empty `-future` log; whoever moves the partition copies into it, as a follower does
    promote_future       it has caught up: it gets the partition's name, and the old one goes
    promote_abandoned    after a start: what a dead process had not promoted any more
    delete_future        the partition stays where it is

Source: LogManager.replaceCurrentWithFutureLog and recoverAbandonedFutureLogs of Kafka 4.3.1.
"""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path
from uuid import UUID

from protocol.errors import KafkaStorageError
from protocol.types import TopicPartition
from storage import file_names
from storage.checkpoint_writer import CheckpointWriter
from storage.log import Log
from storage.log_config import LogConfig
from storage.log_creation import NewLog
from storage.log_directory import LogDirectory

_LOG = getLogger(__name__)


class FutureLogs:
    """See the module; the rest is in `storage.log_manager`."""

    logs: dict[TopicPartition, Log]
    #: Logs that are to take the place of those in other directories. To look at only.
    future_logs: dict[TopicPartition, Log]
    offline_dirs: dict[Path, OSError]
    _directories: dict[Path, LogDirectory]
    _checkpoints: CheckpointWriter

    def _make_log(self, new: NewLog, path: Path, *, now_ms: int) -> Log:
        raise NotImplementedError

    def _put_aside(
        self, log: Log, suffix: str, now_ms: int, *, before_removal: Callable[[], None] = lambda: None
    ) -> None:
        raise NotImplementedError

    def _unique(self) -> str:
        raise NotImplementedError

    def create_future(
        self,
        topic_partition: TopicPartition,
        log_dir: Path,
        *,
        topic_id: UUID,
        now_ms: int,
        config: LogConfig | None = None,
    ) -> Log:
        """The partition's future log in `log_dir`, made empty if there is none (KIP-113).

        Whoever moves the partition copies into it as a follower does, and then calls `promote_future`.
        `log_dir` is one of `directory_ids`, but not the one where the partition's log is. Raises KafkaStorageError if
        either is offline, or if there is a future log elsewhere: delete it first.
        """
        current = self.logs.get(topic_partition)
        if current is None:
            raise KafkaStorageError(f"{topic_partition} has no log that could move")
        assert log_dir in self._directories, log_dir
        assert log_dir != current.directory.parent, current
        if (failure := self.offline_dirs.get(log_dir)) is not None:
            raise KafkaStorageError(f"{log_dir}: {failure}")
        if (future := self.future_logs.get(topic_partition)) is not None:
            if future.directory.parent != log_dir:
                raise KafkaStorageError(f"{topic_partition} moves to {future.directory.parent} already")
            future.assign_topic_id(topic_id)
            return future
        self._checkpoints.forget_predecessor(topic_partition, log_dir)
        name = file_names.future_directory(topic_partition, unique=self._unique())
        new = NewLog(topic_partition, topic_id, config or current.config)
        future = self.future_logs[topic_partition] = self._make_log(new, log_dir / name, now_ms=now_ms)
        return future

    def promote_future(self, topic_partition: TopicPartition, *, now_ms: int) -> Log:
        """The future log has caught up: it is the partition's log from now on, and the other one is deleted.

        A crash between the two renames leaves two logs of that name: the next start refuses them, as Kafka's does.
        Raises KafkaStorageError if one of them is offline.
        """
        current, future = self.logs.get(topic_partition), self.future_logs.get(topic_partition)
        if current is None or future is None:
            raise KafkaStorageError(f"The {'current' if current is None else 'future'} log of {topic_partition} is offline")  # fmt: skip
        self._replace(current, future, now_ms)
        # Both may have moved since the last copy; for those who read they do not go back.
        future.update_high_watermark(current.high_watermark)
        future.maybe_increment_log_start_offset(current.log_start_offset, reason="the log's that it replaces")
        return future

    def promote_abandoned(
        self, is_assigned: Callable[[TopicPartition, UUID | None, UUID], bool], *, now_ms: int
    ) -> list[TopicPartition]:
        """After `load`: promote future logs whose directory the metadata already says to be the partition's (KIP-858).

        `is_assigned` is asked with the topic's id and the directory's; the process died before it could promote
        them, perhaps because the other directory had failed. Returns which.
        """
        promoted = []
        for topic_partition, future in list(self.future_logs.items()):
            directory_id = self._directories[future.directory.parent].directory_id
            if is_assigned(topic_partition, future.topic_id, directory_id):
                current = self.logs.get(topic_partition)
                if current is None or current.topic_id == future.topic_id:
                    _LOG.info("%s: %s takes the place of %s", topic_partition, future.directory, current)
                    self._replace(current, future, now_ms)
                    promoted.append(topic_partition)
        return promoted

    def _replace(self, current: Log | None, future: Log, now_ms: int) -> None:
        topic_partition = future.topic_partition
        future.rename_directory(future.directory.parent / str(topic_partition))
        del self.future_logs[topic_partition]
        self.logs[topic_partition] = future
        if current is None:
            return
        try:
            # What the old log had flushed must be flushed in the new one before its files go.
            self._put_aside(
                current,
                file_names.DELETE_DIRECTORY,
                now_ms,
                before_removal=lambda: future.flush_files(future.log_end_offset),
            )
        except KafkaStorageError as error:
            _LOG.error("%s: the old log was not removed: %s", topic_partition, error)
            current.close_files()

    def delete_future(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """The partition stays where it is."""
        if (future := self.future_logs.pop(topic_partition, None)) is not None:
            self._put_aside(future, file_names.DELETE_DIRECTORY, now_ms)
