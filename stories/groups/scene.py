"""A group on a stage: virtual time, a log whose commits the test decides, and clients that keep their answers."""

from dataclasses import dataclass, field
from typing import Any

from ottla.broker.groups.actions import (
    Action,
    AnswerJoin,
    AnswerSync,
    CancelTimer,
    SetTimer,
    Store,
    Timer,
    TimerSlot,
)
from ottla.broker.groups.config import GroupConfig
from ottla.broker.groups.group import ClassicGroup
from ottla.broker.groups.group_metadata import group_from_value
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.joining import Joiner, join, leave
from ottla.broker.groups.sessions import heartbeat, on_loaded, on_timer
from ottla.broker.groups.storing import end_group, on_stored
from ottla.broker.groups.syncing import sync
from ottla.protocol.coordinator.group_records import GroupMetadataValue
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse


@dataclass
class Client:
    """The state of a client: its id and generation, and the way in which it joins."""

    name: str
    member_id: str = ""
    generation_id: int = -1
    leader: str = ""
    protocols: tuple[str, ...] = ("range",)
    protocol_type: str = "consumer"
    subscription: bytes = b"s"
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    instance_id: str | None = None
    version: int = 9
    assignment: bytes | None = None
    #: The kind of request that has not been answered, "" if none: "join" or "sync".
    waits_for: str = ""
    #: Answers in the order in which they came.
    answers: list[JoinGroupResponse | SyncGroupResponse] = field(default_factory=list)


@dataclass(frozen=True)
class Waiter:
    """A request of a client; equal to itself only, as a future is."""

    client: str
    number: int


