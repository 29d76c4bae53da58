"""LogOffsets: the offsets of one log. Every change of one of them is a method here, which asserts the invariants.

        log start      local log start     last stable      high watermark       log end
            |                 |                 |                 |                 |
    --------[== remote tier ==|== local segments, committed ======|= not replicated =|
                              |                 |== undecided ====|
                              [ 4711 ........ ][ 9000 ........ ][ 12000 .......... ]
                                         recovery point ^ everything before is on the disk

    log start <= local log start <= high watermark <= log end
    log start <= last stable <= high watermark
    recovery point <= log end
    high watermark <= first gap < log end, where a crash has left a gap

- The log start never advances beyond the high watermark: uncommitted records are removed by truncation only.
- The recovery point may be before the log start: DeleteRecords removes records that were never flushed. It may be
  beyond the high watermark: a leader flushes what its followers have not fetched yet.
- A transaction may have begun before the log start (DeleteRecords, retention). The last stable offset is then the log
  start, not the transaction's first offset.
- The high watermark never moves back, except with the log end (`truncate`, `restart`), or while no reader of this
  process knows it (`reset_high_watermark`).

- Only offsets of this log's lineage count as copied: remote end <= log end. A truncation below the remote end makes it
  unknown, as copies may hold what was truncated; so do a start of the process and a restart of the log. The remote tier
  then finds it again. While it is unknown, nothing counts as copied, and no local segment is removed as such.

    log start      local log start      remote end                      log end
        |                 |                 |                              |
        [== remote only ==|== both tiers ===|== local only ================|
                                            ^ earliest pending upload offset

Source: the fields of UnifiedLog of Kafka 4.3.1, LogOffsetMetadata and LoadedLogOffsets.
"""


def start_offsets(*, log_start_offset: int, first_segment_offset: int, is_tiered: bool) -> tuple[int, int]:
    """(log start offset, local log start offset) of a log whose first local segment begins at `first_segment_offset`.

    The only place that derives one from the other: without a remote tier, records before the first local segment do
    not exist, so the log starts there. With one, they are in the remote tier, and the log start stays.
    Source: LogLoader.load (newLogStartOffset), UnifiedLog.deleteSegments.

    >>> start_offsets(log_start_offset=3, first_segment_offset=10, is_tiered=False)
    (10, 10)
    >>> start_offsets(log_start_offset=3, first_segment_offset=10, is_tiered=True)
    (3, 10)
    >>> start_offsets(log_start_offset=12, first_segment_offset=10, is_tiered=True)  # DeleteRecords
    (12, 12)
    """
    assert min(log_start_offset, first_segment_offset) >= 0, (log_start_offset, first_segment_offset)
    local_log_start_offset = max(log_start_offset, first_segment_offset)
    return (log_start_offset if is_tiered else local_log_start_offset), local_log_start_offset


