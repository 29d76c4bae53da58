"""The metadata log's cleaner: deletes old snapshots, and the log before the oldest one that is kept.

    clean            the oldest snapshot is expired, or all are too large --> deleted, the log starts at the next one
    removals_due     deleted files are removed from the disk after DELETE_DELAY_MS, for their readers

`ottla.controller.metadata_log.log_cleaning` has the rules, `ottla.controller.quorum.maintenance` calls it.
Source: KafkaRaftLog.maybeClean, deleteBeforeSnapshot of Kafka 4.3.1; KIP-630.
"""

from ottla.controller.metadata_log import log_cleaning, snapshots
from ottla.controller.metadata_log.log_cleaning import MetadataLogSettings
from ottla.controller.metadata_log.snapshot_store import SnapshotStore
from ottla.storage.background import BackgroundJob
from ottla.storage.files import Files
from ottla.storage.log import Log
from ottla.storage.log_files import removal_job


class MetadataLogCleaner:
    """The cleaner of one log and its snapshots. On the event loop's thread; its removals run in another one."""

    def __init__(
        self, log: Log, store: SnapshotStore, files: Files, *, settings: MetadataLogSettings
    ) -> None:
        self._log = log
        self._store = store
        self._files = files
        self._settings = settings

    def clean(self, now_ms: int) -> bool:
        """Delete the snapshots and segments that retention no longer keeps; returns whether there were any.

        Raises InvalidMetadata, KafkaError.

        Invariant: what is deleted from the log is in a snapshot, and committed.
        """
        has_cleaned = False
        while len(self._store.ids) > 1 and self._must_delete_oldest(now_ms):
            following = self._store.ids[1]
            if following.offset > self._log.high_watermark:
                break
            self._log.maybe_increment_log_start_offset(
                following.offset, reason="a snapshot contains the records before it"
            )
            self._log.apply_retention(now_ms)
            has_cleaned |= self._store.delete_before(following, now_ms=now_ms)
        return has_cleaned

    def _must_delete_oldest(self, now_ms: int) -> bool:
        """Whether the oldest snapshot must be deleted."""
        ids = self._store.ids
        snapshot_bytes = sum(map(self._store.size_of, ids))
        if log_cleaning.is_oversized(
            self._settings, log_bytes=self._log.segments.size_bytes, snapshot_bytes=snapshot_bytes
        ):
            return True
        last_timestamp_ms = snapshots.last_contained_timestamp(self._store.path(ids[0]), self._files)
        return log_cleaning.is_expired(self._settings, last_timestamp_ms=last_timestamp_ms, now_ms=now_ms)

    def delete_before_start(self, now_ms: int) -> None:
        """Delete snapshots that end before the log's start: no log continues after them."""
        kept = [each for each in self._store.ids if each.offset >= self._log.log_start_offset]
        self._store.delete_before(min(kept), now_ms=now_ms)

    def removals_due(self, now_ms: int) -> BackgroundJob | None:
        """Deleted files whose delay has passed, to be removed in another thread; None if there are none."""
        waiting = (self._log.files.deleted_files, self._store.deleted)
        due = [each for files in waiting for each in files if each.due_ms <= now_ms]
        for files in waiting:
            files[:] = [each for each in files if each.due_ms > now_ms]
        return removal_job(due) if due else None
