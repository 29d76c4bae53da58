"""A chart over time, without a picture yet: strips with one time axis, lines of targets in each, marks through all of them.

Drawn as HTML and SVG (`svg.py`) and by matplotlib (`plots.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import Unit, name_of
from ottla.bench.page.scales import Scale, scale_for

#: With so few points, each is marked.
MOST_DOTS: Final = 12
#: One for each `Chart.xs`; None where nothing was measured, and the line has a gap.
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One target: the median of its runs, and their range."""

    target: str
    middle: Values
    low: Values
    high: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One quantity."""

    name: str
    unit: Unit
    lines: Sequence[Line]
    may_be_log: bool = False

    def scale(self) -> Scale:
        """Of all that is drawn."""
        drawn = [value for line in self.lines for value in (*line.low, *line.high) if value is not None]
        return scale_for(drawn, may_be_log=self.may_be_log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event of the phase."""

    number: int
    name: str
    at_s: float
    #: What was waited for, if anything was.
    until: str | None
    #: Target -> median of the seconds until then; None where the condition was not reached in all runs.
    took_s: Mapping[str, float | None]

    def words(self) -> str:
        """What happened, and how long it took.

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
    #: How many seconds each point is about.
    step_s: int
    strips: Sequence[Strip]
    marks: Sequence[Mark] = ()

    @property
    def end_s(self) -> float:
        """Of the time axis."""
        return self.xs[-1] + self.step_s