class LogOffsets:
    """The offsets of one log: log start, local log start, last stable, high watermark, log end, recovery point.

    The attributes are read in any thread, and set by the methods only.
    """

    __slots__ = (
        "begins_after_gap",
        "first_gap_offset",
        "first_unstable_offset",
        "high_watermark",
        "last_stable_offset",
        "local_log_start_offset",
        "log_end_offset",
        "log_start_offset",
        "recovery_point",
        "remote_end_offset",
    )

    def __init__(
        self,
        *,
        log_start_offset: int,
        local_log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        first_unstable_offset: int | None = None,
        first_gap_offset: int | None = None,
    ) -> None:
        #: Earliest readable offset, in either tier.
        self.log_start_offset = log_start_offset
        #: Earliest offset in local segments.
        self.local_log_start_offset = local_log_start_offset
        #: Next offset to be written.
        self.log_end_offset = log_end_offset
        #: Everything before it is on the disk.
        self.recovery_point = recovery_point
        #: End of the committed records, exclusive. Until a leader or a checkpoint gives a higher one, only records
        #: that are not in local segments any more are known to be committed.
        self.high_watermark = local_log_start_offset
        #: First offset of a transaction that is open, or whose marker is not committed; None without one (KIP-98).
        self.first_unstable_offset = first_unstable_offset
        #: End, exclusive, of what read_committed consumers may read.
        self.last_stable_offset = local_log_start_offset
        #: After a crash: the offset from which on batches may be missing that other replicas have, as an unflushed
        #: closed segment has lost its end (see README.md, "After a crash"); None: there is no gap.
        self.first_gap_offset = first_gap_offset
        #: Whether this replica leads on with a log whose first segments a crash may have taken (`Log.ignore_gap`).
        self.begins_after_gap = False
        #: End, exclusive, of what finished copies of this log's lineage hold (Kafka's highest offset in remote storage
        #: + 1); 0: nothing is copied; None while unknown.
        self.remote_end_offset: int | None = None
        self._check()

    def __repr__(self) -> str:
        return (
            f"log start {self.log_start_offset}, local log start {self.local_log_start_offset}, "
            f"last stable {self.last_stable_offset} (first unstable {self.first_unstable_offset}), "
            f"high watermark {self.high_watermark}, recovery point {self.recovery_point}, "
            f"log end {self.log_end_offset}, remote end {self.remote_end_offset}"
        )

    def _check(self) -> None:
        """Derive the last stable offset, and assert the invariants."""
        start, high_watermark = self.log_start_offset, self.high_watermark
        unstable = self.first_unstable_offset
        if unstable is None or unstable >= high_watermark:
            self.last_stable_offset = high_watermark
        else:
            self.last_stable_offset = max(unstable, start)
        assert 0 <= start <= self.local_log_start_offset <= high_watermark <= self.log_end_offset, self
        assert start <= self.last_stable_offset <= high_watermark, self
        assert 0 <= self.recovery_point <= self.log_end_offset, self
        assert self.remote_end_offset is None or 0 <= self.remote_end_offset <= self.log_end_offset, self
        gap = self.first_gap_offset
        assert gap is None or high_watermark <= gap < self.log_end_offset, (self, gap)

    # -- the end -----------------------------------------------------------------------------------

    def advance_end(self, *, first_offset: int, end_offset: int) -> None:
        """Batches from `first_offset` to `end_offset`, exclusive, have been appended.

        A leader appends at the log end. A follower copies its leader's offsets, which have gaps after a compaction.
        """
        assert self.log_end_offset <= first_offset < end_offset, (self, first_offset, end_offset)
        self.log_end_offset = end_offset

    def begin_truncation(self, end_offset: int) -> None:
        """Before files change: everything from `end_offset` on no longer counts as flushed, or as the log's start.

        Otherwise, after a crash, new batches could be before an old recovery point, and not be checked; or before an
        old log start offset, and be removed.
        """
        assert 0 <= end_offset <= self.log_end_offset, (self, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.local_log_start_offset = min(self.local_log_start_offset, end_offset)
        self.recovery_point = min(self.recovery_point, end_offset)
        if self.remote_end_offset is not None and self.remote_end_offset > end_offset:
            self.remote_end_offset = None
        self._check()

    def truncate(self, end_offset: int, *, first_unstable_offset: int | None) -> None:
        """The log ends at `end_offset` now, which `begin_truncation` has announced; the high watermark with it."""
        assert end_offset <= self.log_end_offset, (self, end_offset)
        assert self.recovery_point <= end_offset, (self, end_offset)
        self.log_end_offset = end_offset
        self.high_watermark = min(self.high_watermark, end_offset)
        if self.first_gap_offset is not None and end_offset <= self.first_gap_offset:
            self.first_gap_offset = None
        self.set_first_unstable(first_unstable_offset)

    def restart(
        self,
        offset: int,
        *,
        log_start_offset: int,
        recovery_point: int,
        remote_end_offset: int | None = None,
    ) -> None:
        """All local segments are replaced by an empty one at `offset`, which may be beyond the old log end.

        `log_start_offset` is lower only if the records before `offset` are in the remote tier. `recovery_point` does
        not advance: after a crash the old segments may be there again, and recovery must check all of them.
        """
        assert recovery_point <= self.recovery_point, (self, recovery_point)
        assert 0 <= log_start_offset <= offset, (self, log_start_offset, offset)
        assert remote_end_offset is None or remote_end_offset <= offset, (self, remote_end_offset, offset)
        self.log_start_offset = log_start_offset
        self.local_log_start_offset = self.high_watermark = self.log_end_offset = offset
        self.recovery_point = recovery_point
        self.first_gap_offset = None
        self.begins_after_gap = False
        self.remote_end_offset = remote_end_offset
        self.set_first_unstable(None)

    # -- the start ---------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> None:
        """Advance the log start offset (DeleteRecords, retention, a leader's): records before it are not readable."""
        assert self.log_start_offset < offset <= self.high_watermark, (self, offset)
        self.log_start_offset = offset
        self.local_log_start_offset = max(self.local_log_start_offset, offset)
        self._check()

    def advance_local_log_start(self, offset: int) -> None:
        """Advance the local log start offset: local segments before `offset` have been removed."""
        assert self.local_log_start_offset <= offset <= self.high_watermark, (self, offset)
        self.local_log_start_offset = offset
        self._check()

    # -- what is committed -------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int, *, first_unstable_offset: int | None = None) -> None:
        """Advance the high watermark: more records are committed, up to `offset` (exclusive)."""
        assert self.high_watermark < offset <= self.log_end_offset, (self, offset)
        self.high_watermark = offset
        if first_unstable_offset is None and self.first_unstable_offset is None:
            self.last_stable_offset = offset  # nearly always; without `_check`, which costs 0.3 us
        else:
            self.set_first_unstable(first_unstable_offset)

    def reset_high_watermark(self, offset: int, *, first_unstable_offset: int | None) -> None:
        """Set the high watermark of a log that no reader of this process knows yet; it may move back.

        So it may after a start (from a checkpoint), and when a future log replaces the partition's log: its high
        watermark becomes that of the log that readers know.
        """
        assert self.local_log_start_offset <= offset <= self.log_end_offset, (self, offset)
        self.high_watermark = offset
        self.set_first_unstable(first_unstable_offset)

    def set_first_unstable(self, offset: int | None) -> None:
        """A transaction has begun or ended (the producers' `first_unstable_offset`)."""
        assert offset is None or 0 <= offset < self.log_end_offset, (self, offset)
        self.first_unstable_offset = offset
        self._check()

    def ignore_gap(self) -> None:
        """The gap holds the high watermark back no more: this replica leads (`Log.ignore_gap`)."""
        self.first_gap_offset = None

    def begin_after_gap(self, offset: int) -> None:
        """This replica leads on, and its first segment begins at `offset`: a crash may have taken those before."""
        assert self.first_gap_offset is None, (self, self.first_gap_offset)
        self.advance_local_log_start(offset)
        self.begins_after_gap = True

    def begin_after_copies(self) -> None:
        """Copies have the records before the first segment: a crash has taken none of them."""
        self.begins_after_gap = False

    # -- what is in the remote tier ------------------------------------------------------------------

    @property
    def earliest_pending_upload_offset(self) -> int | None:
        """First offset that is not in the remote tier yet; None while that is unknown (KIP-1023).

        Records before the local log start cannot be copied any more, also where metadata of their copies are lost.
        """
        if self.remote_end_offset is None:
            return None
        return max(self.remote_end_offset, self.local_log_start_offset)

    def advance_remote_end(self, offset: int) -> bool:
        """Advance the remote end offset: everything before `offset` is copied. False if that was known already."""
        assert 0 <= offset <= self.log_end_offset, (self, offset)
        if self.remote_end_offset is not None and offset <= self.remote_end_offset:
            return False
        self.remote_end_offset = offset
        return True

    def forget_remote_end(self) -> None:
        """Set the remote end offset to unknown, as when the log is not tiered any more."""
        self.remote_end_offset = None

    # -- what is on the disk -----------------------------------------------------------------------

    def advance_recovery_point(self, offset: int) -> None:
        """Advance the recovery point: everything before `offset` is on the disk."""
        assert self.recovery_point <= offset <= self.log_end_offset, (self, offset)
        self.recovery_point = offset

    def move_recovery_point_back(self, offset: int) -> None:
        """The files before the recovery point have changed: everything from `offset` on must be flushed again."""
        assert 0 <= offset <= self.recovery_point, (self, offset)
        self.recovery_point = offset
