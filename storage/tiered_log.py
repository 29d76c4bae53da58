"""The local half of a tiered log (KIP-405): which segments can be copied to the remote tier, and what is local only.

        remote end                          last stable offset
            |                                      |
    [ copied ][ can be copied ][ can be copied ][ closed ][ active ]
              ^ earliest pending upload offset

A segment can be copied when it is closed and every record in it is decided and committed. Its files do not change any
more. They may disappear while they are copied: the log start passes the segment (DeleteRecords), the log is truncated,
rebuilt, moved to another directory or deleted. So the copier asks `SegmentToCopy.is_current` after the copy, on
the event loop's thread, before the copy counts as finished.

Source: RemoteLogManager.RLMCopyTask.candidateLogSegments and copyLogSegment of Kafka 4.3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ottla.protocol.local_log import LocalLog
from ottla.protocol.topic_names import INTERNAL_TOPICS
from ottla.storage import file_names, leader_epoch_cache, producer_snapshot
from ottla.storage.background import BackgroundJob
from ottla.storage.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.producer_state import ProducerStateManager
from ottla.storage.segment import Segment
from ottla.storage.segment_times import FileTimes, SegmentFile, times_of_file
from ottla.storage.segments import Segments
from ottla.storage.snapshot_files import replay_headers
from ottla.storage.warming import read_first_timestamp

#: Segments that one call returns: 20 us each.
MAX_SEGMENTS_TO_COPY: Final = 100

#: Topics of the brokers and controllers that are never tiered, as tiering or the cluster depends on them.
_LOCAL_TOPICS: Final = INTERNAL_TOPICS | {"__remote_log_metadata", "__cluster_metadata"}


def can_be_tiered(topic: str) -> bool:
    """Whether `remote.storage.enable` has an effect on the topic. Source: UnifiedLog.isRemoteLogEnabled."""
    return topic not in _LOCAL_TOPICS


class _Log(Protocol):
    """The parts of a log that are used here: `ottla.storage.log.Log` itself imports this module."""

    @property
    def files(self) -> LogFiles:
        """The log's segments and producer snapshots."""

    @property
    def availability(self) -> LogAvailability:
        """Handles I/O errors of the log, which take it offline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToCopy:
    """A closed segment, and what is copied with it. The files are on the disk or in the page cache."""

    base_offset: int
    #: Base offset of the next segment.
    end_offset: int
    size_bytes: int
    log_segment: Path
    offset_index: Path
    time_index: Path
    #: None without aborted transactions.
    transaction_index: Path | None
    #: The producer state at `end_offset`; the file exists after `snapshot_job`.
    producer_snapshot: Path
    #: Those of [base_offset, end_offset).
    leader_epochs: Sequence[EpochEntry]
    #: Those of the log up to `end_offset`, as a leader-epoch-checkpoint file.
    leader_epoch_checkpoint: bytes
    #: Writes the producer snapshot, if it is missing: it was corrupt, or an old broker has written the segment. Run it
    #: before the copy. Kafka's copy task fails without the file, in each of its runs.
    snapshot_job: BackgroundJob | None = field(repr=False)
    _segment: Segment = field(repr=False)
    _generation: int = field(repr=False)

    @property
    def file(self) -> SegmentFile:
        """The log file, for `times_of_file`."""
        return SegmentFile(
            path=self.log_segment,
            base_offset=self.base_offset,
            size_bytes=self.size_bytes,
            index_interval_bytes=self._segment.indexes.settings.index_interval_bytes,
        )

    @property
    def known_times(self) -> FileTimes | None:
        """The times of the records, if look-ups have read them all and the headers claim no less."""
        known = self._segment.times.known
        if known.position < self.size_bytes or known.understated:
            return None
        return FileTimes(known.largest, None)

    def read_times(self) -> FileTimes:
        """Read the times of the records. [any thread] Raises OSError."""
        return times_of_file(self.file, self._segment.files.system, on_piece=lambda: None)

    def modified_ms(self) -> int:
        """The time of the segment's last write: its time for retention if no record has one. Raises OSError."""
        return self._segment.files.modified_ms()

    def is_current(self, log: _Log) -> bool:
        """Whether `log` still has this segment, unchanged.

        False also after a truncation behind it: it is copied again.
        """
        return log.files.generation == self._generation and self._segment in log.files.segments


