"""One replica's log: what a partition's leader and followers append to, truncate and read.

                     log start       last stable     high watermark      log end
                         |                |                 |               |
    ... (deleted) -------[== committed ===|== undecided ====|= not yet ====]
                                                               replicated

    segments  [ 0 ........ ][ 4711 ........ ][ 9000 .......]   <- the last one is active
                        recovery point  ^ everything before is on the disk

Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, and
recovery_point <= log_end_offset.

An append is: validate (leader only), note the leader epoch, roll when the segment is full, check the
producers, one write, remember the producers. Nothing waits for the disk, unless `flush.messages` says so:
a batch is safe because other replicas have it. Closed segments are flushed by the LogManager's jobs.

Threads: everything here belongs to the event loop's thread, but for what LogReader has, `flush` and
`close`, which any thread may call.

Source: UnifiedLog and LocalLog of Kafka 4.3.1.
"""

from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from uuid import UUID

from protocol.errors import (
    CorruptMessage,
    InconsistentTopicId,
    KafkaStorageError,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from protocol.records.batch import BatchHeader, batches, crc_is_valid
from protocol.types import TopicPartition
from storage import file_names, leader_epoch_cache, partition_metadata, recovery, retention
from storage.append_origin import AppendOrigin
from storage.files import Buffer, Files
from storage.leader_epoch_cache import LeaderEpochCache
from storage.log_config import LogConfig
from storage.log_reader import LogRead, LogReader
from storage.producer_state import (
    NO_UPDATES,
    PRODUCER_ID_EXPIRATION_MS,
    BatchMetadata,
    ProducerStateManager,
)
from storage.segment import Segment, SegmentSettings, WouldBlock
from storage.segments import Segments
from storage.snapshot_files import remember, replay_headers
from storage.validation import validate

if TYPE_CHECKING:
    from random import Random

__all__ = ["AppendInfo", "AppendOrigin", "Log", "LogRead", "UnexpectedAppendOffset", "WouldBlock"]

_LOG = getLogger(__name__)


class UnexpectedAppendOffset(CorruptMessage):
    """A follower was given offsets that its log already has."""


class AppendInfo(NamedTuple):
    """What an append did; the offsets of the first time if it was a duplicate."""

    first_offset: int
    #: Inclusive; `first_offset - 1` if nothing was appended.
    last_offset: int
    #: The largest record timestamp, -1 without any.
    max_timestamp: int
    #: The broker's time, if the topic takes it; None for CreateTime.
    log_append_time_ms: int | None
    log_start_offset: int
    is_duplicate: bool
    size_bytes: int
    records_count: int


class DeletedFiles(NamedTuple):
    """Files that are out of the log, and may be removed from `due_ms` on. `remove` may run in any thread."""

    due_ms: int
    remove: Callable[[], None]


class Log(LogReader):
    """See the module. Opened by `Log.open`."""

    def __init__(
        self,
        directory: Path,
        *,
        config: LogConfig,
        topic_partition: TopicPartition,
        topic_id: UUID | None,
        loaded: recovery.Loaded,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        files: Files,
        random: "Random",
        max_transaction_timeout_ms: int,
        on_io_error: Callable[[OSError], None],
        now_ms: int,
    ) -> None:
        self.directory = directory
        self.config = config
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments = loaded.segments
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        #: Everything before is on the disk.
        self.recovery_point = loaded.recovery_point
        #: Until a leader or a checkpoint says more, only what is deleted is known to be everywhere.
        self.high_watermark = loaded.log_start_offset
        self.leader_epochs = epochs
        self.producers = producers
        self.max_transaction_timeout_ms = max_transaction_timeout_ms
        #: For flush.ms.
        self.last_flushed_ms = now_ms
        #: End offset of the closed segments that wait for their flush; None: none does.
        self.flush_wanted_to: int | None = None
        #: Files that the log does not need any more; the LogManager takes them.
        self.deleted_files: list[DeletedFiles] = []
        #: Counts truncations: what was decided off the loop before one does not hold after it.
        self.truncations = 0
        #: Whether the entries of this directory and of its parent are known to be on the disk.
        self._is_directory_flushed = False
        self._snapshots = loaded.snapshots
        self._files = files
        self._random = random
        self._on_io_error = on_io_error
        self._failure: OSError | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        config: LogConfig,
        topic_partition: TopicPartition,
        now_ms: int,
        files: Files,
        random: "Random",
        is_clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        topic_id: UUID | None = None,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        max_transaction_timeout_ms: int = 15 * 60 * 1000,
        on_io_error: Callable[[OSError], None] = lambda error: None,
    ) -> Self:
        """The log in this directory, which is made when missing. [any thread]

        Whatever the files hold, this repairs it or begins anew (storage/recovery.py). `is_clean`: the log
        was closed by `close`; otherwise everything from `recovery_point` on is checked.
        Raises OSError, and InconsistentTopicId if the directory is another topic's.
        """
        # Its entry reaches the disk with the first flush: 1,000 new partitions are not 1,000 waits.
        files.make_dir(directory)
        epochs = LeaderEpochCache.open(directory / leader_epoch_cache.FILE_NAME, files)
        producers = ProducerStateManager(producer_id_expiration_ms=producer_id_expiration_ms)
        loaded = recovery.load(
            recovery.Loading(
                directory=directory,
                files=files,
                settings=segment_settings(config),
                now_ms=now_ms,
                is_clean=is_clean,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                epochs=epochs,
                producers=producers,
            )
        )
        log = cls(
            directory,
            config=config,
            topic_partition=topic_partition,
            topic_id=None,
            loaded=loaded,
            epochs=epochs,
            producers=producers,
            files=files,
            random=random,
            max_transaction_timeout_ms=max_transaction_timeout_ms,
            on_io_error=on_io_error,
            now_ms=now_ms,
        )
        log._read_topic_id()
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _read_topic_id(self) -> None:
        try:
            self.topic_id = partition_metadata.read(self.directory, self._files)
        except ValueError as error:
            _LOG.warning("%s: %s; it is written anew", self.directory, error)

    def assign_topic_id(self, topic_id: UUID) -> None:
        """The log is this topic's. Raises InconsistentTopicId if it is another one's (KIP-516)."""
        if self.topic_id is None:
            with self._io():
                partition_metadata.write(self.directory, topic_id, self._files, durable=False)
            self.topic_id = topic_id
        elif self.topic_id != topic_id:
            raise InconsistentTopicId(f"{self.directory} belongs to topic id {self.topic_id}, not {topic_id}")

    # -- appending ---------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append the one batch in `records`, giving it the next offsets.

        A writable buffer is patched in place, and may be reused afterwards. A batch that this log already
        has is not written again: `is_duplicate`.
        Raises what validate and ProducerStateManager.analyze raise, RecordListTooLarge, KafkaStorageError.
        Cost: 9 us and the CRC.
        """
        if self._failure is not None or self._is_closed:
            raise self._unavailable()
        validated = validate(
            records,
            first_offset=self.log_end_offset,
            now_ms=now_ms,
            config=self.config,
            leader_epoch=leader_epoch,
            origin=origin,
        )
        header = validated.header
        if leader_epoch != self.leader_epochs.latest_epoch and leader_epoch >= 0:
            self.assign_epoch(leader_epoch, header.base_offset)
        duplicate = self._write(
            (header,),
            validated.buffers,
            validated.size_bytes,
            validated.max_timestamp,
            now_ms,
            origin,
            transaction_version,
        )
        if duplicate is not None:
            return AppendInfo(
                first_offset=duplicate.first_offset,
                last_offset=duplicate.last_offset,
                max_timestamp=duplicate.timestamp,
                log_append_time_ms=duplicate.timestamp,  # for CreateTime topics, too: Kafka answers so
                log_start_offset=self.log_start_offset,
                is_duplicate=True,
                size_bytes=0,
                records_count=header.records_count,
            )
        # In the order of the fields: names would cost 0.5 us.
        return AppendInfo(
            header.base_offset,
            self.log_end_offset - 1,
            validated.max_timestamp,
            validated.log_append_time_ms,
            self.log_start_offset,
            False,
            validated.size_bytes,
            header.records_count,
        )

    def append_as_follower(self, records: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append batches as the leader of `leader_epoch` has them, offsets and epochs included.

        A batch that is cut off at the end is left out, as is everything from a batch of a newer epoch on:
        it did not come from that leader's lineage (KAFKA-18723).
        Raises CorruptMessage for a bad CRC or offsets that go back (nothing is written then),
        UnexpectedAppendOffset for offsets that the log has, KafkaStorageError.
        """
        if self._failure is not None or self._is_closed:
            raise self._unavailable()
        view = records if isinstance(records, memoryview) else memoryview(records)
        headers = self._follower_headers(view, leader_epoch)
        first_offset = headers[0].base_offset if headers else self.log_end_offset
        info = AppendInfo(
            first_offset=first_offset,
            last_offset=headers[-1].last_offset if headers else first_offset - 1,
            max_timestamp=max((header.max_timestamp for header in headers), default=-1),
            log_append_time_ms=None,
            log_start_offset=self.log_start_offset,
            is_duplicate=False,
            size_bytes=sum(header.size_bytes for header in headers),
            records_count=sum(header.records_count for header in headers),
        )
        if headers:
            for header in headers:
                if header.partition_leader_epoch >= 0:
                    self.assign_epoch(header.partition_leader_epoch, header.base_offset)
            self._write(
                headers,
                (view[: info.size_bytes],),
                info.size_bytes,
                info.max_timestamp,
                now_ms,
                AppendOrigin.REPLICATION,
                0,
            )
        return info

    def _follower_headers(self, view: memoryview, leader_epoch: int) -> list[BatchHeader]:
        headers: list[BatchHeader] = []
        next_offset = self.log_end_offset
        for header, batch in batches(view):
            if header.partition_leader_epoch > leader_epoch:
                break
            if header.base_offset < next_offset:
                if headers:
                    raise CorruptMessage(f"Offset {header.base_offset} follows {next_offset - 1}")
                raise UnexpectedAppendOffset(
                    f"Offset {header.base_offset} was fetched, {next_offset} is next in {self.topic_partition}"
                )
            if header.last_offset_delta < 0 or not crc_is_valid(batch):
                raise CorruptMessage(f"Batch at offset {header.base_offset} of {self.topic_partition}")
            headers.append(header)
            next_offset = header.next_offset
        return headers

    def _write(
        self,
        headers: Sequence[BatchHeader],
        buffers: Sequence[Buffer],
        size_bytes: int,
        max_timestamp: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
    ) -> BatchMetadata | None:
        """Write batches that are what they shall be; the batch that they duplicate, if they do."""
        config = self.config
        if size_bytes > config.segment_bytes:
            raise RecordListTooLarge(
                f"{size_bytes} bytes do not fit into a segment of {config.segment_bytes}"
            )
        last = headers[-1]
        last_offset = last.base_offset + last.last_offset_delta
        segment = self.segments.active
        if segment.is_full(size_bytes, last_offset, max_timestamp, now_ms, config):
            segment = self.roll(now_ms, base_offset=headers[0].base_offset)
        updates = NO_UPDATES
        if last.producer_id >= 0 or (len(headers) > 1 and any(it.producer_id >= 0 for it in headers)):
            view = memoryview(
                buffers[0]
            )  # markers are written in one piece: coordinators' buffers are writable
            updates = self.producers.analyze(
                zip(headers, _slices(view, headers), strict=True),
                origin=origin,
                transaction_version=transaction_version,
            )
            if updates.duplicate is not None:
                return updates.duplicate
        try:
            segment.append(headers, buffers, size_bytes)
            # Before anything else can fail: offsets must not be given twice.
            self.log_end_offset = last_offset + 1
            if updates is not NO_UPDATES:
                remember(self.producers, updates, segment)
        except OSError as error:
            raise self._failed(error) from error
        self.producers.map_end_offset = last_offset + 1
        if last_offset + 1 - self.recovery_point >= config.flush_messages:
            self.flush()
        return None

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """The leader of `epoch` writes from `start_offset` on; on becoming leader: the log end."""
        with self._io():
            self.leader_epochs.assign(epoch, start_offset)

    # -- segments ----------------------------------------------------------------------------------

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
            segment = self._create_segment(new_base, now_ms)
            self.segments = Segments((*self.segments, segment))
            # Where the next segment begins, so that it can be recovered from there.
            self.producers.map_end_offset = new_base
            self._snapshots.write(self.producers)
        self.flush_wanted_to = new_base
        _LOG.debug("%s: new segment at %d", self.directory, new_base)
        return segment

    def _create_segment(self, base_offset: int, now_ms: int) -> Segment:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.max_segment_ms)
        return Segment.create(
            self.directory,
            base_offset,
            settings=segment_settings(self.config),
            files=self._files,
            now_ms=now_ms,
            roll_jitter_ms=self._random.randrange(jitter_ms) if jitter_ms else 0,
        )

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that are due (storage/retention.py); how many. Their files go later."""
        if self._failure is not None or self._is_closed:
            return 0
        removed = 0
        with self._io():
            while True:
                found = retention.due(
                    self.segments,
                    config=self.config,
                    log_start_offset=self.log_start_offset,
                    high_watermark=self.high_watermark,
                    log_end_offset=self.log_end_offset,
                    now_ms=now_ms,
                )
                if not found.segments:
                    return removed
                if found.segments[-1] is self.segments.active:
                    self.roll(now_ms)
                _LOG.info("%s: removing %d segments: %s", self.directory, len(found.segments), found.reason)
                self._remove(found.segments, now_ms)
                removed += len(found.segments)
                start = self.segments.first.base_offset
                if start > self.log_start_offset:
                    self._set_log_start_offset(start)

    def _remove(self, segments: Sequence[Segment], now_ms: int) -> None:
        """Take segments out of the log. Their files are renamed now, and removed after a delay for their readers."""
        kept = [segment for segment in self.segments if segment not in segments]
        self.segments = Segments(kept)
        self._bound = None
        for segment in segments:
            self._snapshots.remove(segment.base_offset)
            self._put_aside(segment, now_ms)

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment], *, now_ms: int) -> None:
        """Put compacted segments (`.cleaned`, flushed) in the place of their sources, safely for any crash.

        All become `.swap` first: from then on a crash ends with the new ones (storage/recovery.py). The
        sources are removed only when these renames are on the disk.
        """
        with self._io():
            for segment in reversed(new):
                segment.change_suffix(file_names.SWAP)
            kept = [segment for segment in self.segments if segment not in old]
            for segment in old:
                # Readers may have it: opened by its name, before that becomes another file's.
                segment.prepare_reading()
                self._put_aside(segment, now_ms, after_flush_of=self.directory)
            for segment in new:
                segment.change_suffix("")
            self.segments = Segments((*kept, *new))
            self._bound = None
            bases = {segment.base_offset for segment in self.segments}
            for segment in old:
                if segment.base_offset not in bases:
                    self._snapshots.remove(segment.base_offset)

    def _put_aside(self, segment: Segment, now_ms: int, *, after_flush_of: Path | None = None) -> None:
        """Rename a segment's files now, and have them removed after a delay for its readers."""
        segment.change_suffix(file_names.DELETED)

        def remove() -> None:
            if after_flush_of is not None:
                self._files.fsync_dir(after_flush_of)
            segment.delete_files()

        self.deleted_files.append(DeletedFiles(now_ms + self.config.file_delete_delay_ms, remove))

    # -- offsets -----------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """What read_committed consumers may read up to, exclusive."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, within [log start, log end]; what it became."""
        self.high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producers.on_high_watermark(self.high_watermark)
        return self.high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Move the high watermark forward; False if that would be no move."""
        assert offset <= self.log_end_offset, (offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    def maybe_increment_log_start_offset(self, offset: int, *, reason: str = "") -> bool:
        """Forget everything before `offset`, for good; False if that is forgotten already.

        Segments go by the next retention. Raises OffsetOutOfRange above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"The log start offset of {self.topic_partition} cannot become {offset}: "
                f"the high watermark is {self.high_watermark}"
            )
        if offset <= self.log_start_offset:
            return False
        _LOG.info("%s: log start offset %d (%s)", self.directory, offset, reason)
        with self._io():
            self._set_log_start_offset(offset)
        return True

    def _set_log_start_offset(self, offset: int) -> None:
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_offset(offset, latest_snapshot_offset=self._snapshots.latest)

    # -- truncation --------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove everything from `offset` on (a batch that holds it, whole); False if there is nothing."""
        assert offset >= 0, offset
        if offset >= self.log_end_offset:
            # A leader that noted its epoch and wrote nothing leaves an entry at the log end (KIP-101).
            with self._io():
                self.leader_epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self.high_watermark:
            _LOG.warning(
                "%s: truncating to %d, below the high watermark %d",
                self.directory,
                offset,
                self.high_watermark,
            )
        if offset < self.segments.first.base_offset:
            self.truncate_fully_and_start_at(offset, now_ms=now_ms)
            return True
        with self._io():
            self._forget_flushed(offset)
            if later := [segment for segment in self.segments if segment.base_offset > offset]:
                self._remove(later, now_ms)
            active = self.segments.active
            active.truncate_to(offset, now_ms=now_ms)
            self.log_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self.leader_epochs.truncate_from_end(self.log_end_offset)
            self.high_watermark = min(self.high_watermark, self.log_end_offset)
            self._reload_producers(now_ms)
        return True

    def _forget_flushed(self, offset: int) -> None:
        """Before files change: what is behind `offset` counts as not flushed."""
        self.truncations += 1
        self.recovery_point = min(self.recovery_point, offset)
        self._bound = None

    def _reload_producers(self, now_ms: int) -> None:
        end_offset = self.log_end_offset
        self._snapshots.load(
            self.producers, log_start_offset=self.log_start_offset, end_offset=end_offset, now_ms=now_ms
        )
        replay_headers(self.producers, self.segments, end_offset=end_offset, files=self._files)
        self._snapshots.write(self.producers)

    def truncate_fully_and_start_at(
        self, offset: int, *, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        """Remove everything; the log is empty and goes on at `offset`."""
        with self._io():
            self._forget_flushed(offset)
            old = list(self.segments)
            for segment in old:
                self._put_aside(segment, now_ms)
            for at in list(self._snapshots.offsets):
                self._snapshots.remove(at)
            self.segments = Segments([self._create_segment(offset, now_ms)])
            self.leader_epochs.clear()
            self.producers.reset(offset)
            self.log_end_offset = offset
            self.log_start_offset = offset if log_start_offset is None else log_start_offset
            self.high_watermark = offset
            self.flush_wanted_to = None

    # -- flushing and closing ----------------------------------------------------------------------

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
        truncations = self.truncations
        self.flush_files(end)
        self.mark_flushed(end, truncations=truncations)

    def flush_files(self, end: int) -> None:
        """Wait until everything before `end` is on the disk, its indexes and epochs first. [any thread]

        Raises KafkaStorageError.
        """
        recovery_point = self.recovery_point
        if end <= recovery_point:
            return
        try:
            self.leader_epochs.flush()
            self._snapshots.flush(recovery_point, end)
            is_new = not self._is_directory_flushed
            segments = self.segments
            for segment in segments.from_offset(recovery_point):
                if segment.base_offset < end:
                    segment.flush(with_indexes=segment is not segments.active)
                    is_new = is_new or segment.base_offset >= recovery_point
            if is_new:
                self._files.fsync_path(self.directory / partition_metadata.FILE_NAME)
                self._files.fsync_dir(self.directory)
            if not self._is_directory_flushed:
                self._files.fsync_dir(self.directory.parent)
                self._is_directory_flushed = True
        except OSError as error:
            raise self._failed(error) from error

    def mark_flushed(self, end: int, *, truncations: int) -> None:
        """Everything before `end` is on the disk, unless the log has been truncated since `truncations`."""
        if self.truncations == truncations:
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
            if self.unflushed_count:
                self.segments.active.flush()
                self.flush()

    def close_files(self) -> None:
        """Give all descriptors back without writing: the directory is offline or about to be deleted."""
        self._is_closed = True
        for segment in self.segments:
            segment.close_files()

    def rename_directory(self, directory: Path) -> None:
        """Move the log's directory (deletion)."""
        with self._io():
            self._files.rename(self.directory, directory)
        self.directory = directory
        self.leader_epochs.move_to(directory)
        self._snapshots.directory = directory
        for segment in self.segments:
            segment.move_to(directory)

    def update_config(self, config: LogConfig) -> None:
        """The topic's configuration has changed; sizes of indexes hold from the next segment on."""
        self.config = config
        self.segments.active.settings = self.segments.active.settings._replace(
            index_interval_bytes=config.index_interval_bytes
        )

    # -- failure -----------------------------------------------------------------------------------

    def _io(self) -> "_IO":
        return _IO(self)

    def _failed(self, error: OSError) -> KafkaStorageError:
        """The disk has failed us: nothing more is written, and the LogManager is told."""
        if self._failure is None:
            self.take_offline(error)
            _LOG.error("%s is offline: %s", self.directory, error)
            self._on_io_error(error)
        return KafkaStorageError(f"{self.directory}: {error}")

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

    def __init__(self, log: Log) -> None:
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


def _slices(view: memoryview, headers: Sequence[BatchHeader]) -> list[memoryview]:
    position, slices = 0, []
    for header in headers:
        slices.append(view[position : position + header.size_bytes])
        position += header.size_bytes
    return slices
