"""The periodic work of the LogManager, as of Kafka's: ScheduledTasks, and LogCleanerManager for the compaction.

    retention           kafka-log-retention                a few logs per call of `maintain`, a job for the due ones
    producer expiry     PeriodicProducerExpirationCheck    all logs
    first timestamps    (none: draft KIP-1303)             one job, of logs whose local part elections ask for
    flush.ms, rolls     kafka-log-flusher                  a job for each log
    checkpoints         kafka-recovery-point-checkpoint,   a job for each changed file
                        kafka-log-start-offset-checkpoint, highwatermark-checkpoint
    removal of files    kafka-delete-logs                  one job
    compaction          kafka-log-cleaner-thread           one log at a time, by `LogCleanerManager.clean_one`

The offset up to which a log is clean, and the logs that cannot be cleaned, are in the LogTable: they are checkpointed
and deleted with the logs. Decided on the event loop's thread, in small steps; work that waits for the disk is returned
as BackgroundJobs.

Source: LogManager.startupWithConfigOverrides, ReplicaManager.startHighWatermarkCheckPointThread and LogCleanerManager
of Kafka 4.3.1.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from logging import getLogger

from ottla.protocol.errors import KafkaError, KafkaStorageError
from ottla.storage.background import BackgroundJob
from ottla.storage.cleaner import cleaning_job, filthiest
from ottla.storage.files import is_out_of_descriptors
from ottla.storage.log import Log
from ottla.storage.log_availability import TooManyOpenFiles
from ottla.storage.log_files import removal_job
from ottla.storage.manager.log_table import LogTable
from ottla.storage.tiered_log import local_log_job

#: Logs that one call of `maintain` checks for retention: 20 us each.
LOGS_A_CALL = 100
#: Segments of one log that are removed in one step on the event loop: 0.2 to 0.8 ms each, most of it for
#: renaming their files.
SEGMENTS_OF_STEP = 4

_LOG = getLogger(__name__)


class _Task(Enum):
    RETENTION = auto()
    PRODUCER_EXPIRY = auto()
    RECOVERY_POINTS = auto()
    LOG_STARTS = auto()
    HIGH_WATERMARKS = auto()


class ScheduledTasks:
    """The periodic work of all logs: retention, producer expiry, flushes, checkpoints, removal of files."""

    def __init__(self, table: LogTable, *, now_ms: int) -> None:
        self._table = table
        settings = table.settings
        #: The logs that this run has still to check; at most all logs.
        self._retention_queue: deque[Log] = deque()
        self._intervals_ms = {
            _Task.RETENTION: settings.retention_check_interval_ms,
            _Task.PRODUCER_EXPIRY: settings.producer_id_expiration_check_interval_ms,
            _Task.RECOVERY_POINTS: settings.checkpoint_interval_ms,
            _Task.LOG_STARTS: settings.log_start_checkpoint_interval_ms,
            _Task.HIGH_WATERMARKS: settings.high_watermark_checkpoint_interval_ms,
        }
        self._due_ms = {task: now_ms + interval_ms for task, interval_ms in self._intervals_ms.items()}
        self._last_ms = now_ms

    def maintain(self, now_ms: int) -> list[BackgroundJob]:
        """Do the periodic work that is due, in small steps; returns jobs for the work that waits for the disk."""
        table = self._table
        self._follow_clock(now_ms)
        jobs = self._retain_some(now_ms)
        if self._begins(_Task.PRODUCER_EXPIRY, now_ms):
            for log in table.all_logs():
                log.producers.remove_expired(now_ms)
        for log in table.all_logs():
            if log.files.deleted_files:
                table.deleted_files += log.files.take_deleted()
            if (end := log.flusher.due_end(now_ms)) is not None:
                jobs.append(log.flusher.job(end, now_ms=now_ms))
        if (job := local_log_job(table.all_logs())) is not None:
            jobs.append(job)
        if due := [deleted for deleted in table.deleted_files if deleted.due_ms <= now_ms]:
            table.deleted_files = [deleted for deleted in table.deleted_files if deleted.due_ms > now_ms]
            jobs.append(removal_job(due))
        return jobs + self._checkpoint_jobs(now_ms)

    def write_log_starts_soon(self) -> None:
        """Have the next call of `maintain` write the log start offsets, before their interval is over."""
        self._due_ms[_Task.LOG_STARTS] = 0

    def _begins(self, task: "_Task", now_ms: int) -> bool:
        """Whether the task is due now; then it is due again after its interval."""
        if now_ms < self._due_ms[task]:
            return False
        self._due_ms[task] = now_ms + self._intervals_ms[task]
        return True

    def _follow_clock(self, now_ms: int) -> None:
        """Keep the schedule when the wall clock steps back: what was due in a minute is due in a minute still.

        It would otherwise be due only when the clock has caught up, an hour later for one that was an hour ahead.
        """
        back_ms, self._last_ms = self._last_ms - now_ms, now_ms
        if back_ms <= 0:
            return
        self._due_ms = {task: due_ms - back_ms for task, due_ms in self._due_ms.items()}
        self._table.deleted_files = [
            deleted._replace(due_ms=deleted.due_ms - back_ms) for deleted in self._table.deleted_files
        ]
        for log in self._table.all_logs():
            log.flusher.step_back(back_ms)

    def _checkpoint_jobs(self, now_ms: int) -> list[BackgroundJob]:
        checkpoints = self._table.checkpoints
        jobs: list[BackgroundJob] = []
        if self._begins(_Task.RECOVERY_POINTS, now_ms):
            jobs += checkpoints.recovery_point_jobs()
        if self._begins(_Task.LOG_STARTS, now_ms):
            jobs += checkpoints.log_start_jobs()
        if self._begins(_Task.HIGH_WATERMARKS, now_ms):
            jobs += checkpoints.high_watermark_jobs()
        return jobs

    def _retain_some(self, now_ms: int) -> list[BackgroundJob]:
        """Check some logs; the job applies retention to those that are due, or whose files must be read to know it."""
        if not self._retention_queue and self._begins(_Task.RETENTION, now_ms):
            self._retention_queue.extend(self._table.all_logs())
        found = []
        for _ in range(min(LOGS_A_CALL, len(self._retention_queue))):
            log = self._retention_queue.popleft()
            if _is_due(log, now_ms):
                found.append(log)
            else:
                _release_mappings(log)
        # At most LOGS_A_CALL.
        return [_retention_job(deque(found), now_ms)] if found else []


def _is_due(log: Log, now_ms: int) -> bool:
    try:
        return log.start.retention_waits_for_disk(
            now_ms, most=SEGMENTS_OF_STEP
        ) or log.start.is_retention_due(now_ms)
    except KafkaError as error:
        _LOG.error("%s: retention failed: %s", log.directory, error)
        return False


def _retain(log: Log, now_ms: int) -> bool:
    """Remove a few segments of the log that are due for retention; False: more of them may be due."""
    try:
        if log.start.apply_some_retention(now_ms, most=SEGMENTS_OF_STEP):
            return False
    except KafkaError as error:
        _LOG.error("%s: retention failed: %s", log.directory, error)
    _release_mappings(log)
    return True


def _release_mappings(log: Log) -> None:
    for segment in log.segments:
        segment.log.release_mapping()


def _retention_job(logs: deque[Log], now_ms: int) -> BackgroundJob:
    """A job for the retention of the first of these logs; its next parts are for the others.

    A thread reads timestamps that are not in memory, flushes removals, and writes the log start offset on which a
    removal depends; the event loop decides, and removes a few segments at a time.
    """

    def run() -> None:
        with suppress(KafkaStorageError):  # logged by the log, which is offline
            logs[0].start.warm_up_retention(now_ms, most=SEGMENTS_OF_STEP)

    def remove() -> BackgroundJob | None:
        if _retain(logs[0], now_ms):
            logs.popleft()
        return _retention_job(logs, now_ms) if logs else None

    def finish() -> BackgroundJob | None:
        checkpoint = logs[0].start.retention_checkpoint_job()
        if checkpoint is None:
            return remove()
        return BackgroundJob(name=checkpoint.name, run=checkpoint.run, finish=remove)

    return BackgroundJob(name=f"retention of {logs[0].directory}", run=run, finish=finish)


class LogCleanerManager:
    """Chooses the log that is cleaned next. Belongs to the event loop's thread."""

    def __init__(self, table: LogTable) -> None:
        self._table = table

    def clean_one(
        self, now_ms: int, *, throttle: Callable[[int], None] = lambda size_bytes: None
    ) -> BackgroundJob | None:
        """A job that compacts the log with the largest dirty ratio; None if none is due.

        `throttle` is called in the job's thread with the number of bytes read or written, and may block there.
        """
        table = self._table
        # A log that is being moved is not cleaned, so that its clean part is the same in the copy.
        logs = [
            log
            for log in list(table.logs.values())
            if log not in table.uncleanable and log.topic_partition not in table.future_logs
        ]
        chosen = filthiest(logs, table.cleaned_offsets, now_ms, on_failure=self._on_not_cleaned)
        if chosen is None:
            return None
        try:
            return cleaning_job(
                chosen,
                now_ms=now_ms,
                on_done=self._on_cleaned,
                on_failure=self._on_not_cleaned,
                dedupe_buffer_bytes=table.settings.cleaner_dedupe_buffer_bytes,
                throttle=throttle,
            )
        except OSError as error:
            self._on_not_cleaned(chosen.log, error)
            return None

    def _on_not_cleaned(self, log: Log, error: Exception) -> None:
        """A failed cleaning: a disk that fails or is full takes its directory offline, as for any other I/O of a log.

        Any other error excludes the log from cleaning until the next start.
        Source: LogCleaner.cleanLog and tryCleanFilthiestLog; Kafka excludes only a log that it cannot measure.
        """
        is_limit = isinstance(error, OSError) and is_out_of_descriptors(error)
        if is_limit or isinstance(error, TooManyOpenFiles):
            _LOG.warning("%s is not cleaned now: %s", log.directory, error)  # once in log.cleaner.backoff.ms
        elif isinstance(error, OSError):
            self._table.fail(log.directory.parent, error)
        else:
            trace = None if isinstance(error, KafkaError) else error
            _LOG.error(
                "%s cannot be cleaned, and is not compacted until the next start: %s",
                log.directory,
                error,
                exc_info=trace,
            )
            # Every retry would fail; the next start tries again.
            self._table.uncleanable.add(log)

    def _on_cleaned(self, log: Log, clean_end: int) -> None:
        table, at = self._table, log.topic_partition
        if table.logs.get(at) is log and at not in table.future_logs:
            assert clean_end <= log.segments.active.base_offset, (log.directory, clean_end)
            table.cleaned_offsets[at] = clean_end
