"""LogFiles: the files of one log, in one directory: segments and producer snapshots; and their delayed removal.

    create      a segment for the next batches (roll, or an empty log)
    remove      from either end (retention, truncation), or all
    replace     by compacted segments

Removed files are renamed to `.deleted` at once, and deleted `file.delete.delay.ms` later, as threads may still read
them. The set of segments is immutable and replaced as a whole.

Which of these changes are on the disk is counted, as a flush in a thread runs beside new changes (`flush_counter.py`).

Source: LocalLog of Kafka 4.3.1.
"""

from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import KafkaStorageError
from ottla.storage import file_names
from ottla.storage.background import BackgroundJob
from ottla.storage.files import Files
from ottla.storage.flush_counter import FlushCounter
from ottla.storage.segment import Segment
from ottla.storage.segment_indexes import SegmentSettings
from ottla.storage.segments import Segments
from ottla.storage.snapshot_files import SnapshotFiles

if TYPE_CHECKING:
    from random import Random

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
                _LOG.error("Cannot remove deleted files: %s", error)

    return BackgroundJob(name=f"remove {len(due)} deleted segments or logs", run=run)


def segment_settings(config: LogConfig) -> SegmentSettings:
    """The part of a topic's configuration that segments use."""
    return SegmentSettings(
        index_interval_bytes=config.index_interval_bytes,
        max_index_bytes=config.segment_index_bytes,
        preallocated_bytes=config.segment_bytes if config.preallocate else None,
    )


