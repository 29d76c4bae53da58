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
from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from unittest.mock import patch

from ottla.broker.network.client import ClientSettings, Disconnected
from ottla.broker.replicas.follower_replica import FollowerReplica
from ottla.broker.replicas.following import partition_fetch_states, replica_fetcher_manager
from ottla.broker.replicas.partition import Partition
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import ErrorCode, UnsupportedVersion
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from ottla.protocol.types import TopicPartition
from ottla.replication.follower import Follower
from ottla.replication.replica_selector import RackAwareReplicaSelector
from ottla.runtime import Runtime
from ottla.runtime.simulated import Simulation
from tests.harness.faulty_files import Loss
from tests.harness.replicas import ReplicaBroker, ReplicaCluster, turns

ORDERS = TopicPartition("orders", 0)
_SPECIAL = {"latest": LATEST, "earliest": EARLIEST, "max": MAX_TIMESTAMP}
_WHO = {"consumer": -1, "debugger": -2}
#: Longer than any story: what is delayed is answered by an event, or by `ms pass`.
_PATIENCE_MS = 600_000


class Line:
    """A follower's connection, in place of NodeClient: a request waits until the story delivers it."""

    def __init__(self, stage: "Stage", node_id: int) -> None:
        self._stage = stage
        self.name = stage.name_of(node_id)
        #: (leader's host, api key, message, the follower's future).
        self.question: tuple[str, int, Any, Future[Any]] | None = None
        self.delayed: asyncio.Task[Any] | None = None
        stage.lines[self.name] = self

    async def request(
        self, address: tuple[str, int], key: int, message: Any, *, timeout_s: float, versions: Any = None
    ) -> Any:
        if versions is not None and versions.start > self._stage.served.get(key, _VERSIONS[key]):
            raise UnsupportedVersion(f"{address[0]} serves no version of {ApiKey(key).name} in {versions}")
        answer: Future[Any] = asyncio.get_running_loop().create_future()
        self.question = (address[0], key, message, answer)
        try:
            return await answer
        finally:
            self.question = None
            if self.delayed is not None:
                self.delayed.cancel()
                self.delayed = None

    async def request_encoded(
        self,
        address: tuple[str, int],
        key: int,
        encode: Callable[[int], bytes],
        decode: Callable[[int, memoryview], Any],
        *,
        timeout_s: float,
        versions: Any = None,
        buffer: object = None,  # small responses need none
    ) -> Any:
        version = _VERSIONS[ApiKey(key)]
        message = decode_request(key, version, encode(version))
        response = await self.request(address, key, message, timeout_s=timeout_s, versions=versions)
        return decode(version, memoryview(encode_response(key, version, response)))

    async def close(self) -> None:
        """Do nothing, since nothing is open."""

    async def let_pass(self, *, is_lost: bool = False) -> None:
        """Deliver the request to the leader's handler, and the response if it is available at once."""
        assert self.question is not None, f"{self.name} has nothing to ask"
        assert self.delayed is None, f"{self.name} waits for an answer already"
        host, key, message, answer = self.question
        self._stage.show(f"{self.name} -> {_asked(key, message)}")
        leader = self._stage.host(host)
        if not leader.is_up:
            self._stage.show(f"{self.name} <- no answer")
            answer.set_exception(Disconnected("no answer"))
            return
        self.delayed = asyncio.ensure_future(_awaited(leader.answer(key, message, _VERSIONS[key])))
        await turns()
        if is_lost:
            answer.set_exception(Disconnected("the answer is lost"))
        elif not self.deliver():
            self._stage.show(f"{self.name} waits for a response")

    def deliver(self) -> bool:
        """Deliver the response, if it is available."""
        if self.delayed is None or not self.delayed.done() or self.question is None:
            return False
        _, key, _, answer = self.question
        response = self.delayed.result()
        self._stage.show(f"{self.name} <- {_answered(key, response)}")
        answer.set_result(response)
        return True

    async def break_off(self, host: str) -> None:
        """The connection is lost if it leads to this host."""
        if self.question is not None and self.question[0] == host and self.delayed is not None:
            self.question[3].set_exception(Disconnected("the leader has died"))
            await asyncio.sleep(_BACKOFF_S)


_VERSIONS: Mapping[int, int] = {ApiKey.FETCH: 18, ApiKey.LIST_OFFSETS: 11, ApiKey.OFFSET_FOR_LEADER_EPOCH: 4}
_ASKED_OFFSETS = {
    LATEST: "where does your log end?",
    EARLIEST: "where does your log begin?",
    EARLIEST_LOCAL: "where does your local log begin?",
    LATEST_TIERED: "what is your last tiered offset?",
    EARLIEST_PENDING_UPLOAD: "which offset do you upload next?",
}
#: More than replica.fetch.backoff.ms: until it asks again.
_BACKOFF_S = 1.1
_TRUNCATE_TO = FollowerReplica.truncate_to


