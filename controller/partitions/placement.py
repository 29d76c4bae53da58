"""Replica placement for new partitions, rack-aware: one pure function.

Racks take turns, and within a rack its brokers do, so that leaders and followers spread evenly and the
replicas of one partition are in different racks as long as there are enough (KIP-36, KIP-631). The leader is
always an unfenced broker; fenced ones may follow, after the unfenced ones of their rack. The turns begin at
random; otherwise the first brokers would hold all topics with one partition. A round ends when every unfenced
broker may have led once; then all orders are drawn again. Otherwise the same two brokers would be neighbours in
every partition, and one would become leader of all partitions that the other led.
Source: StripedReplicaPlacer of Kafka 4.3.1; the rules are the same, the random draws are not.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.protocol.errors import InvalidReplicationFactor

if TYPE_CHECKING:
    from random import Random

_T = TypeVar("_T")


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
