"""UnifiedLog: one replica's log, which a partition's leader and followers append to, truncate and read.

Its offsets, and their invariants, are drawn in `log_offsets.py`.

The steps of an append: validate (leader only), assign the leader epoch, roll if the segment is full, check the
producers, one write, update the producer state. Nothing waits for the disk: a batch is safe because other
replicas have it. Closed segments are flushed by the LogManager's jobs; where `flush.messages` is set, the
caller flushes in a thread before it responds (`is_flush_due`).

Threads: everything here belongs to the event loop's thread, except the methods of LogReader, `flush` and
`close`, which any thread may call.

Source: UnifiedLog and LocalLog of Kafka 4.3.1.
"""

from collections.abc import Callable, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from protocol.errors import (
    InconsistentTopicId,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from protocol.records.batch import BatchHeader
from protocol.types import TopicPartition
from storage import leader_epoch_cache, overflow, partition_metadata, recovery, retention
from storage.appending import AppendInfo, AppendOrigin, UnexpectedAppendOffset, follower_headers, slices
from storage.background import BackgroundJob
from storage.files import Buffer, Files, WouldBlock
from storage.flush_counter import FlushCounter
from storage.leader_epoch_cache import LeaderEpochCache
from storage.log_config import LogConfig
from storage.log_files import segment_settings
from storage.log_offsets import LogOffsets, start_offsets
from storage.log_reader import LogRead
from storage.producer_state import (
    NO_UPDATES,
    BatchMetadata,
    ProducerStateManager,
    default_producer_id_expiration_ms,
)
from storage.segment import OffsetOverflow
from storage.snapshot_files import apply_updates
from storage.truncation import LogTruncation
from storage.validation import ValidatedRecords, validate
from storage.warming import warm_up_times

if TYPE_CHECKING:
    from random import Random

__all__ = ["AppendInfo", "AppendOrigin", "Log", "LogRead", "UnexpectedAppendOffset", "WouldBlock"]

_LOG = getLogger(__name__)
_new_tuple = tuple.__new__


class Log(LogTruncation):
    """One replica's log; see the module. Opened by `Log.open`."""

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
        on_io_error: Callable[[OSError], None],
        on_unflushed: Callable[[], BackgroundJob],
        now_ms: int,
    ) -> None:
        self.directory = directory
        self.config = config
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments = loaded.segments
        self.offsets = LogOffsets(
            log_start_offset=loaded.log_start_offset,
            local_log_start_offset=loaded.local_log_start_offset,
            log_end_offset=loaded.log_end_offset,
            recovery_point=loaded.recovery_point,
            first_unstable_offset=producers.first_unstable_offset,
            # Compaction leaves gaps, too.
            first_gap_offset=None if config.is_compacted else loaded.first_gap_offset,
        )
        self._checkpointed_to = loaded.recovery_point
        self.leader_epochs = epochs
        self.producers = producers
        #: For flush.ms.
        self.last_flushed_ms = now_ms
        self.flush_wanted_to = None
        self.deleted_files = []
        self.truncations = 0
        self._entry_changes, self._name_changes = FlushCounter(), FlushCounter(1)
        self._cuts, self._removals = FlushCounter(), FlushCounter()
        self._snapshots = loaded.snapshots
        self._files = files
        self._random = random
        self._on_io_error = on_io_error
        self._on_unflushed = on_unflushed

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
        producer_id_expiration_ms: Callable[[], int] = default_producer_id_expiration_ms,
        on_io_error: Callable[[OSError], None] = lambda error: None,
        on_unflushed: Callable[[], BackgroundJob] = lambda: BackgroundJob(
            name="no checkpoints", run=lambda: None
        ),
    ) -> Self:
        """Open the log in this directory, which is created if missing. [any thread]

        Damaged files are repaired, or the log restarts empty (storage/recovery.py). `is_clean`: the log was
        closed by `close`; otherwise everything from `recovery_point` on is checked. `on_unflushed` is called
        when recovery point or log start offset move back, before files change: its job writes their checkpoints.
        Raises OSError, and InconsistentTopicId if the directory belongs to another topic.
        """
        # The directory's entry is flushed with the first flush: 1,000 new partitions are not 1,000 waits.
        is_new = files.make_dir(directory)
        epochs_path = directory / leader_epoch_cache.FILE_NAME
        epochs = LeaderEpochCache(path=epochs_path, files=files) if is_new else LeaderEpochCache.open(epochs_path, files)  # fmt: skip
        producers = ProducerStateManager(producer_id_expiration_ms=producer_id_expiration_ms)
        settings = segment_settings(config)
        loading = recovery.Loading(
            directory=directory,
            files=files,
            settings=settings,
            now_ms=now_ms,
            is_new=is_new,
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            is_tiered=config.remote_storage_enable,
            epochs=epochs,
            producers=producers,
        )
        while True:
            try:
                loaded = recovery.load(loading)
                found = overflow.overflowed(loaded.segments, loaded.log_end_offset)
            except OffsetOverflow:
                found = overflow.overflowed_in(directory, settings=settings, files=files, now_ms=now_ms)
                assert found, directory
            if not found:
                break
            overflow.split(found[0], files=files, now_ms=now_ms)
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
            on_io_error=on_io_error,
            on_unflushed=on_unflushed,
            now_ms=now_ms,
        )
        if not is_clean:
            log._entry_changes.on_change()
        # Without jitter all partitions of a start would be rolled at once.
        log.segments.active.roll_jitter_ms = log._draw_jitter_ms()
        if not is_new:
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
        """Assign the topic id. Raises InconsistentTopicId if the log already has another one (KIP-516)."""
        if self.topic_id is None:
            with self._io():
                partition_metadata.write(self.directory, topic_id, self._files, durable=False)
            self.topic_id = topic_id
        elif self.topic_id != topic_id:
            raise InconsistentTopicId(f"{self.directory} belongs to topic id {self.topic_id}, not {topic_id}")

    # -- appending ---------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer | ValidatedRecords,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
        is_quick: bool = False,
    ) -> AppendInfo:
        """Append the one batch in `records`, and assign it the next offsets.

        A writable buffer is patched in place, and may be reused afterwards. A batch that this log already
        has is not written again: the result `is_duplicate`, with the offsets of the first append.
        `records` may have been validated before, in a thread; see `storage.validation`, also for `is_quick`.
        Raises the errors of validate and ProducerStateManager.analyze, RecordListTooLarge, KafkaStorageError.
        Cost: 9 us and the CRC.
        """
        if self._failure is not None or self._is_closed:
            raise self._unavailable()
        offsets = self.offsets
        validated = validate(
            records,
            first_offset=offsets.log_end_offset,
            now_ms=now_ms,
            config=self.config,
            leader_epoch=leader_epoch,
            origin=origin,
            is_quick=is_quick,
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
                log_append_time_ms=duplicate.timestamp,  # for CreateTime topics, too, as in Kafka
                log_start_offset=self.log_start_offset,
                is_duplicate=True,
                size_bytes=0,
                records_count=header.records_count,
            )
        # Not a call of the class: 0.15 us instead of 0.25, or 0.55 with names.
        return _new_tuple(
            AppendInfo,
            (
                header.base_offset,
                offsets.log_end_offset - 1,
                validated.max_timestamp,
                validated.log_append_time_ms,
                offsets.log_start_offset,
                False,
                validated.size_bytes,
                header.records_count,
            ),
        )

    def append_as_follower(self, records: Buffer, *, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append batches of the leader of `leader_epoch`, with its offsets and epochs.

        An incomplete batch at the end is dropped, and so is everything from a batch of a newer epoch on: it is
        not part of that leader's lineage (KAFKA-18723).
        Raises CorruptMessage for a bad CRC or decreasing offsets (nothing is written then),
        UnexpectedAppendOffset for offsets that the log already has, KafkaStorageError.
        """
        if self._failure is not None or self._is_closed:
            raise self._unavailable()
        view = records if isinstance(records, memoryview) else memoryview(records)
        headers = follower_headers(
            view, next_offset=self.log_end_offset, leader_epoch=leader_epoch, name=self.topic_partition
        )
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
        """Write validated batches; returns the batch that they duplicate, if any: then nothing is written."""
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
            # One buffer has all batches: control batches have only one, and coordinators' buffers are writable.
            view = memoryview(buffers[0])
            updates = self.producers.analyze(
                ((last, view),) if len(headers) == 1 else zip(headers, slices(view, headers), strict=True),
                origin=origin,
                transaction_version=transaction_version,
            )
            if updates.duplicate is not None:
                return updates.duplicate
        try:
            segment.append(headers, buffers, size_bytes)
            # Before anything else can fail: an offset must not be assigned twice.
            self.offsets.advance_end(first_offset=headers[0].base_offset, end_offset=last_offset + 1)
            if updates is not NO_UPDATES:
                apply_updates(self.producers, updates, segment.indexes.transactions)
                if updates.next_batch is None:
                    self.offsets.set_first_unstable(self.producers.first_unstable_offset)
        except OSError as error:
            raise self._failed(error) from error
        self.producers.map_end_offset = last_offset + 1
        return None

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """The leader of `epoch` writes from `start_offset` on; on becoming leader: from the log end (KIP-101)."""
        with self._io():
            self.leader_epochs.assign(epoch, start_offset)

    # -- retention ---------------------------------------------------------------------------------

    def retention_waits_for_disk(self, now_ms: int) -> bool:
        """Whether `warm_up_retention` should run in a thread before `apply_retention`."""
        return self.is_writable and retention.waits_for_disk(self.segments, config=self.config, now_ms=now_ms)

    def warm_up_retention(self, now_ms: int) -> None:
        """Read into the page cache what `apply_retention` reads. Changes nothing. [any thread]

        Raises KafkaStorageError for a failing disk.
        """
        kept_from_ms = retention.kept_from_ms(self.config, now_ms)
        if kept_from_ms is not None:
            with self._warming():
                warm_up_times(self.segments, kept_from_ms=kept_from_ms, files=self._files)

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that are due (storage/retention.py); returns how many. Files are deleted later."""
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
                self._on_first_segments_removed()

    def _on_first_segments_removed(self) -> None:
        log_start_offset, local_log_start_offset = start_offsets(
            log_start_offset=self.log_start_offset,
            first_segment_offset=self.segments.first.base_offset,
            is_tiered=self.config.remote_storage_enable,
        )
        if log_start_offset > self.log_start_offset:
            self._advance_log_start(log_start_offset)
        self.offsets.advance_local_log_start(local_log_start_offset)

    # -- offsets -----------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by [log start, log end] and by a gap; returns the new value."""
        offsets, gap = self.offsets, self.offsets.first_gap_offset
        end = offsets.log_end_offset if gap is None else gap
        offset = max(min(offset, end), offsets.local_log_start_offset)
        self.producers.on_high_watermark(offset)
        offsets.reset_high_watermark(offset, first_unstable_offset=self.producers.first_unstable_offset)
        return offset

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Advance the high watermark; False if `offset` is not beyond it."""
        offsets = self.offsets
        if offset <= offsets.high_watermark:
            return False
        if offsets.first_unstable_offset is None:
            offsets.advance_high_watermark(offset)
        else:
            self.producers.on_high_watermark(offset)
            offsets.advance_high_watermark(offset, first_unstable_offset=self.producers.first_unstable_offset)
        return True

    def maybe_increment_log_start_offset(self, offset: int, *, reason: str = "") -> bool:
        """Advance the log start offset to `offset`; False if it is already there or beyond.

        Segments before it are removed by the next retention. Raises OffsetOutOfRange above the high watermark.
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
            self._advance_log_start(offset)
        return True

    def _advance_log_start(self, offset: int) -> None:
        self.offsets.advance_log_start(offset)
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_offset(offset, latest_snapshot_offset=self._snapshots.latest)
        self.offsets.set_first_unstable(self.producers.first_unstable_offset)

    # -- configuration -----------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Apply a new configuration of the topic; index sizes take effect with the next segment."""
        self.config = config
        self.segments.active.update_settings(index_interval_bytes=config.index_interval_bytes)
