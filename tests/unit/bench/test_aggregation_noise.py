"""Whether runs differ by more than their noise: p against all ways to divide the runs, and what few runs cannot say."""

import doctest
import itertools
import random

import pytest

from ottla.bench.aggregation import noise, tables
from ottla.bench.aggregation.noise import Noise, least_p, mann_whitney_p, verdict


@pytest.mark.parametrize("module", [noise, tables], ids=lambda module: module.__name__)
def test_examples_in_docstrings_are_right(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def counted_p(first, second):
    """The p value by its definition: each division of the runs into two such groups is counted."""
    values = [*first, *second]
    ranks = [(sum(x < value for x in values) + sum(x <= value for x in values) + 1) / 2 for value in values]
    expected = sum(ranks) * len(first) / len(values)
    distance = abs(sum(ranks[: len(first)]) - expected)
    divisions = list(itertools.combinations(ranks, len(first)))
    return sum(abs(sum(division) - expected) >= distance - 1e-9 for division in divisions) / len(divisions)


@pytest.mark.parametrize("seed", range(30))
def test_p_is_the_part_of_all_divisions_that_are_as_far_apart(seed):
    rng = random.Random(seed)
    # Of few values, so that many are equal; and of many.
    most = rng.choice([3, 1000])
    first, second = ([rng.randrange(most) for _ in range(rng.randrange(1, 7))] for _ in range(2))
    assert mann_whitney_p(first, second) == pytest.approx(counted_p(first, second))
    assert mann_whitney_p(second, first) == pytest.approx(mann_whitney_p(first, second))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], Noise.EXCEEDED),
        ([1, 2, 3, 4, 5], [5, 7, 8, 9, 10], Noise.EXCEEDED),
        ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6], Noise.WITHIN),
        # Ten times as much, but three runs of each can be so far apart by chance in one case of ten.
        ([10, 11, 12], [100, 110, 120], Noise.UNKNOWN),
        ([1], [2], Noise.UNKNOWN),
        ([10, 11, 12, 13], [100, 110, 120, 130], Noise.EXCEEDED),
        ([10, 11, 12], [100, 110, 120, 130, 140], Noise.EXCEEDED),
        ([0, 0, 0], [0, 0, 0], Noise.EQUAL),
        ([7], [7], Noise.EQUAL),
    ],
)
def test_what_can_be_said_of_a_difference(first, second, expected):
    assert verdict(first, second) is expected


def test_the_least_p_is_that_of_groups_without_overlap():
    for first, second in itertools.product(range(1, 6), repeat=2):
        apart = mann_whitney_p(range(first), range(100, 100 + second))
        assert apart == pytest.approx(least_p(first, second))


def test_runs_of_the_same_server_exceed_the_noise_once_in_twenty_times():
    rng = random.Random(1)
    draws = [[[rng.gauss(100, 10) for _ in range(5)] for _ in range(2)] for _ in range(2000)]
    exceeded = sum(verdict(first, second) is Noise.EXCEEDED for first, second in draws)
    assert 0.02 < exceeded / len(draws) < 0.05
