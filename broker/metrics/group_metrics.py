"""Metrics of groups: their number by state, and the committed offsets and the lag of each, without polling.

    committed offset   of the group's coordinator: this broker, or another one exports it
    end offset         the high watermark of the partition (`end_offsets.py`)
    lag                end offset - committed offset, by the coordinator, where it knows both

A follower learns its leader's high watermark with the next Fetch: the lag of a partition that another broker leads may
be too small by what was written since. A sum that would miss a lag is not exported; one of more rows than are
exported (`metrics.groups.max.rows`) is complete.

Source: GroupCoordinatorMetrics of Kafka 4.3.1; the names of offsets and lags are those of kafka_exporter.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.group_state import GroupState
from ottla.broker.groups.offsets import CommittedOffset
from ottla.broker.metrics.families import Family, Read, Reading, RenderedLabels, exporter, kafka, one, own
from ottla.broker.metrics.names import Kind
from ottla.protocol.types import TopicPartition
from ottla.runtime.turns import FreedInTurns, HasTurns

#: The number of committed offsets that the pass reads in one step: some 50 µs.
_OFFSETS_OF_STEP: Final = 25


Row = TypeVar("Row")


class GroupOffset(NamedTuple):
    """One committed offset at the time of the pass."""

    labels: RenderedLabels
    committed: int
    #: None: the end of the partition is not known.
    lag: int | None


class GroupTopic(NamedTuple):
    """The sums over the committed offsets of a group in one topic."""

    labels: RenderedLabels
    committed: int
    #: None: the lag of one of the partitions is not known.
    lag: int | None


class GroupPass:
    """The counts and rows that one pass over all groups has made."""

    __slots__ = (
        "_max_rows",
        "_parts",
        "by_state",
        "left_out",
        "members",
        "offset_count",
        "offsets",
        "topics",
    )

    def __init__(self, runtime: HasTurns, max_rows: int) -> None:
        self._max_rows = max_rows
        #: The number of committed offsets, and of rows beyond the bound.
        self.offset_count = self.left_out = 0
        self.by_state: Counter[GroupState] = Counter()
        self.members: list[tuple[RenderedLabels, int]] = []
        self.offsets: list[GroupOffset] = []
        self.topics: list[GroupTopic] = []
        self._parts = FreedInTurns(runtime)
        self._parts += self.members, self.offsets, self.topics

    def add(self, rows: list[Row], row: Row) -> None:
        """Add a row of a group, a topic or an offset; beyond the bound it is counted only."""
        if len(rows) < self._max_rows:
            rows.append(row)
        else:
            self.left_out += 1


class GroupTable:
    """The metrics of the groups that this broker coordinates, and the pass over them that they show."""

    def __init__(
        self,
        runtime: HasTurns,
        coordinator: GroupCoordinator,
        end_offset: Callable[[TopicPartition], int | None],
        *,
        max_rows: int,
    ) -> None:
        """`end_offset` returns the high watermark of a partition; None: it is not known.

        `max_rows` bounds the rows of groups, of their topics and of their offsets, each of the three.
        """
        self._max_rows = max_rows
        self._coordinator = coordinator
        self._end_offset = end_offset
        self._runtime = runtime
        self.found = GroupPass(runtime, max_rows)

    def prepare(self) -> Iterator[None]:
        """Pass over all groups and their offsets in steps, one partition of the offsets topic after the other."""
        found = GroupPass(self._runtime, self._max_rows)
        for shard in list(self._coordinator.shards.by_partition.values()):
            for group in shard.loaded_groups():
                name = group.group_id
                found.by_state[group.state] += 1
                found.add(found.members, (RenderedLabels(consumergroup=name), len(group.members)))
                yield
                for topic, offsets in list(shard.state.offsets.of_group(name).items()):
                    yield from self._pass_topic(found, name, topic, dict(offsets))
        self.found = found

    def _pass_topic(
        self, found: GroupPass, group: str, topic: str, offsets: Mapping[int, CommittedOffset]
    ) -> Iterator[None]:
        committed, lags, is_known = 0, 0, True
        for number, (partition, offset) in enumerate(sorted(offsets.items()), start=1):
            end = self._end_offset(TopicPartition(topic, partition))
            # A follower may not know yet that what the group has read is committed.
            lag = None if end is None else max(0, end - offset.offset)
            labels = RenderedLabels(consumergroup=group, topic=topic, partition=str(partition))
            found.offset_count += 1
            found.add(found.offsets, GroupOffset(labels, offset.offset, lag))
            committed += offset.offset
            lags += lag or 0
            is_known = is_known and lag is not None
            if number % _OFFSETS_OF_STEP == 0:
                yield
        labels = RenderedLabels(consumergroup=group, topic=topic)
        found.add(found.topics, GroupTopic(labels, committed, lags if is_known else None))
        yield

    def families(self) -> Sequence[Family]:
        """Return the metrics of the group coordinator."""
        mbean = "kafka.coordinator.group:type=GroupMetadataManager,name="

        def in_state(state: GroupState) -> Family:
            return kafka(
                f"{mbean}NumGroups{state.value}",
                f"Groups in the state {state.value}.",
                one(lambda: self.found.by_state[state]),
            )

        return [
            kafka(f"{mbean}NumGroups", "Groups that this broker coordinates.",
                  one(lambda: self.found.by_state.total())),
            *(in_state(state) for state in GroupState),
            kafka(f"{mbean}NumOffsets", "Committed offsets of these groups.", one(lambda: self.found.offset_count)),
            exporter("consumergroup_members", "Members of a group that this broker coordinates.",
                     lambda: self.found.members),
            exporter("consumergroup_current_offset", "The committed offset of a group.",
                     lambda: ((row.labels, row.committed) for row in self.found.offsets)),
            exporter("consumergroup_current_offset_sum", "The sum of the group's committed offsets in a topic.",
                     lambda: ((row.labels, row.committed) for row in self.found.topics)),
            exporter("consumergroup_lag", "Records between the committed offset and the high watermark.",
                     self._lags(lambda: self.found.offsets)),
            exporter("consumergroup_lag_sum", "The sum of the group's lags in a topic; only if all of them are known.",
                     self._lags(lambda: self.found.topics)),
            own("group_rows_left_out", Kind.GAUGE,
                "Rows of groups, of their topics and of their offsets that are not on this page, beyond "
                "metrics.groups.max.rows of each.",
                one(lambda: self.found.left_out)),
        ]  # fmt: skip

    def _lags(self, rows: Callable[[], Sequence[GroupOffset | GroupTopic]]) -> Read:
        def read() -> Iterable[Reading]:
            return ((row.labels, row.lag) for row in rows() if row.lag is not None)

        return read
