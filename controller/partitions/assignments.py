"""Replica assignments: manual ones are checked, automatic ones are placed; both become partition records.

The placement of new partitions (`place_replicas`) is rack-aware. Racks take turns, and within a rack its
brokers do, so that leaders and followers spread evenly and the replicas of one partition are in different
racks as long as there are enough (KIP-36, KIP-631). The leader is always an unfenced broker; fenced ones may
follow, after the unfenced ones of their rack. The turns begin at random; otherwise the first brokers would
hold all topics with one partition. A round ends when every unfenced broker may have led once; then all orders
are drawn again. Otherwise the same two brokers would be neighbours in every partition, and one would become
leader of all partitions that the other led.
Source: StripedReplicaPlacer of Kafka 4.3.1; the rules are the same, the random draws are not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

from ottla.controller.state import ClusterState
from ottla.metadata.records import PartitionRecord
from ottla.protocol.errors import InvalidReplicaAssignment, InvalidReplicationFactor

if TYPE_CHECKING:
    from random import Random

_T = TypeVar("_T")


def check_manual(state: ClusterState, replicas: Sequence[int], *, replication_factor: int | None) -> None:
    """Check a list of replicas. `replication_factor` is that of the topic's other partitions; None: not checked.

    Raises InvalidReplicaAssignment.
    """
    if not replicas:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    for broker_id in sorted(replicas):
        if broker_id not in state.image.brokers:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if replicas.count(broker_id) > 1:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes the broker {broker_id} more than once."
            )
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
            f"not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def manual_record(
    state: ClusterState, topic_id: UUID, index: int, replicas: Sequence[int]
) -> PartitionRecord:
    """The record of a new partition on brokers that `check_manual` has accepted. Raises InvalidReplicaAssignment."""
    assigned = _assigned(list(replicas), _new_replicas(state, replicas))
    if not assigned.isr:
        raise InvalidReplicaAssignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return _partition_record(topic_id, index, assigned)


def place(state: ClusterState, *, count: int, replication_factor: int) -> list[list[int]]:
    """Choose the replicas for `count` new partitions. Raises InvalidReplicationFactor.

    Brokers in controlled shutdown take none, nor do those whose directories are all cordoned (KIP-1066).
    """
    candidates = [
        Candidate(broker.broker_id, broker.rack, broker.is_fenced)
        for broker in state.brokers()
        if state.sessions.of(broker.broker_id).shutdown_offset is None
        and (not broker.cordoned_log_dirs or set(broker.log_dirs) - set(broker.cordoned_log_dirs))
    ]
    return place_replicas(
        candidates, partition_count=count, replication_factor=replication_factor, random=state.random
    )


def placed_records(
    state: ClusterState, topic_id: UUID, *, first: int, placed: Sequence[list[int]]
) -> list[PartitionRecord]:
    """The records of new partitions from `first` on, on the replicas that `place` has chosen.

    Raises InvalidReplicationFactor.
    The records of partitions with the same replicas share their lists.
    """
    records = []
    known = _new_replicas(state, chain.from_iterable(placed))
    # A topic may have thousands of partitions in a few orders of a few brokers.
    assigned: dict[tuple[int, ...], _Assigned] = {}
    for index, replicas in enumerate(placed, start=first):
        key = tuple(replicas)
        if (found := assigned.get(key)) is None:
            found = assigned[key] = _assigned(replicas, known)
        if not found.isr:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or "
                "in controlled shutdown."
            )
        records.append(_partition_record(topic_id, index, found))
    return records


class _NewReplica(NamedTuple):
    """The common properties of a broker's new replicas: whether they join the ISR, and their directory."""

    is_active: bool
    directory: UUID


def _new_replicas(state: ClusterState, broker_ids: Iterable[int]) -> dict[int, _NewReplica]:
    """The properties of new replicas on these brokers: a topic may have thousands of partitions on a few brokers."""
    return {
        each: _NewReplica(state.is_active(each), state.default_directory(each)) for each in set(broker_ids)
    }


class _Assigned(NamedTuple):
    """The replicas of a new partition, its ISR and directories; without an active replica the ISR is empty."""

    replicas: list[int]
    isr: list[int]
    directories: list[UUID]