class Scene:
    """One group, its clients, its timers and its log."""

    def __init__(self, **config: Any) -> None:
        self.config = GroupConfig(**config)
        self.now_ms = 0
        self.group = ClassicGroup("g", self.config, state_timestamp_ms=0)
        self.clients: dict[str, Client] = {}
        self.timers: dict[TimerSlot, tuple[int, int, Timer]] = {}
        #: Records that are appended and not committed.
        self.appended: list[Store] = []
        self.is_log_held = False
        self.log: list[GroupMetadataValue] = []
        #: What happened since it was last asked for, as lines of a scenario.
        self.events: list[str] = []
        self._waiters: dict[Waiter, str] = {}
        self._counter = 0

    # Requests

    def client(self, name: str, **wishes: object) -> Client:
        """The client of this name, made up on first use; wishes that are given replace older ones."""
        client = self.clients.setdefault(name, Client(name))
        for wish, value in wishes.items():
            setattr(client, wish, value)
        return client

    def join(self, name: str, **wishes: object) -> None:
        """Send JoinGroup; the wishes replace those of the client."""
        client = self.client(name, **wishes)
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=client.session_timeout_ms,
            rebalance_timeout_ms=client.rebalance_timeout_ms,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type=client.protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=protocol, metadata=client.subscription)
                for protocol in client.protocols
            ],
        )
        client.waits_for = "join"
        joiner = Joiner(
            waiter=self._waiter(name),
            version=client.version,
            client_id=name,
            client_host="/127.0.0.1",
            unique=str(self._counter),
        )
        self.do(join(self.group, request, joiner, now_ms=self.now_ms))

    def sync(self, name: str, assignments: dict[str, bytes] | None = None) -> None:
        """`assignments` are by the names of clients."""
        client = self.clients[name]
        rows = [
            SyncGroupRequestAssignment(member_id=self.clients[to].member_id, assignment=assignment)
            for to, assignment in (assignments or {}).items()
        ]
        request = SyncGroupRequest(
            group_id="g",
            generation_id=client.generation_id,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            assignments=rows,
        )
        client.waits_for = "sync"
        self.do(sync(self.group, request, self._waiter(name)))

    def heartbeat(self, name: str) -> ErrorCode:
        """Send Heartbeat; returns its error."""
        client = self.clients[name]
        request = HeartbeatRequest(
            group_id="g",
            generation_id=client.generation_id,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
        )
        try:
            error, actions = heartbeat(self.group, request)
        except KafkaError as raised:
            error, actions = raised.code, []
        self.do(actions)
        self.events.append(f"{name} <- {error.name}")
        return error

    def leave(self, *leavers: MemberIdentity) -> list[ErrorCode]:
        """Send LeaveGroup; returns the error of each member."""
        rows, actions = leave(self.group, list(leavers), now_ms=self.now_ms)
        for row in rows:
            who = row.member_id or f"instance {row.group_instance_id}"
            self.events.append(f"{who} left: {ErrorCode(row.error_code).name}")
        self.do(actions)
        return [ErrorCode(row.error_code) for row in rows]

    # Time and log

    def pass_time(self, duration_ms: int) -> None:
        """Fire what becomes due, in order."""
        until = self.now_ms + duration_ms
        while due := min((running for running in self.timers.values() if running[0] <= until), default=None):
            self.now_ms, _, timer = due
            del self.timers[timer.slot]
            self.do(on_timer(self.group, timer, now_ms=self.now_ms))
        self.now_ms = until

    def settle(self, error: ErrorCode | None = None) -> None:
        """The log commits, or refuses, what was appended."""
        appended, self.appended = self.appended, []
        for store in appended:
            if error is None:
                self.log.append(store.value)
                self.events.append(f"stored {describe_value(store.value)}")
            else:
                self.events.append(f"not stored: {error.name}")
            if self.group.state is not GroupState.DEAD:
                self.do(on_stored(self.group, store.then, error, now_ms=self.now_ms))

    def restart(self) -> None:
        """Another broker, or this one again, reads the group from the log."""
        self.do(end_group(self.group, ErrorCode.not_coordinator, now_ms=self.now_ms))
        self.timers.clear()
        self.appended.clear()
        if self.log:
            self.group = group_from_value("g", self.log[-1], self.config)
        else:
            self.group = ClassicGroup("g", self.config, state_timestamp_ms=self.now_ms)
        self.do(on_loaded(self.group, now_ms=self.now_ms))

    # Carrying out

    def do(self, actions: list[Action]) -> None:
        """Carry out what the group has decided."""
        for action in actions:
            match action:
                case AnswerJoin(waiter=waiter, response=response):
                    self._answer(waiter, response)
                case AnswerSync(waiter=waiter, response=response):
                    self._answer(waiter, response)
                case SetTimer(timer, delay_ms):
                    self._counter += 1
                    self.timers[timer.slot] = (self.now_ms + delay_ms, self._counter, timer)
                case CancelTimer(slot):
                    self.timers.pop(slot, None)
                case Store():
                    self.appended.append(action)
        if not self.is_log_held and self.appended:
            self.settle()

    def _waiter(self, name: str) -> Waiter:
        self._counter += 1
        waiter = Waiter(name, self._counter)
        self._waiters[waiter] = name
        return waiter

    def _answer(self, waiter: object, response: JoinGroupResponse | SyncGroupResponse) -> None:
        assert isinstance(waiter, Waiter)
        name = self._waiters.pop(waiter)  # KeyError: answered twice
        client = self.clients[name]
        client.answers.append(response)
        if name not in self._waiters.values():
            client.waits_for = ""
        error = ErrorCode(response.error_code)
        if isinstance(response, JoinGroupResponse):
            if error in (ErrorCode.none, ErrorCode.member_id_required):
                client.member_id = response.member_id
            if error is ErrorCode.none:
                client.generation_id, client.leader = response.generation_id, response.leader
                client.assignment = None
        elif error is ErrorCode.none:
            client.assignment = response.assignment
        self.events.append(f"{name} <- {describe_answer(response)}")

    @property
    def unanswered(self) -> list[str]:
        """The clients whose requests wait."""
        return list(self._waiters.values())


def describe_answer(response: JoinGroupResponse | SyncGroupResponse) -> str:
    """Return a response in words."""
    error = ErrorCode(response.error_code)
    if isinstance(response, SyncGroupResponse):
        return error.name if error else f"assigned {response.assignment.decode() or 'nothing'}"
    if error:
        return error.name + (f" id={response.member_id}" if response.member_id else "")
    text = f"generation {response.generation_id} as {response.member_id}: {response.protocol_name}"
    text += f", leader {response.leader}"
    if response.members:
        text += f", members {' '.join(member.member_id for member in response.members)}"
    return text + (", skip assignment" if response.skip_assignment else "")


def describe_value(value: GroupMetadataValue) -> str:
    """Return the stored value of a group in words."""
    members = " ".join(f"{row.member_id}={row.assignment.decode() or 'nothing'}" for row in value.members)
    return f"generation {value.generation}: {members or 'no members'}"


def describe_group(group: ClassicGroup) -> str:
    """Return the state of a group in words."""
    parts = [f"{group.state.value} generation {group.generation_id}"]
    if group.members:
        parts.append(f"members {' '.join(group.members)}")
    if group.pending_join:
        parts.append(f"to join {' '.join(group.pending_join)}")
    if group.pending_sync:
        parts.append(f"to sync {' '.join(group.pending_sync)}")
    return ", ".join(parts)
