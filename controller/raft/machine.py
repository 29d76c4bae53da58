"""Raft, as Kafka's controllers speak it: a state machine without clock, socket, disk or thread.

    (now_ms, event) -> [effects]

An event is a request, an answer, the passing of time, or something that the driver did to the log. The machine reads
and writes the log through `RaftLog`, at once; all else that shall happen it says in effects (`effects`).

                  a leader is found
    Unattached ------------------------> Follower <---------------.
      |    ^                                |                     | refused, the leader
      |    | refused,                       | fetch timeout       | is known
      |    | no leader known                v                     |
      |    '--------------------------- Prospective --------------'
      '--- election timeout ------------>   |   ^
                                            |   | election timeout
                 a majority would vote:     v   |
                 epoch + 1, own vote     Candidate
                                            |
                 a majority votes           v
                                          Leader --- no majority fetches; asked to; not a voter any more --> Resigned
                                                                                                                |
    any role --- a later epoch, with a leader that can be reached ------> Follower                              |
    any role --- a later epoch, without one ----------------------------> Unattached <--- after a while, epoch + 1

| from | to | when | durable before anything else |
|---|---|---|---|
| any | Unattached, Follower | a message of a later epoch | epoch, leader |
| Unattached, Prospective, Candidate | Follower | a message names the leader of this epoch | leader |
| Unattached, Prospective | the same | it votes for a candidate of its epoch | vote |
| Unattached | Prospective | voter, election timeout | |
| Follower | Prospective | voter, no Fetch answered well within the fetch timeout | |
| Prospective | Candidate | a majority would vote for it; or somebody knows no pre-votes | epoch + 1, vote |
| Prospective | Follower, Unattached | a majority would not, or the election timeout | |
| Candidate | Leader | a majority votes for it | leader |
| Candidate | Prospective | election timeout (1 to 2 times, at random) | |
| Leader | Resigned | no majority has fetched for 1.5 fetch timeouts; asked to; removed, and that is committed | |
| Resigned | Unattached | election timeout | epoch + 1 |

A start resumes the role that `quorum-state` tells; a leader resumes as Resigned, never as Leader, since it cannot know
what it has lost of its epoch. Observers (brokers, and controllers that are no voters) are only ever Unattached or
Follower. The only voter of a quorum is its leader at once.

Where the rules are:

| file | rules of |
|---|---|
| `transitions` | what each transition keeps, persists, starts and ends |
| `voting` | who votes for whom; pre-votes (KIP-996) |
| `epochs` | BeginQuorumEpoch, EndQuorumEpoch; who runs first after a leader has gone |
| `discovery` | what every message teaches about the epoch and its leader |
| `leading` | followers' progress, the majority's offset, check quorum (KAFKA-15489) |
| `fetching`, `serving` | what a Fetch is answered; what it moves; the high watermark |
| `following` | what an answer to Fetch or FetchSnapshot does here; truncation (KIP-595) |
| `snapshots` | FetchSnapshot (KIP-630) |
| `reconfiguration`, `joining` | changes of the voter set, both sides (KIP-853) |
| `describing` | DescribeQuorum (KIP-595, KIP-836) |
| `polling` | what is due when |

What differs from Kafka 4.3.1 on purpose:

- The leader counts as a voter by what it has flushed; Kafka counts what it has appended, before its fsync.
- A Fetch that was held back tells of its replica when it comes, not again when it is answered.
- Fetch and FetchSnapshot are answered with 8 MiB at most, whatever they ask for: it is read at once.
- Impossible messages (two leaders in one epoch, INVALID_REQUEST as an answer, a piece of another snapshot) are
  refused or ignored, and logged; Kafka's node stops. Both stop when told to truncate what is committed.
- A follower whose log ends in a later epoch than the snapshot it is to load cuts what is not committed; Kafka's stops.
- Peers that taught nothing new are asked again after `retry_backoff_ms`; Kafka asks at once.
- Of several that ask for pre-votes with equal logs, the one with the largest id goes first: it refuses the others. Kafka's
  voters grant each other the pre-vote, and may then split the vote.
- A candidate that finds records of its own epoch in its log resumes as Resigned, too; one that knows who has won resumes
  as its follower, where Kafka's asks for votes once more.
- A leader that resigns tells its listeners (no leader in this epoch); Kafka's learn of it with the next epoch.
"""

from typing import TYPE_CHECKING, Any

from controller.quorum_state import QuorumState
from controller.raft import (
    describing,
    epochs,
    following,
    joining,
    polling,
    reconfiguration,
    serving,
    snapshots,
    transitions,
    voting,
)
from controller.raft.core import Core
from controller.raft.discovery import Outcome
from controller.raft.effects import Effect, Send
from controller.raft.history import QuorumHistory
from controller.raft.log import RaftLog
from controller.raft.peers import Peers
from controller.raft.roles import Leader, Role, Unattached
from controller.raft.types import NEVER_MS, Address, LeaderAndEpoch, Node, RaftSettings
from controller.raft.voters import VoterSet
from protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from protocol.messages.describe_quorum import DescribeQuorumRequest
from protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from protocol.messages.vote import VoteRequest, VoteResponse
from protocol.schema import Request, Response

