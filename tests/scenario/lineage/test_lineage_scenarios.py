"""Replicas of one partition, told as stories: who truncates what when leaders change. See the files next to this one.

| command | meaning |
|---|---|
| `replicas A B` | a new stage: empty logs, each on a disk of its own |
| `A leads e1` | A is the leader of epoch 1 from its log end on |
| `A writes m1 m2`, `A writes m3+m4` | a batch each; one batch of two records |
| `B fetches A` | what B lacks; B hears of A's high watermark, which B's fetch offset moves |
| `B asks A` | the same, and the answer is lost |
| `A flushes` | what A has is on its disk |
| `A restarts`, `A loses power` | its process ends; its machine does, with all that was not flushed |
| `B follows A` | B asks where its newest epoch ends in A's log, and truncates (KIP-101, KIP-279) |
| `show` | the logs, and whether they agree and still have what was committed |

What is below a leader's high watermark is committed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from protocol.records.batch import batches
from protocol.records.builder import build_batch, simple_records
from protocol.records.record import records
from protocol.types import TopicPartition
from storage.log import Log
from storage.log_config import LogConfig
from tests.harness.faulty_files import FaultyFiles, Loss

NOW_MS = 1_700_000_000_000
_FILES = sorted(Path(__file__).parent.glob("*.txt"))
_DIRECTORY = Path("/data/orders-0")


class Replica:
    """One broker's log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.files = FaultyFiles(random=Random(1))
        self.files.make_dir(_DIRECTORY.parent)
        self.files.fsync_dir(Path("/"))
        self.epoch = 0
        #: As in replication-offset-checkpoint; taken to be written at once.
        self.checkpointed = 0
        self.log = self.open()

    def open(self) -> Log:
        log = Log.open(
            _DIRECTORY,
            config=LogConfig(),
            topic_partition=TopicPartition("orders", 0),
            now_ms=NOW_MS,
            files=self.files,
            random=Random(1),
            is_clean=False,
        )
        log.update_high_watermark(self.checkpointed)
        return log

    def restart(self, loss: Loss) -> None:
        self.files = self.files.after_crash(Random(1), loss)
        self.log = self.open()

    def contents(self) -> list[tuple[int, int, str]]:
        """(offset, epoch, value) of every record."""
        return [
            (record.offset, header.partition_leader_epoch, (record.value or b"").decode())
            for header, data in self.log.records_since(0)
            for record in records(data)
        ]


def truncate_by_epoch(follower: Replica, leader: Replica) -> list[str]:
    """Ask until both know the epoch of which the leader says the end."""
    told = []
    while (asked := follower.log.latest_epoch) is not None:
        answer = leader.log.end_offset_for_epoch(asked)
        assert answer is not None, "the leader has had a newer epoch than its followers"
        epoch, end = answer
        told.append(f"{follower.name} -> epoch {asked}? <- epoch {epoch} ends at {end}")
        own = follower.log.end_offset_for_epoch(epoch)
        own_epoch, own_end = own if own is not None else (epoch, follower.log.log_end_offset)
        told += truncate(follower, min(end, own_end))
        if own_epoch == epoch or follower.log.latest_epoch == asked:
            break
    return told


def truncate_by_kip_101_alone(follower: Replica, leader: Replica) -> list[str]:
    """One question, as before KIP-279: the answer's epoch is not looked at."""
    asked = follower.log.latest_epoch
    answer = leader.log.end_offset_for_epoch(asked) if asked is not None else None
    return truncate(follower, answer[1]) if answer else []


def truncate_to_high_watermark(follower: Replica, leader: Replica) -> list[str]:
    """The rule that KIP-101 replaced."""
    return truncate(follower, follower.log.high_watermark)


def truncate(follower: Replica, offset: int) -> list[str]:
    before = follower.log.log_end_offset
    follower.log.truncate_to(offset, now_ms=NOW_MS)
    return [f"{follower.name} truncates {before} to {offset}"] if offset < before else []


