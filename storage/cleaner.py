"""Log cleaner: chooses the compacted log with the largest dirty ratio, and makes the job that cleans it.

    log start       first dirty offset        end offset             log end
        |== clean ==========|== dirty ============|== not yet ==========|
                             (cleanable)            active segment, undecided transactions,
                                                    younger than min.compaction.lag.ms

A log is due when its dirty part is more than `min.cleanable.dirty.ratio` of its cleanable bytes, or older
than `max.compaction.lag.ms`. The log with the largest ratio is cleaned first.

Source: LogCleanerManager and LogToClean of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.types import TopicPartition
from ottla.storage.background import BackgroundJob
from ottla.storage.compaction import BYTES_A_KEY, Compaction, LastRecord, Replacement, Source, compact
from ottla.storage.log import Log
from ottla.storage.producer_append import ProducerState

#: Default of log.cleaner.dedupe.buffer.size.
DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024

#: Called with a log that cannot be cleaned, and the reason.
OnFailure = Callable[[Log, Exception], None]


def _ignore(log: Log, error: Exception) -> None:
    return


class CleaningStopped(Exception):
    """Raised by a throttle to stop a cleaning. The log is left as it is."""


class LogToClean(NamedTuple):
    """A log and the range of it that can be cleaned now."""

    log: Log
    first_dirty_offset: int
    #: Base offset of the first segment that is not cleaned.
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    #: Whether max.compaction.lag.ms is exceeded.
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes as a share of the cleanable bytes, all of which a cleaning reads; 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the dirty ratio or the compaction lag requires a cleaning."""
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def measure(log: Log, *, cleaned_to: int | None, now_ms: int) -> LogToClean:
    """The cleanable range of `log`, which is clean up to `cleaned_to` (None: never cleaned)."""
    first_dirty = log.log_start_offset if cleaned_to is None else cleaned_to
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        # The log was truncated below the checkpoint's offset, or its start has moved beyond it.
        first_dirty = log.log_start_offset
    assert log.log_start_offset <= first_dirty <= log.log_end_offset, (
        log.directory,
        first_dirty,
        log.offsets,
    )
    # The closed segments from the one that holds the first dirty offset on.
    dirty = log.segments.from_offset(first_dirty)[:-1]
    clean = log.segments.closed[: len(log.segments) - 1 - len(dirty)]
    bound = min(log.last_stable_offset, log.segments.active.base_offset)
    if log.config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - log.config.min_compaction_lag_ms
        for segment in dirty:
            if segment.largest_timestamp_ms() > youngest_ms:
                bound = min(bound, segment.base_offset)
                break
    # Whole segments only: the one that holds the bound is not cleaned.
    end = max((segment.base_offset for segment in log.segments if segment.base_offset <= bound), default=0)
    assert 0 <= end <= log.segments.active.base_offset, (log.directory, end, bound)
    oldest_kept_ms = now_ms - log.config.max_compaction_lag_ms
    first_timestamps = [segment.first_timestamp() for segment in dirty]
    return LogToClean(
        log=log,
        first_dirty_offset=first_dirty,
        end_offset=end,
        clean_bytes=sum(segment.size for segment in clean if segment.base_offset < end),
        dirty_bytes=sum(segment.size for segment in dirty if segment.base_offset < end),
        is_overdue=any(first is not None and first < oldest_kept_ms for first in first_timestamps),
    )


def filthiest(
    logs: Iterable[Log],
    cleaned_to: Mapping[TopicPartition, int],
    now_ms: int,
    *,
    on_failure: OnFailure = _ignore,
) -> LogToClean | None:
    """The compacted log with the largest dirty ratio of those that are due.

    `on_failure` is called for each log that cannot be measured; the other logs are not affected.
    """
    measured = []
    for log in logs:
        if log.config.is_compacted and len(log.segments) > 1:
            try:
                measured.append(measure(log, cleaned_to=cleaned_to.get(log.topic_partition), now_ms=now_ms))
            except Exception as error:  # noqa: BLE001 (it is reported, and does not affect other logs)
                on_failure(log, error)
    # A log that cannot be read may have taken its directory offline, and others with it.
    due = (it for it in measured if it.is_due and it.log.is_writable)
    return max(due, key=lambda it: it.dirty_ratio, default=None)


