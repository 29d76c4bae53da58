"""The parts of a benchmark: measures, and the subjects that they are taken of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ottla.bench.figures import Figure, Sample, Table
from ottla.bench.targets.memory import LOADED_GOAL_BYTES


class Subject(Protocol):
    """A server or a cluster of Kafka or Ottla, made with a folder and settings, not started yet."""

    #: The name of the subject in results.
    name: str

    def start(self) -> object:
        """Start all processes, and wait until they serve."""

    def kill(self) -> None:
        """Kill the processes that run (SIGKILL)."""

    def broker_pids(self) -> Sequence[int]:
        """Return the processes of the brokers that run."""


T = TypeVar("T", bound=Subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(Generic[T]):
    """A measure of each subject, from which one table is made."""

    name: str
    title: str
    figures: Sequence[Figure]
    #: (subject, scale) -> sample. Scale 1 is a volume that takes about a second.
    run: Callable[[T, float], Sample]
    note: str = ""
    #: Prepares the data that `run` reads, once for each subject, before the first of the loads, or of the
    #: measures that restart nodes.
    prepare: Callable[[T, float], None] | None = None
    #: The number of samples in each run: fail-overs vary more than loads.
    times: int = 1
    #: Whether nodes are restarted, which are cold then: it comes last, after all runs of the others, and unrehearsed.
    restarts_nodes: bool = False
    #: Whether the subjects have to be up. Measures that need none come first.
    needs_subject: bool = True
    #: Whether it is also taken of the program's floor.
    has_floor: bool = False
    #: Whether Ottla's processor time is profiled, too: `run` reads `usage` just before and just after what it measures.
    is_profiled: bool = False
    #: The bytes that `run` writes to files at scale 1, on all brokers: so much memory is used once before
    #: (`bench/free_memory.py`).
    written_bytes: float = 0.0
    #: The bytes that `prepare` writes.
    prepared_bytes: float = 0.0

    def table(self) -> Table:
        """Return a table without samples."""
        return Table(name=self.name, title=self.title, note=self.note, figures=self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program(Generic[T]):
    """A benchmark of Kafka beside Ottla."""

    name: str
    description: str
    #: Name -> (folder, settings) -> subject.
    subjects: Mapping[str, Callable[[Path, Mapping[str, str]], T]]
    measures: Sequence[Measure[T]]
    #: (subject, scale) -> the CPU of each load of one round of the warm-up.
    warm_up_round: Callable[[T, float], Mapping[str, float]]
    #: About how long each load takes, unless the command line says otherwise.
    seconds: float
    #: The settings with which it is measured unless the command line says otherwise.
    settings: Sequence[str]
    places: Sequence[str]
    #: Properties of this program on top of the chosen settings.
    properties: Mapping[str, str]
    #: (measure, metric) of the rows that the short tables show, beside the worst one and the memory.
    headlines: Sequence[tuple[str, str]]
    #: The bound for the private memory of Ottla's largest broker under load.
    memory_goal_bytes: float = LOADED_GOAL_BYTES
    #: The subject that is measured beside the others where a measure has a floor: neither warmed up nor judged.
    floor: Callable[[Path, Mapping[str, str]], T] | None = None
    #: Ottla with a sampler, for the measures that are profiled.
    profiled: Callable[[Path, Mapping[str, str]], T] | None = None
