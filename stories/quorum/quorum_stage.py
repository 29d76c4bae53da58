"""A quorum of Raft state machines; a story says which messages arrive, and for which node time passes.

| command | meaning |
|---|---|
| `voters 1 2 3` | a new quorum whose voters are in the log (kraft.version 1) |
| `voters 1 2 3 of kraft.version 0` | one whose voters are configured |
| `observer 4`, `observer 4 joins` | a controller that is no voter; with controller.quorum.auto.join.enable |
| `1 has a:e1 b:e2 in e3` | 1 starts with these records and this epoch in quorum-state |
| `1 times out` | time passes for 1 until its role changes |
| `500 ms pass for 1` | so much time passes for 1 |
| `1 asks 2` | the request that 1 has for 2 arrives, and its response |
| `1 asks 2 without delivery`, `... without response` | the request, or its response, is lost |
| `1 asks all` | the same for all nodes for which 1 has a request |
| `2 fetches`, `2 catches up` | 2 asks its leader, once, or until the leader delays the response; `all catch up` |
| `1 leads e1` | 1 wins the election of e1; all nodes that it reaches follow and catch up; prints nothing |
| `1 writes a b` | the leader appends a batch |
| `1 deletes before 5` | 1 writes a snapshot up to there, and deletes the log before it |
| `1 resigns`, `1 shuts down` | |
| `2 stops`, `2 restarts`, `2 starts with a new disk` | its process; `... disk joins` is with auto.join.enable |
| `2 is cut off`, `2 is connected` | nothing from or to 2 arrives; it does again |
| `2 has no pre-votes` | its release does not know them |
| `4 supports kraft.version 0-0` | its ApiVersions response from now on |
| `add 4 at 1`, `remove 3 at 1`, `remove 3' at 1` | a request of an admin client; 3' is on the new disk |
| `raise kraft.version at 1` | UpdateFeatures |
| `quietly ...` | the command after it, without its output |
| `show` | roles, high watermarks, logs |

`1 -> 2` is a request of 1, `1 <- 2` its response; `2: ...` is what 2 becomes or does, in this order: quorum-state
and log are made durable before a response or the next request is sent. Time and disks are those of `raft_replicas`.
"""

from contextlib import nullcontext
from typing import Any, Literal
from uuid import UUID

from ottla.controller.raft.effects import (
    Committed,
    Effect,
    Fatal,
    Flush,
    Persist,
    Send,
    SnapshotLoaded,
    Stopped,
)
from ottla.controller.raft.roles import Candidate, Leader, Prospective
from ottla.controller.raft.types import ElectionState, OffsetAndEpoch, RaftSettings
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.messages.vote import VoteResponse
from ottla.stories import wire
from ottla.stories.quorum import quorum_lines as lines
from ottla.stories.quorum import quorum_rules as rules
from ottla.stories.quorum.quorum_places import Kind, decisions
from ottla.stories.quorum.raft_replicas import (
    CLUSTER_ID,
    LISTENER,
    MemoryLog,
    Replica,
    address,
    directory,
    dynamic_log,
    over_the_wire,
    settings,
)
from ottla.stories.rules import Place, event
from ottla.stories.stage import BadCommand, Stage
from ottla.stories.trace import Step

_NEW_DISK = UUID(int=77)
_ADMIN = "admin"
#: Steps in which time passes until something happens.
_STEP_MS, _LIMIT_MS = 50, 20_000


