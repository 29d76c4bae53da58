"""GroupMetadataManager: the groups that this broker coordinates, by state, and their committed offsets.

Source: GroupCoordinatorMetrics of Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.group_state import GroupState
from ottla.broker.metrics.families import Family, kafka, one


class GroupTable:
    """The metrics of the group coordinator, and the counts that they show."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._by_state: Counter[GroupState] = Counter()
        self._offsets_count = 0

    def prepare(self) -> Iterator[None]:
        """Count all groups, one partition of the offsets topic after the other."""
        by_state: Counter[GroupState] = Counter()
        offsets_count = 0
        for shard in list(self._coordinator.shards.by_partition.values()):
            for group in shard.loaded_groups():
                by_state[group.state] += 1
                offsets_count += shard.state.offsets.count_of(group.group_id)
                yield
        self._by_state, self._offsets_count = by_state, offsets_count

    def families(self) -> Sequence[Family]:
        """Return the metrics of the group coordinator."""
        mbean = "kafka.coordinator.group:type=GroupMetadataManager,name="

        def in_state(state: GroupState) -> Family:
            return kafka(
                f"{mbean}NumGroups{state.value}",
                f"Groups in the state {state.value}.",
                one(lambda: self._by_state[state]),
            )

        return [
            kafka(f"{mbean}NumGroups", "Groups that this broker coordinates.", one(self._by_state_total)),
            *(in_state(state) for state in GroupState),
            kafka(
                f"{mbean}NumOffsets", "Committed offsets of these groups.", one(lambda: self._offsets_count)
            ),
        ]

    def _by_state_total(self) -> int:
        return self._by_state.total()
