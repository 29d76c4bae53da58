"""`__cluster_metadata-0`: the replicated log that Raft, the controller and brokers work on, and its snapshots.

        snapshots                 log start        high watermark       log end
            |                         |                   |                |
    [ everything before an offset ]   [ === committed === | = not yet ==== ]

A log that does not begin at 0 begins at a snapshot: a reader replays the latest snapshot, and the log after it.
`append` writes its records as one batch, so that a torn write loses all of them or none. Appends reach the page
cache only; `flush` makes them durable.

It implements `ottla.controller.raft.log.RaftLog`. `ottla.controller.metadata_log.record_batches` reads its batches,
`ottla.controller.metadata_log.log_opening` recovers it after a crash.
Source: KafkaRaftLog and RaftLog of Kafka 4.3.1, KIP-595, KIP-630.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.controller.metadata_log import log_opening as opening
from ottla.controller.metadata_log import record_batches, snapshots
from ottla.controller.metadata_log.log_cleaner import MetadataLogCleaner
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.metadata_log.new_batches import NewBatch
from ottla.controller.metadata_log.record_batches import DecodedBatch
from ottla.controller.metadata_log.snapshot_store import RawSnapshotWriter, SnapshotStore
from ottla.controller.metadata_log.snapshot_writer import SnapshotWriter
from ottla.controller.raft.log import Diverging, NeedsSnapshot, Valid, Validation
from ottla.controller.raft.types import TOPIC_ID, OffsetAndEpoch
from ottla.metadata.records import MetadataRecord
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch_of_payload
from ottla.protocol.records.quorum import QuorumMessage, build_quorum_batch
from ottla.protocol.types import TopicPartition
from ottla.replication.replica_rules import has_diverged
from ottla.storage.appending import AppendOrigin
from ottla.storage.background import BackgroundJob
from ottla.storage.files import Files
from ottla.storage.log import Log

if TYPE_CHECKING:
    from random import Random

TOPIC_PARTITION: Final = TopicPartition("__cluster_metadata", 0)


class MetadataLog:
    """The replicated metadata log `__cluster_metadata-0` and its snapshots; it implements `RaftLog`.

    To be called from the event loop's thread, except methods marked [any thread].
    """

    def __init__(
        self, log: Log, store: SnapshotStore, files: Files, *, settings: MetadataLogSettings, now_ms: int
    ) -> None:
        self._log = log
        self._store = store
        self._files = files
        self._cleaner = MetadataLogCleaner(log, store, files, settings=settings)
        #: The latest time that this log has seen, timestamps of its leader included.
        self._now_ms = now_ms

    @classmethod
    def open(
        cls,
        log_dir: Path,
        *,
        files: Files,
        random: "Random",
        now_ms: int,
        is_clean: bool = False,
        settings: MetadataLogSettings | None = None,
    ) -> "MetadataLog":
        """Open the log in this log directory, or create it. [any thread]

        Unless it `is_clean`, the log is truncated at the first batch that is incomplete or damaged, which is a torn
        write; the rest is made durable, since Raft counts all of it. After a clean stop there is no torn write;
        damage is then detected when the batch is read. Raises InvalidMetadata and OSError.
        """
        settings = settings or MetadataLogSettings()
        directory = log_dir / str(TOPIC_PARTITION)
        store = SnapshotStore.open(directory, files)
        log = Log.open(
            directory,
            config=opening.config_of(settings),
            topic_partition=TOPIC_PARTITION,
            now_ms=now_ms,
            files=files,
            random=random,
            is_clean=is_clean,
            log_start_offset=opening.find_start_offset(directory, store, files),
            topic_id=TOPIC_ID,
        )
        opening.close_gap(log, store, is_clean=is_clean, now_ms=now_ms)
        opening.check_start(log, store)
        opened = cls(log, store, files, settings=settings, now_ms=now_ms)
        # A follower may have crashed after it downloaded a snapshot, and before it restarted the log after it.
        opened.truncate_to_latest_snapshot()
        if not is_clean:
            log.flush()
        if (latest := store.latest) is not None:
            log.update_high_watermark(latest.offset)  # a snapshot holds committed records only
            opened._cleaner.delete_before_start(now_ms)
        return opened

    # -- where it begins and ends ------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The directory of the log, its snapshots and `quorum-state`."""
        return self._log.directory

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log: 0, or the end offset of a snapshot."""
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The log end offset: that of the next record."""
        return self._log.log_end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch; of the latest snapshot if there is no batch after it; 0 without either."""
        latest = self._store.latest
        if latest is not None and latest.offset == self.end_offset:
            # After a power loss, the epochs of segments that the snapshot has replaced may be there again.
            return latest.epoch
        epoch = self._log.latest_epoch
        if epoch is not None:
            return epoch
        return 0 if latest is None else latest.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        """The log end offset and the epoch of the last record."""
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    @property
    def high_watermark(self) -> int:
        """The high watermark: everything before it is known to be committed."""
        return self._log.high_watermark

    @property
    def size_bytes(self) -> int:
        """Size of the log, without snapshots."""
        return self._log.segments.size_bytes

    def update_high_watermark(self, offset: int) -> None:
        """Advance the high watermark: everything before `offset` is committed."""
        self._log.update_high_watermark(offset)

    # -- comparison with another log ---------------------------------------------------------------------

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The largest epoch here that is <= `epoch`, and its end offset; the log's end if `epoch` is newer."""
        found = self._log.end_offset_for_epoch(epoch)
        if found is None:
            return self.end
        known, end_offset = found
        earliest = self._store.earliest
        if earliest is not None and (end_offset, known) == (earliest.offset, epoch):
            # `epoch` is before the log's first one: what precedes the log is the snapshot, whose epoch may be older.
            return earliest
        return OffsetAndEpoch(end_offset, known)

    def validate(self, offset: int, epoch: int) -> Validation:
        """Whether a log that ends at `offset`, with a last record of `epoch`, is a prefix of this one.

        The log end is returned for an epoch that is newer than all of this log. A partition's leader returns
        OFFSET_OUT_OF_RANGE for it (`Partition.diverging_epoch`): its followers ask for its bounds then.
        Source: RaftLog.validateOffsetAndEpoch; KIP-595 "Fetch", KIP-630 "Fetch".
        """
        start = self.log_start_offset
        if start == 0 and offset == 0:
            return Valid()
        earliest, latest = self._store.earliest, self._store.latest
        if earliest is not None and (
            offset < start or (offset == start and epoch != earliest.epoch) or epoch < earliest.epoch
        ):
            assert latest is not None, earliest
            return NeedsSnapshot(latest)
        end = self.end_offset_for_epoch(epoch)
        known = (end.epoch, end.offset)
        return (
            Diverging(end) if has_diverged(known, last_fetched_epoch=epoch, fetch_offset=offset) else Valid()
        )

    # -- writing -----------------------------------------------------------------------------------------

    def append(self, new: NewBatch, *, epoch: int, now_ms: int) -> DecodedBatch:
        """Append a batch as the leader of `epoch`; returns it with its offsets."""
        base_offset = self.end_offset
        batch = build_batch_of_payload(
            new.payload,
            records_count=len(new.records),
            base_offset=base_offset,
            leader_epoch=epoch,
            timestamp=now_ms,
        )
        self._append(batch, epoch=epoch, now_ms=now_ms)
        return DecodedBatch(base_offset, new.records, self.end_offset, len(batch))

    def append_control(self, messages: Sequence[QuorumMessage], *, epoch: int, now_ms: int) -> int:
        """Append control records as one batch, as the leader of `epoch`; returns its base offset."""
        base_offset = self.end_offset
        batch = build_quorum_batch(messages, base_offset=base_offset, leader_epoch=epoch, timestamp=now_ms)
        self._append(batch, epoch=epoch, now_ms=now_ms)
        return base_offset

    def _append(self, batch: bytes, *, epoch: int, now_ms: int) -> None:
        assert epoch >= self.last_epoch, (epoch, self.end)
        self._now_ms = max(self._now_ms, now_ms)
        self._log.append_as_leader(batch, leader_epoch=epoch, now_ms=now_ms, origin=AppendOrigin.RAFT_LEADER)

    def append_as_follower(self, data: bytes | memoryview, *, epoch: int) -> None:
        """Append batches as received from the leader of `epoch`; an incomplete one at the end is ignored.

        Every batch must continue the one before, in offset and epoch. Batches before the first one that does not, or
        whose CRC is wrong, are appended; then raises CorruptMessage.
        """
        view = memoryview(data)
        accepted_bytes, next_offset, last_epoch = 0, self.end_offset, self.last_epoch
        try:
            for header, batch in batches(view):
                record_batches.check_continues(
                    header, batch, next_offset=next_offset, last_epoch=last_epoch, leader_epoch=epoch
                )
                accepted_bytes += header.size_bytes
                next_offset, last_epoch = header.next_offset, header.partition_leader_epoch
                self._now_ms = max(self._now_ms, header.max_timestamp)
        finally:
            if accepted_bytes:
                # The leader's timestamps: this log rolls its segments at about the same offsets.
                self._log.append_as_follower(view[:accepted_bytes], leader_epoch=epoch, now_ms=self._now_ms)

    def flush(self, end_offset: int) -> None:
        """Wait until everything before `end_offset` is on the disk. [any thread, but not while it is truncated]"""
        self._log.flush(end_offset)

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on. Call `flush` before the next append.

        Otherwise a crash could leave an old batch and, after it, a newer one: each of them valid, but together a log
        that no node ever had. Invariant: what is committed is never truncated.
        """
        assert offset >= self.high_watermark, (offset, self.high_watermark, "is committed")
        self._log.truncate_to(offset, now_ms=self._now_ms)

    def truncate_to_latest_snapshot(self) -> bool:
        """Restart the log at the end of the latest snapshot if that is ahead of the log; whether it was."""
        latest, end_offset = self._store.latest, self.end_offset
        if latest is None or latest <= OffsetAndEpoch(end_offset, self._log.latest_epoch or 0):
            return False
        if latest.offset == end_offset == self.log_start_offset:
            return False  # the log already begins there
        self._log.truncate_fully_and_start_at(latest.offset, now_ms=self._now_ms)
        self._cleaner.delete_before_start(self._now_ms)
        return True

    def close(self) -> None:
        """Flush and close. [any thread]"""
        self._log.flush()
        self._log.close()
        for deleted in self._log.files.deleted_files:
            deleted.close()

    # -- reading -----------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int) -> bytes:
        """Whole batches from `offset` on, committed or not: up to `max_bytes`, but at least one if there is any."""
        found = self._log.reader.read(offset, max_bytes=max_bytes, min_one_message=True)
        view = memoryview(found.records)
        return bytes(view[: sum(header.size_bytes for header, _ in batches(view))])

    def decoded_batches(self, start_offset: int, end_offset: int) -> Iterator[DecodedBatch]:
        """The batches in [start_offset, end_offset), decoded; both are batch boundaries. [any thread]

        Raises InvalidMetadata for damaged batches and unknown records.
        """
        return record_batches.decoded_batches(self._log, start_offset, end_offset)

    def quorum_messages(self, start_offset: int | None = None) -> Iterator[tuple[int, QuorumMessage]]:
        """Control records with their offsets, uncommitted ones included, from `start_offset` to the log's end.

        None: all of them: first those in the latest snapshot, with its last offset, then those in the log after it.
        Raises InvalidMetadata.
        """
        if start_offset is None:
            start_offset = self.log_start_offset
            if (latest := self._store.latest) is not None:
                for message in snapshots.quorum_messages(self._store.path(latest), self._files):
                    if not isinstance(message, SnapshotHeaderRecord | SnapshotFooterRecord):
                        yield latest.offset - 1, message
                start_offset = latest.offset
        yield from record_batches.quorum_messages(self._log, start_offset)

    # -- snapshots ---------------------------------------------------------------------------------------

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        """The newest snapshot; (0, 0) is the one a log directory is formatted with."""
        return self._store.latest

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        """The oldest snapshot of the log; None if there is no snapshot."""
        return self._store.earliest

    def snapshot_records(self, snapshot: OffsetAndEpoch) -> Iterator[list[MetadataRecord]]:
        """The records of a snapshot, batch by batch. Raises InvalidMetadata, FileNotFoundError. [any thread]"""
        return snapshots.read(self._store.path(snapshot), self._files)

    def snapshot_chunk(
        self, snapshot: OffsetAndEpoch, *, position: int, max_bytes: int
    ) -> tuple[bytes, int] | None:
        """Bytes of a snapshot from `position` on (none past its end), and its size; None if it does not exist."""
        return self._store.chunk(snapshot, position=position, max_bytes=max_bytes)

    def begin_snapshot(self, snapshot: OffsetAndEpoch) -> RawSnapshotWriter | None:
        """Begin to download a snapshot from the leader; None if it is stored already."""
        return self._store.begin_download(snapshot)

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Add a frozen snapshot from the leader to the snapshots of the log."""
        self._store.add(snapshot)

    def create_snapshot(self, end_offset: int) -> SnapshotWriter | None:
        """Begin a snapshot of everything before `end_offset`, which must be committed and a batch boundary.

        None if it exists, or the log does not begin before `end_offset`. Then call `SnapshotWriter.write` in another
        thread, and `snapshot_written` afterwards.
        """
        if end_offset <= self.log_start_offset:
            return None
        assert end_offset <= self.high_watermark, (end_offset, self.high_watermark)
        header, _ = next(record_batches.valid_batches(self._log, end_offset - 1, None))
        # A follower that starts from the snapshot fetches from its end offset, which must be the start of a batch.
        assert header.next_offset == end_offset, (header.base_offset, end_offset, "is within a batch")
        part = self._store.begin_own(OffsetAndEpoch(end_offset, header.partition_leader_epoch))
        return None if part is None else SnapshotWriter(part, last_timestamp=header.max_timestamp)

    def snapshot_written(self, writer: SnapshotWriter) -> None:
        """The snapshot is complete: from now on it is served, and older ones may be deleted.

        If the log meanwhile begins later, after a snapshot from the leader, this one is deleted at once.
        """
        self._store.add(writer.snapshot)
        if writer.snapshot.offset < self.log_start_offset:
            self._cleaner.delete_before_start(self._now_ms)

    # -- deletion ----------------------------------------------------------------------------------------

    def clean(self, now_ms: int) -> bool:
        """Delete old snapshots, and the log before the oldest one that is kept; whether there were any.

        Call it every CLEAN_INTERVAL_MS. Raises InvalidMetadata, KafkaError.
        """
        self._now_ms = max(self._now_ms, now_ms)
        return self._cleaner.clean(now_ms)

    def removals_due(self, now_ms: int) -> BackgroundJob | None:
        """Deleted files whose delay has passed, to be removed in another thread; None if there are none."""
        self._now_ms = max(self._now_ms, now_ms)
        return self._cleaner.removals_due(now_ms)
