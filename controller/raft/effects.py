"""What Raft asks its driver to do. Effects are carried out strictly in their order, each before the next begins.

The order is where the safety lies: a vote is durable before it is given (`Persist` before `Reply`), and what a
follower has is durable before it asks for more (`Flush` before `Send`), because the leader counts the offset that
is asked for as stored.
"""

from dataclasses import dataclass

from controller.quorum_state import QuorumState
from controller.raft.types import Address, LeaderAndEpoch, OffsetAndEpoch
from protocol.schema import Request, Response


@dataclass(frozen=True, slots=True)
class Persist:
    """Replace `quorum-state`, durably."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Flush:
    """Make the log durable up to this offset (exclusive), a truncation to it included, then call `Raft.flushed` with it."""

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request; `Raft.answered` is to be called once, with this very object, whatever becomes of it."""

    to: Address
    #: Negative if it is not known who lives at this address.
    node_id: int
    message: Request
    timeout_ms: int
    #: Tells an answer that is waited for from one that comes too late.
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came with this token."""

    token: object
    response: Response


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything in the log before this offset is committed. Only ever grows."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """There is a new epoch, or it has a leader now, or its leader (this node) has given up."""

    leader: LeaderAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The log now begins behind this snapshot: whoever replays it must forget all and begin with the snapshot."""

    snapshot: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Stopped:
    """The shutdown that was asked for is complete, or has taken too long. The last effect there is."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """This node must stop: to go on could lose what was committed. The last effect there is."""

    reason: str


Effect = Persist | Flush | Send | Reply | Committed | LeaderChanged | SnapshotLoaded | Stopped | Fatal
