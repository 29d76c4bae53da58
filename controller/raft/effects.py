"""Effects: the actions that the driver carries out for the Raft machine, strictly in order, one after the other.

Safety depends on the order. A vote is durable before it is granted (`Persist` before `Reply`). A follower's records are
durable before its next Fetch (`Flush` before `Send`), because the leader counts everything before the fetch offset
as stored.
"""

from dataclasses import dataclass

from ottla.controller.raft.log import SnapshotDownload
from ottla.controller.raft.types import Address, ElectionState, LeaderAndEpoch, OffsetAndEpoch
from ottla.protocol.schema import Request, Response


@dataclass(frozen=True, slots=True)
class Persist:
    """Replace the file `quorum-state` by this election state, durably."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Flush:
    """Make the log durable up to this offset (exclusive), a truncation to it included; then call `Raft.flushed`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """Call `freeze` of this download, in a thread: it reads all of the snapshot.

    Then call `Raft.frozen` with its error.
    """

    download: SnapshotDownload


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request. The driver calls `Raft.answered` exactly once with this same object, also on failure."""

    to: Address
    #: Negative if the id of the node at this address is not known (bootstrap servers).
    node_id: int
    message: Request
    timeout_ms: int
    #: Distinguishes the expected response from a late one.
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came with this token."""

    token: object
    response: Response


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything in the log before this offset is committed. Never decreases."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """There is a new epoch, or the epoch has a leader now, or its leader (this node) has resigned."""

    leader: LeaderAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The log now starts at the end of this snapshot: listeners reset their state and load the snapshot."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Stopped:
    """The requested shutdown is complete, or has timed out. The machine returns no effect after it."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """This node must stop, because continuing could lose committed records. The machine returns no effect after it."""

    reason: str


Effect = (
    Persist | Flush | Freeze | Send | Reply | Committed | LeaderChanged | SnapshotLoaded | Stopped | Fatal
)
