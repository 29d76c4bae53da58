"""KRaft, the Raft of Kafka's controllers (KIP-595): a state machine without clock, socket, disk or thread.

    (now_ms, event) -> [effects]

An event is a request, a response, the passing of time, or something that the driver did to the log. The machine reads
and writes the log through `RaftLog` directly, and returns everything else as effects (`effects`).

                  a leader is known
    Unattached ------------------------> Follower <---------------.
      |    ^                                |                     | refused, the leader
      |    | refused,                       | fetch timeout       | is known
      |    | no leader known                v                     |
      |    '--------------------------- Prospective --------------'
      '--- election timeout ------------>   |   ^
                                            |   | election timeout
                 pre-vote won:              v   |
                 epoch + 1, own vote     Candidate
                                            |
                 vote won                   v
                                          Leader --- no majority fetches; requested; not a voter any more --> Resigned
                                                                                                                |
    any role --- a later epoch, its leader's address known -------------> Follower                              |
    any role --- a later epoch, otherwise ------------------------------> Unattached <--- timeout, epoch + 1 ---'

| from | to | when | made durable first |
|---|---|---|---|
| any | Unattached, Follower | a message of a later epoch | epoch, leader |
| Unattached, Prospective, Candidate | Follower | a message names the leader of this epoch | leader |
| Unattached, Prospective | the same | it votes for a candidate of its epoch | vote |
| Unattached | Prospective | voter, election timeout | |
| Follower | Prospective | voter, no successful Fetch within the fetch timeout | |
| Prospective | Candidate | a majority grants the pre-vote; or a voter does not support pre-votes | epoch + 1, vote |
| Prospective | Follower, Unattached | a majority cannot be reached any more, or the election timeout | |
| Candidate | Leader | a majority grants the vote | leader |
| Candidate | Prospective | election timeout (1 to 2 times, at random) | |
| Leader | Resigned | no majority has fetched for 1.5 fetch timeouts; requested; its removal is committed | |
| Resigned | Unattached | election timeout | epoch + 1 |

A restart resumes the role in `quorum-state`. A leader resumes as Resigned, never as Leader, since it cannot know which
records of its epoch it has lost. Observers (brokers, and controllers that are not voters) are always Unattached or
Follower. The only voter of a quorum becomes its leader at once.

Where the rules are:

| file | rules of |
|---|---|
| `transitions` | what each transition keeps, persists, starts and ends |
| `voting` | when a replica grants a vote or pre-vote (KIP-996) |
| `quorum_epochs` | BeginQuorumEpoch, EndQuorumEpoch; the order of candidates after a leader has resigned |
| `discovery` | the epoch and leader in every message |
| `follower_progress` | follower progress, the majority's offset, check quorum (KAFKA-15489) |
| `leader_fetch`, `fetch_responses`, `delayed_fetches` | Fetch and FetchSnapshot, on the leader: progress, response |
| `high_watermark` | the leader's log: when the high watermark advances, and what that completes |
| `follower_fetch` | Fetch, on the follower: responses, truncation (KIP-595) |
| `follower_fetch_snapshot` | FetchSnapshot (KIP-630), on the follower |
| `reconfiguration`, `voter_updates` | changes of the voter set, on the leader and on the voter (KIP-853) |
| `describe_quorum` | DescribeQuorum (KIP-595, KIP-836) |
| `polling` | timeouts and retries |

What differs from Kafka 4.3.1 on purpose:

- The leader's own offset, as a voter, is what it has flushed; Kafka counts what it has appended, before its fsync.
- A delayed Fetch updates its replica's progress when it arrives, not again when it completes.
- Responses to Fetch and FetchSnapshot have 8 MiB at most, whatever limit the request has: the data is read at once.
- Impossible messages (two leaders in one epoch, INVALID_REQUEST in a response, a chunk of another snapshot) are
  refused or ignored, and logged; a Kafka node stops. Both stop if a leader's response requires the truncation of
  committed records.
- A follower whose log ends in a later epoch than the snapshot that it loads truncates its uncommitted records; a Kafka
  node stops.
- A request whose response had nothing new is repeated after `retry_backoff_ms`; Kafka retries at once.
- Of several voters that request pre-votes with equal logs, the one with the largest id is preferred: it refuses the
  others. Kafka's voters grant each other the pre-vote, and may then split the vote.
- A candidate that finds records of its own epoch in its log resumes as Resigned, too. One that knows the winner resumes
  as its follower, where Kafka's requests votes once more.
- A leader that resigns notifies its listeners (no leader in this epoch); Kafka's are notified with the next epoch.

Source: KafkaRaftClient, QuorumState of Kafka 4.3.1; KIP-595, KIP-630, KIP-853, KIP-996.
"""

