"""Replicas of one partition on a stage: a story says who leads, writes, fetches and fails, line by line.

| command | meaning |
|---|---|
| `replicas A B` | a new stage: a broker each, with empty logs on a disk of its own; `A:east` is in a rack |
| `... one batch a fetch` | added to `replicas`: replica.fetch.max.bytes is small |
| `A leads e1`, `A leads e1 isr A B` | the controller elects A (with that ISR); all running brokers replay it |
| `the isr is A B` | the controller has changed the ISR |
| `A writes m1 m2`, `A writes m3+m4` | a batch each; one batch of two records |
| `B fetches` | B sends its request to the leader that it knows; one that the leader delays is answered later |
| `B fetches without response` | the same, and the response is lost |
| `B catches up` | B fetches until the leader delays the response |
| `B replays nothing`, `B replays` | the metadata log does not reach B; it does again |
| `A flushes` | what A has is on its disk |
| `A dies`, `A loses power` | its process ends; its machine does, with all that was not flushed |
| `A is fenced` | the controller has noticed |
| `A comes back`, `A restarts` | a new process; one at once, without loss |
| `A deletes before 2` | DeleteRecords on a leader, retention on a follower |
| `consumer reads 3 from B`, `... in east` | a Fetch without a session |
| `consumer asks B for latest`, `debugger ...` | ListOffsets with replica id -1, or -2; `earliest` and `max` too |
| `consumer asks A where e0 ends`, `replica B ...` | OffsetForLeaderEpoch |
| `500 ms pass` | nothing happens for so long |
| `show` | the logs, and whether they agree and still have what was committed |

A millisecond passes before a leader writes, so that no high watermark waits for its records
(`broker/replicas/reading/high_watermark_delay.py`). What is below a leader's high watermark is committed.
`Follower` machines, fetchers, sessions, partitions and handlers are those of a broker; between a follower and
its leader is a `Line`, which delivers one request when the story says so.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import currentframe, isawaitable
from typing import Any, Literal
from unittest.mock import patch

from ottla.broker.network.client import ClientSettings
from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.following import leader_endpoint, partition_fetch_states, replica_fetcher_manager
from ottla.broker.replicas.partition import Partition
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.error_code import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.special_timestamps import EARLIEST, LATEST, MAX_TIMESTAMP
from ottla.protocol.types import TopicPartition
from ottla.replication.follower import Follower
from ottla.replication.follower_states import ReplicaState, Transition, Transitions
from ottla.replication.remote_log_aux import bootstrap_offset
from ottla.replication.replica_selector import RackAwareReplicaSelector
from ottla.runtime import Runtime
from ottla.runtime.simulated import Simulation
from ottla.stories import rules, wire
from ottla.stories.partition import replica_rules, replica_state
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.line import BACKOFF_S, VERSIONS, Line
from ottla.stories.partition.message_lines import error_of, fetched_line, response_line
from ottla.stories.partition.replicas import DATA, ReplicaBroker, ReplicaCluster, turns
from ottla.stories.stage import BadCommand, Stage
from ottla.stories.trace import Judgement, Replica, Step

ORDERS = TopicPartition("orders", 0)
_SPECIAL = {"latest": LATEST, "earliest": EARLIEST, "max": MAX_TIMESTAMP}
_WHO = {"consumer": -1, "debugger": -2}
#: Longer than any story: what is delayed is answered by an event, or by `ms pass`.
_PATIENCE_MS = 600_000
#: What an end of a broker's process, or of its machine, removes from its disk.
_LOSSES = {"dies": Loss.NOTHING, "restarts": Loss.NOTHING, "loses power": Loss.EVERYTHING}
_TRUNCATE_TO = FollowerReplica.truncate_to
_TRUNCATE_FULLY = FollowerReplica.truncate_fully_and_start_at
_ENTER = Follower._enter
#: Transitions that are followed by the truncation, which is the event.
_TRUNCATIONS = frozenset(
    row
    for row in vars(Transitions).values()
    if isinstance(row, Transition) and row.target is ReplicaState.TRUNCATING
)


class ReplicaStage(Stage):
    """The stage of stories about a partition's replicas; `follower` is the state machine of followers, or a
    mutant of it.
    """

    #: fetch.max.wait.ms of consumers.
    consumers_wait_ms = 0
    #: More than EXPECTED_WITHIN_S.
    before_a_write_s = 0.001

    def __init__(self, follower: type[Follower] = Follower) -> None:
        super().__init__()
        self._follower = follower
        self._clear()

    def _clear(self) -> None:
        self._simulation: Simulation | None = None
        self.cluster: ReplicaCluster
        self.names: dict[str, int] = {}
        self.lines: dict[str, Line] = {}
        self.committed: dict[int, str] = {}
        self.leader: str | None = None
        #: The highest version of an API that leaders serve, where it is not the newest.
        self.served: dict[int, int] = {}
        self._shown: list[str] = []
        #: What the replicas were after the last step; the transition that each follower's last decision was.
        self._last: dict[str, Replica] = {}
        self._followers: dict[str, Follower] = {}
        self._decisions: dict[str, tuple[Transition, rules.Place]] = {}
        #: Where the last follower that has asked begins; None: at its leader's local log start.
        self._begins_after_tiered: int | None = None

    def __call__(self, line: str) -> list[str]:
        """Play a line of the story; the lines of its output."""
        if line.startswith("replicas "):
            names, _, is_slow = line.removeprefix("replicas ").partition(" one batch")
            self._begin(names.split(), max_bytes=1 if is_slow else 1 << 20)
            return []
        if self._simulation is None:
            raise BadCommand.first("replicas A B")
        with self._hooks():
            self._simulation.run(self._play(line))
        self._note_commits()
        shown, self._shown = self._shown, []
        return shown

    def _line(self, runtime: Runtime, *, client_id: str, settings: ClientSettings) -> Line:
        return Line(self, int(client_id.split("-")[1]))

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Followers connect by lines, decide by this stage's state machine, and truncations are shown."""
        stage = self

        def truncate_to(replica: FollowerReplica, offset: int, *, now_ms: int) -> None:
            stage._on_truncation(replica, offset)
            _TRUNCATE_TO(replica, offset, now_ms=now_ms)

        def truncate_fully(replica: FollowerReplica, offset: int, *, now_ms: int) -> None:
            stage._on_full_truncation(replica, offset)
            _TRUNCATE_FULLY(replica, offset, now_ms=now_ms)

        def enter(follower: Follower, transition: Transition) -> None:
            frame = currentframe()
            assert frame is not None
            _ENTER(follower, transition)
            stage._on_transition(follower, transition, rules.deciding(frame.f_back))

        with ExitStack() as hooks:
            hooks.enter_context(patch.object(replica_fetcher_manager, "NodeClient", self._line))
            hooks.enter_context(patch.object(partition_fetch_states, "Follower", self._follower))
            hooks.enter_context(patch.object(FollowerReplica, "truncate_to", truncate_to))
            if self.is_recorded:
                hooks.enter_context(patch.object(leader_endpoint, "bootstrap_offset", self._bootstrap_offset))
                hooks.enter_context(
                    patch.object(FollowerReplica, "truncate_fully_and_start_at", truncate_fully)
                )
                hooks.enter_context(patch.object(Follower, "_enter", enter))
            yield

    def close(self) -> None:
        """End the play, and remove what it holds."""
        if self._simulation is not None:
            self._simulation.close()

    def show(self, line: str) -> None:
        """Add a line to the output."""
        self._shown.append(line)

    def name_of(self, node_id: int) -> str:
        """Return the name of a broker in the story."""
        return next(name for name, id in self.names.items() if id == node_id)

    def host(self, host: str) -> ReplicaBroker:
        """Return the broker of this host name."""
        return next(broker for broker in self.cluster.brokers.values() if broker.host == host)

    def broker(self, name: str) -> ReplicaBroker:
        """Return the broker of this name."""
        return self.cluster.brokers[self.names[name]]

    def partition(self, name: str) -> Partition:
        """Return the broker's replica of the partition."""
        return self.broker(name).partition(ORDERS)

    def _begin(self, names: list[str], *, max_bytes: int) -> None:
        self.close()
        self._clear()
        self._simulation = Simulation(seed=1)
        racks = {}
        for node_id, name in enumerate(names, 1):
            name, _, rack = name.partition(":")
            self.names[name] = node_id
            if rack:
                racks[node_id] = rack
        self.cluster = self._make_cluster(
            self._simulation,
            self.names.values(),
            racks=racks,
            fetching={"wait_max_ms": _PATIENCE_MS, "max_bytes": max_bytes},
        )
        self.cluster.create("orders", {0: list(self.names.values())})

    def _make_cluster(self, *arguments: Any, **options: Any) -> ReplicaCluster:
        return ReplicaCluster(*arguments, selector=RackAwareReplicaSelector(), **options)

    # -- commands --------------------------------------------------------------------------------------

    async def _play(self, line: str) -> None:
        words = line.split()
        if words[-1] in ("fetches", "response", "up"):
            await self._play_follower(words)
        elif words[1:] == ["ms", "pass"]:
            await asyncio.sleep(int(words[0]) / 1000)
        elif words[0] in ("consumer", "debugger", "replica"):
            await self._play_client(words)
        else:
            await self._play_broker(words)
        await self._settle()

    async def _play_follower(self, words: list[str]) -> None:
        line = self.lines[words[0]]
        match words[1:]:
            case ["fetches"]:
                await line.let_pass()
            case ["fetches", "without", "response"]:
                await line.let_pass(is_lost=True)
                await asyncio.sleep(BACKOFF_S)
            case ["catches", "up"]:
                await self._catch_up(line)
            case _:
                raise BadCommand.unknown()

    async def _play_client(self, words: list[str]) -> None:
        match words:
            case ["consumer", "reads", offset, "from", name, *place]:
                await self._read(name, int(offset), rack=place[1] if place else "")
            case [who, "asks", name, "for", special]:
                await self._ask_offset(name, _WHO[who], special)
            case ["replica", who, "asks", name, "where", epoch, "ends"]:
                await self._ask_end(name, who, self.names[who], int(epoch[1:]))
            case [who, "asks", name, "where", epoch, "ends"]:
                await self._ask_end(name, who, _WHO[who], int(epoch[1:]))
            case _:
                raise BadCommand.unknown()

    async def _play_broker(self, words: list[str]) -> None:
        match words:
            case [name, "leads", epoch, *isr]:
                self.leader = name
                members = [self.names[each] for each in isr[1:]] or None
                assert self.cluster.elect(ORDERS, self.names[name], members) == int(epoch[1:]), words
            case ["the", "isr", "is", *isr]:
                self.cluster.change(ORDERS, isr=sorted(self.names[name] for name in isr))
            case [name, "writes", *values]:
                await asyncio.sleep(self.before_a_write_s)
                for value in values:
                    self._write(name, value.split("+"))
            case [name, "replays", *nothing]:
                self.broker(name).replays = not nothing
                if not nothing:
                    self.broker(name).replay()
            case [name, "flushes"]:
                self.partition(name).log.flush()
            case [name, "deletes", "before", offset]:
                self._delete(name, int(offset))
            case ["show"]:
                self._show()
            case [name, *what]:
                await self._live(name, " ".join(what))

    async def _live(self, name: str, what: str) -> None:
        if name not in self.names or what not in ("is fenced", "comes back", *_LOSSES):
            raise BadCommand.unknown()
        if what == "is fenced":
            self.cluster.fence(self.names[name])
            return
        if what != "comes back":
            loss = _LOSSES[what]
            await self._die(name, loss)
        if what in ("comes back", "restarts"):
            self.broker(name).start()

    async def _settle(self) -> None:
        """Carry out all consequences: delayed responses are sent, and ISR changes are granted."""
        is_settled = False
        while not is_settled:
            is_settled = True
            await turns()
            for line in self.lines.values():
                is_settled &= not line.deliver()
            for broker, isr in self.cluster.grant():
                is_settled = False
                members = " ".join(self.name_of(member) for member in sorted(isr))
                what = f"{self.name_of(broker.node_id)}: the ISR is {members}"
                self.show(what)
                self.note_rule(self.name_of(broker.node_id), what, replica_rules.IN_SYNC)
            for broker in self.cluster.brokers.values():
                if broker.is_up:
                    broker.checkpoint()

    def _write(self, name: str, values: list[str]) -> None:
        partition = self.partition(name)
        now_ms = self.broker(name).runtime.now_ms()
        batch = build_batch(simple_records([(None, value.encode()) for value in values], timestamp=now_ms))
        partition.as_leader().append_records(bytearray(batch), required_acks=1, now_ms=now_ms)

    async def _catch_up(self, line: Line) -> None:
        for _ in range(20):
            if line.question is None:
                self.show(f"{line.name} asks nothing any more")
                return
            if line.delayed is not None:
                return
            await line.let_pass()
            await self._settle()
        self.show(f"{line.name} never catches up")

    async def _die(self, name: str, loss: Loss) -> None:
        broker = self.broker(name)
        await broker.crash(loss)
        self.lines.pop(name, None)
        for line in self.lines.values():
            await line.break_off(broker.host)

    def _delete(self, name: str, offset: int) -> None:
        partition = self.partition(name)
        if partition.is_leader:
            partition.as_leader().delete_records(offset)
        else:
            partition.log.maybe_increment_log_start_offset(offset, reason="retention")
            self.broker(name).replicas.notice_retention()

    async def _read(self, name: str, offset: int, *, rack: str) -> None:
        row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic_id = self.cluster.image.topics_by_name["orders"].topic_id
        request = FetchRequest(
            max_wait_ms=self.consumers_wait_ms,
            min_bytes=1,
            session_epoch=-1,
            rack_id=rack,
            topics=[FetchTopic(topic_id=topic_id, partitions=[row])],
        )
        response = await self._ask("consumer", name, ApiKey.FETCH, request, f"records from {offset}?")
        (answer,) = response.responses[0].partitions
        if answer.preferred_read_replica >= 0:
            self.show(f"read from {self.name_of(answer.preferred_read_replica)}")
        else:
            self.show(fetched_line(answer))

    async def _ask(self, client: str, name: str, key: int, request: Any, line: str) -> Any:
        """Return the response of a broker to a client, or to a replica beside its fetcher."""
        line = f"{client} -> {line}"
        self.note_message(key, request, kind="request", sender=client, receiver=name, line=line)
        response = self.broker(name).answer(key, request, VERSIONS[key])
        if isawaitable(response):
            response = await response
        line = f"{client} <- {response_line(key, response)}"
        self.note_message(key, response, kind="response", sender=name, receiver=client, line=line)
        return response

    async def _ask_offset(self, name: str, who: int, special: str) -> None:
        row = ListOffsetsPartition(partition_index=0, timestamp=_SPECIAL[special])
        request = ListOffsetsRequest(
            replica_id=who, topics=[ListOffsetsTopic(name="orders", partitions=[row])]
        )
        client = next(each for each, id in _WHO.items() if id == who)
        response = await self._ask(client, name, ApiKey.LIST_OFFSETS, request, f"{special} offset?")
        self.show(response_line(ApiKey.LIST_OFFSETS, response))

    async def _ask_end(self, name: str, client: str, who: int, epoch: int) -> None:
        row = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=who, topics=[OffsetForLeaderTopic(topic="orders", partitions=[row])]
        )
        line = f"where does e{epoch} end?"
        response = await self._ask(client, name, ApiKey.OFFSET_FOR_LEADER_EPOCH, request, line)
        (answer,) = response.topics[0].partitions
        self.show(error_of(answer) or f"e{answer.leader_epoch} ends at {answer.end_offset}")

    # -- judgement -------------------------------------------------------------------------------------

    def _up(self) -> list[str]:
        return [name for name in self.names if self.broker(name).is_up]

    def _note_commits(self) -> None:
        for name in self._up():
            if self.partition(name).is_leader:
                for at, _, value in replica_state.contents_of(self.partition(name).log):
                    if at < self.partition(name).log.high_watermark:
                        self.committed.setdefault(at, value)

    def _show(self) -> None:
        for name in self._up():
            log = self.partition(name).log
            written = (
                " ".join(
                    f"{value}:e{epoch}"
                    for _, epoch, value in replica_state.contents_of(self.partition(name).log)
                )
                or "empty"
            )
            epochs = " ".join(f"e{epoch}@{start}" for epoch, start in log.leader_epochs.entries)
            start = f" start={log.log_start_offset}" if log.log_start_offset else ""
            if log.local_log_start_offset > log.log_start_offset:
                start += f" local-start={log.local_log_start_offset}"
            self.show(f"{name} HW={log.high_watermark}{start} {written} | {epochs}".rstrip(" |"))
        if lost := self._lost():
            self.show(f"lost: {' '.join(lost)}")
        if (at := self._divergent_at()) is not None:
            self.show(f"divergent at {at}")

    def _lost(self) -> list[str]:
        """Return the committed records that the leader does not have."""
        if self.leader is None or not self.broker(self.leader).is_up:
            return []
        led = self._readable(self.leader)
        start = self.partition(self.leader).log.log_start_offset
        return [value for at, value in self.committed.items() if at >= start and led.get(at) != value]

    def _readable(self, name: str) -> dict[int, str]:
        """The value at each offset."""
        return {at: value for at, _, value in replica_state.contents_of(self.partition(name).log)}

    def _divergent_at(self) -> int | None:
        """Return the first offset at which two logs differ; None: they agree."""
        found = [replica_state.contents_of(self.partition(name).log) for name in self._up()]
        logs = [{at: (epoch, value) for at, epoch, value in contents} for contents in found]
        for at in range(max((max(log, default=-1) for log in logs), default=-1) + 1):
            if len({log[at] for log in logs if at in log}) > 1:
                return at
        return None

    # -- trace -----------------------------------------------------------------------------------------

    def note_message(
        self,
        key: int,
        body: Any,
        *,
        kind: Literal["request", "response"],
        sender: str,
        receiver: str,
        line: str,
        lost: bool = False,
        delayed: bool = False,
        request: Any = None,
    ) -> None:
        """Note a message for the trace, and the rule by which a response is not what was asked for.

        `request`: that of a follower, which `body` is the response to.
        """
        if not self.is_recorded:
            return
        self.messages.append(
            wire.message(
                body,
                sender=sender,
                receiver=receiver,
                kind=kind,
                key=key,
                version=VERSIONS[key],
                line=line,
                correlation_id=len(self.messages) + 1,
                lost=lost,
                delayed=delayed,
            )
        )
        if kind == "response":
            for row in _rows(body):
                applied = _rule_of(row)
                if applied is None and isinstance(request, FetchRequest) and not row.records:
                    applied = self._rule_without_records(receiver, request, row.high_watermark)
                if applied is not None:
                    self.note_rule(sender, line, applied)

    def _rule_without_records(
        self, name: str, request: FetchRequest, high_watermark: int
    ) -> replica_rules.Applied | None:
        """Return the rule by which a leader does not wait for records; None: for another reason than KIP-392's."""
        if request.session_epoch == 0:
            return replica_rules.FIRST_OF_SESSION
        is_new = high_watermark > self.partition(name).log.high_watermark
        return replica_rules.STALE_HIGH_WATERMARK if is_new else None

    def note_rule(self, name: str, line: str, applied: replica_rules.Applied) -> None:
        """Note what a replica does for the trace, and the rule that it applies."""
        if self.is_recorded:
            self.events.append(rules.event(name, line, applied[0], replica_rules.place(applied)))

    def _on_truncation(self, replica: FollowerReplica, offset: int) -> None:
        end = replica.log.log_end_offset
        if offset < end:
            name = self._name_of_replica(replica)
            line = f"{name} truncates {end} to {offset}"
            self.show(line)
            self._note_decision(name, line)

    def _on_full_truncation(self, replica: FollowerReplica, offset: int) -> None:
        name = self._name_of_replica(replica)
        self._note_decision(name, f"{name} removes all records and starts at {offset}")

    def _note_decision(self, name: str, line: str) -> None:
        if name in self._decisions:
            transition, place = self._decisions[name]
            self.events.append(rules.event(name, line, replica_rules.FOLLOWER[transition], place))

    def _on_transition(self, follower: Follower, transition: Transition, place: rules.Place) -> None:
        rule = replica_rules.FOLLOWER.get(transition)
        name = next((each for each in self._up() if self.partition(each).log is follower._log), None)
        if rule is None or name is None:
            return
        self._decisions[name] = transition, place
        self._followers[name] = follower
        if transition is Transitions.LOCAL_START_AFTER and self._begins_after_tiered is not None:
            line = f"{name} begins at {self._begins_after_tiered}, after what is tiered"
            self.note_rule(name, line, replica_rules.LAST_TIERED)
        if transition not in _TRUNCATIONS:
            self.events.append(rules.event(name, f"{name}: {transition.event}", rule, place))

    def _bootstrap_offset(self, *, local_log_start_offset: int, **named: Any) -> int:
        """Decide as followers do, and note an offset that is not the leader's local log start."""
        self._begins_after_tiered = None
        found = bootstrap_offset(local_log_start_offset=local_log_start_offset, **named)
        if found > local_log_start_offset:
            self._begins_after_tiered = found
        return found

    def _name_of_replica(self, replica: FollowerReplica) -> str:
        return next(name for name in self.names if self.partition(name).follower is replica)

    def observe(self, step: Step) -> None:
        """Write the replicas, and what a judge says of them, into a step."""
        if self._simulation is None:
            return
        before, self._last = self._last, {name: self._replica(name) for name in self.names}
        step.replicas = list(self._last.values())
        for name, now in self._last.items():
            for line, applied in replica_rules.changes(before.get(name), now):
                step.events.append(rules.event(name, line, applied[0], replica_rules.place(applied)))
        step.judgement = Judgement(
            lost=self._lost(), divergent_at=self._divergent_at(), asks_nothing=self._silent()
        )

    def _replica(self, name: str) -> Replica:
        broker = self.broker(name)
        directory = DATA / f"{ORDERS.topic}-{ORDERS.partition}"
        if not broker.is_up:
            before = self._last.get(name)
            return replica_state.stopped(name, broker.files, directory, before=before, rack=broker.rack)
        follower = self._followers.get(name)
        return replica_state.running(
            name,
            self.partition(name),
            rack=broker.rack,
            name_of=self.name_of,
            files=broker.files,
            directory=directory,
            following=None if follower is None else follower.state.name,
        )

    def _silent(self) -> list[str]:
        """Return the running followers that have no request."""
        return [
            name
            for name, line in sorted(self.lines.items())
            if line.question is None and self.broker(name).is_up and not self.partition(name).is_leader
        ]


def _rows(response: Any) -> list[Any]:
    topics = response.responses if hasattr(response, "responses") else response.topics
    return [row for topic in topics for row in topic.partitions]


def _rule_of(row: Any) -> replica_rules.Applied | None:
    """Return the rule by which a leader refuses, or returns a divergence or another replica; None: it has answered."""
    if row.error_code:
        return replica_rules.REFUSALS.get(ErrorCode(row.error_code))
    if (diverging := getattr(row, "diverging_epoch", None)) is not None and diverging.epoch >= 0:
        return replica_rules.DIVERGENCE
    return replica_rules.REDIRECTION if getattr(row, "preferred_read_replica", -1) >= 0 else None