if TYPE_CHECKING:
    from random import Random

#: Bootstrap servers have node ids from here downwards, as Kafka's; nobody knows their real ones.
_FIRST_BOOTSTRAP_ID = -2
#: How long a shutdown may take to hand over; Kafka's.
SHUTDOWN_TIMEOUT_MS = 5_000


class Raft:
    """One replica of the metadata log: voter or observer.

    `now_ms` is in milliseconds, never goes back, and starts as the time of day: timestamps of control records and
    of DescribeQuorum are taken from it. After Fatal or Stopped nothing has an effect any more.
    """

    def __init__(
        self, *, settings: RaftSettings, log: RaftLog, election: QuorumState | None, random: "Random"
    ) -> None:
        """`election`: what `quorum-state` says, None if there is none. The log is read for voters."""
        static_voters = VoterSet.of_addresses(settings.static_voters, listener_name=settings.listener_name)
        peers = Peers(
            _bootstrap_nodes(settings),
            retry_backoff_ms=settings.retry_backoff_ms,
            request_timeout_ms=settings.request_timeout_ms,
            random=random,
        )
        self._election = election
        self._core = Core(
            settings=settings,
            log=log,
            history=QuorumHistory(log, static_voters),
            peers=peers,
            random=random,
            role=Unattached(epoch=0, election_deadline_ms=NEVER_MS),
        )
        #: When `tick` has something to do; NEVER_MS if it never has.
        self.next_deadline_ms = 0

    # -- events ----------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Resume. To be called once, first of all."""
        core = self._begin(now_ms)
        transitions.become_initial(core, self._election)
        return self._end()

    def receive(
        self, now_ms: int, request: Request, token: object, *, listener_name: str | None = None
    ) -> list[Effect]:
        """A request has come by this listener (None: by the first).

        Every token is replied to once, at once or later, unless the machine stops before (Stopped, Fatal).
        """
        core = self._begin(now_ms)
        if not core.is_over:
            self._receive(request, token, listener_name or core.settings.listener_name)
        return self._end()

    def _receive(self, request: Request, token: object, listener_name: str) -> None:
        core = self._core
        response: Response
        match request:
            case FetchRequest():
                return serving.answer_fetch(core, request, token, listener_name=listener_name)
            case AddRaftVoterRequest():
                return reconfiguration.answer_add(core, request, token)
            case RemoveRaftVoterRequest():
                return reconfiguration.answer_remove(core, request, token)
            case VoteRequest():
                response = voting.answer_vote(core, request, listener_name=listener_name)
            case BeginQuorumEpochRequest():
                response = epochs.answer_begin(core, request, listener_name=listener_name)
            case EndQuorumEpochRequest():
                response = epochs.answer_end(core, request, listener_name=listener_name)
            case FetchSnapshotRequest():
                response = snapshots.answer(core, request, listener_name=listener_name)
            case DescribeQuorumRequest():
                response = describing.answer(core, request)
            case UpdateRaftVoterRequest():
                response = reconfiguration.answer_update(core, request, listener_name=listener_name)
            case _:
                raise TypeError(f"no request of a quorum: {type(request).__name__}")
        return core.reply(token, response)

    def answered(self, now_ms: int, sent: Send, response: Any) -> list[Effect]:  # noqa: ANN401 any response
        """`sent` was answered; None: it timed out, the connection broke, or the answer could not be read.

        A peer that does not speak the version which a message needs (VoteRequest with `pre_vote`: 2) is told by
        the response's error code, UNSUPPORTED_VERSION.
        """
        core = self._begin(now_ms)
        if not core.is_over and core.peers.is_expected(sent.node_id, sent.correlation_id):
            is_well = self._answered(sent, response) is Outcome.DONE
            if is_well:
                core.complaints.pop(sent.node_id, None)
            core.peers.answered(sent.node_id, sent.correlation_id, now_ms, well=is_well)
        return self._end()

    def _answered(self, sent: Send, response: Response | None) -> Outcome:
        core, sender_id = self._core, sent.node_id
        if isinstance(sent.message, ApiVersionsRequest):
            assert response is None or isinstance(response, ApiVersionsResponse), response
            return reconfiguration.versions_answered(core, sender_id, response)
        match response:
            case None:
                return Outcome.BACK_OFF
            case FetchResponse():
                return following.fetch_answered(core, sender_id, response)
            case FetchSnapshotResponse():
                return following.snapshot_answered(core, sender_id, response)
            case VoteResponse():
                return voting.vote_answered(core, sender_id, response)
            case BeginQuorumEpochResponse() | EndQuorumEpochResponse():
                return epochs.epoch_answered(core, sender_id, response)
            case UpdateRaftVoterResponse():
                return joining.update_answered(core, sender_id, response)
            case AddRaftVoterResponse() | RemoveRaftVoterResponse():
                return joining.change_answered(core, sender_id, response)
            case _:
                raise TypeError(f"no response of a quorum: {type(response).__name__}")

    def tick(self, now_ms: int) -> list[Effect]:
        """Time has passed: to be called when `next_deadline_ms` has come. Harmless at any time."""
        self._begin(now_ms)
        return self._end()

    def appended(self, now_ms: int, end_offset: int) -> list[Effect]:
        """The driver has appended records up to this offset, as the leader; nothing if it leads no more by now."""
        core = self._begin(now_ms)
        if not core.is_over and isinstance(core.role, Leader):
            assert end_offset <= core.log.end.offset, (end_offset, core.log.end)
            serving.appended(core)
        return self._end()

    def flushed(self, now_ms: int, end_offset: int) -> list[Effect]:
        """Everything before this offset is durable here: a `Flush` was carried out, with no event in between."""
        core = self._begin(now_ms)
        if not core.is_over and isinstance(core.role, Leader):
            serving.flushed(core, end_offset)
        return self._end()

    def resign(self, now_ms: int, epoch: int) -> list[Effect]:
        """Lead this epoch no more; nothing if this node does not lead it."""
        core = self._begin(now_ms)
        if isinstance(core.role, Leader) and core.role.epoch == epoch:
            core.role.must_resign = True
        return self._end()

    def upgrade_kraft_version(
        self, now_ms: int, *, epoch: int, version: int, validate_only: bool = False
    ) -> list[Effect]:
        """Raise kraft.version as the leader of this epoch. Raises NotController, InvalidUpdateVersion."""
        core = self._begin(now_ms)
        reconfiguration.upgrade(core, epoch=epoch, version=version, validate_only=validate_only)
        return self._end()

    def shutdown(self, now_ms: int, *, timeout_ms: int = SHUTDOWN_TIMEOUT_MS) -> list[Effect]:
        """Hand over, if this node leads, and stop: `Stopped` says when."""
        core = self._begin(now_ms)
        if core.shutdown_deadline_ms is None:
            core.shutdown_deadline_ms = now_ms + timeout_ms
        return self._end()

    def _begin(self, now_ms: int) -> Core:
        self._core.now_ms = max(now_ms, self._core.now_ms)
        return self._core

    def _end(self) -> list[Effect]:
        core = self._core
        self.next_deadline_ms = polling.poll(core)
        effects, core.effects = core.effects, []
        return effects

    # -- what there is to know -------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What this replica is. Not to be changed."""
        return self._core.role

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """Who leads the epoch; nobody, if this node did and has resigned."""
        return self._core.leader_and_epoch

    @property
    def leader_address(self) -> Address | None:
        """Where the leader listens, by `listener_name`."""
        if self.leader_and_epoch.leader_id is None:
            return None
        return self._core.leader_endpoints.get(self._core.settings.listener_name)

    def is_leader_of(self, epoch: int) -> bool:
        """Whether this node leads the epoch, and may append."""
        role = self._core.role
        return isinstance(role, Leader) and role.epoch == epoch and not self._core.is_over

    @property
    def epoch_start_offset(self) -> int | None:
        """Where the epoch begins that this node leads: what stands before is of former leaders."""
        role = self._core.role
        return role.epoch_start_offset if isinstance(role, Leader) else None

    @property
    def high_watermark(self) -> int | None:
        """Everything before it is committed; None if this node has not heard of it since it started."""
        return self._core.high_watermark

    @property
    def is_voter(self) -> bool:
        """Whether this node votes by the end of its log."""
        return self._core.is_voter

    @property
    def voters(self) -> VoterSet:
        """Who votes by the end of the log, committed or not."""
        return self._core.voters

    @property
    def kraft_version(self) -> int:
        """The level by the end of the log."""
        return self._core.history.kraft_version

    def voters_at(self, offset: int) -> VoterSet | None:
        """Who voted by the record at `offset`; None under kraft.version 0. For the snapshot behind that record."""
        return self._core.history.voters_at(offset)

    def kraft_version_at(self, offset: int) -> int:
        """The level by the record at `offset`. For the snapshot behind that record."""
        return self._core.history.kraft_version_at(offset)


def _bootstrap_nodes(settings: RaftSettings) -> list[Node]:
    if settings.bootstrap_servers:
        return [
            Node(_FIRST_BOOTSTRAP_ID - place, address)
            for place, address in enumerate(settings.bootstrap_servers)
        ]
    return [Node(id, address) for id, address in settings.static_voters.items() if id != settings.node_id]