from typing import TYPE_CHECKING, assert_never

from ottla.controller.raft import (
    describe_quorum,
    follower_fetch,
    follower_fetch_snapshot,
    high_watermark,
    leader_fetch,
    polling,
    quorum_epochs,
    reconfiguration,
    transitions,
    voter_updates,
    voting,
)
from ottla.controller.raft.control_record_history import ControlRecordHistory
from ottla.controller.raft.core import Core
from ottla.controller.raft.discovery import Outcome
from ottla.controller.raft.effects import Effect, Send
from ottla.controller.raft.log import RaftLog
from ottla.controller.raft.messages import QuorumRequest, QuorumResponse
from ottla.controller.raft.request_manager import RequestManager
from ottla.controller.raft.roles import Leader, Role, Unattached
from ottla.controller.raft.types import NEVER_MS, Address, ElectionState, LeaderAndEpoch, Node, RaftSettings
from ottla.controller.raft.voters import VoterSet
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest
from ottla.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.messages.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse
from ottla.protocol.messages.vote import VoteRequest, VoteResponse
from ottla.protocol.schema import Response

if TYPE_CHECKING:
    from random import Random

#: Bootstrap servers have node ids from here downwards, as in Kafka, since their real ids are unknown.
_FIRST_BOOTSTRAP_ID = -2
#: How long a shutdown waits for another leader; Kafka's value.
SHUTDOWN_TIMEOUT_MS = 5_000


