"""A log's segments on the disk: rolled, removed, replaced, flushed and closed; and what happens when the disk fails."""

from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import KafkaStorageError
from storage import file_names, partition_metadata
from storage.background import BackgroundJob
from storage.changes import Changes
from storage.files import Files
from storage.log_config import LogConfig
from storage.log_reader import LogReader
from storage.segment import Segment
from storage.segment_files import SegmentSettings
from storage.segments import Segments
from storage.snapshot_files import SnapshotFiles

if TYPE_CHECKING:
    from random import Random

    from storage.truncation import CheckpointLimit

_LOG = getLogger(__name__)


def _nothing() -> None:
    return


class DeletedFiles(NamedTuple):
    """Files that are out of the log, and may be removed from `due_ms` on. `remove` may run in any thread."""

    due_ms: int
    remove: Callable[[], None]
    #: Where a process ends before they are due: closes them; the next start removes them.
    close: Callable[[], None] = _nothing


def removal_job(due: Sequence[DeletedFiles]) -> BackgroundJob:
    """Remove the files of deleted segments and logs: unlinking a gigabyte takes milliseconds."""

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
    #: Everything before is on the disk.
    recovery_point: int
    #: The recovery point's checkpoint on the disk says no more than this.
    _checkpointed_to: int
    #: End offset of the closed segments that wait for their flush; None: none does.
    flush_wanted_to: int | None
    #: Files that the log does not need any more; the LogManager takes them.
    deleted_files: list[DeletedFiles]
    #: A truncation that is being prepared (`storage.truncation`).
    checkpoint_limit: "CheckpointLimit | None" = None
    #: Counts truncations, and moves of the directory: what was decided off the loop before one does not hold after it.
    truncations: int
    _snapshots: SnapshotFiles
    _random: "Random"
    _on_io_error: Callable[[OSError], None]
    _failure: OSError | None = None
    _is_closed: bool = False
    #: Files that have come, gone or got other names.
    _entry_changes: Changes
    #: Names of the directory itself, the first one included.
    _name_changes: Changes
    #: Times that the active segment has been shortened, perhaps down to its first byte.
    _cuts: Changes

    def _check_offsets(self) -> None:
        """The module's invariants."""
        start, high_watermark, end = self.log_start_offset, self.high_watermark, self.log_end_offset
        assert start <= self.last_stable_offset <= high_watermark <= end, (
            self.directory,
            start,
            high_watermark,
            end,
        )
        assert start <= self.local_log_start_offset <= end, (self.directory, start, self.segments.first, end)
        assert self.recovery_point <= end, (self.directory, self.recovery_point, end)

    def roll(self, now_ms: int, *, base_offset: int = 0) -> Segment:
        """Close the active segment and begin another one at the log end (or later: `base_offset`).

        The closed one is flushed by a job of the LogManager.
        """
        new_base = max(self.log_end_offset, base_offset)
        active = self.segments.active
        if new_base == active.base_offset:
            # Nothing in it yet, and yet full: its index has no place for a single entry.
            assert active.size == 0, (new_base, active)
            return active
        with self._io():
            active.close_to_appends()
            if self.recovery_point == new_base:
                self._forget_flushed_batches(active)
            segment = self._create_segment(new_base, now_ms)
            self.segments = Segments((*self.segments, segment))
            # Where the next segment begins, so that it can be recovered from there.
            self.producers.map_end_offset = new_base
            self._snapshots.write(self.producers)
            self._entry_changes.note()
        self.flush_wanted_to = new_base
        _LOG.debug("%s: new segment at %d", self.directory, new_base)
        return segment

    def _forget_flushed_batches(self, closed: Segment) -> None:
        """All of its batches are flushed, its indexes are not: see that it is flushed once more."""
        if self._checkpointed_to < self.recovery_point:
            self.recovery_point = closed.base_offset
        elif closed.has_changed_indexes or not self._cuts.are_flushed:
            # Since a start, or a truncation to just here: after a crash recovery would believe these indexes, and
            # whatever the file holds behind the truncation's end.
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
        """How much earlier than `segment.ms` a segment is rolled: not all partitions' at once."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.max_segment_ms)
        return self._random.randrange(jitter_ms) if jitter_ms else 0

    def _remove(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Take segments out of the log. Their files are renamed now, and removed after a delay for their readers.

        In the given order: a process that dies on the way leaves the rest of them.
        """
        self.segments = Segments(self.segments.without(segments))
        self._bound = None
        for segment in segments:
            self._snapshots.remove(segment.base_offset)
            self._put_aside(segment, now_ms)
        self._entry_changes.note()

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment], *, now_ms: int) -> None:
        """Put compacted segments (`.cleaned`, flushed) in the place of their sources, safely for any crash.

        All become `.swap` first: from then on a crash ends with the new ones (storage/recovery.py). The
        sources are removed only when these renames are on the disk.
        """
        with self._io():
            for segment in reversed(new):
                segment.change_suffix(file_names.SWAP)
            kept = self.segments.without(old)
            for segment in old:
                # Readers may have it: opened by its name, before that becomes another file's.
                segment.prepare_reading()
                self._put_aside(segment, now_ms, is_replaced=True)
            for segment in new:
                segment.change_suffix("")
            self.segments = Segments((*kept, *new))
            self._bound = None
            bases = {segment.base_offset for segment in self.segments}
            for segment in old:
                if segment.base_offset not in bases:
                    self._snapshots.remove(segment.base_offset)
            self._entry_changes.note()

    def _put_aside(self, segment: Segment, now_ms: int, *, is_replaced: bool = False) -> None:
        """Rename a segment's files now, and have them removed after a delay for its readers.

        If it `is_replaced`, not before what has come in its place is there for good.
        """
        segment.change_suffix(file_names.DELETED)

        def remove() -> None:
            # A log that has got another directory meanwhile has taken them with it.
            segment.move_to(self.directory)
            if is_replaced:
                self._files.fsync_dir(segment.directory)
            segment.delete_files()

        due_ms = now_ms + self.config.file_delete_delay_ms
        self.deleted_files.append(DeletedFiles(due_ms, remove, segment.close_files))

    def recovery_point_to_write(self) -> int:
        """What the recovery points' checkpoint is to say of this log, from now on.

        Recovery believes the indexes of a segment that ends at the recovery point. Those of the active one reach the
        disk after it is closed: until then its last offset does not count as flushed.
        """
        point, active = self.recovery_point, self.segments.active
        if point == self.log_end_offset > active.base_offset and active.may_have_unflushed_indexes:
            point -= 0 if self._is_closed else 1
        if self.checkpoint_limit is not None:
            point = min(point, self.checkpoint_limit.offset)
        self._checkpointed_to = max(self._checkpointed_to, point)
        return point

    def log_start_to_write(self) -> int | None:
        """What the log start offsets' checkpoint is to say of this log; None: its first segment says the same."""
        start, limit = self.log_start_offset, self.checkpoint_limit
        if limit is not None:
            start = min(start, limit.offset)
        return start if start > self.segments.first.base_offset else None

    @property
    def is_flush_due(self) -> bool:
        """Whether so much is not flushed that what was appended last counts only after a flush (flush.messages)."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def committable_end(self) -> int:
        """Up to where this replica counts as having the records."""
        return self.recovery_point if self.is_flush_due else self.log_end_offset

    @property
    def unflushed_count(self) -> int:
        """Offsets that are not known to be on the disk."""
        return self.log_end_offset - self.recovery_point

    def flush(self, offset: int | None = None) -> None:
        """Wait until everything before `offset` (None: the log end) is on the disk. [any thread]

        Off the loop only where nobody truncates at the same time; a BackgroundJob uses the two halves.
        Raises KafkaStorageError.
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
        seen = [(it, it.count) for it in (self._entry_changes, self._name_changes, self._cuts)]
        if end <= recovery_point and self._entry_changes.are_flushed:
            return
        try:
            self.leader_epochs.flush()
            self._snapshots.flush(recovery_point, end)
            segments = self.segments
            for segment in segments.from_offset(recovery_point):
                if segment.base_offset < end or not self._cuts.are_flushed:
                    segment.flush(with_indexes=segment is not segments.active)
            if not (self._entry_changes.are_flushed and self._name_changes.are_flushed):
                self._files.fsync_path(self.directory / partition_metadata.FILE_NAME)
                self._files.fsync_dir(self.directory)
            if not self._name_changes.are_flushed:
                self._files.fsync_dir(self.directory.parent)
            for changes, count in seen:
                changes.note_flushed(count)
        except OSError as error:
            raise self._failed(error) from error

    def mark_flushed(self, end: int, *, truncations: int, active: Segment) -> None:
        """Everything before `end` is on the disk, unless the log has been truncated or moved since `truncations`.

        But for the indexes of what was the `active` segment before: recovery believes those of a segment that ends
        before the recovery point. If it has been rolled since, it is flushed once more (`flush_wanted_to`).
        """
        if self.truncations == truncations:
            if active is not self.segments.active:
                end = min(end, active.base_offset)
            self.recovery_point = max(self.recovery_point, min(end, self.log_end_offset))
            if self.flush_wanted_to is not None and self.flush_wanted_to <= self.recovery_point:
                self.flush_wanted_to = None

    def close(self) -> None:
        """Leave files that need no recovery, on the disk; the log cannot be used any more. [any thread]

        Raises KafkaStorageError. Cost: no I/O at all for a log that nobody wrote to.
        """
        if self._is_closed:
            return
        with self._io():
            self._snapshots.write(self.producers)
            for segment in self.segments:
                segment.close()
            self._is_closed = True
            if self.segments.active.has_changed_indexes:
                self.segments.active.flush()
                self._entry_changes.note()  # one of them may be new
            self.flush()

    def close_files(self) -> None:
        """Give all descriptors back without writing: the directory is offline or about to be deleted."""
        self._is_closed = True
        for segment in self.segments:
            segment.close_files()

    def rename_directory(self, directory: Path) -> None:
        """Move the log's directory: it is deleted, or takes another one's place."""
        with self._io():
            self._files.rename(self.directory, directory)
        # A flush that runs has not found all files: it counts for nothing, and what it was for is flushed again.
        self.truncations += 1
        if self.recovery_point < self.segments.active.base_offset:
            self.flush_wanted_to = self.segments.active.base_offset
        self.directory = directory
        self.leader_epochs.move_to(directory)
        self._snapshots.directory = directory
        for segment in self.segments:
            segment.move_to(directory)
        for changes in (self._entry_changes, self._name_changes, self._cuts):
            changes.note()

    def _io(self) -> "_IO":
        return _IO(self)

    def _failed(self, error: OSError) -> KafkaStorageError:
        """The disk has failed us: nothing more is written, and the LogManager is told."""
        if self._failure is None:
            self.take_offline(error)
            _LOG.error("%s is offline: %s", self.directory, error)
            self._on_io_error(error)
        return KafkaStorageError(f"{self.directory}: {error}")

    def _read_failed(self, error: OSError) -> KafkaStorageError:
        """A reader that comes too late for files that are gone is not the disk's fault; all else is. [any thread]"""
        if self._is_closed or isinstance(error, FileNotFoundError):
            return super()._read_failed(error)
        return self._failed(error)

    @property
    def is_future(self) -> bool:
        """Whether it is to take the place of the partition's log in another directory, once it has caught up."""
        return self.directory.name.endswith(file_names.FUTURE_DIRECTORY)

    @property
    def is_writable(self) -> bool:
        """Whether it is open, and its directory serves."""
        return self._failure is None and not self._is_closed

    @property
    def files(self) -> Files:
        """What the log works on."""
        return self._files

    def take_offline(self, error: OSError) -> None:
        """Its directory has failed, perhaps by another log: refuse all writes from now on. [any thread]"""
        self._failure = error

    def _unavailable(self) -> KafkaStorageError:
        return KafkaStorageError(
            f"{self.directory} is closed" if self._is_closed else f"{self.directory}: {self._failure}"
        )


class _IO:
    """Turns an OSError of a block into the log's failure."""

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
    """What segments need of a topic's configuration."""
    return SegmentSettings(
        index_interval_bytes=config.index_interval_bytes,
        max_index_bytes=config.segment_index_bytes,
        preallocated_bytes=config.segment_bytes if config.preallocate else None,
    )
