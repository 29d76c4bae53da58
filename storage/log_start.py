"""LogStart: where a log begins, in each tier, and what moves it: retention, DeleteRecords, remote expiration, a leader.

    DeleteRecords, remote expiration, a leader --> maybe_increment --> log start; the local log start if that is lower
    retention of the local segments ------------> apply_retention --> local log start; the log start as well, if the
                                                                       removed records are in no other tier

Removed segments of a tiered log go one by one, each when the removal of the one before is on the disk. A disk
that writes changes of a directory in any order could keep the removal of a later one only: its records are in
the remote tier, and a reader of them would get what follows them. Of other logs no tier has them. Those before the log
start go when the checkpoint has it (`ottla.storage.log_checkpoints`). Total retention of a tiered log, if nothing is
copied any more (`remote.log.copy.disable`), first moves the log start over the segments that are due.

Leader epochs and producers are kept for what the log still holds in either tier: epochs from the log start on, as the
lineage of the remote copies is compared with them (KIP-405). Only the producers' snapshot files belong to the segments.

Source: UnifiedLog.deleteOldSegments and maybeIncrementLogStartOffset of Kafka 4.3.1.
"""

from collections.abc import Callable, Sequence
from logging import getLogger

from ottla.protocol.errors import OffsetOutOfRange
from ottla.storage import retention
from ottla.storage.background import BackgroundJob
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_checkpoints import LogCheckpoints
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets, start_offsets
from ottla.storage.log_reader import LogReader
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.segment import Segment

_LOG = getLogger(__name__)


