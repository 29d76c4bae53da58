"""The loads of a workload: groups of equal clients, which are shown together, and which streams a reader reads as a whole.

Pure: a workload in, rows for Spark out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

from bench.generators.rows import Role
from bench.workloads.model import Consumers, Phase, Start, TopicSpec, Workload

#: Topics with one of these lose records by themselves, so that nothing is missed in them.
_RETENTION: Final = ("retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The clients of one group of a phase, `producer-<group>-<number>`."""

    phase: str
    role: Role
    group: int
    #: How it is shown: its role, and a number from 1 if the phase has several groups of it.
    label: str

    @property
    def key(self) -> str:
        """The label as the beginning of a metric's name."""
        return self.label.replace(" ", "_")


def loads_of(phase: Phase) -> list[Load]:
    """All of a phase, in the order of the workload."""
    counts = {
        Role.PRODUCER: len(phase.producers),
        Role.CONSUMER: len(phase.consumers),
        Role.JOB: len(phase.jobs),
        Role.CONNECTIONS: int(phase.connections is not None),
    }
    return [
        Load(
            phase=phase.name,
            role=role,
            group=group,
            label=f"{role.value} {group + 1}" if count > 1 else role.value,
        )
        for role, count in counts.items()
        for group in range(count)
    ]


LABELS: Final = "phase string, role string, group int, label string"


def label_rows(workload: Workload) -> list[tuple[str, str, int, str]]:
    """Of the schema LABELS."""
    return [
        (load.phase, load.role.value, load.group, load.label)
        for phase in workload.phases
        for load in loads_of(phase)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Some producers' streams that a reader reads from their first record to their last one."""

    #: Where the reader is.
    phase: str
    #: The consumers' group, and one of its clients if each of them reads everything.
    reader_group: int
    reader_client: str | None
    #: Where the producers are.
    stream_phase: str
    producer_group: int


READINGS: Final = (
    "phase string, reader_group int, reader_client string, stream_phase string, producer_group int"
)
assert [field.name for field in fields(Reading)] == [column.split()[0] for column in READINGS.split(", ")]


def readings_of(workload: Workload) -> list[Reading]:
    """What has to be complete: where a record is missing, it is lost."""
    topics = {topic.name: topic for topic in workload.topics}
    return [
        Reading(
            phase=phase.name,
            reader_group=group,
            reader_client=client,
            stream_phase=earlier.name,
            producer_group=producer_group,
        )
        for at, phase in enumerate(workload.phases)
        for group, consumers in enumerate(phase.consumers)
        if _keeps_all(topics.get(consumers.topic))
        for client in _readers(group, consumers)
        for earlier in _read_as_a_whole(workload.phases, at, consumers)
        for producer_group, producers in enumerate(earlier.producers)
        if producers.topic == consumers.topic
    ]


def reading_rows(workload: Workload) -> list[tuple[object, ...]]:
    """Of the schema READINGS."""
    return [astuple(reading) for reading in readings_of(workload)]


def _keeps_all(topic: TopicSpec | None) -> bool:
    configs: Mapping[str, str] = topic.configs if topic is not None else {}
    is_bounded = any(configs.get(name, "-1") != "-1" for name in _RETENTION)
    return not is_bounded and "compact" not in configs.get("cleanup.policy", "")


def _readers(group: int, consumers: Consumers) -> Iterator[str | None]:
    if consumers.is_each_all:
        yield from (f"consumer-{group}-{number}" for number in range(consumers.count))
    else:
        yield None


def _read_as_a_whole(phases: Sequence[Phase], at: int, consumers: Consumers) -> Sequence[Phase]:
    """The phases whose producers' records a consumer of the phase with this index reads, all of them."""
    match consumers.start:
        case Start.END:
            return phases[at : at + 1]
        case Start.OFFSET if consumers.offset:
            return ()
        case _:
            return phases[: at + 1]
