"""LogCleanerManager: chooses the log that is cleaned next, and keeps the offset up to which each log is clean.

The offsets, and the logs that cannot be cleaned, are in the LogTable: they are checkpointed and deleted with the logs.

Source: LogCleanerManager of Kafka 4.3.1.
"""

from collections.abc import Callable
from logging import getLogger

from ottla.protocol.errors import KafkaError
from ottla.storage.background import BackgroundJob
from ottla.storage.cleaner import cleaning_job, filthiest
from ottla.storage.files import is_out_of_descriptors
from ottla.storage.log import Log
from ottla.storage.log_availability import TooManyOpenFiles
from ottla.storage.manager.log_table import LogTable

_LOG = getLogger(__name__)


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