class _Cleaning:
    """One cleaning, with one part per segment that it makes: each is put in place before the next part starts.

    It stops as soon as the log is truncated or no longer compacted; segments that are in place stay. After a removal by
    retention it continues with the remaining segments: else steady retention would stop every cleaning of a large log.
    """

    def __init__(
        self, log: Log, compaction: Compaction, *, on_done: Callable[[Log, int], None], on_failure: OnFailure
    ) -> None:
        self._log = log
        self._compaction = compaction
        self._on_done = on_done
        self._on_failure = on_failure
        self._generation, self._directory = log.files.generation, log.directory
        self._first_base = log.segments.first.base_offset
        self._steps = self._all_steps()
        #: Result of the last step: a segment, the end of the clean part, or an error; None: it was stopped.
        self._outcome: Replacement | int | Exception | None = None

    def next_part(self) -> BackgroundJob:
        """The job of the next step: the step in a thread, its result on the event loop."""
        name = f"clean {self._log.topic_partition} to {self._compaction.end_offset}"
        return BackgroundJob(name=name, run=self._run, finish=self._finish)

    def _all_steps(self) -> Iterator[Replacement | int]:
        # A record may be removed in favour of a newer one only if no crash can lose the newer one.
        self._log.flusher.flush_files(self._compaction.end_offset)
        for step in compact(self._compaction):
            # A tombstone may be removed only if no crash can restore what it deletes: the renames so far are durable.
            self._log.files.file_system.fsync_dir(self._directory)
            yield step

    def _run(self) -> None:
        try:
            self._outcome = next(self._steps)
        except CleaningStopped:
            self._outcome = None
        except Exception as error:  # noqa: BLE001 (it is reported: else this log would be chosen again, before others)
            self._outcome = error

    def _finish(self) -> BackgroundJob | None:
        outcome, is_wanted = self._outcome, self._is_wanted()
        match outcome:
            case Replacement():
                return self.next_part() if self._place(outcome, is_wanted=is_wanted) else None
            case int() if is_wanted:
                self._on_done(self._log, outcome)
            case Exception() if is_wanted and not self._has_shrunk():
                self._on_failure(self._log, outcome)
        return None

    def _place(self, made: Replacement, *, is_wanted: bool) -> bool:
        """Replace the sources by the new segment, or delete it; returns whether to continue.

        It is deleted if the cleaning is not wanted any more, or if retention has removed a source: a tombstone must
        not get a delete horizon while a record that it deletes is still in the log, in the remaining sources of an
        earlier group.
        """
        assert made.new.base_offset == made.old[0].base_offset, made
        try:
            if is_wanted and all(segment in self._log.segments for segment in made.old):
                self._log.replace_segments(made.old, [made.new], now_ms=self._compaction.now_ms)
            else:
                made.new.delete_files()
        except KafkaStorageError:
            return False  # already reported by the log, which is offline
        except OSError as error:
            self._on_failure(self._log, error)
            return False
        return is_wanted

    def _is_wanted(self) -> bool:
        """Whether the log is still compacted, and has not been truncated or renamed since the cleaning began."""
        log = self._log
        # A deleted topic's log has another directory, which does not have the new segments. And a topic that is no
        # longer compacted keeps all records that it still has.
        return (
            log.files.generation == self._generation
            and log.directory == self._directory
            and log.is_writable
            and log.config.is_compacted
        )

    def _has_shrunk(self) -> bool:
        """Whether retention has removed segments: their files are deleted after a delay, so that reads may fail."""
        return self._log.segments.first.base_offset > self._first_base


def _last_committed(producer: ProducerState, high_watermark: int) -> int | None:
    """The last offset of a producer's newest batch below the high watermark; None for a producer without batches.

    A batch above the high watermark may still be truncated: if its predecessor had been compacted away, the producer's
    next batch would be out of sequence (as in Kafka). -1 if only such batches are known: then this cleaning keeps all
    that the producer wrote.
    """
    if not producer.batches:
        return None
    offsets = [batch.last_offset for batch in producer.batches if batch.last_offset < high_watermark]
    return offsets[-1] if offsets else -1


def cleaning_job(
    chosen: LogToClean,
    *,
    now_ms: int,
    on_done: Callable[[Log, int], None],
    on_failure: OnFailure = _ignore,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    throttle: Callable[[int], None] = lambda size_bytes: None,
) -> BackgroundJob:
    """Compact in a thread; on the event loop, put each segment in place unless the log has lost its sources meanwhile.

    `on_done` is called with the end of the clean part, or `on_failure` with the error: OSError for the disk, else most
    likely a damaged batch. An error in a log that has lost records meanwhile is not significant, and is not reported.
    Raises OSError.
    """
    log = chosen.log
    segments = [it for it in log.segments.closed if it.base_offset < chosen.end_offset]
    bounds = [*(segment.base_offset for segment in segments), chosen.end_offset]
    compaction = Compaction(
        sources=[Source(*each) for each in zip(segments, bounds[1:], strict=True)],
        first_dirty_offset=chosen.first_dirty_offset,
        end_offset=chosen.end_offset,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        max_segment_bytes=log.config.segment_bytes,
        active_producers={
            number: LastRecord(_last_committed(state, log.high_watermark), state.epoch)
            for number, state in log.producers.producers.items()
        },
        aborted_in=log.reader.aborted_transactions,
        present=lambda: log.segments,
        files=log.files.file_system,
        max_keys=max(dedupe_buffer_bytes // BYTES_A_KEY, 1),
        throttle=throttle,
    )
    for segment in segments:
        segment.log.prepare_reading()
    return _Cleaning(log, compaction, on_done=on_done, on_failure=on_failure).next_part()
