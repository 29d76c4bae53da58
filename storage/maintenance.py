"""Periodic work of the LogManager: retention, flushes, removal of files, checkpoints; and which log is compacted next.

Decided on the event loop's thread, in small steps; work that waits for the disk is returned as BackgroundJobs.

Source: the scheduled tasks of LogManager of Kafka 4.3.1, and LogCleaner.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import getLogger

from protocol.errors import KafkaError, KafkaStorageError
from storage.background import BackgroundJob
from storage.cleaner import cleaning_job, filthiest
from storage.flushing import flush_due, flush_job
from storage.log import Log
from storage.log_files import removal_job
from storage.log_table import LogTable

#: Logs that one call of `maintain` checks for retention: 20 us each.
LOGS_A_CALL = 100

_LOG = getLogger(__name__)


class Upkeep:
    """The periodic work of all logs; see the module."""

    def __init__(self, table: LogTable, *, now_ms: int) -> None:
        self._table = table
        settings = table.settings
        self._retention_queue: deque[Log] = deque()
        self._next_retention_ms = now_ms + settings.retention_check_interval_ms
        self._next_expiry_ms = now_ms + settings.producer_id_expiration_check_interval_ms
        self._next_checkpoint_ms = now_ms + settings.checkpoint_interval_ms
        self._next_log_starts_ms = now_ms + settings.log_start_checkpoint_interval_ms
        self._next_high_watermarks_ms = now_ms + settings.high_watermark_checkpoint_interval_ms

    def maintain(self, now_ms: int) -> list[BackgroundJob]:
        """See `LogManager.maintain`."""
        table = self._table
        jobs = self._retain_some(now_ms)
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + table.settings.producer_id_expiration_check_interval_ms
            for log in table.all_logs():
                log.producers.remove_expired(now_ms)
        for log in table.all_logs():
            if log.deleted_files:
                table.deleted_files += log.deleted_files
                log.deleted_files = []
            if (end := flush_due(log, now_ms)) is not None:
                jobs.append(flush_job(log, end, now_ms))
        if due := [deleted for deleted in table.deleted_files if deleted.due_ms <= now_ms]:
            table.deleted_files = [deleted for deleted in table.deleted_files if deleted.due_ms > now_ms]
            jobs.append(removal_job(due))
        return jobs + self._checkpoint_jobs(now_ms)

    def _checkpoint_jobs(self, now_ms: int) -> list[BackgroundJob]:
        settings, checkpoints = self._table.settings, self._table.checkpoints
        jobs: list[BackgroundJob] = []
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + settings.checkpoint_interval_ms
            jobs += checkpoints.recovery_point_jobs()
        if now_ms >= self._next_log_starts_ms:
            self._next_log_starts_ms = now_ms + settings.log_start_checkpoint_interval_ms
            jobs += checkpoints.log_start_jobs()
        if now_ms >= self._next_high_watermarks_ms:
            self._next_high_watermarks_ms = now_ms + settings.high_watermark_checkpoint_interval_ms
            jobs += checkpoints.high_watermark_jobs()
        return jobs

    def _retain_some(self, now_ms: int) -> list[BackgroundJob]:
        """Apply retention to some logs; the job does so for those whose files must be read first."""
        if now_ms >= self._next_retention_ms and not self._retention_queue:
            self._next_retention_ms = now_ms + self._table.settings.retention_check_interval_ms
            self._retention_queue.extend(self._table.all_logs())
        cold = []
        for _ in range(min(LOGS_A_CALL, len(self._retention_queue))):
            log = self._retention_queue.popleft()
            if log.retention_waits_for_disk(now_ms):
                cold.append(log)
            else:
                _retain(log, now_ms)
        return [_retention_job(cold, now_ms)] if cold else []

    def clean_one(
        self, now_ms: int, *, throttle: Callable[[int], None] = lambda size_bytes: None
    ) -> BackgroundJob | None:
        """See `LogManager.clean_one`."""
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
        Source: LogCleaner.cleanLog and tryCleanFilthiestLog; Kafka only gives up a log that it cannot measure.
        """
        if isinstance(error, OSError):
            self._table.fail(log.directory.parent, error)
        else:
            trace = None if isinstance(error, KafkaError) else error
            _LOG.error("%s cannot be cleaned: %s", log.directory, error, exc_info=trace)
            # Every retry would fail; the next start tries again.
            self._table.uncleanable.add(log)

    def _on_cleaned(self, log: Log, clean_end: int) -> None:
        table, at = self._table, log.topic_partition
        if table.logs.get(at) is log and at not in table.future_logs:
            table.cleaned_offsets[at] = clean_end


def _retain(log: Log, now_ms: int) -> None:
    try:
        log.apply_retention(now_ms)
    except KafkaError as error:
        _LOG.error("%s: retention: %s", log.directory, error)
    for segment in log.segments:
        segment.log.release_mapping()


def _retention_job(logs: Sequence[Log], now_ms: int) -> BackgroundJob:
    """Retention of logs whose timestamps are not in memory: a thread reads them, the event loop decides."""

    def run() -> None:
        for log in logs:
            with suppress(KafkaStorageError):  # logged by the log, which is offline
                log.warm_up_retention(now_ms)

    def finish() -> None:
        for log in logs:
            _retain(log, now_ms)

    return BackgroundJob(
        name=f"read the timestamps of {len(logs)} logs for retention", run=run, finish=finish
    )