def segments_to_copy(
    files: LogFiles,
    epochs: LeaderEpochCache,
    *,
    from_offset: int,
    end_offset: int,
    max_count: int = MAX_SEGMENTS_TO_COPY,
) -> list[SegmentToCopy]:
    """The first `max_count` closed segments, oldest first, from the one that holds `from_offset` on.

    None ends after `end_offset`, the last stable offset.
    """
    assert max_count > 0, max_count
    found: list[SegmentToCopy] = []
    segments = files.segments
    for segment in segments.from_offset(from_offset):
        end = segments.end_of(segment)
        if end is None or end > end_offset or len(found) == max_count:
            break
        if end > from_offset:
            found.append(_segment_to_copy(files, epochs, segment, end))
    return found


def _segment_to_copy(files: LogFiles, epochs: LeaderEpochCache, segment: Segment, end: int) -> SegmentToCopy:
    assert segment.base_offset < end, (str(segment), end)
    assert segment.log.is_closed, str(segment)
    has_aborted = bool(segment.indexes.transactions.entries)
    return SegmentToCopy(
        base_offset=segment.base_offset,
        end_offset=end,
        size_bytes=segment.size,
        log_segment=segment.path_of(file_names.LOG),
        offset_index=segment.path_of(file_names.OFFSET_INDEX),
        time_index=segment.path_of(file_names.TIME_INDEX),
        transaction_index=segment.path_of(file_names.TRANSACTION_INDEX) if has_aborted else None,
        producer_snapshot=files.snapshots.path_of(end),
        leader_epochs=epochs.entries_in_range(start_offset=segment.base_offset, end_offset=end),
        leader_epoch_checkpoint=leader_epoch_cache.encode(
            epochs.entries_in_range(start_offset=0, end_offset=end)
        ),
        snapshot_job=None if end in files.snapshots.offsets else _snapshot_job(files, segment, end),
        _segment=segment,
        _generation=files.generation,
    )


def _snapshot_job(files: LogFiles, segment: Segment, end: int) -> BackgroundJob:
    """Read the producer state at `end` from the log, and write its snapshot."""
    segments, snapshots, generation = files.segments, files.snapshots, files.generation
    path = snapshots.path_of(end)
    is_written = False

    def run() -> None:
        nonlocal is_written
        producers = ProducerStateManager()
        # At time 0 no producer is expired: the broker that restores the snapshot decides.
        snapshots.restore(producers, first_offset=segments.first.base_offset, end_offset=end, now_ms=0)
        replay_headers(producers, segments, end_offset=end, files=files.file_system)
        files.file_system.write_atomically(path, producer_snapshot.encode(producers.producers), durable=False)
        is_written = True

    def finish() -> None:
        if not is_written:
            return
        if files.generation == generation and segment in files.segments:
            snapshots.add(end)
        elif end not in snapshots.offsets:
            files.file_system.unlink(path)

    return BackgroundJob(name=f"producer snapshot {path}", run=run, finish=finish)


def local_log(files: LogFiles, offsets: LogOffsets) -> LocalLog | None:
    """The local log as replicas report it for elections (draft KIP-1303).

    None: elections do not ask for it, or the timestamp of the first local batch is not in memory. After a start or
    retention `local_log_job` reads that in a thread. Cost: 1 us; no I/O.
    """
    if files.leader_preference is None:
        return None
    segments = files.segments
    if not segments.first.is_first_timestamp_in_memory:
        return None
    return LocalLog(offsets.local_log_start_offset, segments.size_bytes, segments.first.first_timestamp())


def local_log_job(logs: Sequence[_Log]) -> BackgroundJob | None:
    """A job that reads the timestamps that `local_log` lacks; None: it lacks none."""
    cold = [
        (log, log.files.segments.first)
        for log in logs
        if log.files.leader_preference is not None
        and not log.files.segments.first.is_first_timestamp_in_memory
    ]
    found: list[tuple[Segment, int]] = []

    def run() -> None:
        for log, segment in cold:
            try:
                found.append((segment, read_first_timestamp(segment, log.files.file_system)))
            except OSError as error:
                log.availability.read_failed(error)

    def finish() -> None:
        for segment, timestamp in found:
            segment.set_first_timestamp(timestamp)

    if not cold:
        return None
    return BackgroundJob(name=f"read the first timestamps of {len(cold)} logs", run=run, finish=finish)


def local_only_bytes(segments: Segments, *, remote_end_offset: int | None) -> int | None:
    """The size of the segments from `remote_end_offset` on, which only the local tier has; None if that is unknown.

    A segment that is copied in part does not count: retention by size rather keeps too much.
    """
    if remote_end_offset is None:
        return None
    return sum(segment.size for segment in segments if segment.base_offset >= remote_end_offset)