class Node(Replica):
    """A replica that notes what it becomes and does."""

    def __init__(self, stage: "QuorumStage", config: RaftSettings, **others: Any) -> None:
        self._stage = stage
        self._seen = ("", "")
        self._end_offset = 0
        super().__init__(config, seed=config.node_id, **others)

    @property
    def name(self) -> str:
        """The node in the story; with a prime on a new disk."""
        return lines.node(self.id, self.settings.directory_id)

    def do(self, effects: list[Effect]) -> list[Effect]:
        """Note what has changed and what is done now, then do it."""
        end_offset = self.log.end.offset
        places = self._stage.places_of(self)
        if end_offset < self._end_offset:
            self._note_line(f"truncate to {end_offset}", (rules.TRUNCATION, rules.TRUNCATION_PLACE))
        self._end_offset = end_offset
        voters = " ".join(lines.node(each.id, each.directory_id) for each in self.raft.voters.keys)
        now = (lines.role_line(self.role), f"voters {voters}")
        reasons = (
            (rules.of_role(self.role, places["role"]), places["role"]) if "role" in places else None,
            (rules.VOTERS, places["voters"]) if "voters" in places else None,
        )
        for before, after, applied in zip(self._seen, now, reasons, strict=True):
            if before not in ("", after):
                self._note_line(after, applied)
        self._seen = now
        for effect in effects:
            self._note(effect, rules.of_effect(effect, self.role, places))
        return super().do(effects)

    def _note(self, effect: Effect, applied: rules.Applied | None) -> None:
        match effect:
            case Persist(state):
                self._note_line(lines.state_line(state), applied)
            case Flush(end_offset):
                self._note_line(f"flush {end_offset}", applied)
            case Committed(high_watermark):
                self._note_line(f"HW {high_watermark}", applied)
            case SnapshotLoaded(snapshot):
                self._note_line(f"snapshot loaded, log starts at {snapshot.offset}", applied)
            case Fatal(reason):
                self._note_line(f"must stop, {reason}", applied)
            case Stopped():
                self._note_line("stopped", applied)

    def _note_line(self, what: str, applied: rules.Applied | None) -> None:
        line = f"{self.name}: {what}"
        self._stage.note(line)
        if applied is not None:
            self._stage.note_rule(self.name, line, applied)