class LogFiles:
    """The segments and producer snapshots of one log, in one directory, and their delayed removal.

    Its methods raise OSError; all belong to the event loop's thread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        config: LogConfig,
        segments: Segments,
        snapshots: SnapshotFiles,
        file_system: Files,
        random: "Random",
        can_be_tiered: bool = True,
    ) -> None:
        self.directory = directory
        self._can_be_tiered = can_be_tiered
        self._apply_config(config)
        #: Replaced as a whole. The last one is active.
        self.segments = segments
        self.snapshots = snapshots
        self.file_system = file_system
        self._random = random
        #: Files that no longer belong to the log; the LogManager removes them.
        self.deleted_files: list[DeletedFiles] = []
        #: Counts truncations and renames of the directory: results of a thread that began before one are invalid.
        self.generation = 0
        #: Files that were created, removed or renamed.
        self.entry_changes = FlushCounter()
        #: Creation and renames of the directory itself.
        self.name_changes = FlushCounter(1)
        #: Truncations of the active segment, perhaps down to its first byte.
        self.active_truncations = FlushCounter()
        #: Removals of segments at the log's end: no segment before them may be truncated until they are on the disk.
        self.removals = FlushCounter()
        #: Removals of segments at the log's beginning: of a tiered log the next one waits until they are on the disk.
        self.start_removals = FlushCounter()
        # Without jitter all partitions of a start would be rolled at once.
        segments.active.roll_jitter_ms = self._draw_jitter_ms()

    @property
    def is_future(self) -> bool:
        """Whether this is a future log, which replaces the partition's log in another directory (KIP-113)."""
        return self.directory.name.endswith(file_names.FUTURE_DIRECTORY)

    @property
    def is_tiered(self) -> bool:
        """Whether closed segments are copied to the remote tier (KIP-405)."""
        return self.config.is_tiered and self._can_be_tiered

    def update_config(self, config: LogConfig) -> None:
        """Apply a new configuration of the topic; index sizes take effect with the next segment."""
        self._apply_config(config)
        self.segments.active.update_settings(index_interval_bytes=config.index_interval_bytes)

    def _apply_config(self, config: LogConfig) -> None:
        self.config = config
        preference = config.leader_preference
        #: How elections take local logs into account (draft KIP-1303); None: they do not, so none is reported.
        self.leader_preference = preference if preference.is_on and self._can_be_tiered else None

    def take_deleted(self) -> list[DeletedFiles]:
        """The deleted files, for the LogManager, which removes them from now on."""
        taken, self.deleted_files = self.deleted_files, []
        return taken

    # -- segments ----------------------------------------------------------------------------------

    def add_segment(self, base_offset: int, *, now_ms: int) -> Segment:
        """Create the next active segment. Its creation counts as a change only when the caller has completed it."""
        assert base_offset > self.segments.active.base_offset, (self.directory, base_offset)
        segment = self._create_segment(base_offset, now_ms=now_ms)
        self.segments = Segments((*self.segments, segment))
        return segment

    def _create_segment(self, base_offset: int, *, now_ms: int) -> Segment:
        return Segment.create(
            self.directory,
            base_offset,
            settings=segment_settings(self.config),
            files=self.file_system,
            now_ms=now_ms,
            roll_jitter_ms=self._draw_jitter_ms(),
        )

    def _draw_jitter_ms(self) -> int:
        """Draw how many ms before `segment.ms` a segment is rolled: partitions are not all rolled at once."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.max_segment_ms)
        return self._random.randrange(jitter_ms) if jitter_ms else 0

    def _remove(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Remove segments from either end of the log, but not all.

        In the given order: a process that crashes meanwhile leaves the rest of them.
        """
        kept = Segments(self.segments.without(segments))
        assert len(kept) + len(segments) == len(self.segments), (self.directory, segments)
        self.segments = kept
        for segment in segments:
            self.snapshots.remove(segment.base_offset)
            self._rename_and_schedule_removal(segment, now_ms)
        self.entry_changes.on_change()

    def remove_before(self, earlier: Sequence[Segment], now_ms: int) -> None:
        """Remove the segments `earlier` at the log's beginning, the oldest first, so that a crash leaves no gap."""
        assert [*earlier] == [*self.segments][: len(earlier)], (self.directory, earlier)
        self._remove(earlier, now_ms)
        self.start_removals.on_change()

    def remove_after(self, later: Sequence[Segment], now_ms: int) -> None:
        """Remove the segments `later` at the log's end, the newest first, so that a crash leaves no gap."""
        assert [*later] == [*self.segments][-len(later) :], (self.directory, later)
        self._remove(later[::-1], now_ms)
        self.removals.on_change()

    def flush_removals(self) -> None:
        """Wait until the removals at both ends are on the disk. [any thread]"""
        counts = [(it, it.change_count) for it in (self.removals, self.start_removals)]
        self.file_system.fsync_dir(self.directory)
        for changes, count in counts:
            changes.on_flushed(count)

    def restart(self, base_offset: int, *, now_ms: int, before_creation: Callable[[], None]) -> None:
        """Remove all segments and snapshots, and create an empty segment; `before_creation` is called in between.

        The newest segment goes first: a crash leaves a truncated log, not one without its beginning.
        """
        for segment in reversed(tuple(self.segments)):
            self._rename_and_schedule_removal(segment, now_ms)
        for at in list(self.snapshots.offsets):
            self.snapshots.remove(at)
        assert self.snapshots.latest is None, (self.directory, self.snapshots.offsets)
        before_creation()
        self.segments = Segments([self._create_segment(base_offset, now_ms=now_ms)])

    def replace(self, old: Sequence[Segment], new: Sequence[Segment], *, now_ms: int) -> None:
        """Replace segments by compacted ones (`.cleaned`, flushed); safe at any crash.

        All are renamed to `.swap` first: from then on recovery completes the replacement after a crash
        (storage/recovery.py). The sources are deleted only when these renames are on the disk.
        """
        kept = self.segments.without(old)
        assert len(kept) + len(old) == len(self.segments), (self.directory, old)
        assert self.segments.active in kept, (self.directory, old)
        assert all(old[0].base_offset <= it.base_offset <= old[-1].base_offset for it in new), (old, new)
        for segment in reversed(new):
            segment.change_suffix(file_names.SWAP)
        for segment in old:
            # For readers that already have it: opened before its name belongs to another file.
            segment.log.prepare_reading()
            self._rename_and_schedule_removal(segment, now_ms, is_replaced=True)
        for segment in new:
            segment.change_suffix("")
        self.segments = Segments((*kept, *new))
        assert self.segments.first.base_offset <= old[0].base_offset, (self.directory, old, new)
        bases = {segment.base_offset for segment in self.segments}
        for segment in old:
            if segment.base_offset not in bases:
                self.snapshots.remove(segment.base_offset)
        self.entry_changes.on_change()

    def _rename_and_schedule_removal(
        self, segment: Segment, now_ms: int, *, is_replaced: bool = False
    ) -> None:
        """Rename a segment's files now, and schedule their deletion after a delay for its readers.

        If it `is_replaced`, they are deleted only when the directory entries of its replacement are on the disk.
        """
        segment.change_suffix(file_names.DELETED)

        def remove() -> None:
            # If the log's directory was renamed meanwhile, the files are there.
            segment.move_to(self.directory)
            if is_replaced:
                self.file_system.fsync_dir(segment.files.directory)
            segment.delete_files()

        due_ms = now_ms + self.config.file_delete_delay_ms
        self.deleted_files.append(DeletedFiles(due_ms, remove, segment.close_files))

    def truncate_active(self, offset: int, *, now_ms: int) -> None:
        """Remove everything from `offset` on in the active segment. Descriptors in use by threads are closed later."""
        active = self.segments.active
        assert active.base_offset <= offset, (active, offset)
        active.truncate_to(offset, now_ms=now_ms)
        for fd in active.log.take_replaced_fds():
            close = partial(self.file_system.close, fd)
            due_ms = now_ms + self.config.file_delete_delay_ms
            self.deleted_files.append(DeletedFiles(due_ms, close, close))

    # -- the directory -----------------------------------------------------------------------------

    def rename_directory(self, directory: Path) -> None:
        """Rename the log's directory: the log is deleted, or replaces another one."""
        self.file_system.rename(self.directory, directory)
        # A running flush may not have found all files: its result is ignored, and the flush is repeated.
        self.generation += 1
        self.directory = directory
        self.snapshots.directory = directory
        for segment in self.segments:
            segment.move_to(directory)
        for changes in (self.entry_changes, self.name_changes, self.active_truncations):
            changes.on_change()

    def close_descriptors(self) -> None:
        """Close all descriptors without writing."""
        for segment in self.segments:
            segment.close_files()
