"""Log creation: creates the logs of a topic's new partitions without blocking the event loop.

    plan (loop)   chooses the directory of each log; its name is reserved from here on
    run           creates directories and files of some of them; 0.2 ms per log [any thread]
    finish (loop) adds these logs to the table, unless their topic was deleted or their disk failed meanwhile

`LogManager.creation` plans. Several creations may be in progress, each for other partitions.

Source: LogManager.getOrCreateLog and nextLogDirs of Kafka 4.3.1.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaError, KafkaStorageError, UnknownTopicOrPartition
from ottla.protocol.types import TopicPartition
from ottla.storage import file_names
from ottla.storage.log import Log
from ottla.storage.manager.log_table import LogTable

_LOG = getLogger(__name__)


class NewLog(NamedTuple):
    """A log to create, if it does not exist."""

    topic_partition: TopicPartition
    topic_id: UUID
    #: None: by the `topic_config` of `LogManager.load`.
    config: LogConfig | None = None
    #: Whether the partition has never had a log; see `LogManager.get_or_create`.
    is_new: bool = True
    #: The epoch in which this broker leads the partition, assigned in the thread; None: it is not the leader.
    leader_epoch: int | None = None


class PlannedLog(NamedTuple):
    """A log to create, and its log directory."""

    new: NewLog
    log_dir: Path

    @property
    def path(self) -> Path:
        """The directory of the log. Not made by the plan, as it takes half as long as the rest of it: 2 us."""
        return self.log_dir / str(self.new.topic_partition)


class LogCreation:
    """Creation of several logs. `logs` and `errors` have the results so far: at first existing logs and refusals."""

    def __init__(
        self,
        *,
        create: Callable[[NewLog, Path], Log],
        on_created: Callable[[TopicPartition, Log | None], KafkaError | None],
    ) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.errors: dict[TopicPartition, KafkaError] = {}
        #: At most one for each partition that the metadata assigns to this broker.
        self._planned: deque[PlannedLog] = deque()
        self._create = create
        self._on_created = on_created

    def plan(self, new: NewLog, log_dir: Path) -> None:
        """Add a log that is to be created in this log directory."""
        self._planned.append(PlannedLog(new, log_dir))

    @property
    def planned_count(self) -> int:
        """The number of logs that `next_part` has not taken yet."""
        return len(self._planned)

    def next_part(self, max_count: int) -> Sequence[PlannedLog]:
        """Take the next planned logs, `max_count` of them or fewer at the end, for `run` and then `finish`."""
        return [self._planned.popleft() for _ in range(min(max_count, len(self._planned)))]

    def run(self, part: Sequence[PlannedLog]) -> None:
        """Create the logs. [any thread]"""
        for planned in part:
            at = planned.new.topic_partition
            try:
                self.logs[at] = self._create(planned.new, planned.path)
            except KafkaError as error:
                self.errors[at] = error

    def finish(self, part: Sequence[PlannedLog]) -> None:
        """Add the created logs to the table; the others get an error, even if `run` has failed."""
        for planned in part:
            at = planned.new.topic_partition
            error = self._on_created(at, self.logs.get(at))
            if at not in self.errors and (error is not None or at not in self.logs):
                self.logs.pop(at, None)
                self.errors[at] = error or KafkaStorageError(f"The log {planned.path} was not created")


class LogCreations:
    """Chooses the directories of new logs, and adds the logs to the table when they are created."""

    def __init__(self, table: LogTable, *, topic_config: Callable[[str], LogConfig]) -> None:
        """Create the service; `topic_config` returns the configuration of logs that are requested without
        one.
        """
        self._table = table
        self._topic_config = topic_config
        #: The directories of logs that are being created. None: the topic was deleted meanwhile.
        self._being_created: dict[TopicPartition, Path | None] = {}

    def record_deletion(self, topic_partition: TopicPartition) -> None:
        """The partition was deleted, perhaps while its log is being created."""
        if topic_partition in self._being_created:
            self._being_created[topic_partition] = None

    def creation(self, wanted: Iterable[NewLog], *, now_ms: int) -> LogCreation:
        """Plan the creation of many logs, whose slow part can run in a thread; existing logs are taken as they are."""
        creation = LogCreation(
            create=partial(self._create_planned, now_ms=now_ms),
            on_created=partial(self._on_created, now_ms=now_ms),
        )
        counts = self._log_counts()
        for new in wanted:
            topic_partition = new.topic_partition
            assert topic_partition not in self._being_created, topic_partition
            try:
                if (log := self._table.logs.get(topic_partition)) is not None:
                    log.assign_topic_id(new.topic_id)
                    if new.config is not None and new.config != log.config:
                        log.update_config(new.config)
                    creation.logs[topic_partition] = log
                    continue
                if self._table.offline_dirs and not new.is_new:
                    raise KafkaStorageError(
                        f"{topic_partition} may have a log in an offline directory, so none is created: "
                        f"{[*map(str, self._table.offline_dirs)]}"
                    )
                path = self._emptiest(counts)
            except KafkaError as error:
                creation.errors[topic_partition] = error
                continue
            counts[path] += 1
            self._being_created[topic_partition] = path
            config = new.config or self._topic_config(topic_partition.topic)
            creation.plan(new if config is new.config else new._replace(config=config), path)
        return creation

    def _create_planned(self, new: NewLog, path: Path, *, now_ms: int) -> Log:
        """Create a log, unless its topic was deleted meanwhile. [any thread]"""
        if self._being_created[new.topic_partition] is None:
            raise UnknownTopicOrPartition(f"{new.topic_partition} was deleted before its log was created")
        assert new.config is not None, new
        self._table.checkpoints.remove_deleted_log(new.topic_partition, path.parent)
        return self._table.create_log(
            new.topic_partition,
            path,
            new.config,
            topic_id=new.topic_id,
            now_ms=now_ms,
            leader_epoch=new.leader_epoch,
        )

    def _on_created(
        self, topic_partition: TopicPartition, log: Log | None, *, now_ms: int
    ) -> KafkaError | None:
        """Add a created log to the table; returns the error if it is not added. `log` None: it was not created."""
        path = self._being_created.pop(topic_partition)
        if log is None:
            return None
        if (failure := self._table.offline_dirs.get(log.directory.parent)) is not None:
            log.availability.take_offline(failure)
            return KafkaStorageError(f"The log directory of {log.directory} is offline: {failure}")
        if path is None:
            try:
                self._table.rename_and_schedule_removal(log, file_names.DELETE_DIRECTORY, now_ms)
            except KafkaStorageError as error:  # its directory is offline
                return error
            return UnknownTopicOrPartition(f"{topic_partition} was deleted while its log was created")
        try:
            self._rename_orphan(topic_partition, path, now_ms)
        except KafkaStorageError as error:  # its directory is offline
            return error
        self._table.add(log)
        return None

    def _rename_orphan(self, topic_partition: TopicPartition, log_dir: Path, now_ms: int) -> None:
        """Rename a future log in the directory of the new log to a stray: there is nothing to move any more.

        The log that it was to replace was in a directory that the operator has removed from `log.dirs`.
        """
        future = self._table.future_logs.get(topic_partition)
        if future is not None and future.directory.parent == log_dir:
            _LOG.warning(
                "%s: the log that this future log was to replace does not exist, so it is renamed to a stray",
                future.directory,
            )
            del self._table.future_logs[topic_partition]
            self._table.rename_and_schedule_removal(future, file_names.STRAY_DIRECTORY, now_ms)

    def _log_counts(self) -> Counter[Path]:
        """Count the logs that each online directory has, or is about to have."""
        counts = Counter(
            {path: 0 for path in self._table.directories if path not in self._table.offline_dirs}
        )
        if len(counts) > 1:
            places = [
                *(log.directory.parent for log in self._table.all_logs()),
                *self._being_created.values(),
            ]
            counts.update(path for path in places if path is not None and path in counts)
        return counts

    def _emptiest(self, counts: Counter[Path]) -> Path:
        serving = [path for path in counts if path not in self._table.offline_dirs]
        if not serving:
            raise KafkaStorageError("No log directory of this broker is online")
        allowed = [path for path in serving if path not in self._table.cordoned_dirs]
        # All may have been cordoned after the replica was put on this broker.
        return min(allowed, key=lambda path: counts[path]) if allowed else serving[0]
