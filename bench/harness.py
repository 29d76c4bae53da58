"""The frame of every benchmark: subjects are started together, warmed up, measured in turn, and killed at the end.

    with Harness(subjects, say=print) as harness:
        harness.start()
        harness.warm_up(round_, most_rounds=15)
        for run in range(5):
            for subject in harness.in_turn(run):    the first one first; in the next run the last one first
                ...

All subjects run all the time, and one of them is under load: what else the machine does meets all of them.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

from ottla.bench.measures import T
from ottla.bench.warm_up import WarmUp, warm_up


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
