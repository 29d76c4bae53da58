"""Invariants that are checked after every event, by the names of Kafka's RaftEventSimulationTest.

| property | says |
|---|---|
| MonotonicHighWatermark | neither a running node's high watermark nor the largest of all goes back |
| MonotonicEpoch | no node's epoch goes back, crashes included |
| MajorityReachedHighWatermark | what a leader counts as committed, a majority of its voters has durably |
| SingleLeader | an epoch has one leader, by every node's state |
| SnapshotAtLogStart | a log that does not begin at 0 begins at its oldest snapshot |
| LeaderNeverLoadSnapshot | a leader's log is never replaced by a snapshot |
| ConsistentCommittedData | all nodes have committed the same batches, and snapshots hold what they add up to |
| OneVotePerEpoch | a node on a disk gives its vote once in an epoch |
| LeaderCompleteness | a new leader has everything that was committed in earlier epochs |
| LogMatching | two logs with one batch in common have the same before it (checked once at the end) |
"""

from typing import Any

from raft_events import Events
from raft_node import Broken, Node

from ottla.controller.raft.roles import Leader
from ottla.controller.raft.types import ElectionState, LeaderAndEpoch, OffsetAndEpoch
from ottla.protocol.records.batch import BatchHeader, batches


class Judge:
    """Checks the invariants of all nodes together."""

    def __init__(self, events: Events) -> None:
        self.events = events
        #: Names of properties that a story takes away on purpose.
        self.without: set[str] = set()
        #: Committed batches by base offset: end, epoch, CRC; and by end: epoch, state, voters.
        self.history: dict[int, tuple[int, int, int]] = {}
        self.states: dict[int, tuple[int, str | None]] = {0: (0, None)}
        self.committed_end = 0
        #: By epoch: up to where a node of that epoch was the first to know it committed.
        self._committed_in: dict[int, int] = {}
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int, int], int] = {}
        self._epochs: dict[tuple[int, int], int] = {}
        self._high_watermarks: dict[tuple[int, int], int] = {}

    def _check(self, holds: bool, name: str, *what: object) -> None:
        if not holds and name not in self.without:
            raise Broken(f"{name}: {' '.join(map(str, what))}")

    # -- after every event -----------------------------------------------------------------------------------

    def after(self, node: Node) -> None:
        """A node has seen something."""
        role = node.raft.role
        key = node.id, node.directory_number
        epoch = role.epoch
        self._check(
            epoch >= self._epochs.get(key, 0), "MonotonicEpoch", node.id, epoch, self._epochs.get(key)
        )
        self._epochs[key] = epoch
        start, earliest = node.log.log_start_offset, node.log.earliest_snapshot
        self._check(
            start == 0 or (earliest is not None and earliest.offset == start),
            "SnapshotAtLogStart", node.id, start, earliest,
        )  # fmt: skip
        leader_id, epoch = node.raft.leader_and_epoch
        if leader_id is not None:
            known = self._leaders.setdefault(epoch, leader_id)
            self._check(known == leader_id, "SingleLeader", "epoch", epoch, known, leader_id, "says", node.id)
        high_watermark = node.raft.high_watermark
        if high_watermark is None:
            return
        key = node.id, node.incarnation
        before = self._high_watermarks.get(key, -1)
        self._check(high_watermark >= before, "MonotonicHighWatermark", node.id, before, high_watermark)
        self._high_watermarks[key] = high_watermark

    def commits(self, leader: Node, high_watermark: int) -> None:
        """A node is about to report a commit; if it leads, it is the first."""
        if not leader.is_leader:
            return
        nodes = {other.id: other for other in leader.network.nodes.values()}
        voters = [nodes[id] for id in leader.raft.voters.ids]
        reached = [voter.id for voter in voters if voter.durable_now >= high_watermark]
        self._check(
            2 * len(reached) > len(voters),
            "MajorityReachedHighWatermark", leader.id, high_watermark, "only", reached,
        )  # fmt: skip

    # -- elections -------------------------------------------------------------------------------------------

    def persisted(self, node: Node, state: ElectionState) -> None:
        """A node has made its epoch and vote durable."""
        key = node.id, node.directory_number
        before = self._epochs.get(key, 0)
        self._check(state.leader_epoch >= before, "MonotonicEpoch", node.id, before, "->", state.leader_epoch)
        self._epochs[key] = state.leader_epoch
        if state.voted_id is not None:
            self._vote(node, state.leader_epoch, state.voted_id)

    def voted(self, node: Node, request: Any, response: Any) -> None:
        """A node has answered a Vote."""
        for topic, answer in zip(request.topics, response.topics, strict=False):
            row, answered = topic.partitions[0], answer.partitions[0]
            if answered.vote_granted and not row.pre_vote:
                self.events.note("vote", node.id, "for", row.replica_id, "epoch", row.replica_epoch)
                self._vote(node, row.replica_epoch, row.replica_id)

    def _vote(self, node: Node, epoch: int, candidate: int) -> None:
        key = node.id, node.directory_number, epoch
        known = self._votes.setdefault(key, candidate)
        self._check(known == candidate, "OneVotePerEpoch", node.id, "epoch", epoch, known, candidate)

    def leader_changed(self, node: Node, leader: LeaderAndEpoch) -> None:
        """A node knows another leader, or is one."""
        if leader.leader_id != node.id:
            return
        start = node.raft.epoch_start_offset
        if start is None:
            return  # it has resigned before this was reported
        # A leader of an old epoch, by votes that were in flight for long, does no harm: what later ones have
        # committed meanwhile it need not have.
        needed = max((end for epoch, end in self._committed_in.items() if epoch < leader.epoch), default=0)
        self._check(start >= needed, "LeaderCompleteness", node.id, "begins at", start, "needs", needed)
        for base_offset, batch in self._batches(node, node.log.log_start_offset):
            known = self.history.get(base_offset)
            if base_offset < needed:
                self._check(known == batch, "LeaderCompleteness", node.id, base_offset, known, batch)

    # -- what is committed -----------------------------------------------------------------------------------

    def committed(self, node: Node, header: BatchHeader, value: str | None) -> None:
        """A node has replayed a committed batch."""
        batch = header.next_offset, header.partition_leader_epoch, header.crc
        if header.base_offset == self.committed_end:
            self.history[header.base_offset] = batch
            self.committed_end = self._committed_in[node.raft.role.epoch] = header.next_offset
            self.states[header.next_offset] = header.partition_leader_epoch, value
        known = self.history.get(header.base_offset)
        self._check(known == batch, "ConsistentCommittedData", node.id, header.base_offset, known, batch)
        state = self.states[header.next_offset]
        self._check(state[1] == value, "ConsistentCommittedData", node.id, header.base_offset, state, value)

    def snapshot_loaded(self, node: Node) -> None:
        """A node's log starts at the end of a snapshot."""
        self._check(not isinstance(node.raft.role, Leader), "LeaderNeverLoadSnapshot", node.id)

    def loaded(self, node: Node, snapshot: OffsetAndEpoch) -> None:
        """A node has replayed a snapshot."""
        known = self.states.get(snapshot.offset)
        self._check(
            known == (snapshot.epoch, node.value),
            "ConsistentCommittedData", node.id, snapshot, "holds", node.value, "not", known,
        )  # fmt: skip

    # -- in the end ------------------------------------------------------------------------------------------

    def _batches(self, node: Node, offset: int) -> list[tuple[int, tuple[int, int, int]]]:
        found = []
        while offset < node.log.end.offset:
            for header, _ in batches(memoryview(node.log.read(offset, max_bytes=1 << 20))):
                crc = header.crc
                found.append((header.base_offset, (header.next_offset, header.partition_leader_epoch, crc)))
                offset = header.next_offset
        return found

    def final(self, nodes: list[Node]) -> None:
        """Whole logs against what was committed, and against each other."""
        logs = [dict(self._batches(node, node.log.log_start_offset)) for node in nodes]
        for node, log in zip(nodes, logs, strict=True):
            for base_offset, batch in log.items():
                if base_offset < (node.raft.high_watermark or 0):
                    known = self.history.get(base_offset)
                    self._check(known == batch, "ConsistentCommittedData", node.id, base_offset, known, batch)
        for log in logs:
            for other in logs:
                common = [at for at in log.keys() & other.keys() if log[at][1] == other[at][1]]
                last = max(common, default=-1)
                differing = [at for at in log.keys() & other.keys() if at <= last and log[at] != other[at]]
                self._check(not differing, "LogMatching", differing[:3])
