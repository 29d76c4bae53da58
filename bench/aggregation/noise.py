"""Whether two groups of runs differ by more than their noise: the Mann-Whitney test, by its exact distribution.

It asks whether the runs of one group are larger than those of the other one, whatever the distribution of
either is: p is the part of all ways to divide the runs into two such groups in which they are as far apart.
Runs are few, so that neither a normal distribution nor a bootstrap, which repeats the same few values, says
more. With three runs of each the smallest p is 0.1: no difference exceeds the noise then, however large it
is.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import Final

import numpy

#: A p below it is no accident; of twenty rows without any difference one has such a p.
SIGNIFICANT: Final = 0.05


class Noise(Enum):
    """The relation of a difference to the noise of runs."""

    EXCEEDED = "exceeds the noise"
    WITHIN = "within the noise"
    #: There are too few runs for any difference to exceed the noise.
    UNKNOWN = "cannot say"
    #: All runs of both groups have the same value.
    EQUAL = "equal"


def verdict(first: Sequence[float], second: Sequence[float]) -> Noise:
    """Return the relation to the noise of the difference between two groups of runs.

    >>> verdict([1.0, 1.1, 1.2, 1.3], [1.4, 1.5, 1.6, 1.7]).value, verdict([1.0, 1.1, 1.2], [1.4, 1.5, 1.6]).value
    ('exceeds the noise', 'cannot say')
    """
    if len({*first, *second}) == 1:
        return Noise.EQUAL
    if least_p(len(first), len(second)) >= SIGNIFICANT:
        return Noise.UNKNOWN
    return Noise.EXCEEDED if mann_whitney_p(first, second) < SIGNIFICANT else Noise.WITHIN


def least_p(first: int, second: int) -> float:
    """Return the p of two groups of such sizes of which each run of one is larger than all of the other one.

    >>> least_p(3, 3), round(least_p(5, 5), 4)
    (0.1, 0.0079)
    """
    return min(1.0, 2 / math.comb(first + second, first))


def mann_whitney_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p, exact also where values are equal: these have the mean of their ranks.

    Cost: O(runs^2 x sum of ranks); instant for dozens of runs.
    """
    ranks = _doubled_ranks([*first, *second])
    total, count = sum(ranks), len(first)
    # ways[k, s]: how many sets of k runs have the sum of ranks s.
    ways = numpy.zeros((count + 1, total + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    expected = total * count / len(ranks)
    distance = abs(sum(ranks[:count]) - expected)
    # Sums of doubled ranks are whole numbers, their mean is a fraction of the number of runs.
    is_as_far = numpy.abs(numpy.arange(total + 1) - expected) >= distance - 1e-9
    return float(ways[count][is_as_far].sum() / ways[count].sum())


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, so that the mean rank of equal ones is a whole number."""
    return [
        sum(other < value for other in values) + sum(other <= value for other in values) + 1
        for value in values
    ]
