"""The shared state of one replica: the log, the role, delayed Fetches, and the effects of the current event.

The parts are modules of functions over a `Core`; `machine.Raft` is the interface for drivers.
Source: KafkaRaftClient (its fields), QuorumState of Kafka 4.3.1.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, assert_never
from uuid import UUID

from ottla.controller.raft.control_record_history import ControlRecordHistory
from ottla.controller.raft.effects import (
    Committed,
    Effect,
    Fatal,
    Flush,
    Freeze,
    LeaderChanged,
    Persist,
    Reply,
    Send,
    SnapshotLoaded,
)
from ottla.controller.raft.log import RaftLog, SnapshotDownload
from ottla.controller.raft.request_manager import RequestManager
from ottla.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from ottla.controller.raft.types import (
    SUPPORTED_KRAFT_VERSIONS,
    Address,
    ElectionState,
    Endpoints,
    LeaderAndEpoch,
    Node,
    OffsetAndEpoch,
    RaftSettings,
    ReplicaKey,
)
from ottla.controller.raft.voters import Voter, VoterSet
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.schema import Request, Response
from ottla.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from random import Random

logger: Final = logging.getLogger(__name__)

#: Check quorum: a leader resigns if no majority has fetched for so many fetch timeouts. More than one, so that a
#: follower whose Fetch is in flight does not count as lost.
CHECK_QUORUM_FACTOR: Final = 1.5

#: The least time between two log lines about another node with this node's id.
DUPLICATE_ID_LOG_INTERVAL_MS: Final = 10_000


@dataclass(slots=True, kw_only=True)
class DelayedFetch:
    """A delayed Fetch: it found nothing new, and completes when there is something, or at its deadline."""

    token: Any
    request: Any
    #: The listener that received it: the response names the leader's address on this listener.
    listener_name: str
    fetch_offset: int
    deadline_ms: int


@dataclass(slots=True)
class Core:
    """The state of one replica. `role` is set by `transitions` only."""

    settings: RaftSettings
    log: RaftLog
    history: ControlRecordHistory
    requests: RequestManager
    random: "Random"
    role: Role
    #: The time of the current event.
    now_ms: int = 0
    #: As far as this replica knows; None until a leader reports one, or this replica leads and has committed something.
    high_watermark: int | None = None
    delayed_fetches: list[DelayedFetch] = field(default_factory=list)
    #: When a shutdown stops waiting for its completion; None while none was requested.
    shutdown_deadline_ms: int | None = None
    is_stopped: bool = False
    #: The last error response of each node, by its id: each is logged once, not fifty times a second.
    logged_errors: dict[int, tuple[type[Response], ErrorCode]] = field(default_factory=dict)
    #: When another node with this node's id was last logged.
    duplicate_id_logged_ms: int | None = None
    #: The last contradictory leader and epoch that a message named (`discovery.is_inconsistent_leader`).
    logged_inconsistent_leader: tuple[int | None, int] | None = None
    effects: list[Effect] = field(default_factory=list)
    #: What listeners were last notified of.
    notified_leader: LeaderAndEpoch | None = None
    #: What this process wrote to `quorum-state` last, or will when the effects are carried out.
    persisted: ElectionState | None = None
    _correlation_id: int = 0

    # -- this replica ----------------------------------------------------------------------------------

    @property
    def local_key(self) -> ReplicaKey:
        """The node id and directory id of this replica."""
        return self.settings.key

    @property
    def local_voter(self) -> Voter:
        """This replica's entry in the voter set, as it should be."""
        return Voter(self.local_key, dict(self.settings.endpoints), SUPPORTED_KRAFT_VERSIONS)

    @property
    def voters(self) -> VoterSet:
        """The voter set as of the end of the log, committed or not."""
        return self.history.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica votes; it is an observer otherwise."""
        return self.voters.is_voter(self.local_key)

    @property
    def epoch(self) -> int:
        """The latest epoch that this replica knows of."""
        return self.role.epoch

    @property
    def leader_id(self) -> int | None:
        """The leader of the epoch as this replica reports it to others; a Resigned leader still reports itself."""
        match self.role:
            case Leader() | Resigned():
                return self.local_key.id
            case Candidate():
                return None
            case Unattached() | Follower() | Prospective() as role:
                return role.leader_id
            case role:
                assert_never(role)

    @property
    def leader_endpoints(self) -> Endpoints:
        """The leader's addresses by listener name; empty if unknown."""
        match self.role:
            case Leader() | Resigned():
                return self.settings.endpoints
            case Follower() | Prospective() as role:
                return role.leader_endpoints
            case Unattached() | Candidate():
                return {}
            case role:
                assert_never(role)

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The epoch's leader, if it accepts writes; leader_id is None once this node, as the leader, has resigned."""
        is_past = self.leader_id == self.local_key.id and not isinstance(self.role, Leader)
        return LeaderAndEpoch(None if is_past else self.leader_id, self.epoch)

    @property
    def voted(self) -> ReplicaKey | None:
        """The replica that this one has voted for in this epoch."""
        match self.role:
            case Candidate():
                return self.local_key
            case Unattached() | Follower() | Prospective() as role:
                return role.voted
            case Leader() | Resigned():
                return None
            case role:
                assert_never(role)

    def endpoints_of(self, leader_id: int | None, address: Address | None) -> Endpoints:
        """A leader's addresses: the one that a message names; without one, those in the voter set."""
        if leader_id is None:
            return {}
        if address is not None:
            return {self.settings.listener_name: address}
        return self.voters.endpoints(leader_id)

    # -- effects ---------------------------------------------------------------------------------------

    def persist(self) -> None:
        """Write the durable part of the role to `quorum-state`: the epoch, its leader, the vote in it."""
        kraft_version = self.history.kraft_version
        voted = self.voted
        state = ElectionState(
            leader_epoch=self.epoch,
            leader_id=self.leader_id,
            kraft_version=kraft_version,
            voted_id=None if voted is None else voted.id,
            voted_directory_id=ZERO_UUID if voted is None else voted.directory_id,
            voters=tuple(self.voters.ids) if kraft_version == 0 else (),
        )
        if (former := self.persisted) is not None:
            _assert_successor(former, state)
        self.persisted = state
        self._supersede(Persist)
        self.effects.append(Persist(state))

    def flush(self) -> None:
        """Make the log durable up to its end, a truncation included."""
        self.effects.append(Flush(self.log.end.offset))

    def freeze(self, download: SnapshotDownload) -> None:
        """Validate a complete download and make it durable; `following.snapshot_frozen` continues."""
        self.effects.append(Freeze(download))

    def log_duplicate_node_id(self, what: str, directory_id: UUID) -> None:
        """Log that another node uses this node's id.

        At most once in DUPLICATE_ID_LOG_INTERVAL_MS: it retries at once.
        """
        last_ms = self.duplicate_id_logged_ms
        if last_ms is None or self.now_ms - last_ms >= DUPLICATE_ID_LOG_INTERVAL_MS:
            self.duplicate_id_logged_ms = self.now_ms
            logger.error(
                "another node %s with the node.id of this one, %d, and directory %s: its requests are refused; "
                "set a unique node.id on every node",
                what,
                self.local_key.id,
                directory_id,
            )

    def reply(self, token: object, response: Response) -> None:
        """Send the response to the request that came with this token."""
        self.effects.append(Reply(token, response))

    def send(self, node: Node, build: Callable[[], Request]) -> bool:
        """Send the request that `build` returns; False if the node backs off or has a request in flight."""
        if not self.requests.is_ready(node, self.now_ms):
            return False
        self._correlation_id += 1
        self.requests.on_request_sent(node, correlation_id=self._correlation_id, now_ms=self.now_ms)
        self.effects.append(
            Send(
                to=node.address,
                node_id=node.id,
                message=build(),
                timeout_ms=self.settings.request_timeout_ms,
                correlation_id=self._correlation_id,
            )
        )
        return True

    def send_to_voter(self, voter_id: int, build: Callable[[], Request]) -> int:
        """Send to a voter if it is ready and has an endpoint; returns when it is ready for the next request."""
        node = self.voters.node(voter_id, listener_name=self.settings.listener_name)
        if node is None:
            logger.warning(
                "voter %d has no endpoint for the listener %s", voter_id, self.settings.listener_name
            )
            return self.now_ms + self.settings.request_timeout_ms
        self.send(node, build)
        return self.requests.ready_at_ms(node, self.now_ms)

    def update_high_watermark(self, high_watermark: int) -> None:
        """Advance the high watermark: everything before this offset is committed. Larger than the previous one."""
        assert self.high_watermark is None or high_watermark > self.high_watermark, (
            self.high_watermark,
            high_watermark,
        )
        assert high_watermark <= self.log.end.offset, (high_watermark, self.log.end)
        self.high_watermark = high_watermark
        self.log.update_high_watermark(high_watermark)
        self.effects.append(Committed(high_watermark))

    def notify_leader(self) -> None:
        """Notify listeners of the leader and epoch if they have changed."""
        if self.leader_and_epoch != self.notified_leader:
            self.notified_leader = self.leader_and_epoch
            self._supersede(LeaderChanged)
            self.effects.append(LeaderChanged(self.notified_leader))

    def _supersede(self, kind: type[Persist | LeaderChanged]) -> None:
        """Drop an earlier effect of this kind, which a new one replaces: one fsync less.

        Only while no other kind of effect follows it: a Reply or Send may depend on it.
        """
        for place in range(len(self.effects) - 1, -1, -1):
            effect = self.effects[place]
            if isinstance(effect, kind):
                del self.effects[place]
            elif not isinstance(effect, Persist | LeaderChanged):
                break

    def snapshot_loaded(self, snapshot: OffsetAndEpoch) -> None:
        """Notify listeners that the log now starts at the end of this snapshot."""
        self.effects.append(SnapshotLoaded(snapshot))

    def fail(self, reason: str) -> None:
        """Stop the machine because of a fatal error."""
        logger.critical("this node's replica of the metadata log stops: %s", reason)
        self.effects.append(Fatal(reason))
        self.is_stopped = True

    @property
    def check_quorum_timeout_ms(self) -> int:
        """The ms for which a leader stays leader while no majority fetches."""
        return int(self.settings.fetch_timeout_ms * CHECK_QUORUM_FACTOR)

    def random_election_timeout_ms(self) -> int:
        """Between one and two election timeouts, so that voters do not run at the same time."""
        timeout_ms = self.settings.election_timeout_ms
        return timeout_ms + (self.random.randrange(timeout_ms) if timeout_ms else 0)


def _assert_successor(former: ElectionState, state: ElectionState) -> None:
    """Assert that an election state may follow another one: epochs ascend, and each has one leader and one vote.

    A replica that forgot either could let two leaders of one epoch commit different records at the same offset.
    """
    assert state.leader_epoch >= former.leader_epoch, (former, state)
    if state.leader_epoch == former.leader_epoch:
        assert former.leader_id in (None, state.leader_id), (former, state)
        # A leader's vote is that for itself, which is not written.
        is_elected = state.voted_id is None and state.leader_id == former.voted_id
        assert former.voted_id in (None, state.voted_id) or is_elected, (former, state)