class LogStart:
    """The beginning of a log in each tier, and all that moves it: retention, DeleteRecords, expiration, a leader."""

    def __init__(
        self,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        reader: LogReader,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        checkpoints: LogCheckpoints,
        availability: LogAvailability,
        roll: Callable[[int], object],
    ) -> None:
        """`roll` is `Log.roll`, which retention calls before it removes the active segment."""
        self._offsets = offsets
        self._files = files
        self._reader = reader
        self._epochs = epochs
        self._producers = producers
        self._checkpoints = checkpoints
        self._availability = availability
        self._roll = roll

    # -- retention ---------------------------------------------------------------------------------

    @property
    def _limits(self) -> retention.Limits:
        offsets = self._offsets
        return retention.Limits.of(
            self._files.config,
            is_tiered=self._files.is_tiered,
            has_remote_part=offsets.log_start_offset < offsets.local_log_start_offset,
        )

    def retention_waits_for_disk(self, now_ms: int, *, most: int | None = None) -> bool:
        """Whether `apply_some_retention` would read timestamps from files: then `warm_up_retention` first, in a thread.

        `most`: as there. Raises KafkaStorageError for a failing disk.
        """
        if not self._availability.is_writable:
            return False
        with self._availability:
            return retention.waits_for_disk(
                self._files.segments, limits=self._limits, offsets=self._offsets, now_ms=now_ms, most=most
            )

    def warm_up_retention(self, now_ms: int, *, most: int | None = None) -> None:
        """Read into the page cache what `apply_some_retention` reads, and flush the removals that it waits
        for. [any thread]

        Raises KafkaStorageError for a failing disk.
        """
        retention.warm_up(self._reader, limits=self._limits, now_ms=now_ms, most=most)
        if self._waits_for_removals:
            self._availability.guard_reading(self._files.flush_removals)()

    @property
    def _waits_for_removals(self) -> bool:
        return self._files.is_tiered and not self._files.start_removals.all_flushed

    @property
    def _waits_for_checkpoint(self) -> bool:
        """Whether the next segment is before a log start of which the checkpoint has no record yet."""
        if not self._files.is_tiered:
            return False
        end = self._files.segments.end_of(self._files.segments.first)
        if end is None or end > self._offsets.log_start_offset:
            return False
        return not self._checkpoints.has_log_start(end)

    def retention_checkpoint_job(self) -> BackgroundJob | None:
        """The job that writes the log start offset before `apply_some_retention` removes what is before it; None:
        there is nothing to write.
        """
        if not self._availability.is_writable or not self._waits_for_checkpoint:
            return None
        return self._checkpoints.log_start_job()

    def is_retention_due(self, now_ms: int) -> bool:
        """Whether `apply_retention` would remove segments. Raises KafkaStorageError for a failing disk. Cost: 20 us."""
        if not self._availability.is_writable:
            return False
        with self._availability:
            return not retention.due(
                self._files.segments, limits=self._limits, offsets=self._offsets, now_ms=now_ms, most=1
            ).is_empty

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that are due, and return how many; of a tiered log it waits for the disk."""
        count = 0
        while self._availability.is_writable:
            if self._waits_for_removals:
                with self._availability:
                    self._files.flush_removals()
            self._advance_over_expired(now_ms, most=None)
            if self._waits_for_checkpoint:
                self._checkpoints.log_start_job().complete()
                if self._waits_for_checkpoint:
                    break  # the disk has no descriptor left for it, or has failed
            if not (removed := self._remove_due(now_ms, most=1 if self._files.is_tiered else None)):
                break
            count += removed
        return count

    def apply_some_retention(self, now_ms: int, *, most: int) -> bool:
        """Remove at most `most` segments that are due, of a tiered log one; returns whether more may be due.

        To be called after `warm_up_retention` and `retention_checkpoint_job`. Does not wait for the disk: what
        came meanwhile is left to the next run.
        """
        if self._waits_for_removals or self._waits_for_checkpoint:
            return False
        assert most > 0, most
        if self._advance_over_expired(now_ms, most=most):
            return True
        most = 1 if self._files.is_tiered else most
        return self._remove_due(now_ms, most=most) == most

    def _advance_over_expired(self, now_ms: int, *, most: int | None) -> bool:
        """Advance the log start of a tiered log over segments that are due and that no tier has a copy of; returns
        whether there are such segments. They are removed when the checkpoint has the log start.
        """
        files, limits = self._files, self._limits
        if not files.is_tiered or limits.must_be_copied or not self._availability.is_writable:
            return False
        with self._availability:
            found = retention.due(
                files.segments, limits=limits, offsets=self._offsets, now_ms=now_ms, most=most
            )
            if not found.segments:
                return False
            if found.rolls_active:
                self._roll(now_ms)
        return self.maybe_increment(
            files.segments.without(found.segments)[0].base_offset, reason=found.reason
        )

    def _remove_due(self, now_ms: int, *, most: int | None) -> int:
        if not self._availability.is_writable:
            return 0
        files, limits = self._files, self._limits
        removed = 0
        with self._availability:
            while most is None or removed < most:
                found = retention.due(
                    files.segments,
                    limits=limits,
                    offsets=self._offsets,
                    now_ms=now_ms,
                    most=None if most is None else most - removed,
                )
                if found.is_empty:
                    return removed
                if found.rolls_active:
                    self._roll(now_ms)
                if found.segments:
                    _LOG.info(
                        "%s: removing %d segments, as %s", files.directory, len(found.segments), found.reason
                    )
                    # Not copied, perhaps: then no tier has these records, or those before them.
                    self._remove(found.segments, is_copied=limits.must_be_copied, now_ms=now_ms)
                    removed += len(found.segments)
        return removed

    def _remove(self, segments: Sequence[Segment], *, is_copied: bool, now_ms: int) -> None:
        """Remove the first segments once the offsets have advanced: readers find the log start's segment."""
        offsets, files = self._offsets, self._files
        first_kept = files.segments.without(segments)[0].base_offset
        assert first_kept <= offsets.high_watermark, (files.directory, first_kept, offsets)
        copied_end = max(offsets.remote_end_offset or 0, offsets.log_start_offset)
        assert first_kept <= copied_end or not is_copied, (files.directory, first_kept, offsets)
        log_start_offset, local_log_start_offset = start_offsets(
            log_start_offset=offsets.log_start_offset,
            first_segment_offset=first_kept,
            is_tiered=is_copied,
        )
        is_log_start = log_start_offset > offsets.log_start_offset
        if is_log_start:
            offsets.advance_log_start(log_start_offset)
        offsets.advance_local_log_start(local_log_start_offset)
        files.remove_before(segments, now_ms)
        self._reader.forget_bound()
        if is_log_start:
            self._on_log_start_advanced()

    def on_tiering_disabled(self) -> None:
        """Let the log begin with its local part, as the topic is not tiered any more, and its copies are
        deleted.

        The only change of a configuration that moves a log start: the topic's own
        `remote.storage.enable=false`, which the controller accepts only together with
        `remote.log.delete.on.disable=true`.

        So it does after a crash before the log start is on the disk, as it is not tiered then.
        Source: `remote.log.delete.on.disable`; TopicConfigHandler.maybeUpdateRemoteLogComponents.
        """
        offsets = self._offsets
        offsets.forget_remote_end()
        if self._availability.is_writable and offsets.log_start_offset < offsets.local_log_start_offset:
            self.maybe_increment(offsets.local_log_start_offset, reason="remote storage is disabled")

    # -- the log start -----------------------------------------------------------------------------

    def maybe_increment(self, offset: int, *, reason: str) -> bool:
        """Advance the log start offset to `offset`; False if it is already there or beyond.

        Raises OffsetOutOfRange above the high watermark.
        """
        offsets, files = self._offsets, self._files
        if offset > offsets.high_watermark:
            raise OffsetOutOfRange(
                f"The log start offset of {files.directory.name} cannot become {offset}: "
                f"the high watermark is {offsets.high_watermark}"
            )
        if offset <= offsets.log_start_offset:
            return False
        _LOG.info("%s: log start offset advances to %d (%s)", files.directory, offset, reason)
        with self._availability:
            offsets.advance_log_start(offset)
            self._on_log_start_advanced()
        return True

    def _on_log_start_advanced(self) -> None:
        """Forget the leader epochs and the producers of what was before it."""
        offset = self._offsets.log_start_offset
        self._epochs.truncate_from_start(offset)
        self._producers.on_log_start_offset(offset, latest_snapshot_offset=self._files.snapshots.latest)
        self._offsets.set_first_unstable(self._producers.first_unstable_offset)
