"""What every benchmark does with its subjects: they are started together, warmed up, measured in turn, and killed at the end.

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
    """Some subjects; `say` gets a line for whatever takes a while."""

    def __init__(self, subjects: Sequence[T], *, say: Callable[[str], None]) -> None:
        self.subjects = subjects
        #: Name -> how it was warmed up.
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
        """Start all of them and wait until they serve."""
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
        """Warm up each one, or these, until its CPU falls no more; a subject without processes here has none to watch.

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
        """Each subject, or each of these, so many times; the order is reversed each time, and from run to run."""
        subjects = self.subjects if subjects is None else subjects
        for time in range(times):
            yield from subjects if (run + time) % 2 == 0 else reversed(subjects)

    def _say_of(self, subject: T, text: str) -> None:
        self._say(f"{subject.name}  {text}")


@contextmanager
def scratch(base: Path, name: str) -> Iterator[Path]:
    """A new folder for what subjects write, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"ottla-{name}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
