"""Which compacted log is to be cleaned next, and the job that does it.

    log start       first dirty offset        end offset             log end
        |== clean ==========|== dirty ============|== not yet ==========|
                             (cleanable)            active segment, undecided transactions,
                                                    younger than min.compaction.lag.ms

A log is due when its dirty part is more than `min.cleanable.dirty.ratio` of all that could be cleaned, or
older than `max.compaction.lag.ms`. The one with the largest ratio is first.

Source: LogCleanerManager and LogToClean of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from protocol.errors import KafkaStorageError
from protocol.types import TopicPartition
from storage.background import BackgroundJob
from storage.compaction import BYTES_A_KEY, Compaction, LastRecord, Replacement, compact
from storage.log import Log
from storage.producer_append import ProducerState

#: Default of log.cleaner.dedupe.buffer.size.
DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024

#: Told that a log cannot be cleaned, and why.
OnFailure = Callable[[Log, Exception], None]


def _ignore(log: Log, error: Exception) -> None:
    return


class CleaningStopped(Exception):
    """Raised by a throttle: the cleaning is not wanted any more. It leaves the log as it was."""


class LogToClean(NamedTuple):
    """A log and what of it would be cleaned now."""

    log: Log
    first_dirty_offset: int
    #: Where the first segment begins that is left alone.
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    #: Whether max.compaction.lag.ms is exceeded.
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes of all that would be read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether a cleaning pays."""
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def measure(log: Log, cleaned_to: int | None, now_ms: int) -> LogToClean:
    """What of `log` could be cleaned, if it is clean up to `cleaned_to` (None: never cleaned)."""
    first_dirty = log.log_start_offset if cleaned_to is None else cleaned_to
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        # Truncated below, or deleted beyond, what the checkpoint says.
        first_dirty = log.log_start_offset
    # Closed ones from the one that holds it on.
    dirty = log.segments.from_offset(first_dirty)[:-1]
    clean = log.segments.closed[: len(log.segments) - 1 - len(dirty)]
    bound = min(log.last_stable_offset, log.segments.active.base_offset)
    if log.config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - log.config.min_compaction_lag_ms
        for segment in dirty:
            if segment.largest_timestamp_ms() > youngest_ms:
                bound = min(bound, segment.base_offset)
                break
    # Whole segments only: the one that holds the bound is left alone.
    end = max((segment.base_offset for segment in log.segments if segment.base_offset <= bound), default=0)
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

    `on_failure` is told of each log that cannot even be looked at; the others are not held up by it.
    """
    measured = []
    for log in logs:
        if log.config.is_compacted and len(log.segments) > 1:
            try:
                measured.append(measure(log, cleaned_to.get(log.topic_partition), now_ms))
            except Exception as error:  # noqa: BLE001 (it is told, and holds up no other log)
                on_failure(log, error)
    # A log that cannot be read may have taken its directory offline, and others with it.
    due = (it for it in measured if it.is_due and it.log.is_writable)
    return max(due, key=lambda it: it.dirty_ratio, default=None)


class _Cleaning:
    """One cleaning, in as many parts as there are segments to be made: each is put in place before the next is begun.

    It ends as soon as the log is truncated, or not to be cleaned any more; what is in place stays. Where retention comes
    first, it goes on with what that leaves: a steady one would else end every cleaning of a large log.
    """

    def __init__(
        self, log: Log, compaction: Compaction, *, on_done: Callable[[Log, int], None], on_failure: OnFailure
    ) -> None:
        self._log = log
        self._compaction = compaction
        self._on_done = on_done
        self._on_failure = on_failure
        self._truncations, self._directory = log.truncations, log.directory
        self._first_base = log.segments.first.base_offset
        self._steps = self._all_steps()
        #: What the last step came to: a segment, the end of the clean part, what is in the way; None: it was stopped.
        self._outcome: Replacement | int | Exception | None = None

    def next_part(self) -> BackgroundJob:
        """A step in a thread, and on the loop what comes of it."""
        name = f"clean {self._log.topic_partition} to {self._compaction.end_offset}"
        return BackgroundJob(name=name, run=self._run, finish=self._finish)

    def _all_steps(self) -> Iterator[Replacement | int]:
        # A record may go for the sake of a newer one only if no crash can take that one away.
        self._log.flush_files(self._compaction.end_offset)
        for step in compact(self._compaction):
            # And a tombstone only if none can bring back what it deletes: what was put in place before is so for good.
            self._log.files.fsync_dir(self._directory)
            yield step

    def _run(self) -> None:
        try:
            self._outcome = next(self._steps)
        except CleaningStopped:
            self._outcome = None
        except Exception as error:  # noqa: BLE001 (it is told; this log would be chosen again before all others)
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
        """Put a segment in the place of its sources, or away; whether to go on.

        In no place of which retention has taken a part: a tombstone may not count as met by a cleaning while what it
        deletes is still there, in the rest of a group before it.
        """
        try:
            if is_wanted and all(segment in self._log.segments for segment in made.old):
                self._log.replace_segments(made.old, [made.new], now_ms=self._compaction.now_ms)
            else:
                made.new.delete_files()
        except KafkaStorageError:
            return False  # the log has told already, and is offline
        except OSError as error:
            self._on_failure(self._log, error)
            return False
        return is_wanted

    def _is_wanted(self) -> bool:
        """Whether the log is still what the cleaning began with, and compacted."""
        log = self._log
        # A deleted topic's log goes on under another name, where the new segments are not. And who wants all records
        # from now on gets all that are still there.
        return (
            log.truncations == self._truncations
            and log.directory == self._directory
            and log.is_writable
            and log.config.is_compacted
        )

    def _has_shrunk(self) -> bool:
        """Whether retention has removed something: what cannot be read may be that, its files are gone after a while."""
        return self._log.segments.first.base_offset > self._first_base


def _last_committed(producer: ProducerState, high_watermark: int) -> int | None:
    """The last offset of its newest batch that no truncation can take; None if it has none at all.

    A newer one may be cut off yet: where its predecessor is not in the log any more, the producer's next batch would
    come out of sequence (as with Kafka). -1 if only such ones are known: then all that it wrote stays, for this time.
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
    """Compact in a thread; on the loop, put each segment in place unless the log has lost its records meanwhile.

    `on_done` is told the end of the clean part, or `on_failure` what is in the way: OSError for the disk, else most
    likely a damaged batch. What was met in a log that has lost records meanwhile says nothing, and is not told.
    Raises OSError.
    """
    log = chosen.log
    compaction = Compaction(
        segments=[it for it in log.segments.closed if it.base_offset < chosen.end_offset],
        first_dirty_offset=chosen.first_dirty_offset,
        end_offset=chosen.end_offset,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        max_segment_bytes=log.config.segment_bytes,
        active_producers={
            number: LastRecord(_last_committed(state, log.high_watermark), state.epoch)
            for number, state in log.producers.producers.items()
        },
        aborted_in=log.aborted_transactions,
        present=lambda: log.segments,
        files=log.files,
        max_keys=max(dedupe_buffer_bytes // BYTES_A_KEY, 1),
        throttle=throttle,
    )
    for segment in compaction.segments:
        segment.prepare_reading()
    return _Cleaning(log, compaction, on_done=on_done, on_failure=on_failure).next_part()
