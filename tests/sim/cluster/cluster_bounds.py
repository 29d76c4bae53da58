"""The offsets of a log that ListOffsets has names for (-1, -2, -4, -5, -6), as one client has seen them in
a leader epoch.

    earliest <= earliest local <= earliest pending upload <= last stable <= latest
                latest tiered < earliest pending upload

While a process leads in an epoch, none of them moves back, and latest does not even if it restarts. The exception
is latest tiered: it is unknown again when all copies are deleted, as the log of this leader, or of a newer one
that it does not know yet, starts behind them. So a response is at least what was returned before it for the same
name, or for one that is before it in this order; it is at most what the leader has by now, and what is committed.
"""

from collections.abc import Hashable
from enum import Enum, auto
from typing import Any

from cluster_ledger import Ledger
from cluster_violated import Violated

from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
)
from ottla.storage.log_offsets import LogOffsets


class Bound(Enum):
    """A name; the remote end is behind the latest tiered offset."""

    START = auto()
    LOCAL_START = auto()
    REMOTE_END = auto()
    PENDING_UPLOAD = auto()
    LAST_STABLE = auto()
    END = auto()


#: What is not behind each of them, beside itself.
_BEFORE = {
    Bound.START: (),
    Bound.LOCAL_START: (Bound.START,),
    Bound.REMOTE_END: (),
    Bound.PENDING_UPLOAD: (Bound.START, Bound.LOCAL_START, Bound.REMOTE_END),
    Bound.LAST_STABLE: (Bound.START, Bound.REMOTE_END),
    Bound.END: (Bound.START, Bound.LOCAL_START, Bound.REMOTE_END, Bound.LAST_STABLE),
}
_NAMES = {
    EARLIEST: Bound.START,
    EARLIEST_LOCAL: Bound.LOCAL_START,
    LATEST_TIERED: Bound.REMOTE_END,
    EARLIEST_PENDING_UPLOAD: Bound.PENDING_UPLOAD,
}
#: What a client may ask for: those that are answered from the local log's offsets.
TIMESTAMPS = (*_NAMES, LATEST)


class Bounds:
    """The order of one partition's offsets, in all responses to ListOffsets."""

    def __init__(self) -> None:
        #: (leader epoch, process of the leader, name) -> the last response
        self._returned: dict[tuple[int, Hashable, Bound], int] = {}

    def least_stable(self, epoch: int, process: Hashable) -> int:
        """The last stable offset that this leader has returned: every transaction before it is decided."""
        return self._returned.get((epoch, process, Bound.LAST_STABLE), 0)

    def check(
        self,
        timestamp: int,
        row: Any,
        *,
        is_read_committed: bool,
        epoch: int,
        process: Hashable,
        ledger: Ledger,
        now: LogOffsets | None,
        where: str,
    ) -> None:
        """Hold a response against those before it. `now`: the log of the leader, if it still leads in the epoch."""
        bound = _NAMES.get(timestamp, Bound.LAST_STABLE if is_read_committed else Bound.END)
        known = self._returned.get((epoch, process, bound))
        if row.offset == -1 and bound in (Bound.REMOTE_END, Bound.PENDING_UPLOAD):
            # Nothing is copied, or left to be copied, or it is unknown.
            start = ledger.start if now is None else max(ledger.start, now.log_start_offset)
            is_deleted = known is not None and (now is None or start >= known)
            if bound is Bound.REMOTE_END and known is not None and not is_deleted:
                raise Violated(f"BoundsAreInOrder: nothing is tiered, returned was {known}: {where}")
            return
        offset = row.offset + 1 if bound is Bound.REMOTE_END else row.offset
        least = max(self._returned.get((epoch, process, each), 0) for each in (bound, *_BEFORE[bound]))
        if bound is Bound.END:
            least = max(least, ledger.begun[epoch], self._returned.get((epoch, None, bound), 0))
            self._returned[epoch, None, bound] = offset
        most = ledger.end if now is None else min(ledger.end, _of(bound, now))
        if bound is Bound.LAST_STABLE:
            start = 0 if now is None else now.log_start_offset
            most = min(most, max(ledger.last_stable_offset(start), start))
        if not least <= offset <= most:
            raise Violated(f"BoundsAreInOrder: {bound.name} is at least {least}, at most {most}: {where}")
        self._returned[epoch, process, bound] = offset
        record = ledger.records.get(row.offset)
        if (
            bound in (Bound.LOCAL_START, Bound.REMOTE_END, Bound.PENDING_UPLOAD)
            and record is not None
            # A newer leader's record is none of this one's log, which may be empty there.
            and record.leader_epoch <= epoch
            and row.leader_epoch not in (-1, record.leader_epoch)
        ):
            raise Violated(f"BoundsAreInOrder: committed there is {record}: {where}")


def _of(bound: Bound, now: LogOffsets) -> int:
    """The offset that the leader would return now, where it is known."""
    match bound:
        case Bound.START:
            return now.log_start_offset
        case Bound.LOCAL_START:
            return now.local_log_start_offset
        case Bound.REMOTE_END:
            pending = now.earliest_pending_upload_offset
            return now.log_end_offset if pending is None else pending
        case Bound.PENDING_UPLOAD:
            pending = now.earliest_pending_upload_offset
            return now.high_watermark if pending is None else pending
        case Bound.LAST_STABLE:
            return now.last_stable_offset
        case Bound.END:
            return now.high_watermark