def _assigned(replicas: list[int], known: Mapping[int, _NewReplica]) -> _Assigned:
    return _Assigned(
        replicas,
        isr=[replica for replica in replicas if known[replica].is_active],
        directories=[known[replica].directory for replica in replicas],
    )


def _partition_record(topic_id: UUID, index: int, assigned: _Assigned) -> PartitionRecord:
    """A new partition: the ISR is its active replicas, the leader the first of them."""
    replicas, isr, directories = assigned
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=directories,
    )


class Candidate(NamedTuple):
    """A broker that may take replicas; brokers without a rack are in one rack together."""

    broker_id: int
    rack: str | None
    is_fenced: bool


class _Rack:
    """The brokers of one rack, unfenced and fenced ones; each list begins at random."""

    def __init__(self, candidates: Sequence[Candidate], random: "Random") -> None:
        unfenced = sorted(each.broker_id for each in candidates if not each.is_fenced)
        fenced = sorted(each.broker_id for each in candidates if each.is_fenced)
        self.unfenced = _rotated(unfenced, random.randrange(len(unfenced)) if unfenced else 0)
        self.fenced = _rotated(fenced, random.randrange(len(fenced)) if fenced else 0)

    def brokers_from(self, turn: int) -> list[int]:
        """All brokers: the unfenced ones from this turn's first, then the fenced ones."""
        return _rotated(self.unfenced, turn) + _rotated(self.fenced, turn)

    def shuffle(self, random: "Random") -> None:
        """Draw a new order of the unfenced brokers, and one of the fenced brokers."""
        random.shuffle(self.unfenced)
        random.shuffle(self.fenced)


def place_replicas(
    candidates: Sequence[Candidate], *, partition_count: int, replication_factor: int, random: "Random"
) -> list[list[int]]:
    """Return the replicas of each new partition, the preferred leader first.

    Raises InvalidReplicationFactor if there are too few brokers, or none that could lead.
    """
    if replication_factor <= 0:
        raise InvalidReplicationFactor(
            f"Invalid replication factor {replication_factor}: the replication factor must be positive."
        )
    if all(each.is_fenced for each in candidates):
        raise InvalidReplicationFactor(
            "All brokers are currently fenced, or have all their log directories cordoned."
        )
    if replication_factor > len(candidates):
        raise InvalidReplicationFactor(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(candidates)} broker(s) are registered or some brokers have all their log directories cordoned."
        )
    by_rack: dict[str | None, list[Candidate]] = {}
    for each in candidates:
        by_rack.setdefault(each.rack, []).append(each)
    names = sorted(by_rack, key=lambda name: (name is not None, name or ""))
    racks = [_Rack(by_rack[name], random) for name in names]
    start = random.randrange(len(racks))
    unfenced_count = sum(len(rack.unfenced) for rack in racks)
    round_size = partition_count if unfenced_count == 1 else unfenced_count
    placed: list[list[int]] = []
    while len(placed) < partition_count:
        if placed:
            random.shuffle(racks)
            for rack in racks:
                rack.shuffle(random)
        for index in range(min(round_size, partition_count - len(placed))):
            turn = index // len(racks)
            placed.append(_replicas(_rotated(racks, start + index), turn, replication_factor))
    return placed


def _replicas(racks: Sequence[_Rack], turn: int, replication_factor: int) -> list[int]:
    """One broker of each rack in order, then a second one of each, and so on; the leader's rack is first."""
    if len(racks) == 1:
        # The usual cluster: without racks a topic's partitions are placed in half the time.
        return racks[0].brokers_from(turn)[:replication_factor]
    first = next(position for position, rack in enumerate(racks) if rack.unfenced)
    queues = [iter(rack.brokers_from(turn)) for rack in _rotated(racks, first)]
    chosen: list[int] = []
    for broker_id in _interleaved(queues):
        chosen.append(broker_id)
        if len(chosen) == replication_factor:
            break
    assert len(chosen) == replication_factor, (chosen, replication_factor)
    return chosen


def _interleaved(queues: list[Iterator[int]]) -> Iterator[int]:
    while queues:
        left = []
        for queue in queues:
            for broker_id in queue:
                yield broker_id
                left.append(queue)
                break
        queues = left


def _rotated(items: Sequence[_T], by: int) -> list[_T]:
    if not items:
        return []
    by %= len(items)
    return [*items[by:], *items[:by]]
