"""UnifiedLog: one replica's log, which a partition's leader and followers append to, truncate and read.

`Log` is what partitions use. It holds its parts; each part owns its state, and the others use its methods only:

    offsets        LogOffsets            log start to log end, and their invariants
    files          LogFiles              the directory, its segments and producer snapshots, the removal of files
    leader_epochs  LeaderEpochCache      where each leader epoch starts
    producers      ProducerStateManager  sequence numbers, open transactions
    reader         LogReader             records, offsets by timestamp, aborted transactions
    flusher        LogFlusher            which part is on the disk, when a flush is due, the flush
    checkpoints    LogCheckpoints        the log's rows in the checkpoint files of its log directory
    fast           FastAppend           the fast path of an append, for the batches that nearly all producers send
    start          LogStart              where the log begins in each tier: retention, DeleteRecords
    truncation     LogTruncation         the jobs before a truncation, the truncation
    remote_restart RemoteRestart         the same, where the log continues behind the remote part of its leader's
    availability   LogAvailability       whether the log is open and its disk works

A change of a log is a method of `Log`, as it changes several parts (an append: files, offsets, epochs,
producers). Other callers use the parts: `log.reader.read`, `log.flusher.is_due`. Offsets, epochs and segments
can also be read from `Log` itself (`LogView`), as the rules of replication expect (their `LocalLog`); hot loops
read them from `log.offsets`.

The steps of an append: validate (leader only), assign the leader epoch, roll if the segment is full, check the
producers, one write, update the producer state. Nothing waits for the disk: a batch is safe because other
replicas have it. Closed segments are flushed by the LogManager's jobs; where `flush.messages` is set, the
caller flushes in a thread before it responds (`LogFlusher.is_due`).

Threads: everything here belongs to the event loop's thread, except the methods of LogReader, `flush` and
`close`, which any thread may call.

Source: UnifiedLog and LocalLog of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import InconsistentTopicId, RecordListTooLarge
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.types import TopicPartition
from ottla.storage import appending, partition_metadata, tiered_log
from ottla.storage.appending import AppendInfo, AppendOrigin, UnexpectedAppendOffset
from ottla.storage.background import BackgroundJob
from ottla.storage.fast_append import FastAppend
from ottla.storage.files import Buffer, Files, WouldBlock
from ottla.storage.flushing import LogFlusher
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_checkpoints import NO_START_CHECKPOINT, LogCheckpoints, StartCheckpoint
from ottla.storage.log_files import LogFiles
from ottla.storage.log_opening import load_directory, read_topic_id
from ottla.storage.log_reader import LogRead, LogReader
from ottla.storage.log_start import LogStart
from ottla.storage.log_view import LogView
from ottla.storage.producer_state import (
    NO_UPDATES,
    BatchMetadata,
    default_producer_id_expiration_ms,
)
from ottla.storage.recovery import Loaded
from ottla.storage.remote_restart import RemoteRestart, RemoteState
from ottla.storage.segment import Segment
from ottla.storage.snapshot_files import apply_updates
from ottla.storage.truncation import LogTruncation
from ottla.storage.validation import Turns, ValidatedRecords, validate

if TYPE_CHECKING:
    from random import Random

__all__ = ["AppendInfo", "AppendOrigin", "Log", "LogRead", "UnexpectedAppendOffset", "WouldBlock"]

_LOG = getLogger(__name__)
_new_tuple = tuple.__new__


def _no_checkpoints() -> BackgroundJob:
    return BackgroundJob(name="no checkpoints", run=lambda: None)


class Log(LogView):
    """One replica's log (Kafka's UnifiedLog), to append to, truncate and read. Opened by `Log.open`."""

    def __init__(
        self,
        directory: Path,
        *,
        config: LogConfig,
        topic_partition: TopicPartition,
        loaded: Loaded,
        file_system: Files,
        random: "Random",
        on_io_error: Callable[[OSError], None],
        write_checkpoints: Callable[[], BackgroundJob],
        start_checkpoint: StartCheckpoint,
        now_ms: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id: UUID | None = None
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        self.offsets = loaded.offsets
        self.availability = LogAvailability(directory, on_io_error=on_io_error)
        self.files = LogFiles(
            directory,
            config=config,
            segments=loaded.segments,
            snapshots=loaded.snapshots,
            file_system=file_system,
            random=random,
            can_be_tiered=tiered_log.can_be_tiered(topic_partition.topic),
        )
        self.reader = LogReader(
            topic_partition, offsets=self.offsets, files=self.files, availability=self.availability
        )
        self.checkpoints = LogCheckpoints(
            offsets=self.offsets,
            files=self.files,
            availability=self.availability,
            write_all=write_checkpoints,
            start=start_checkpoint,
        )
        self.flusher = LogFlusher(
            offsets=self.offsets,
            files=self.files,
            epochs=self.leader_epochs,
            availability=self.availability,
            now_ms=now_ms,
        )
        self.fast = FastAppend(
            offsets=self.offsets,
            files=self.files,
            epochs=self.leader_epochs,
            producers=self.producers,
            availability=self.availability,
            topic=topic_partition.topic,
        )
        self.start = LogStart(
            offsets=self.offsets,
            files=self.files,
            reader=self.reader,
            epochs=self.leader_epochs,
            producers=self.producers,
            checkpoints=self.checkpoints,
            availability=self.availability,
            roll=self.roll,
        )
        self.truncation = LogTruncation(
            offsets=self.offsets,
            files=self.files,
            reader=self.reader,
            epochs=self.leader_epochs,
            producers=self.producers,
            checkpoints=self.checkpoints,
            flusher=self.flusher,
            availability=self.availability,
        )
        self.remote_restart = RemoteRestart(
            files=self.files,
            epochs=self.leader_epochs,
            producers=self.producers,
            truncation=self.truncation,
            availability=self.availability,
        )

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
        write_checkpoints: Callable[[], BackgroundJob] = _no_checkpoints,
        start_checkpoint: StartCheckpoint = NO_START_CHECKPOINT,
    ) -> Self:
        """Open the log in this directory, which is created if missing. [any thread]

        Damaged files are repaired, or the log restarts empty (storage/recovery.py). `is_clean`: the log was
        closed by `close`; otherwise everything from `recovery_point` on is checked. `write_checkpoints` is called
        when recovery point or log start offset move back, before files change: its job writes their checkpoints.
        `start_checkpoint` writes the log start offset before a tiered log removes what is before it.
        Raises OSError, and InconsistentTopicId if the directory belongs to another topic.
        """
        loaded = load_directory(
            directory,
            config=config,
            files=files,
            now_ms=now_ms,
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            is_tiered=config.is_tiered and tiered_log.can_be_tiered(topic_partition.topic),
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        log = cls(
            directory,
            config=config,
            topic_partition=topic_partition,
            loaded=loaded,
            file_system=files,
            random=random,
            on_io_error=on_io_error,
            write_checkpoints=write_checkpoints,
            start_checkpoint=start_checkpoint,
            now_ms=now_ms,
        )
        if not is_clean:
            log.files.entry_changes.on_change()
            log.files.start_removals.on_change()
        if not loaded.is_new:
            log.topic_id = read_topic_id(directory, files)
        if topic_id is not None and log.topic_id is None:
            try:
                log._write_topic_id(topic_id)
            except OSError:
                log.close_files()
                raise
        elif topic_id is not None:
            log.assign_topic_id(topic_id)
        if (job := tiered_log.local_log_job([log])) is not None:
            job.complete()
        return log

    def assign_topic_id(self, topic_id: UUID) -> None:
        """Assign the topic id. Raises InconsistentTopicId if the log already has another one (KIP-516)."""
        if self.topic_id is None:
            with self.availability:
                self._write_topic_id(topic_id)
        elif self.topic_id != topic_id:
            raise InconsistentTopicId(
                f"{self.directory} belongs to topic id {to_text(self.topic_id)}, not {to_text(topic_id)}"
            )

    def _write_topic_id(self, topic_id: UUID) -> None:
        partition_metadata.write(self.directory, topic_id, self.files.file_system, durable=False)
        self.topic_id = topic_id

    # -- appending ---------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer | ValidatedRecords,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = 0,
        turns: Turns | None = None,
    ) -> AppendInfo:
        """Append the one batch in `records`, and assign it the next offsets.

        A writable buffer is patched in place, and may be reused afterwards. A batch that this log already
        has is not written again: the result `is_duplicate`, with the offsets of the first append.
        `records` may have been validated before, in a thread; see `ottla.storage.validation`, also for `turns`.
        Raises the errors of validate and ProducerStateManager.analyze, RecordListTooLarge, KafkaStorageError.
        Cost: 6 us and the CRC. The fast path, `fast.append_as_leader`, takes 3 us for most batches of clients.
        """
        if not self.availability.is_writable:
            raise self.availability.unavailable()
        offsets = self.offsets
        validated = validate(
            records,
            first_offset=offsets.log_end_offset,
            now_ms=now_ms,
            config=self.files.config,
            leader_epoch=leader_epoch,
            origin=origin,
            turns=turns,
        )
        header = validated.header
        assert header.base_offset == offsets.log_end_offset, (self.directory, header, offsets)
        if leader_epoch != self.leader_epochs.latest_epoch and leader_epoch >= 0:
            self.assign_epoch(leader_epoch, start_offset=header.base_offset)
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
            return appending.duplicate_info(
                first_offset=duplicate.first_offset,
                last_offset=duplicate.last_offset,
                timestamp=duplicate.timestamp,
                log_start_offset=offsets.log_start_offset,
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
        if not self.availability.is_writable:
            raise self.availability.unavailable()
        view = records if isinstance(records, memoryview) else memoryview(records)
        found, info = appending.follower_batches(
            view,
            next_offset=self.log_end_offset,
            leader_epoch=leader_epoch,
            log_start_offset=self.log_start_offset,
            name=self.topic_partition,
        )
        if found:
            headers = [header for header, _ in found]
            latest_epoch = self.leader_epochs.latest_epoch
            for header in headers:
                epoch = header.partition_leader_epoch
                if epoch != latest_epoch and epoch >= 0:
                    self.assign_epoch(epoch, start_offset=header.base_offset)
                    latest_epoch = epoch
            self._write(
                headers,
                (view[: info.size_bytes],),
                info.size_bytes,
                info.max_timestamp,
                now_ms,
                AppendOrigin.REPLICATION,
                0,
                batches=found,
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
        *,
        batches: Iterable[tuple[BatchHeader, memoryview]] | None = None,
    ) -> BatchMetadata | None:
        """Write validated batches; returns the batch that they duplicate, if any: then nothing is written.

        `FastAppend` has the same steps for most batches: who changes one changes the other.
        `batches` is each header with its bytes; None: there is one, whose records begin in the first buffer.
        """
        config, files = self.files.config, self.files
        if size_bytes > config.segment_bytes:
            raise RecordListTooLarge(
                f"{size_bytes} bytes do not fit into a segment of {config.segment_bytes}"
            )
        last = headers[-1]
        last_offset = last.base_offset + last.last_offset_delta
        segment = files.segments.active
        try:
            is_full = segment.is_full(size_bytes, last_offset, max_timestamp, now_ms, config)
        except OSError as error:  # after a start the first batch's timestamp is read from the file
            raise self.availability.failed(error) from error
        if is_full:
            segment = self.roll(now_ms, base_offset=headers[0].base_offset)
        updates = NO_UPDATES
        if last.producer_id >= 0 or (len(headers) > 1 and any(it.producer_id >= 0 for it in headers)):
            # One buffer has the whole batch: control batches have only one, and coordinators' buffers are writable.
            updates = self.producers.analyze(
                ((last, memoryview(buffers[0])),) if batches is None else batches,
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
            raise self.availability.failed(error) from error
        self.producers.map_end_offset = last_offset + 1
        return None

    def assign_epoch(self, epoch: int, *, start_offset: int) -> None:
        """Record that the leader of `epoch` writes from `start_offset` on.

        On becoming leader that is the log end offset (KIP-101).
        """
        assert start_offset >= self.offsets.log_start_offset, (self.directory, epoch, start_offset)
        with self.availability:
            self.leader_epochs.assign(epoch, start_offset=start_offset)

    # -- retention ---------------------------------------------------------------------------------

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that are due (storage/retention.py); returns how many. Files are deleted later.

        Of a tiered log it waits for the disk, between two of them; `start.apply_some_retention` does not.
        """
        return self.start.apply_retention(now_ms)

    # -- offsets -----------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by [log start, log end] and by a gap; returns the new value."""
        offsets, gap = self.offsets, self.offsets.first_gap_offset
        end = offsets.log_end_offset if gap is None else gap
        offset = max(min(offset, end), offsets.local_log_start_offset)
        self.producers.on_high_watermark(offset)
        offsets.reset_high_watermark(offset, first_unstable_offset=self.producers.first_unstable_offset)
        return offset

    def ignore_gap(self) -> None:
        """The log is authoritative with its gap: this replica leads, and others copy the log as it is."""
        self.offsets.ignore_gap()
        start = self.segments.first.base_offset
        if self.offsets.local_log_start_offset < start:
            self.update_high_watermark(max(self.offsets.high_watermark, start))
            self.offsets.begin_after_gap(start)

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

        It may be in the remote part of the log. Local segments before it are removed by the next retention.
        Raises OffsetOutOfRange above the high watermark.
        """
        return self.start.maybe_increment(offset, reason=reason)

    # -- the remote tier ---------------------------------------------------------------------------

    def update_remote_end_offset(self, offset: int, *, generation: int | None = None) -> bool:
        """Finished copies of this log's lineage hold [log start, `offset`); False if that is not used.

        The log start must not be before the first copy. After a crash it may: DeleteRecords had advanced it, and what
        was before it was never copied. So advance it to the first copy's start before. Otherwise local retention would
        remove what was not copied, but in the log again.
        `generation` is `files.generation` when the search for `offset` began, if it has waited since: after a
        truncation the result may be of the lineage that was truncated. An offset before the known one is ignored, as
        expired copies do not become local again. One beyond the log end counts as the log end.
        """
        if not self.is_tiered or (generation is not None and generation != self.files.generation):
            return False
        return self.offsets.advance_remote_end(min(offset, self.offsets.log_end_offset))

    def restore_lineage(self, entries: Iterable[EpochEntry]) -> None:
        """Restore the leader epochs of the remote part from a copy's; see `has_whole_lineage`.

        Raises KafkaStorageError.
        """
        with self.availability:
            self.leader_epochs.restore_older(entries)
            self.leader_epochs.truncate_from_start(self.log_start_offset)

    # -- truncation --------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove everything from `offset` on, with the whole batch that holds it; False if there is nothing.

        Waits for the disk only for steps that the jobs of `truncation` have not done. Raises KafkaStorageError.
        """
        return self.truncation.truncate_to(offset, now_ms=now_ms)

    def truncate_fully_and_start_at(
        self, offset: int, *, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        """Remove everything; the empty log starts at `offset`. Raises KafkaStorageError.

        `log_start_offset` is lower if the records before `offset` are in the remote tier.
        """
        self.truncation.truncate_fully_and_start_at(offset, now_ms=now_ms, log_start_offset=log_start_offset)

    def restart_from_remote(self, state: RemoteState, *, now_ms: int) -> None:
        """Remove everything; the empty log continues behind its remote part (`ottla.storage.remote_restart`).

        Waits for the disk only for steps that the jobs of `remote_restart` have not done. Raises KafkaStorageError, and
        CorruptSnapshot, with nothing changed, for a producer snapshot that is not one.
        """
        self.remote_restart.restart(state, now_ms=now_ms)

    # -- files -------------------------------------------------------------------------------------

    def roll(self, now_ms: int, *, base_offset: int = 0) -> Segment:
        """Close the active segment and create the next one at the log end offset, or at `base_offset` if that is later.

        The closed segment is flushed by a job of the LogManager. Raises KafkaStorageError.
        """
        files = self.files
        new_base = max(self.offsets.log_end_offset, base_offset)
        active = files.segments.active
        if new_base == active.base_offset:
            # It is empty and yet full: its index has no room for a single entry.
            assert active.log.size == 0, (new_base, active)
            return active
        with self.availability:
            if not active.files.may_use_reserve:
                files.file_system.require_descriptor()
            active.close_to_appends()
            self.flusher.on_closing_segment(active, end_offset=new_base)
            segment = files.add_segment(new_base, now_ms=now_ms)
            # A snapshot at the next segment's base offset, so that recovery can start there.
            self.producers.map_end_offset = new_base
            files.snapshots.write(self.producers)
            files.entry_changes.on_change()
        self.flusher.on_roll(new_base)
        _LOG.debug("%s: rolled, new segment at offset %d", self.directory, new_base)
        return segment

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment], *, now_ms: int) -> None:
        """Replace segments by compacted ones; see `LogFiles.replace`. Raises KafkaStorageError."""
        with self.availability:
            self.files.replace(old, new, now_ms=now_ms)
        self.reader.forget_bound()

    def flush(self, offset: int | None = None) -> None:
        """Wait until everything before `offset` (None: the log end) is on the disk. [any thread]

        Off the event loop only where no truncation can run at the same time; else the job of `flusher` is run instead.
        Raises KafkaStorageError.
        """
        self.flusher.flush(offset)

    def close(self) -> None:
        """Flush and close all files, so that they need no recovery; the log cannot be used any more. [any thread]

        Raises KafkaStorageError. Cost: no I/O for a log that was not written to.
        """
        if self.availability.is_closed:
            return
        files = self.files
        with self.availability:
            files.snapshots.write(self.producers)
            for segment in files.segments:
                segment.close()
            self.availability.close()
            if files.segments.active.indexes.is_changed:
                files.segments.active.flush()
                files.entry_changes.on_change()  # an index file may be new
            self.flusher.flush()

    def close_files(self) -> None:
        """Close all descriptors without writing: the directory is offline or about to be deleted."""
        self.availability.close()
        self.files.close_descriptors()

    def rename_directory(self, directory: Path) -> None:
        """Rename the log's directory: the log is deleted, or replaces another one. Raises KafkaStorageError."""
        with self.availability:
            self.files.rename_directory(directory)
        self.availability.directory = directory
        self.leader_epochs.move_to(directory)
        self.flusher.on_directory_renamed()

    def update_config(self, config: LogConfig) -> None:
        """Apply a new configuration of the topic; index sizes take effect with the next segment."""
        was_tiered = self.is_tiered
        self.files.update_config(config)
        if was_tiered and not self.is_tiered:
            self.start.on_tiering_disabled()
