"""Axes: units that fit the values, round ticks, and the place of a value between both ends."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.bench.figures import Unit

#: Units with their factors to base units: seconds, bytes, bytes per second. Each list is from the smallest
#: unit to the largest one.
TIMES: Final = (
    Unit(name="µs", factor=1e6, decimals=0),
    Unit(name="ms", factor=1e3, decimals=1),
    Unit(name="s", decimals=1),
)
SIZES: Final = (
    Unit(name="kB", factor=1e-3, decimals=0),
    Unit(name="MB", factor=1e-6, decimals=1),
    Unit(name="GB", factor=1e-9, decimals=2),
)
SPEEDS: Final = tuple(
    Unit(name=f"{unit.name}/s", factor=unit.factor, decimals=unit.decimals) for unit in SIZES
)
RATES: Final = (Unit(name="/s", decimals=0), Unit(name="k/s", factor=1e-3, decimals=1))
CORES: Final = (Unit(name="cores", decimals=2),)

_ROUND: Final = (1.0, 2.0, 5.0, 10.0)
#: The number of labels that have room on an axis of a phone's width.
_MOST_TICKS: Final = 4
#: A linear axis does not show values that are smaller than this part of its end.
_LOG_FROM: Final = 30.0


def fitting(units: Sequence[Unit], value: float) -> Unit:
    """Return the largest unit in which a value is at least one; the smallest one if none is so small.

    >>> fitting(TIMES, 0.012).name, fitting(TIMES, 0.0).name, fitting(SPEEDS, 5e8).name
    ('ms', 'µs', 'MB/s')
    """
    return next((unit for unit in reversed(units) if value * unit.factor >= 1), units[0])


def time_words(seconds: float) -> str:
    """Return a time with the unit that fits.

    >>> time_words(0.0123), time_words(5e-05), time_words(90.0)
    ('12.3 ms', '50 µs', '90 s')
    """
    unit = fitting(TIMES, seconds * 1.0001)  # 1 ms is no 1,000 us, however it is rounded
    return f"{seconds * unit.factor:.3g} {unit.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """An axis in base units; 0 < `least` where it is logarithmic."""

    least: float
    most: float
    is_log: bool
    ticks: Sequence[float]

    def part(self, value: float) -> float:
        """Return the place of a value: 0 at `least`, 1 at `most`; values outside are at the ends.

        >>> logarithmic([1.0, 100.0]).part(10.0), linear([8.0]).part(5.0)
        (0.5, 0.5)
        """
        if self.is_log:
            value = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
            return min(value, 1.0)
        return min(max((value - self.least) / (self.most - self.least), 0.0), 1.0)


def linear(values: Iterable[float], *, tick_count: int = 3) -> Scale:
    """Make a linear axis from zero to a round number that no value exceeds, with about `tick_count` ticks above zero.

    >>> linear([3.0, 7.3]).ticks
    [0.0, 5.0, 10.0]
    """
    most = max(values, default=0.0) or 1.0
    step = _round_up(most / tick_count)
    count = math.ceil(most / step - 1e-9)
    return Scale(least=0.0, most=count * step, is_log=False, ticks=[step * at for at in range(count + 1)])


def logarithmic(values: Iterable[float]) -> Scale:
    """Make a logarithmic axis from a round number below all positive values to one above them.

    Ticks are at powers of ten, and at 2 and 5 where there is room.

    >>> logarithmic([0.0, 0.004, 0.7]).ticks
    [0.01, 0.1, 1.0]
    """
    positive = [value for value in values if value > 0] or [1.0]
    least, most = _round_down(min(positive)), _round_up(max(positive))
    if least >= most:
        least, most = least / 10, most * 10
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    powers = [
        10.0**power
        for power in range(first, last + 1)
        if least <= 10.0**power * 1.001 and 10.0**power <= most * 1.001
    ]
    rounds = [part * 10.0**power for power in range(first, last + 1) for part in _ROUND[:-1]]
    rounds = [value for value in rounds if least * 0.999 <= value <= most * 1.001]
    if len(powers) < 2 or len(powers) < len(rounds) <= _MOST_TICKS:
        powers = rounds
    while len(powers) > _MOST_TICKS:
        powers = powers[::2]
    return Scale(least=least, most=most, is_log=True, ticks=powers)


def scale_for(values: Sequence[float], *, may_be_log: bool) -> Scale:
    """Make an axis: logarithmic if that is allowed and the values differ by more than a linear axis can show."""
    positive = [value for value in values if value > 0]
    if may_be_log and positive and max(positive) / min(positive) > _LOG_FROM:
        return logarithmic(positive)
    return linear(values)


def time_ticks(seconds: float) -> list[float]:
    """Return four or five ticks of a time axis that starts at 0, in steps that are read as time.

    >>> time_ticks(61), time_ticks(7)
    ([0.0, 15.0, 30.0, 45.0, 60.0], [0.0, 2.0, 4.0, 6.0])
    """
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
    step = next((each for each in steps if seconds / each <= 5), math.ceil(seconds / 5 / 3600) * 3600)
    return [float(at) for at in range(0, math.floor(seconds) + 1, step)]


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(part * power for part in _ROUND if part * power >= value * 0.999999)


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(part * power for part in reversed(_ROUND) if part * power <= value * 1.000001)