class Teller:
    """The stage; `rule` is how followers truncate."""

    def __init__(self, rule=truncate_by_epoch) -> None:
        self.rule = rule
        self.replicas: dict[str, Replica] = {}
        self.leader: Replica | None = None
        self.committed: dict[int, str] = {}

    def __call__(self, line: str) -> list[str]:
        match line.split():
            case ["replicas", *names]:
                self.__init__(self.rule)
                self.replicas = {name: Replica(name) for name in names}
            case [name, "leads", epoch]:
                self.leader = self.replicas[name]
                self.leader.epoch = int(epoch[1:])
                self.leader.log.assign_epoch(self.leader.epoch, self.leader.log.log_end_offset)
            case [name, "writes", *values]:
                for value in values:
                    self._write(self.replicas[name], value.split("+"))
            case [name, "fetches", leader]:
                return self._fetch(self.replicas[name], self.replicas[leader])
            case [name, "asks", leader]:
                self._commit(self.replicas[leader], self.replicas[name].log.log_end_offset)
            case [name, "flushes"]:
                self.replicas[name].log.flush()
            case [name, "restarts"]:
                self.replicas[name].restart(Loss.NOTHING)
            case [name, "loses", "power"]:
                self.replicas[name].restart(Loss.EVERYTHING)
            case [name, "follows", leader]:
                return self.rule(self.replicas[name], self.replicas[leader])
            case ["show"]:
                return self._show()
            case _:
                raise AssertionError(line)
        return []

    def _write(self, leader: Replica, values: list[str]) -> None:
        batch = build_batch(simple_records([(None, value.encode()) for value in values], timestamp=NOW_MS))
        leader.log.append_as_leader(bytearray(batch), leader_epoch=leader.epoch, now_ms=NOW_MS)

    def _fetch(self, follower: Replica, leader: Replica) -> list[str]:
        offset = follower.log.log_end_offset
        self._commit(leader, min(offset, leader.log.log_end_offset))
        if offset > leader.log.log_end_offset:
            return [f"{follower.name} <- OFFSET_OUT_OF_RANGE"]
        read = leader.log.read(offset, max_bytes=1 << 20)
        if read.base_offset is not None and read.base_offset < offset:
            return [f"{follower.name} is stuck: {offset} is in the middle of a batch of {leader.name}"]
        data = b"".join(bytes(batch) for _, batch in batches(memoryview(read.records)))
        follower.log.append_as_follower(data, leader_epoch=leader.epoch, now_ms=NOW_MS)
        follower.log.update_high_watermark(leader.log.high_watermark)
        follower.checkpointed = follower.log.high_watermark
        return []

    def _commit(self, leader: Replica, offset: int) -> None:
        leader.log.maybe_increment_high_watermark(offset)
        leader.checkpointed = leader.log.high_watermark
        for at, _, value in leader.contents():
            if at < leader.log.high_watermark:
                self.committed.setdefault(at, value)

    def _show(self) -> list[str]:
        lines = []
        for replica in self.replicas.values():
            written = " ".join(f"{value}:e{epoch}" for _, epoch, value in replica.contents()) or "empty"
            epochs = " ".join(f"e{epoch}@{start}" for epoch, start in replica.log.leader_epochs.entries)
            lines.append(f"{replica.name} HW={replica.log.high_watermark} {written} | {epochs}".rstrip(" |"))
        assert self.leader is not None
        led = {at: value for at, _, value in self.leader.contents()}
        lost = [value for at, value in self.committed.items() if led.get(at) != value]
        if lost:
            lines.append(f"lost: {' '.join(lost)}")
        lines += self._divergence()
        return lines

    def _divergence(self) -> list[str]:
        logs = [{at: (epoch, value) for at, epoch, value in it.contents()} for it in self.replicas.values()]
        for at in range(max((max(log, default=-1) for log in logs), default=-1) + 1):
            if len({log[at] for log in logs if at in log}) > 1:
                return [f"divergent at {at}"]
        return []


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_scenario(play, path):
    play(path, Teller())


@pytest.mark.parametrize(("name", "rule", "outcome"), [
    ("scenario_1",          truncate_to_high_watermark, "lost: m2"),
    ("scenario_2",          truncate_to_high_watermark, "divergent at 1"),
    ("scenario_2_batches",  truncate_to_high_watermark, "A is stuck: 2 is in the middle of a batch of B"),
    ("appendix",            truncate_to_high_watermark, "divergent at 0"),
    ("appendix",            truncate_by_kip_101_alone,  "divergent at 0"),  # as the KIP says
])  # fmt: skip
def test_an_older_rule_fails(name, rule, outcome):
    teller = Teller(rule)
    lines = []
    for block in (Path(__file__).parent / f"{name}.txt").read_text().split("\n\n"):
        if "\n----" in block:
            for line in block.partition("\n----")[0].splitlines():
                if not line.startswith("#"):
                    lines += teller(line)
    assert outcome in lines


def test_every_story_names_its_kip():
    assert _FILES
    for path in _FILES:
        assert "KIP-" in path.read_text().splitlines()[0], path
