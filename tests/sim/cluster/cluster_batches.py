"""Every batch that a replica has been seen to have, committed or not: the same (leader epoch, offset) never names two.

Nothing is removed here, and there is no exception. A leader that has lost pages that were not flushed leads again in
a newer epoch only, and so does one that was elected uncleanly: what they write has other names than what is gone.
"""

from collections.abc import Callable, Hashable, Iterator
from uuid import UUID

from cluster_ledger import Batch, Committed, Ledger, batches_of, records_in
from cluster_machine import Machine
from cluster_violated import Violated

from ottla.broker.replicas.partition import Partition
from ottla.storage.log import Log

#: A partition: (topic id, index).
Key = tuple[UUID, int]


class Names:
    """The batch that each (leader epoch, offset) of each log identifies."""

    def __init__(self) -> None:
        self._named: dict[Hashable, dict[tuple[int, int], Batch | Committed]] = {}

    def add(self, invariant: str, where: object, key: Hashable, offset: int, what: Batch | Committed) -> None:
        """A log of `key` has this at the offset. Raises Violated."""
        known = self._named.setdefault(key, {}).setdefault((what.leader_epoch, offset), what)
        if known != what:
            raise Violated(f"{invariant}: {where}: {what} at {offset}, which has named {known}")

    def has(self, key: Hashable, leader_epoch: int, offset: int) -> bool:
        """Whether a log of `key` has had a batch of this epoch at the offset."""
        return (leader_epoch, offset) in self._named.get(key, ())


class Appended:
    """Checks what was appended to the replicas' logs since the last check, and each replica's log end."""

    def __init__(self, ledger: Callable[[Key], Ledger | None], is_compacted: Callable[[str], bool]) -> None:
        """`ledger` has what must not be lost of a partition; None: nothing."""
        self._ledger = ledger
        self._is_compacted = is_compacted
        self._names = Names()
        #: The offsets that some log had lost in a crash, before others that it kept: an unclean leader goes on so.
        self.gaps: dict[Key, set[int]] = {}
        #: Up to where a log has been checked. A follower that cuts its log off asks its leader before it appends, so
        #: that nothing is cut off and written again between two looks.
        self._ends: dict[Partition, tuple[Log, int]] = {}
        #: partition -> replica -> how far it has come; those of nodes that are down have what they had.
        self._reached: dict[Key, dict[int, int]] = {}

    def look_at(self, machine: Machine, partition: Partition) -> None:
        """Check this replica; cheap where nothing has changed."""
        log = partition.log
        known, end = self._ends.get(partition), log.log_end_offset
        if known is not None and known[0] is log and known[1] == end:
            return
        self._ends[partition] = log, end
        key = (partition.topic_id, partition.topic_partition.partition)
        start = known[1] if known is not None and known[0] is log else 0
        if start < end:
            for offset, what in self._found(machine, partition, start, end):
                self._names.add("LogMatching", f"{partition} on {machine}", key, offset, what)
        reached = self._reached.setdefault(key, {})
        before = reached.get(machine.node_id, 0)
        reached[machine.node_id] = end
        if end < before:
            self._nothing_is_lost(key, machine)

    def _found(
        self, machine: Machine, partition: Partition, start: int, end: int
    ) -> Iterator[tuple[int, Batch | Committed]]:
        log = partition.log
        if self._is_compacted(partition.topic_partition.topic):
            # The cleaner rewrites batches, and leaves records as they are.
            yield from records_in(log, max(start, log.local_log_start_offset), end).items()
            return
        reached = max(start, log.local_log_start_offset)
        for batch in batches_of(log, reached, end):
            if batch.base_offset > reached:
                self._note_gap(machine, partition, reached, batch.base_offset)
            reached = batch.next_offset
            for offset in range(batch.base_offset, batch.next_offset):
                yield offset, batch
        if reached < end:
            self._note_gap(machine, partition, reached, end)

    def _note_gap(self, machine: Machine, partition: Partition, start: int, end: int) -> None:
        """The replica has no batch with these offsets, before its log end.

        Raises Violated, unless it knows that it has a gap, or has copied that of another one.
        """
        key = (partition.topic_id, partition.topic_partition.partition)
        known, gap = self.gaps.setdefault(key, set()), set(range(start, end))
        if partition.log.first_gap_offset is None and not known >= gap:
            raise Violated(f"ValidReplicaState: {partition} on {machine}: no batch from {start} to {end}")
        known |= gap

    def is_gone(self, machine: Machine) -> None:
        """A machine has lost pages, or its whole disk: what it has is unknown until it fetches."""
        for key, reached in self._reached.items():
            if reached.pop(machine.node_id, None) is not None:
                self._nothing_is_lost(key, machine)

    def only(self, key: Key, replicas: tuple[int, ...]) -> None:
        """Forget what other replicas than these have had."""
        reached = self._reached.get(key)
        if reached is not None:
            self._reached[key] = {each: reached[each] for each in reached if each in replicas}

    def _nothing_is_lost(self, key: Key, machine: Machine) -> None:
        ledger = self._ledger(key)
        if ledger is not None and ledger.end > max(self._reached[key].values(), default=0):
            raise Violated(
                f"NoCommittedRecordLostGlobally: {key[1]} of {key[0]}, since {machine} has less: "
                f"replicas have {self._reached[key]}, committed is everything before {ledger.end}"
            )
