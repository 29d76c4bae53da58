"""Invariants of the metadata quorum of a whole cluster, by the names of `tests/sim/raft/raft_judge.py`.

Where voters change (KIP-853), these too:

| invariant | what must hold |
| --- | --- |
| OneChangeAtATime | of the voter sets in a leader's log one is not committed, at most; |
|  | the next committed set has one voter more or less |
| RemovedVoterDoesNotDisturb | no node that its own log has as no voter begins an election |
| RemovedLeaderResigns | a leader whose removal is committed does not go on |

There each node is asked at each of its own steps, here all are checked after each event. So what a node has in mind
but has yet to make durable may go with its process, and counts only when another node has it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cluster_batches import Names
from cluster_ledger import Batch
from cluster_machine import Machine
from cluster_violated import Violated

from ottla.controller.metadata_log.log import MetadataLog
from ottla.controller.quorum.raft_client import RaftClient
from ottla.controller.raft.machine import Raft
from ottla.controller.raft.roles import Candidate, Leader, Prospective, Role
from ottla.controller.raft.types import RECONFIGURABLE, ReplicaKey
from ottla.protocol.records.batch import batches
from ottla.protocol.types import ZERO_UUID

#: How long a leader may go on after it knows that its removal is committed.
_RESIGNING_S = 0.5


class _Seen(NamedTuple):
    """The state of a node at the last check."""

    quorum: RaftClient
    role: Role
    epoch: int
    leader_id: int | None
    is_leader: bool
    high_watermark: int | None
    log_start_offset: int
    log_end_offset: int


class QuorumJudge:
    """Checks the invariants of a world's metadata quorum; call `check` after every event."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._names = Names()
        #: (leader epoch, base offset) -> the batch that the epoch's leader has there, and no other node.
        self._of_leaders: dict[tuple[int, int], Batch] = {}
        self._seen: dict[int, _Seen] = {}
        #: (node, number of its disk) -> where its log ends, or ended when it was last seen.
        self._ends: dict[tuple[int, int], int] = {}
        #: epoch -> leader
        self._leaders: dict[int, int] = {}
        #: (node, number of its disk) -> the newest epoch that it leads or has led, as another node knows.
        self._led: dict[tuple[int, int], int] = {}
        #: base offset -> batch, of everything that is committed.
        self._committed: dict[int, Batch] = {}
        self._committed_end = 0
        #: epoch -> up to where its nodes were the first to know it committed.
        self._committed_in: dict[int, int] = {}
        #: offset -> the voters from there on; of those that are committed.
        self._voters: dict[int, list[ReplicaKey]] = {}
        #: Leaders whose removal is committed -> since when.
        self._removed: dict[RaftClient, float] = {}

    @property
    def leaders(self) -> dict[int, int]:
        """Epoch -> leader, up to now."""
        return dict(self._leaders)

    def check(self) -> None:
        """Look at every node that has changed. Raises Violated."""
        changed = []
        for machine in self._machines:
            quorum = machine.quorum
            if quorum is None:
                continue
            raft, log = quorum._raft, quorum._log
            role, seen = raft.role, self._seen.get(machine.node_id)
            if self._removed and quorum in self._removed:
                self._resigns(machine, quorum)
            if (
                seen is None
                or seen.quorum is not quorum
                or seen.role is not role  # and with it epoch and leader
                or seen.high_watermark != raft.high_watermark
                or seen.log_start_offset != log.log_start_offset
                or seen.log_end_offset != log.end_offset
            ):
                now = _Seen(
                    quorum,
                    role,
                    role.epoch,
                    raft.leader_and_epoch.leader_id,
                    isinstance(role, Leader),
                    raft.high_watermark,
                    log.log_start_offset,
                    log.end_offset,
                )
                self._ends[machine.node_id, machine.disk_number] = now.log_end_offset
                changed.append((machine, now))
        for machine, now in changed:
            before = self._seen.get(machine.node_id)
            self._look_at(machine, now, before if before and before.quorum is now.quorum else None)
            self._seen[machine.node_id] = now

    def _look_at(self, machine: Machine, now: _Seen, before: _Seen | None) -> None:
        raft, log = now.quorum._raft, now.quorum._log
        disk = machine.node_id, machine.disk_number
        if before is not None and now.epoch < before.epoch:
            raise Violated(f"MonotonicEpoch: {machine}: {before}, then {now}")
        if now.leader_id is not None:
            self._look_at_leader(machine, now, disk)
        is_same_log = before is not None and now.log_start_offset <= before.log_end_offset
        if before is not None and not is_same_log and now.is_leader:
            raise Violated(f"LeaderNeverLoadSnapshot: {machine}: {before}, then {now}")
        start = before.log_end_offset if before is not None and is_same_log else now.log_start_offset
        for batch in _batches(log, start, now.log_end_offset):
            self._look_at_batch(machine, now, batch)
        if now.is_leader and (before is None or before.epoch != now.epoch or not before.is_leader):
            self._leader_completeness(machine, now.epoch, raft, log)
        if now.high_watermark is not None:
            self._look_at_committed(machine, now, before)
        if raft.kraft_version >= RECONFIGURABLE:
            self._look_at_voters(machine, now)

    def _look_at_batch(self, machine: Machine, now: _Seen, batch: Batch) -> None:
        """Compare the batch with that of the same epoch and offset in other logs.

        A leader appends the first batch of its epoch before its leadership is durable, and loses both in a power cut:
        the next batch at this offset is another one, while no other node has the first.
        """
        name = batch.leader_epoch, batch.base_offset
        if now.is_leader and batch.leader_epoch == now.epoch and not self._names.has(None, *name):
            self._of_leaders[name] = batch
            return
        known = [self._of_leaders.pop(name, batch), batch]
        for each in known:
            self._names.add("MetadataLogMatching", machine, None, each.base_offset, each)

    def _look_at_voters(self, machine: Machine, now: _Seen) -> None:
        raft, history = now.quorum._raft, now.quorum._raft._core.history._voters
        sets = dict(zip(history.offsets, history.values, strict=True))
        if isinstance(now.role, Candidate | Prospective) and not raft.is_voter:
            raise Violated(
                f"RemovedVoterDoesNotDisturb: {machine} is {now.role}, voters are {raft.voters.ids}"
            )
        pending = [offset for offset in sets if offset >= self._committed_end]
        if now.is_leader and len(pending) > 1:
            raise Violated(f"OneChangeAtATime: {machine} has {pending}, committed is {self._committed_end}")
        if now.is_leader and not raft.is_voter and max(sets) < (now.high_watermark or 0):
            self._removed.setdefault(now.quorum, machine.simulation.loop.time())
        for offset, voters in sets.items():
            if offset < min(now.high_watermark or 0, self._committed_end):
                self._add_voters(machine, offset, voters.keys)

    def _add_voters(self, machine: Machine, offset: int, keys: list[ReplicaKey]) -> None:
        former = next((self._voters[at] for at in reversed(self._voters) if at <= offset), keys)
        is_next = offset > max(self._voters, default=-1)
        # Behind the last one is the next change. Elsewhere a snapshot repeats the set that was committed
        # before its end.
        if len(set(former) ^ set(keys)) > is_next:
            raise Violated(f"OneChangeAtATime: {machine} has {keys} at {offset}, before were {former}")
        if is_next:
            self._voters[offset] = keys

    def _resigns(self, machine: Machine, quorum: RaftClient) -> None:
        if not isinstance(quorum._raft.role, Leader) or quorum._raft.is_voter:
            del self._removed[quorum]
        elif machine.simulation.loop.time() - self._removed[quorum] > _RESIGNING_S and not machine.is_paused:
            raise Violated(f"RemovedLeaderResigns: {machine} leads, voters are {quorum.voters.ids}")

    def _look_at_leader(self, machine: Machine, now: _Seen, disk: tuple[int, int]) -> None:
        assert now.leader_id is not None
        leader = self._leaders.setdefault(now.epoch, now.leader_id)
        if leader != now.leader_id:
            raise Violated(f"SingleLeader: {machine} says {now.leader_id} of {now.epoch}, it is {leader}")
        if now.epoch < self._led.get(disk, 0):
            raise Violated(f"MonotonicEpoch: {machine} is in {now.epoch}, and has led {self._led[disk]}")
        if leader != machine.node_id:
            other = next(each for each in self._machines if each.node_id == leader)
            key = leader, other.disk_number
            self._led[key] = max(self._led.get(key, 0), now.epoch)

    def _leader_completeness(self, machine: Machine, epoch: int, raft: Raft, log: MetadataLog) -> None:
        start = raft.epoch_start_offset
        if start is None:
            return  # it has resigned already
        # A leader of an old epoch, by votes that were in flight for long, need not have what later ones have committed.
        needed = max((end for each, end in self._committed_in.items() if each < epoch), default=0)
        if start < needed:
            raise Violated(f"LeaderCompleteness: {machine} begins {epoch} at {start}, committed is {needed}")
        self._consistent_committed_data(machine, log, log.log_start_offset, needed)

    def _look_at_committed(self, machine: Machine, now: _Seen, before: _Seen | None) -> None:
        high_watermark = now.high_watermark
        assert high_watermark is not None
        known = None if before is None else before.high_watermark
        if known is not None and high_watermark < known:
            raise Violated(f"MonotonicHighWatermark: {machine}: {before}, then {now}")
        if known is not None and high_watermark == known:
            return
        if now.is_leader:
            raft = now.quorum._raft
            # The leader may have appended another voter set since it advanced the high watermark, in the same event.
            for voters in (raft.voters, raft.voters_at(high_watermark - 1) or raft.voters):
                reached = [key for key in voters.keys if self._end_of(key) >= high_watermark]
                if 2 * len(reached) > len(voters.keys):
                    break
            else:
                raise Violated(f"MajorityReachedHighWatermark: {machine}: {high_watermark}, only {reached}")
        log = now.quorum._log
        self._consistent_committed_data(machine, log, known or log.log_start_offset, high_watermark)
        if high_watermark > self._committed_end:
            for batch in _batches(log, self._committed_end, high_watermark):
                self._committed[batch.base_offset] = batch
            self._committed_end = self._committed_in[now.epoch] = high_watermark

    def _end_of(self, key: ReplicaKey) -> int:
        machine = next(each for each in self._machines if each.node_id == key.id)
        disk = machine.disk_number
        if key.directory_id != ZERO_UUID:
            disk = machine.metadata_directory_ids.index(key.directory_id)
        return self._ends.get((key.id, disk), 0)

    def _consistent_committed_data(self, machine: Machine, log: MetadataLog, start: int, end: int) -> None:
        """Check that the log's content in [start, end) is the committed content, as far as it is committed."""
        for batch in _batches(log, start, min(end, self._committed_end)):
            if self._committed.get(batch.base_offset, batch) != batch:
                known = self._committed[batch.base_offset]
                raise Violated(f"ConsistentCommittedData: {machine} has {batch}, committed is {known}")


def _batches(log: MetadataLog, start: int, end: int) -> Iterator[Batch]:
    offset = max(start, log.log_start_offset)
    while offset < end:
        for header, _ in batches(memoryview(log.read(offset, max_bytes=1 << 20))):
            offset = header.next_offset
            if offset > end:
                return
            yield Batch(header.base_offset, offset, header.partition_leader_epoch, header.crc)
