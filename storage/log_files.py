"""LocalLog: a log's segments on the disk; they are rolled, removed, replaced, flushed and closed here.

A disk failure takes the log offline. Source: LocalLog and UnifiedLog of Kafka 4.3.1.
"""

from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import KafkaStorageError
from storage import file_names, partition_metadata
from storage.background import BackgroundJob
from storage.files import Files
from storage.flush_counter import FlushCounter
from storage.log_config import LogConfig
from storage.log_reader import LogReader
from storage.segment import Segment
from storage.segment_indexes import SegmentSettings
from storage.segments import Segments
from storage.snapshot_files import SnapshotFiles

if TYPE_CHECKING:
    from random import Random

    from storage.truncation import CheckpointLimit

_LOG = getLogger(__name__)


def _nothing() -> None:
    return


class DeletedFiles(NamedTuple):
    """Files that no longer belong to a log, and may be removed from `due_ms` on. `remove` may run in any thread."""

    due_ms: int
    remove: Callable[[], None]
    #: Closes files that are not due when the process ends; the next start removes them.
    close: Callable[[], None] = _nothing


def removal_job(due: Sequence[DeletedFiles]) -> BackgroundJob:
    """A job that removes the files of deleted segments and logs: unlinking a gigabyte takes milliseconds."""

    def run() -> None:
        for deleted in due:
            try:
                deleted.remove()
            except (OSError, KafkaStorageError) as error:
                _LOG.error("Removing deleted files: %s", error)

    return BackgroundJob(name=f"remove {len(due)} deleted segments or logs", run=run)


