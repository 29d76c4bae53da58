"""Measures of the programs in this package: each has cases, and each case is a table of the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ottla.bench.figures import OTTLA, Figure, Goal, Sample, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """A measure of the package: its cases, with the same figures of each case."""

    name: str
    title: str
    #: The description of the measurement.
    note: str
    figures: Sequence[Figure]
    #: Case -> target -> a sample for each run.
    samples: Mapping[str, dict[str, list[Sample]]]
    #: (case, metric) -> goal.
    goals: Mapping[tuple[str, str], Goal] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """Return a table for each case; the first one has the note."""
        return [
            Table(
                name=f"{self.name}-{case}",
                title=f"{self.title}: {case}",
                note="" if number else self.note,
                figures=[
                    replace(figure, goal=self.goals.get((case, figure.metric))) for figure in self.figures
                ],
                samples=samples,
            )
            for number, (case, samples) in enumerate(self.samples.items())
        ]


def of_ottla(runs: int, measure: Callable[[], Mapping[str, float]]) -> dict[str, list[Sample]]:
    """Return the samples of a case without Kafka."""
    return {OTTLA: [dict(measure()) for _ in range(runs)]}