async def _awaited(response: Any) -> Any:
    return await response if isinstance(response, Awaitable) else response


def _asked(key: int, message: Any) -> str:
    if key == ApiKey.LIST_OFFSETS:
        timestamp = message.topics[0].partitions[0].timestamp
        return _ASKED_OFFSETS[timestamp]
    if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
        return f"where does e{message.topics[0].partitions[0].leader_epoch} end?"
    rows = [row for topic in message.topics for row in topic.partitions]
    if not rows:
        return "more?"
    (row,) = rows
    after = f" after e{row.last_fetched_epoch}" if row.last_fetched_epoch >= 0 else ""
    return f"records from {row.fetch_offset}{after}? I believe in e{row.current_leader_epoch}"


def _answered(key: int, response: Any) -> str:
    if key == ApiKey.LIST_OFFSETS:
        (row,) = response.topics[0].partitions
        return _error(row) or (str(row.offset) if row.offset >= 0 else "unknown")
    if key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
        (row,) = response.topics[0].partitions
        return _error(row) or f"e{row.leader_epoch} ends at {row.end_offset}"
    if response.error_code:
        return ErrorCode(response.error_code).name.upper()
    rows = [row for topic in response.responses for row in topic.partitions]
    return _row(rows[0]) if rows else "nothing new"


def _error(row: Any) -> str:
    return ErrorCode(row.error_code).name.upper() if row.error_code else ""


def _row(row: Any) -> str:
    """A row of a Fetch's answer."""
    if row.error_code:
        known = (
            f", log start {row.log_start_offset}, HW {row.high_watermark}" if row.high_watermark >= 0 else ""
        )
        return _error(row) + known
    if row.diverging_epoch.epoch >= 0:
        return f"our logs part: e{row.diverging_epoch.epoch} ends at {row.diverging_epoch.end_offset}"
    values = [
        (record.value or b"").decode()
        for _, batch in batches(memoryview(bytes(row.records or b"")))
        for record in records(batch)
    ]
    return f"{' '.join(values) or 'no records'}, HW {row.high_watermark}"