class LogFiles(LogReader):
    """The file half of a log; see storage.log.Log."""

    directory: Path
    config: LogConfig
    #: The recovery point in the checkpoint on the disk is not beyond this offset.
    _checkpointed_to: int
    #: End offset of the closed segments that wait for their flush; None without any.
    flush_wanted_to: int | None
    #: Files that no longer belong to the log; the LogManager removes them.
    deleted_files: list[DeletedFiles]
    #: A truncation that is being prepared (`storage.truncation`).
    checkpoint_limit: "CheckpointLimit | None" = None
    #: Counts truncations and moves of the directory: results of a thread that began before one are invalid after it.
    truncations: int
    _snapshots: SnapshotFiles
    _random: "Random"
    _on_io_error: Callable[[OSError], None]
    _failure: OSError | None = None
    _is_closed: bool = False
    #: Files that were created, removed or renamed.
    _entry_changes: FlushCounter
    #: Creation and renames of the directory itself.
    _name_changes: FlushCounter
    #: Truncations of the active segment, perhaps down to its first byte.
    _cuts: FlushCounter

    def roll(self, now_ms: int, *, base_offset: int = 0) -> Segment:
        """Close the active segment and create the next one at the log end offset, or at `base_offset` if that is later.

        The closed segment is flushed by a job of the LogManager. Raises KafkaStorageError.
        """
        new_base = max(self.log_end_offset, base_offset)
        active = self.segments.active
        if new_base == active.base_offset:
            # It is empty and yet full: its index has no room for a single entry.
            assert active.size == 0, (new_base, active)
            return active
        with self._io():
            active.close_to_appends()
            if self.recovery_point == new_base:
                self._forget_flushed_batches(active)
            segment = self._create_segment(new_base, now_ms)
            self.segments = Segments((*self.segments, segment))
            # A snapshot at the next segment's base offset, so that recovery can start there.
            self.producers.map_end_offset = new_base
            self._snapshots.write(self.producers)
            self._entry_changes.on_change()
        self.flush_wanted_to = new_base
        _LOG.debug("%s: new segment at %d", self.directory, new_base)
        return segment

    def _forget_flushed_batches(self, closed: Segment) -> None:
        """All batches of a closed segment are flushed, but not its indexes: ensure that it is flushed again."""
        if self._checkpointed_to < self.recovery_point:
            self.offsets.move_recovery_point_back(closed.base_offset)
        elif closed.indexes.is_changed or not self._cuts.all_flushed:
            # After a start, or a truncation to this very offset: after a crash recovery would trust these indexes, and
            # the bytes that the file may have beyond the truncation's end.
            closed.flush()
            self._files.fsync_dir(self.directory)

    def _create_segment(self, base_offset: int, now_ms: int) -> Segment:
        return Segment.create(
            self.directory,
            base_offset,
            settings=segment_settings(self.config),
            files=self._files,
            now_ms=now_ms,
            roll_jitter_ms=self._draw_jitter_ms(),
        )

    def _draw_jitter_ms(self) -> int:
        """How much earlier than `segment.ms` a segment is rolled, so that partitions are not all rolled at once."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.max_segment_ms)
        return self._random.randrange(jitter_ms) if jitter_ms else 0

    def _remove(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Remove segments from the log. Their files are renamed now, and deleted after a delay for their readers.

        In the given order: a process that crashes meanwhile leaves the rest of them.
        """
        self.segments = Segments(self.segments.without(segments))
        self._bound = None
        for segment in segments:
            self._snapshots.remove(segment.base_offset)
            self._put_aside(segment, now_ms)
        self._entry_changes.on_change()

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment], *, now_ms: int) -> None:
        """Replace segments by compacted ones (`.cleaned`, flushed); safe at any crash.

        All are renamed to `.swap` first: from then on recovery completes the replacement after a crash
        (storage/recovery.py). The sources are deleted only when these renames are on the disk.
        """
        with self._io():
            for segment in reversed(new):
                segment.change_suffix(file_names.SWAP)
            kept = self.segments.without(old)
            for segment in old:
                # For readers that already have it: opened before its name belongs to another file.
                segment.log.prepare_reading()
                self._put_aside(segment, now_ms, is_replaced=True)
            for segment in new:
                segment.change_suffix("")
            self.segments = Segments((*kept, *new))
            self._bound = None
            bases = {segment.base_offset for segment in self.segments}
            for segment in old:
                if segment.base_offset not in bases:
                    self._snapshots.remove(segment.base_offset)
            self._entry_changes.on_change()

    def _put_aside(self, segment: Segment, now_ms: int, *, is_replaced: bool = False) -> None:
        """Rename a segment's files now, and schedule their deletion after a delay for its readers.

        If it `is_replaced`, they are deleted only when the directory entries of its replacement are on the disk.
        """
        segment.change_suffix(file_names.DELETED)

        def remove() -> None:
            # If the log's directory was renamed meanwhile, the files are there.
            segment.move_to(self.directory)
            if is_replaced:
                self._files.fsync_dir(segment.files.directory)
            segment.delete_files()

        due_ms = now_ms + self.config.file_delete_delay_ms
        self.deleted_files.append(DeletedFiles(due_ms, remove, segment.close_files))

    def recovery_point_to_write(self) -> int:
        """The recovery point of this log for the checkpoint.

        Recovery trusts the indexes of a segment that ends at the recovery point. Those of the active segment are
        flushed after it is closed: until then its last offset does not count as flushed.
        """
        point, active = self.recovery_point, self.segments.active
        if point == self.log_end_offset > active.base_offset and active.indexes.may_be_unflushed:
            point -= 0 if self._is_closed else 1
        if self.checkpoint_limit is not None:
            point = min(point, self.checkpoint_limit.offset)
        self._checkpointed_to = max(self._checkpointed_to, point)
        return point

    def log_start_to_write(self) -> int | None:
        """The log start offset of this log for the checkpoint; None: it is the first segment's base offset.

        Of a tiered log it is always written, as the first segment says nothing about it.
        """
        start, limit = self.log_start_offset, self.checkpoint_limit
        if limit is not None:
            start = min(start, limit.offset)
        is_explicit = self.config.remote_storage_enable or start > self.segments.first.base_offset
        return start if is_explicit else None

    @property
    def is_flush_due(self) -> bool:
        """Whether `flush.messages` or more offsets are unflushed, so that the last append needs a flush to count."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def committable_end(self) -> int:
        """End of the records that this replica counts as having, for acks and the high watermark; exclusive."""
        return self.recovery_point if self.is_flush_due else self.log_end_offset

    @property
    def unflushed_count(self) -> int:
        """Number of offsets that are not known to be on the disk."""
        return self.log_end_offset - self.recovery_point

    def flush(self, offset: int | None = None) -> None:
        """Wait until everything before `offset` (None: the log end) is on the disk. [any thread]

        Off the event loop only where no truncation can run at the same time; a BackgroundJob calls `flush_files` and
        `mark_flushed` instead. Raises KafkaStorageError.
        """
        end = self.log_end_offset if offset is None else offset
        truncations, active = self.truncations, self.segments.active
        self.flush_files(end)
        self.mark_flushed(end, truncations=truncations, active=active)

    def flush_files(self, end: int) -> None:
        """Wait until everything before `end` is on the disk, its indexes and epochs first. [any thread]

        Raises KafkaStorageError.
        """
        recovery_point = self.recovery_point
        seen = [(it, it.change_count) for it in (self._entry_changes, self._name_changes, self._cuts)]
        if end <= recovery_point and self._entry_changes.all_flushed:
            return
        try:
            self.leader_epochs.flush()
            self._snapshots.flush(recovery_point, end)
            segments = self.segments
            for segment in segments.from_offset(recovery_point):
                if segment.base_offset < end or not self._cuts.all_flushed:
                    segment.flush(with_indexes=segment is not segments.active)
            if not (self._entry_changes.all_flushed and self._name_changes.all_flushed):
                self._files.fsync_path(self.directory / partition_metadata.FILE_NAME)
                self._files.fsync_dir(self.directory)
            if not self._name_changes.all_flushed:
                self._files.fsync_dir(self.directory.parent)
            for changes, count in seen:
                changes.on_flushed(count)
        except OSError as error:
            raise self._failed(error) from error

    def mark_flushed(self, end: int, *, truncations: int, active: Segment) -> None:
        """Advance the recovery point to `end`, unless the log has been truncated or moved since `truncations`.

        The indexes of the segment that was `active` before are not flushed, but recovery trusts those of a segment
        that ends before the recovery point. So if it has been rolled since, the recovery point stops at its base
        offset, and it is flushed again (`flush_wanted_to`).
        """
        if self.truncations == truncations:
            if active is not self.segments.active:
                end = min(end, active.base_offset)
            self.offsets.advance_recovery_point(max(self.recovery_point, min(end, self.log_end_offset)))
            if self.flush_wanted_to is not None and self.flush_wanted_to <= self.recovery_point:
                self.flush_wanted_to = None

    def close(self) -> None:
        """Flush and close all files, so that they need no recovery; the log cannot be used any more. [any thread]

        Raises KafkaStorageError. Cost: no I/O for a log that was not written to.
        """
        if self._is_closed:
            return
        with self._io():
            self._snapshots.write(self.producers)
            for segment in self.segments:
                segment.close()
            self._is_closed = True
            if self.segments.active.indexes.is_changed:
                self.segments.active.flush()
                self._entry_changes.on_change()  # an index file may be new
            self.flush()

    def close_files(self) -> None:
        """Close all descriptors without writing: the directory is offline or about to be deleted."""
        self._is_closed = True
        for segment in self.segments:
            segment.close_files()

    def rename_directory(self, directory: Path) -> None:
        """Rename the log's directory: the log is deleted, or replaces another one."""
        with self._io():
            self._files.rename(self.directory, directory)
        # A running flush may not have found all files: its result is ignored, and the flush is repeated.
        self.truncations += 1
        if self.recovery_point < self.segments.active.base_offset:
            self.flush_wanted_to = self.segments.active.base_offset
        self.directory = directory
        self.leader_epochs.move_to(directory)
        self._snapshots.directory = directory
        for segment in self.segments:
            segment.move_to(directory)
        for changes in (self._entry_changes, self._name_changes, self._cuts):
            changes.on_change()

    def _io(self) -> "_IO":
        return _IO(self)

    def _failed(self, error: OSError) -> KafkaStorageError:
        """Handle a disk failure: the log refuses further writes, and the LogManager is notified."""
        if self._failure is None:
            self.take_offline(error)
            _LOG.error("%s is offline: %s", self.directory, error)
            self._on_io_error(error)
        return KafkaStorageError(f"{self.directory}: {error}")

    def _read_failed(self, error: OSError) -> KafkaStorageError:
        """The error of a failed read: a disk failure, unless the log is closed or the file was deleted. [any thread]"""
        if self._is_closed or isinstance(error, FileNotFoundError):
            return super()._read_failed(error)
        return self._failed(error)

    @property
    def is_future(self) -> bool:
        """Whether this is a future log, which replaces the partition's log in another directory (KIP-113)."""
        return self.directory.name.endswith(file_names.FUTURE_DIRECTORY)

    @property
    def is_writable(self) -> bool:
        """Whether the log is open and its directory online."""
        return self._failure is None and not self._is_closed

    @property
    def files(self) -> Files:
        """The file system that the log uses."""
        return self._files

    def take_offline(self, error: OSError) -> None:
        """The directory has failed, perhaps with another log: refuse all writes from now on. [any thread]"""
        self._failure = error

    def _unavailable(self) -> KafkaStorageError:
        return KafkaStorageError(
            f"{self.directory} is closed" if self._is_closed else f"{self.directory}: {self._failure}"
        )


class _IO:
    """A context manager that turns an OSError of its block into a disk failure of the log."""

    __slots__ = ("_log",)

    def __init__(self, log: LogFiles) -> None:
        self._log = log

    def __enter__(self) -> None:
        if self._log._failure is not None:
            raise self._log._unavailable()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self._log._failed(error) from error


def segment_settings(config: LogConfig) -> SegmentSettings:
    """The part of a topic's configuration that segments use."""
    return SegmentSettings(
        index_interval_bytes=config.index_interval_bytes,
        max_index_bytes=config.segment_index_bytes,
        preallocated_bytes=config.segment_bytes if config.preallocate else None,
    )
