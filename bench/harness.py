"""The frame of every benchmark: subjects are started together, warmed up, measured in turn, and killed at the end.

    with Harness(subjects, say=print) as harness:
        harness.start()
        harness.warm_up(round_, most_rounds=15)
        for run in range(5):
            for subject in harness.in_turn(run):    the first one first; in the next run the last one first
                ...

All subjects run all the time, and one of them is under load: what else the machine does meets all of them.
What a program measures of them is a `Measure`.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from ottla.bench.figures import Figure, Sample, Table
from ottla.bench.targets.memory import LOADED_GOAL_BYTES
from ottla.bench.warm_up import WarmUp, warm_up


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


class Harness(Generic[T]):
    """The subjects of a benchmark; `say` gets a line for everything that takes a while."""

    def __init__(self, subjects: Sequence[T], *, say: Callable[[str], None]) -> None:
        self.subjects = subjects
        #: Name -> the warm-up of the subject.
        self.warm_ups: dict[str, WarmUp] = {}
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subject in self.subjects:
            subject.kill()

    def start(self) -> None:
        """Start all subjects and wait until they serve."""
        for subject in self.subjects:
            subject.start()
            self._say(f"{subject.name} is up")

    def warm_up(
        self,
        run_round: Callable[[T], Mapping[str, float]],
        *,
        most_rounds: int,
        most_s: float = math.inf,
        subjects: Sequence[T] | None = None,
    ) -> None:
        """Warm up each subject, or each of `subjects`, until its CPU falls no more.

        A subject without processes on this machine is not warmed up.

        Nothing is done with `most_rounds` 0; no round begins after `most_s`, of each.
        """
        for subject in self.subjects if subjects is None else subjects:
            if most_rounds and subject.broker_pids():
                self.warm_ups[subject.name] = warm_up(
                    partial(run_round, subject),
                    say=partial(self._say_of, subject),
                    most_rounds=most_rounds,
                    most_s=most_s,
                )

    def in_turn(self, run: int, *, times: int = 1, subjects: Sequence[T] | None = None) -> Iterator[T]:
        """Yield each subject, or each of `subjects`, `times` times; the order changes each time and in each run."""
        subjects = self.subjects if subjects is None else subjects
        for time in range(times):
            yield from subjects if (run + time) % 2 == 0 else reversed(subjects)

    def _say_of(self, subject: T, text: str) -> None:
        self._say(f"{subject.name}  {text}")


@contextmanager
def scratch(base: Path, name: str) -> Iterator[Path]:
    """Make a new folder for the files of subjects, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"ottla-{name}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