class Stage:
    """The stage of stories about a partition's replicas; `follower` is the state machine of followers, or a
    mutant of it."""

    #: fetch.max.wait.ms of consumers.
    consumers_wait_ms = 0
    #: More than EXPECTED_WITHIN_S.
    before_a_write_s = 0.001

    def __init__(self, follower: type[Follower] = Follower) -> None:
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

    def __call__(self, line: str) -> list[str]:
        """Play a line of the story; the lines of its output."""
        if line.startswith("replicas "):
            names, _, is_slow = line.removeprefix("replicas ").partition(" one batch")
            self._begin(names.split(), max_bytes=1 if is_slow else 1 << 20)
            return []
        assert self._simulation is not None, line
        with (
            patch.object(replica_fetcher_manager, "NodeClient", self._line),
            patch.object(partition_fetch_states, "Follower", self._follower),
            patch.object(
                FollowerReplica, "truncate_to", lambda *args, **named: self._truncate_to(*args, **named)
            ),
        ):
            self._simulation.run(self._play(line))
        self._note_commits()
        shown, self._shown = self._shown, []
        return shown

    def _line(self, runtime: Runtime, *, client_id: str, settings: ClientSettings) -> Line:
        return Line(self, int(client_id.split("-")[1]))

    def _truncate_to(self, replica: FollowerReplica, offset: int, *, now_ms: int) -> None:
        end = replica.log.log_end_offset
        if offset < end:
            name = next(name for name in self.names if self.partition(name).follower is replica)
            self.show(f"{name} truncates {end} to {offset}")
        _TRUNCATE_TO(replica, offset, now_ms=now_ms)

    def close(self) -> None:
        """The end of the play."""
        if self._simulation is not None:
            self._simulation.close()

    def show(self, line: str) -> None:
        """Add a line to the output."""
        self._shown.append(line)

    def name_of(self, node_id: int) -> str:
        return next(name for name, id in self.names.items() if id == node_id)

    def host(self, host: str) -> ReplicaBroker:
        return next(broker for broker in self.cluster.brokers.values() if broker.host == host)

    def broker(self, name: str) -> ReplicaBroker:
        return self.cluster.brokers[self.names[name]]

    def partition(self, name: str) -> Partition:
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
                await asyncio.sleep(_BACKOFF_S)
            case ["catches", "up"]:
                await self._catch_up(line)
            case _:
                raise AssertionError(words)

    async def _play_client(self, words: list[str]) -> None:
        match words:
            case ["consumer", "reads", offset, "from", name, *place]:
                await self._read(name, int(offset), rack=place[1] if place else "")
            case [who, "asks", name, "for", special]:
                await self._ask_offset(name, _WHO[who], special)
            case ["replica", who, "asks", name, "where", epoch, "ends"]:
                self._ask_end(name, self.names[who], int(epoch[1:]))
            case [who, "asks", name, "where", epoch, "ends"]:
                self._ask_end(name, _WHO[who], int(epoch[1:]))
            case _:
                raise AssertionError(words)

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
        if what == "is fenced":
            self.cluster.fence(self.names[name])
            return
        if what != "comes back":
            loss = {"dies": Loss.NOTHING, "restarts": Loss.NOTHING, "loses power": Loss.EVERYTHING}[what]
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
                self.show(f"{self.name_of(broker.node_id)}: the ISR is {members}")
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
        response = await _awaited(self.broker(name).answer(ApiKey.FETCH, request, 18))
        (answer,) = response.responses[0].partitions
        if answer.preferred_read_replica >= 0:
            self.show(f"read from {self.name_of(answer.preferred_read_replica)}")
        else:
            self.show(_row(answer))

    async def _ask_offset(self, name: str, who: int, special: str) -> None:
        row = ListOffsetsPartition(partition_index=0, timestamp=_SPECIAL[special])
        request = ListOffsetsRequest(
            replica_id=who, topics=[ListOffsetsTopic(name="orders", partitions=[row])]
        )
        response = await _awaited(self.broker(name).answer(ApiKey.LIST_OFFSETS, request, 11))
        self.show(_answered(ApiKey.LIST_OFFSETS, response))

    def _ask_end(self, name: str, who: int, epoch: int) -> None:
        row = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=who, topics=[OffsetForLeaderTopic(topic="orders", partitions=[row])]
        )
        response = self.broker(name).answer(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, 4)
        (answer,) = response.topics[0].partitions
        self.show(_error(answer) or f"e{answer.leader_epoch} ends at {answer.end_offset}")

    # -- judgement -------------------------------------------------------------------------------------

    def _up(self) -> list[str]:
        return [name for name in self.names if self.broker(name).is_up]

    def _contents(self, name: str) -> list[tuple[int, int, str]]:
        """(offset, epoch, value) of every record."""
        log = self.partition(name).log
        return [
            (record.offset, header.partition_leader_epoch, (record.value or b"").decode())
            for header, data in log.reader.records_since(log.local_log_start_offset)
            for record in records(data)
            if record.offset >= log.log_start_offset
        ]

    def _note_commits(self) -> None:
        for name in self._up():
            if self.partition(name).is_leader:
                for at, _, value in self._contents(name):
                    if at < self.partition(name).log.high_watermark:
                        self.committed.setdefault(at, value)

    def _show(self) -> None:
        for name in self._up():
            log = self.partition(name).log
            written = " ".join(f"{value}:e{epoch}" for _, epoch, value in self._contents(name)) or "empty"
            epochs = " ".join(f"e{epoch}@{start}" for epoch, start in log.leader_epochs.entries)
            start = f" start={log.log_start_offset}" if log.log_start_offset else ""
            if log.local_log_start_offset > log.log_start_offset:
                start += f" local-start={log.local_log_start_offset}"
            self.show(f"{name} HW={log.high_watermark}{start} {written} | {epochs}".rstrip(" |"))
        self._show_losses()
        self._show_divergence()

    def _show_losses(self) -> None:
        if self.leader is None or not self.broker(self.leader).is_up:
            return
        led = self._readable(self.leader)
        start = self.partition(self.leader).log.log_start_offset
        lost = [value for at, value in self.committed.items() if at >= start and led.get(at) != value]
        if lost:
            self.show(f"lost: {' '.join(lost)}")

    def _readable(self, name: str) -> dict[int, str]:
        """The value at each offset."""
        return {at: value for at, _, value in self._contents(name)}

    def _show_divergence(self) -> None:
        logs = [{at: (epoch, value) for at, epoch, value in self._contents(name)} for name in self._up()]
        for at in range(max((max(log, default=-1) for log in logs), default=-1) + 1):
            if len({log[at] for log in logs if at in log}) > 1:
                self.show(f"divergent at {at}")
                return


def commands(text: str) -> list[str]:
    """The commands of a story, without their output."""
    return [
        line
        for block in text.split("\n\n")
        if "\n----" in block
        for line in block.partition("\n----")[0].splitlines()
        if not line.startswith("#")
    ]


def play_with(text: str, follower: type[Follower]) -> list[str]:
    """The output of a story's commands with other rules for followers."""
    stage = Stage(follower)
    shown: list[str] = []
    try:
        for line in commands(text):
            shown += stage(line)
    finally:
        stage.close()
    return shown
