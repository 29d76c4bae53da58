"""A chart over time as data: strips with one time axis, lines of targets in each, marks through all of them.

Drawn as HTML and SVG (`svg.py`) and by matplotlib (`plots.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import Unit, name_of
from ottla.bench.page.scales import Scale, scale_for

#: The largest number of points of which each is marked.
MOST_DOTS: Final = 12
#: The values of a line, one for each `Chart.xs`; None where nothing was measured, and the line has a gap.
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of one target: the median of its runs, and their range."""

    target: str
    middle: Values
    low: Values
    high: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A strip of a chart: one quantity, with a line for each target."""

    name: str
    unit: Unit
    lines: Sequence[Line]
    may_be_log: bool = False

    def scale(self) -> Scale:
        """Return the scale of all values that are drawn."""
        drawn = [value for line in self.lines for value in (*line.low, *line.high) if value is not None]
        return scale_for(drawn, may_be_log=self.may_be_log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A mark in a chart: an event of the phase."""

    number: int
    name: str
    at_s: float
    #: The condition that was waited for, if there was one.
    until: str | None
    #: Target -> median of the seconds until then; None where the condition was not reached in all runs.
    took_s: Mapping[str, float | None]

    def words(self) -> str:
        """Return the words for the event, and for the time until its condition held.

        >>> took_s = {"ottla": 1.7, "other": None}
        >>> Mark(number=1, name="broker 2 is killed", at_s=20.02, until="led", took_s=took_s).words()
        'broker 2 is killed, at 20 s; until led: Ottla 1.70 s, other not reached'
        """
        words = f"{self.name}, at {self.at_s:.0f} s"
        if self.until is None:
            return words
        took = (
            f"{name_of(target)} {'not reached' if seconds is None else f'{seconds:.2f} s'}"
            for target, seconds in self.took_s.items()
        )
        return f"{words}; until {self.until.replace('_', ' ')}: {', '.join(took)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Strips over the seconds of a phase."""

    title: str
    note: str
    #: The start of each point, in seconds after the start of the phase.
    xs: Sequence[float]
    #: The seconds that each point stands for.
    step_s: int
    strips: Sequence[Strip]
    marks: Sequence[Mark] = ()

    @property
    def end_s(self) -> float:
        """The end of the time axis."""
        return self.xs[-1] + self.step_s