class Raft:
    """One replica of the metadata log: voter or observer.

    `now_ms` is in milliseconds, never goes back, and starts as the time of day: timestamps of control records and
    of DescribeQuorum are taken from it. After Fatal or Stopped the machine ignores all events.
    """

    def __init__(
        self, *, settings: RaftSettings, log: RaftLog, election: ElectionState | None, random: "Random"
    ) -> None:
        """`election`: the content of `quorum-state`, None without that file. Reads the log for the voter set."""
        static_voters = VoterSet.of_addresses(settings.static_voters, listener_name=settings.listener_name)
        requests = RequestManager(
            _bootstrap_nodes(settings),
            retry_backoff_ms=settings.retry_backoff_ms,
            request_timeout_ms=settings.request_timeout_ms,
            random=random,
        )
        self._election = election
        self._core = Core(
            settings=settings,
            log=log,
            history=ControlRecordHistory(log, static_voters),
            requests=requests,
            random=random,
            role=Unattached(epoch=0, election_deadline_ms=NEVER_MS),
        )
        #: When `tick` is due; NEVER_MS if it is not.
        self.next_deadline_ms = 0

    # -- events ----------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Resume from `quorum-state` and the log. Called once, before every other event."""
        core = self._begin(now_ms)
        transitions.become_initial(core, self._election)
        return self._end()

    def receive(
        self, now_ms: int, request: QuorumRequest, token: object, *, listener_name: str | None = None
    ) -> list[Effect]:
        """A request has arrived on this listener (None: the first).

        Every token gets one Reply, at once or later, unless the machine stops before (Stopped, Fatal).
        """
        core = self._begin(now_ms)
        if not core.is_stopped:
            self._receive(request, token, listener_name or core.settings.listener_name)
        return self._end()

    def _receive(self, request: QuorumRequest, token: object, listener_name: str) -> None:
        core = self._core
        response: Response
        match request:
            case FetchRequest():
                return leader_fetch.handle_fetch_request(core, request, token, listener_name=listener_name)
            case AddRaftVoterRequest():
                return reconfiguration.handle_add_voter_request(core, request, token)
            case RemoveRaftVoterRequest():
                return reconfiguration.handle_remove_voter_request(core, request, token)
            case VoteRequest():
                response = voting.handle_vote_request(core, request, listener_name=listener_name)
            case BeginQuorumEpochRequest():
                response = quorum_epochs.handle_begin_quorum_epoch_request(
                    core, request, listener_name=listener_name
                )
            case EndQuorumEpochRequest():
                response = quorum_epochs.handle_end_quorum_epoch_request(
                    core, request, listener_name=listener_name
                )
            case FetchSnapshotRequest():
                response = leader_fetch.handle_fetch_snapshot_request(
                    core, request, listener_name=listener_name
                )
            case DescribeQuorumRequest():
                response = describe_quorum.handle_describe_quorum_request(core, request)
            case UpdateRaftVoterRequest():
                response = reconfiguration.handle_update_voter_request(
                    core, request, listener_name=listener_name
                )
            case _:
                assert_never(request)
        return core.reply(token, response)

    def answered(self, now_ms: int, sent: Send, response: QuorumResponse | None) -> list[Effect]:
        """Handle the response to `sent`; None: it timed out, the connection broke, or it could not be read.

        If the peer does not support the version that the message needs (VoteRequest with `pre_vote`: 2), the response
        has the error code UNSUPPORTED_VERSION.
        """
        core = self._begin(now_ms)
        if not core.is_stopped and core.requests.is_response_expected(
            sent.node_id, correlation_id=sent.correlation_id
        ):
            is_success = self._answered(sent, response) is Outcome.DONE
            if is_success:
                core.logged_errors.pop(sent.node_id, None)
            core.requests.on_response_result(
                sent.node_id, correlation_id=sent.correlation_id, now_ms=now_ms, success=is_success
            )
        return self._end()

    def _answered(self, sent: Send, response: QuorumResponse | None) -> Outcome:
        core, sender_id = self._core, sent.node_id
        match response:
            case None if isinstance(sent.message, ApiVersionsRequest):
                return reconfiguration.handle_api_versions_response(core, sender_id, None)
            case None:
                return Outcome.BACK_OFF
            case ApiVersionsResponse():
                assert isinstance(sent.message, ApiVersionsRequest), sent
                return reconfiguration.handle_api_versions_response(core, sender_id, response)
            case FetchResponse():
                return follower_fetch.handle_fetch_response(core, sender_id, response)
            case FetchSnapshotResponse():
                return follower_fetch_snapshot.handle_fetch_snapshot_response(core, sender_id, response)
            case VoteResponse():
                return voting.handle_vote_response(core, sender_id, response)
            case BeginQuorumEpochResponse() | EndQuorumEpochResponse():
                return quorum_epochs.handle_quorum_epoch_response(core, sender_id, response)
            case UpdateRaftVoterResponse():
                return voter_updates.handle_update_voter_response(core, sender_id, response)
            case AddRaftVoterResponse() | RemoveRaftVoterResponse():
                return voter_updates.handle_voter_change_response(core, sender_id, response)
            case _:
                assert_never(response)

    def tick(self, now_ms: int) -> list[Effect]:
        """Carry out what is due. It is called at `next_deadline_ms`, and harmless at any other time."""
        self._begin(now_ms)
        return self._end()

    def appended(self, now_ms: int, end_offset: int) -> list[Effect]:
        """The driver has appended records up to this offset, as the leader; ignored if the node no longer leads."""
        core = self._begin(now_ms)
        if not core.is_stopped and isinstance(core.role, Leader):
            assert end_offset <= core.log.end.offset, (end_offset, core.log.end)
            high_watermark.appended(core)
        return self._end()

    def flushed(self, now_ms: int, end_offset: int) -> list[Effect]:
        """Everything before this offset is durable here: a `Flush` was carried out; no other event came in between."""
        core = self._begin(now_ms)
        if not core.is_stopped and isinstance(core.role, Leader):
            assert end_offset <= core.log.end.offset, (end_offset, core.log.end)
            high_watermark.flushed(core, end_offset)
        return self._end()

    def frozen(self, now_ms: int, error: KafkaError | None) -> list[Effect]:
        """Continue after a `Freeze`; `error` if the snapshot is corrupt. No other event came in between."""
        core = self._begin(now_ms)
        if not core.is_stopped:
            follower_fetch_snapshot.snapshot_frozen(core, error)
        return self._end()

    def resign(self, now_ms: int, epoch: int) -> list[Effect]:
        """Resign the leadership of this epoch; ignored if this node does not lead it."""
        core = self._begin(now_ms)
        if isinstance(core.role, Leader) and core.role.epoch == epoch:
            core.role.must_resign = True
        return self._end()

    def upgrade_kraft_version(
        self, now_ms: int, *, epoch: int, version: int, validate_only: bool = False
    ) -> list[Effect]:
        """Raise kraft.version as the leader of this epoch. Raises NotController, InvalidUpdateVersion."""
        core = self._begin(now_ms)
        reconfiguration.upgrade_kraft_version(core, epoch=epoch, version=version, validate_only=validate_only)
        return self._end()

    def shutdown(self, now_ms: int, *, timeout_ms: int = SHUTDOWN_TIMEOUT_MS) -> list[Effect]:
        """Shut down: the leader of other voters resigns first. The effect `Stopped` marks completion."""
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

    # -- state -----------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """The role of this replica, with the state of that role. Read only."""
        return self._core.role

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The leader of the epoch; leader_id is None if it is not known, or is this node and has resigned."""
        return self._core.leader_and_epoch

    @property
    def leader_address(self) -> Address | None:
        """The leader's address on `listener_name`; None if it is not known."""
        if self.leader_and_epoch.leader_id is None:
            return None
        return self._core.leader_endpoints.get(self._core.settings.listener_name)

    def is_leader_of(self, epoch: int) -> bool:
        """Whether this node leads the epoch, and may append."""
        role = self._core.role
        return isinstance(role, Leader) and role.epoch == epoch and not self._core.is_stopped

    @property
    def epoch_start_offset(self) -> int | None:
        """Start of the epoch that this node leads: records before it are of former leaders. None if it leads none."""
        role = self._core.role
        return role.epoch_start_offset if isinstance(role, Leader) else None

    @property
    def high_watermark(self) -> int | None:
        """The high watermark; None until this node learns it after its start."""
        return self._core.high_watermark

    @property
    def is_voter(self) -> bool:
        """Whether this node is a voter as of the end of its log."""
        return self._core.is_voter

    @property
    def voters(self) -> VoterSet:
        """The voter set as of the end of the log, committed or not."""
        return self._core.voters

    @property
    def kraft_version(self) -> int:
        """The kraft.version as of the end of the log."""
        return self._core.history.kraft_version

    def voters_at(self, offset: int) -> VoterSet | None:
        """The voter set as of the record at `offset`; None under kraft.version 0. For a snapshot up to that record."""
        return self._core.history.voters_at(offset)

    def kraft_version_at(self, offset: int) -> int:
        """The kraft.version as of the record at `offset`. For a snapshot up to that record."""
        return self._core.history.kraft_version_at(offset)


def _bootstrap_nodes(settings: RaftSettings) -> list[Node]:
    if settings.bootstrap_servers:
        return [
            Node(_FIRST_BOOTSTRAP_ID - place, address)
            for place, address in enumerate(settings.bootstrap_servers)
        ]
    return [Node(id, address) for id, address in settings.static_voters.items() if id != settings.node_id]
