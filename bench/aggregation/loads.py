"""The loads of a workload: groups of equal clients, shown together, and the streams that readers read as a whole.

Pure: a workload in, rows for Spark out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Final

from ottla.bench.generators.rows import Role
from ottla.bench.workloads.model import Job, Phase, Start, TopicSpec, Workload

#: Topics with one of these lose records by themselves, so that nothing is missed in them.
_RETENTION: Final = ("retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The clients of one group of a phase, `producer-<group>-<number>`, or a Spark job, `job-<number>`."""

    phase: str
    role: Role
    group: int
    #: The name under which it is shown: its role, and a number from 1 if the phase has several groups of it.
    label: str

    @property
    def clients(self) -> str:
        """The prefix of the names of the load's clients."""
        return f"{self.role.value}-{self.group}"

    @property
    def key(self) -> str:
        """The label as the beginning of a metric's name."""
        return self.label.replace(" ", "_")


def loads_of(phase: Phase) -> list[Load]:
    """Return all loads of a phase, in the order of the workload."""
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


LABELS: Final = "phase string, clients string, label string"


def label_rows(workload: Workload) -> list[tuple[str, str, str]]:
    """Return the rows of the schema LABELS for a workload."""
    return [(load.phase, load.clients, load.label) for phase in workload.phases for load in loads_of(phase)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Some producers' streams that a reader reads from their first record to their last one."""

    #: The phase of the reader.
    phase: str
    #: The load of the readers as `Load.clients`, and one of them if each reads everything.
    readers: str
    reader: str | None
    #: The phase of the producers.
    stream_phase: str
    producers: str


READINGS: Final = "phase string, readers string, reader string, stream_phase string, producers string"
assert [field.name for field in fields(Reading)] == [column.split()[0] for column in READINGS.split(", ")]


def readings_of(workload: Workload) -> list[Reading]:
    """Return the readings that have to be complete: where a record is missing, it is lost."""
    kept = {topic.name for topic in workload.topics if _keeps_all(topic)}
    return [
        Reading(
            phase=phase.name,
            readers=readers,
            reader=reader,
            stream_phase=earlier.name,
            producers=producers,
        )
        for at, phase in enumerate(workload.phases)
        for topic, readers, reader, first, end in _readers(workload.phases, at)
        if topic in kept
        for earlier in workload.phases[first:end]
        for written, producers in _producers(earlier)
        if written == topic
    ]


def _readers(phases: Sequence[Phase], at: int) -> Iterator[tuple[str, str, str | None, int, int]]:
    """Yield (topic, readers, reader, first, end) of the phase with this index.

    The readers read all records of the phases from `first` to before `end`.
    """
    phase = phases[at]
    for group, consumers in enumerate(phase.consumers):
        name = f"{Role.CONSUMER.value}-{group}"
        if consumers.start is Start.OFFSET and consumers.offset:
            continue
        first = at if consumers.start is Start.END else 0
        numbers = range(consumers.count)
        readers = [f"{name}-{number}" for number in numbers] if consumers.is_each_all else [None]
        yield from ((consumers.topic, name, reader, first, at + 1) for reader in readers)
    for number, job in enumerate(phase.jobs):
        if job.job is not Job.CONNECTOR_WRITE:
            end = _last_written(phases[:at], job.topic) if job.job is Job.TIER_READ else at + 1
            yield job.topic, f"{Role.JOB.value}-{number}", None, 0, end


def _last_written(phases: Sequence[Phase], topic: str) -> int:
    """Return the last phase that writes to a topic.

    The records that it has written may still be in active segments, which are not tiered.
    """
    written = [at for at, phase in enumerate(phases) if any(it == topic for it, _ in _producers(phase))]
    return written[-1] if written else 0


def _producers(phase: Phase) -> Iterator[tuple[str, str]]:
    """Yield (topic, producers) for each group of producers, and each job that writes."""
    for group, producers in enumerate(phase.producers):
        yield producers.topic, f"{Role.PRODUCER.value}-{group}"
    for number, job in enumerate(phase.jobs):
        if job.job is Job.CONNECTOR_WRITE:
            yield job.topic, f"{Role.JOB.value}-{number}"


def reading_rows(workload: Workload) -> list[tuple[object, ...]]:
    """Return the rows of the schema READINGS for a workload."""
    return [astuple(reading) for reading in readings_of(workload)]


def _keeps_all(topic: TopicSpec) -> bool:
    is_bounded = any(topic.configs.get(name, "-1") != "-1" for name in _RETENTION)
    return not is_bounded and "compact" not in topic.configs.get("cleanup.policy", "")
