"""LogView: what partitions and the rules of replication ask of a log. Changes nothing, and waits for nothing.

The values are those of the log's parts (`ottla.storage.log`); hot loops read them from the parts.
"""

from collections.abc import Sequence
from pathlib import Path

from ottla.config.log_config import LogConfig
from ottla.protocol.local_log import LocalLog
from ottla.storage import tiered_log
from ottla.storage.leader_epoch_cache import LeaderEpochCache
from ottla.storage.log_availability import LogAvailability
from ottla.storage.log_files import LogFiles
from ottla.storage.log_offsets import LogOffsets
from ottla.storage.log_reader import LogReader
from ottla.storage.segments import Segments
from ottla.storage.tiered_log import SegmentToCopy


class LogView:
    """The part of `Log` that only reads."""

    offsets: LogOffsets
    files: LogFiles
    leader_epochs: LeaderEpochCache
    reader: LogReader
    availability: LogAvailability

    # -- files -------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The directory of the log's files."""
        return self.files.directory

    @property
    def config(self) -> LogConfig:
        """The configuration of the topic."""
        return self.files.config

    @property
    def segments(self) -> Segments:
        """The local segments; immutable, replaced as a whole."""
        return self.files.segments

    @property
    def is_writable(self) -> bool:
        """Whether the log is open and its directory online."""
        return self.availability.is_writable

    @property
    def log_start_offset(self) -> int:
        """Earliest readable offset, in either tier."""
        return self.offsets.log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        """Earliest offset in local segments."""
        return self.offsets.local_log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """The exclusive end of the records that read_committed consumers may read (KIP-98)."""
        return self.offsets.last_stable_offset

    @property
    def high_watermark(self) -> int:
        """End, exclusive, of the committed records."""
        return self.offsets.high_watermark

    @property
    def recovery_point(self) -> int:
        """The recovery point: everything before it is on the disk."""
        return self.offsets.recovery_point

    @property
    def log_end_offset(self) -> int:
        """Next offset to be written."""
        return self.offsets.log_end_offset

    @property
    def first_gap_offset(self) -> int | None:
        """The offset from which on batches of other replicas may be missing after a crash; None without a gap."""
        return self.offsets.first_gap_offset

    @property
    def latest_epoch(self) -> int | None:
        """The newest known leader epoch."""
        return self.leader_epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) as in LeaderEpochCache.end_offset_for (KIP-101, KIP-279)."""
        return self.leader_epochs.end_offset_for(epoch, log_end_offset=self.offsets.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """The leader epoch in which `offset` was written; None before the first known epoch."""
        return self.leader_epochs.epoch_for_offset(offset)

    def read_for_replay(self, offset: int, *, max_bytes: int) -> bytes:
        """Batches from the one that holds `offset` on, of one segment; at most `max_bytes`, but at least one batch.

        Empty at the log end. The last batch may be incomplete, if it is not the first. [any thread]
        """
        return self.reader.read_for_replay(offset, max_bytes=max_bytes)

    # -- the remote tier ---------------------------------------------------------------------------

    @property
    def is_tiered(self) -> bool:
        """Whether closed segments are copied to the remote tier (KIP-405)."""
        return self.files.is_tiered

    @property
    def has_whole_lineage(self) -> bool:
        """Whether the leader epochs of the remote part are known, without which no copy is known to be the log's.

        A power cut may damage the epochs' file. Those of the local part are read from the batches again; the others
        are restored from the metadata of the copies (`ottla.remote.lost_lineage`), before any is deleted as
        unreferenced.
        """
        if self.log_start_offset == self.local_log_start_offset:
            return True
        earliest = self.leader_epochs.earliest
        return earliest is not None and earliest.start_offset <= self.log_start_offset

    def segments_to_copy(self, from_offset: int) -> Sequence[SegmentToCopy]:
        """The first closed segments from `from_offset` to the last stable offset; see `ottla.storage.tiered_log`."""
        end_offset = self.offsets.last_stable_offset
        return tiered_log.segments_to_copy(
            self.files, self.leader_epochs, from_offset=from_offset, end_offset=end_offset
        )

    @property
    def local_log(self) -> LocalLog | None:
        """The local log as this replica reports it for elections (draft KIP-1303).

        None: elections do not ask for it, or it is not known yet.
        """
        return tiered_log.local_log(self.files, self.offsets)

    def local_only_bytes(self) -> int | None:
        """The size of the local segments that are not copied yet; None while that is unknown."""
        return tiered_log.local_only_bytes(self.segments, remote_end_offset=self.offsets.remote_end_offset)