class QuorumStage(Stage):
    """The stage of stories about the metadata quorum: nodes, their logs, and the messages between them."""

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    def close(self) -> None:
        """Do nothing, since nothing is open."""

    def observe(self, step: Step) -> None:
        """Write the nodes and their logs into a step."""
        step.nodes = [
            rules.node_of(node, is_up=id not in self._down, is_cut_off=id in self._cut)
            for id, node in sorted(self.nodes.items())
        ]

    def _clear(self) -> None:
        self.nodes: dict[int, Node] = {}
        self._down: set[int] = set()
        self._cut: set[int] = set()
        self._without_pre_votes: set[int] = set()
        self._noted: list[str] = []
        self._is_quiet = False
        self._levels: dict[int, tuple[int, int]] = {}
        #: Requests that were received and not answered, by token.
        self._waiting: dict[object, tuple[Node, Send]] = {}
        #: Where a Core or its history has decided something that was not noted yet, by its identity.
        self._places: dict[int, dict[Kind, Place]] = {}

    def __call__(self, line: str) -> list[str]:
        """Carry out a command of the story; the lines that it comes to."""
        if not self.nodes and not line.startswith("voters "):
            raise BadCommand.first("voters 1 2 3")
        self._is_quiet = line.startswith("quietly ")
        with decisions(self._note_place) if self.is_recorded else nullcontext():
            self._play(line.removeprefix("quietly ").split())
        noted, self._noted = self._noted, []
        return noted

    def note(self, line: str) -> None:
        """Add a line to the output, unless the command is quiet."""
        if not self._is_quiet:
            self._noted.append(line)

    def note_rule(self, name: str, line: str, applied: rules.Applied) -> None:
        """Note what a node does for the trace, and the rule that it applies."""
        if self.is_recorded:
            self.events.append(event(name, line, *applied))

    def _note_place(self, owner: object, kind: Kind, place: Place) -> None:
        self._places.setdefault(id(owner), {})[kind] = place

    def places_of(self, node: Replica) -> dict[Kind, Place]:
        """Return where a node has decided what its effects carry out; each place is returned once."""
        core = node.raft._core
        return self._places.pop(id(core), {}) | self._places.pop(id(core.history), {})

    def _note_message(
        self,
        body: Any,
        kind: Literal["request", "response"],
        sender: str,
        receiver: str,
        *,
        lost: bool = False,
    ) -> None:
        """Note a message for the trace, in its last version, as it is on the wire."""
        if not self.is_recorded:
            return
        is_request = kind == "request"
        text = lines.request_line(body) if is_request else lines.response_line(body)
        names = f"{sender} -> {receiver}" if is_request else f"{receiver} <- {sender}"
        cls = type(body)
        self.messages.append(
            wire.message(
                body,
                sender=sender,
                receiver=receiver,
                kind=kind,
                key=cls.__api_key__,
                version=cls.__versions__.last,
                line=f"{names} {text}",
                correlation_id=len(self.messages) + 1,
                lost=lost,
            )
        )

    def _play(self, words: list[str]) -> None:
        match words:
            case ["voters", *ids]:
                self._begin(ids)
            case ["observer", id, *joins]:
                self._is_quiet = True
                self._start(int(id), self._settings(int(id), auto_join_enable=bool(joins)))
            case ["show"]:
                for each in self._up():
                    self._show(each)
            case ["all", "catch", "up"]:
                self._all_catch_up()
            case [ms, "ms", "pass", "for", id]:
                self.nodes[int(id)].pass_time(int(ms))
            case [("add" | "remove") as what, key, "at", id]:
                self._change(what, key, self.nodes[int(id)])
            case ["raise", "kraft.version", "at", id]:
                self._upgrade(self.nodes[int(id)])
            case [id, *what] if id.isdecimal() and int(id) in self.nodes:
                self._play_node(self.nodes[int(id)], what)
            case _:
                raise BadCommand.unknown()
        self._deliver_responses()

    def _play_node(self, node: Node, words: list[str]) -> None:
        match words:
            case ["times", "out"]:
                self._time_out(node)
            case ["asks", "all"]:
                self._ask_all(node)
            case ["asks", id, *loss]:
                self._ask(node, self.nodes[int(id)], " ".join(loss))
            case ["fetches"]:
                self._fetch(node)
            case ["catches", "up"]:
                self._catch_up(node)
            case ["leads", epoch]:
                self._is_quiet = True
                self._lead(node, int(epoch[1:]))
            case ["writes", *values]:
                node.write(*values)
            case ["resigns"]:
                node.do(node.raft.resign(node.now_ms, node.role.epoch))
            case ["shuts", "down"]:
                node.do(node.raft.shutdown(node.now_ms))
            case ["has", "no", "pre-votes"]:
                self._without_pre_votes.add(node.id)
            case ["supports", "kraft.version", levels]:
                lowest, highest = levels.split("-")
                self._levels[node.id] = (int(lowest), int(highest))
            case _:
                self._live(node, words)

    def _live(self, node: Node, words: list[str]) -> None:
        match words:
            case ["stops"]:
                self._down.add(node.id)
                self._forget_requests(node)
                self._waiting = {
                    token: (requester, sent)
                    for token, (requester, sent) in self._waiting.items()
                    if sent.to != address(node.id)
                }
            case ["restarts"]:
                self._start(node.id, node.settings, log=node.log, election=node.election, now_ms=node.now_ms)
            case ["starts", "with", "a", "new", "disk", *joins]:
                self._start(
                    node.id,
                    self._settings(node.id, directory_id=_NEW_DISK, auto_join_enable=bool(joins)),
                    now_ms=node.now_ms,
                )
            case ["deletes", "before", offset]:
                node.log.snapshot(OffsetAndEpoch(int(offset), node.role.epoch))
                node.log.begin_at(int(offset))
            case ["is", "cut", "off"]:
                self._cut.add(node.id)
            case ["is", "connected"]:
                self._cut.discard(node.id)
            case ["has", *records, "in", epoch]:
                self._is_quiet = True
                log = MemoryLog()
                for record in records:
                    value, _, of = record.partition(":e")
                    log.append(value, epoch=int(of))
                election = ElectionState(leader_epoch=int(epoch[1:]), leader_id=None, kraft_version=0)
                self._start(node.id, node.settings, log=log, election=election)
            case _:
                raise BadCommand.unknown()

    # -- nodes

    def _begin(self, words: list[str]) -> None:
        self._clear()
        self._is_quiet = True
        is_static = "of" in words
        ids = [int(word) for word in (words[: words.index("of")] if is_static else words)]
        for id in ids:
            if is_static:
                self._start(id, settings(id, ids))
            else:
                servers = tuple(address(each) for each in ids)
                self._start(id, settings(id, (), bootstrap_servers=servers), log=dynamic_log(*ids))

    def _settings(self, id: int, **others: Any) -> RaftSettings:
        servers = tuple(address(each) for each in self.nodes if each != id)
        return settings(id, (), bootstrap_servers=servers, **others)

    def _start(self, id: int, config: RaftSettings, **others: Any) -> None:
        self._down.discard(id)
        if id in self.nodes:
            self._forget_requests(self.nodes[id])
        self.nodes[id] = Node(self, config, **others)

    def _up(self) -> list[Node]:
        return [each for id, each in sorted(self.nodes.items()) if id not in self._down]

    def _show(self, node: Node) -> None:
        role = lines.role_line(node.role)
        high_watermark = "-" if node.raft.high_watermark is None else node.raft.high_watermark
        self.note(f"{node.name} {role} HW {high_watermark} | {lines.log_line(node.log.batches)}")

    def _time_out(self, node: Node) -> None:
        self._forget_requests(node)
        former = type(node.role)
        for _ in range(_LIMIT_MS // _STEP_MS):
            node.pass_time(_STEP_MS)
            if type(node.role) is not former:
                return
        raise AssertionError(node.role)

    def _forget_requests(self, node: Node) -> None:
        """No response arrives any more to what the node has asked."""
        node.sends.clear()
        self._waiting = {
            token: (requester, sent)
            for token, (requester, sent) in self._waiting.items()
            if requester is not node
        }

    # -- messages

    def _asked_by(self, node: Node) -> list[Node]:
        addresses = {sent.to for sent in node.sends}
        return [each for id, each in sorted(self.nodes.items()) if address(id) in addresses]

    def _ask(self, node: Node, to: Node, loss: str = "") -> None:
        """Carry the last request that the node has for another, and the response."""
        found = [sent for sent in node.sends if sent.to == address(to.id)]
        assert found, f"{node.name} has no request for {to.name}: {node.role}"
        node.sends = [sent for sent in node.sends if sent not in found]
        sent = found[-1]
        self.note(f"{node.name} -> {to.name} {lines.request_line(sent.message)}")
        is_lost = loss == "without delivery" or bool({node.id, to.id} & (self._cut | self._down))
        self._note_message(sent.message, "request", node.name, to.name, lost=is_lost)
        if is_lost:
            self._lose(node, sent)
        elif to.id in self._without_pre_votes and lines.is_pre_vote(sent.message):
            self._respond(node, to, sent, VoteResponse(error_code=ErrorCode.unsupported_version))
        elif isinstance(sent.message, ApiVersionsRequest):
            lowest, highest = self._levels.get(to.id, (0, 1))
            feature = SupportedFeatureKey(name="kraft.version", min_version=lowest, max_version=highest)
            self._respond(node, to, sent, ApiVersionsResponse(supported_features=[feature]))
        else:
            token = object()
            self._waiting[token] = (node, sent)
            to.do(to.raft.receive(to.now_ms, over_the_wire(sent.message, {}), token))
            if loss == "without response":
                del self._waiting[token]
                if (response := to.replies.pop(token, None)) is not None:
                    self._note_message(response, "response", to.name, node.name, lost=True)
                self._lose(node, sent)
            self._deliver_responses()

    def _ask_all(self, node: Node) -> None:
        """All requests of the node's role: those of the next one stay."""
        role = node.role
        for to in self._asked_by(node):
            if node.role is role:
                self._ask(node, to)

    def _lose(self, node: Node, sent: Send) -> None:
        self.note(f"{node.name} <- no response")
        node.do(node.raft.answered(node.now_ms, sent, None))
        node.pass_time(node.settings.retry_backoff_ms)

    def _respond(self, node: Node, to: Node, sent: Send, response: Any) -> None:
        self.note(f"{node.name} <- {to.name} {lines.response_line(response)}")
        self._note_message(response, "response", to.name, node.name)
        node.do(node.raft.answered(node.now_ms, sent, response))

    def _deliver_responses(self) -> None:
        is_busy = True
        while is_busy:
            is_busy = False
            for to in self._up():
                for token, response in list(to.replies.items()):
                    del to.replies[token]
                    is_busy = True
                    if token is _ADMIN:
                        self.note(f"admin <- {to.name} {lines.response_line(response)}")
                        self._note_message(response, "response", to.name, _ADMIN)
                    elif token in self._waiting:
                        node, sent = self._waiting.pop(token)
                        if {node.id, to.id} & self._cut:
                            self._lose(node, sent)
                        else:
                            self._respond(node, to, sent, over_the_wire(response, {}))

    def _leader_of(self, node: Node) -> Node | None:
        id = node.raft.leader_and_epoch.leader_id
        return None if id is None or id == node.id else self.nodes[id]

    def _reachable_leader_of(self, node: Node) -> Node | None:
        leader = self._leader_of(node)
        lost = self._cut | self._down
        return None if leader is None or {node.id, leader.id} & lost else leader

    def _fetch(self, node: Node) -> None:
        leader = self._leader_of(node)
        assert leader is not None, node.role
        self._ask(node, leader)

    def _catch_up(self, node: Node) -> None:
        """Deliver fetches until the node's last one is delayed at its leader."""
        while (leader := self._reachable_leader_of(node)) is not None and leader in self._asked_by(node):
            self._ask(node, leader)

    def _all_catch_up(self) -> None:
        is_busy = True
        while is_busy:
            is_busy = False
            for node in self._up():
                leader = self._reachable_leader_of(node)
                if leader is not None and leader in self._asked_by(node):
                    self._catch_up(node)
                    is_busy = True

    def _lead(self, node: Node, epoch: int) -> None:
        if not isinstance(node.role, Prospective | Candidate):
            self._time_out(node)
        self._ask_all(node)  # pre-votes
        self._ask_all(node)  # votes
        assert isinstance(node.role, Leader), node.role
        assert node.role.epoch == epoch, node.role
        for to in self._asked_by(node):
            self._ask(node, to)
        for other in self._up():
            if other.role.epoch < epoch and not {other.id, node.id} & self._cut:
                for to in self._asked_by(other):  # an observer finds the leader
                    self._ask(other, to)
        self._all_catch_up()

    # -- changes

    def _change(self, what: str, key: str, leader: Node) -> None:
        id = int(key.removesuffix("'"))
        directory_id = _NEW_DISK if key.endswith("'") else directory(id)
        request: AddRaftVoterRequest | RemoveRaftVoterRequest
        if what == "add":
            host, port = address(id)
            request = AddRaftVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=id,
                voter_directory_id=directory_id,
                listeners=[Listener(name=LISTENER, host=host, port=port)],
                ack_when_committed=True,
            )
        else:
            request = RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=id, voter_directory_id=directory_id
            )
        self.note(f"admin -> {leader.name} {lines.request_line(request)}")
        self._note_message(request, "request", _ADMIN, leader.name)
        leader.do(leader.raft.receive(leader.now_ms, request, _ADMIN))

    def _upgrade(self, leader: Node) -> None:
        try:
            effects = leader.raft.upgrade_kraft_version(leader.now_ms, epoch=leader.role.epoch, version=1)
        except KafkaError as error:
            self.note(f"admin <- {leader.name} {error.code.name.upper()}")
        else:
            leader.do(effects)
            self.note(f"admin <- {leader.name} done")
