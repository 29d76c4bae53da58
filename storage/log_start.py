"""LogStart: where a log begins, in each tier, and what moves it: retention, DeleteRecords, remote expiration, a leader.

    DeleteRecords, remote expiration, a leader --> maybe_increment --> log start; the local log start if that is lower
    retention of the local segments ------------> apply_retention --> local log start; the log start as well, if the
                                                                       removed records are in no other tier

Leader epochs and producers are kept for what the log still holds in either tier: epochs from the log start on, as the
lineage of the remote copies is compared with them (KIP-405). Only the producers' snapshot files belong to the segments.

Source: UnifiedLog.deleteOldSegments and maybeIncrementLogStartOffset of Kafka 4.3.1.
"""

from collections.abc import Callable
from logging import getLogger

from protocol.errors import OffsetOutOfRange
from storage import retention
from storage.leader_epoch_cache import LeaderEpochCache
from storage.log_availability import LogAvailability
from storage.log_files import LogFiles
from storage.log_offsets import LogOffsets, start_offsets
from storage.log_reader import LogReader
from storage.producer_state import ProducerStateManager

_LOG = getLogger(__name__)


class LogStart:
    """The beginning of a log; see the module."""

    def __init__(
        self,
        *,
        offsets: LogOffsets,
        files: LogFiles,
        reader: LogReader,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        availability: LogAvailability,
        roll: Callable[[int], object],
    ) -> None:
        """`roll` is `Log.roll`: retention removes the active segment after a roll."""
        self._offsets = offsets
        self._files = files
        self._reader = reader
        self._epochs = epochs
        self._producers = producers
        self._availability = availability
        self._roll = roll

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that are due (storage/retention.py); returns how many. Files are deleted later."""
        if not self._availability.is_writable:
            return 0
        offsets, files = self._offsets, self._files
        removed = 0
        with self._availability:
            while True:
                found = retention.due(
                    files.segments,
                    config=files.config,
                    log_start_offset=offsets.log_start_offset,
                    high_watermark=offsets.high_watermark,
                    log_end_offset=offsets.log_end_offset,
                    now_ms=now_ms,
                )
                if not found.segments:
                    return removed
                if found.segments[-1] is files.segments.active:
                    self._roll(now_ms)
                _LOG.info(
                    "%s: removing %d segments, as %s", files.directory, len(found.segments), found.reason
                )
                files.remove(found.segments, now_ms)
                self._reader.forget_bound()
                removed += len(found.segments)
                self._on_first_segments_removed()

    def _on_first_segments_removed(self) -> None:
        log_start_offset, local_log_start_offset = start_offsets(
            log_start_offset=self._offsets.log_start_offset,
            first_segment_offset=self._files.segments.first.base_offset,
            is_tiered=self._files.is_tiered,
        )
        if log_start_offset > self._offsets.log_start_offset:
            self._advance(log_start_offset)
        self._offsets.advance_local_log_start(local_log_start_offset)

    def maybe_increment(self, offset: int, *, reason: str) -> bool:
        """See `Log.maybe_increment_log_start_offset`."""
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
            self._advance(offset)
        return True

    def _advance(self, offset: int) -> None:
        self._offsets.advance_log_start(offset)
        self._epochs.truncate_from_start(offset)
        self._producers.on_log_start_offset(offset, latest_snapshot_offset=self._files.snapshots.latest)
        self._offsets.set_first_unstable(self._producers.first_unstable_offset)
