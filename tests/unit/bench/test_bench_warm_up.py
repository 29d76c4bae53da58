"""Warm-up ends when the CPU of a round falls no more, and says if it never did."""

import pytest

from ottla.bench.warm_up import is_steady, warm_up


@pytest.mark.parametrize(
    ("costs", "steady"),
    [
        ([], False),
        ([9], False),
        ([9, 9], False),  # nothing before the two
        ([9, 9, 9], True),
        ([44, 20, 12], False),
        ([44, 20, 12, 11.9], False),
        ([44, 20, 12, 11.9, 11.8], True),  # within 5 % of the best before
        ([44, 12, 12, 11], False),  # fell by more than that
        ([44, 9, 20, 21], True),  # noise upwards is no fall
    ],
)
def test_steady_is_no_new_least_for_two_rounds(costs, steady):
    assert is_steady(costs) is steady


def test_rounds_are_repeated_until_they_are_steady():
    costs = iter([40, 20, 10, 10, 10, 1])
    lines = []
    result = warm_up(lambda: {"bulk": next(costs)}, say=lines.append)
    assert result.is_steady
    assert result.costs == pytest.approx([40, 20, 10, 10, 10])
    assert lines[0] == "warm-up 1  bulk 40"


def test_it_ends_after_the_most_rounds_and_says_that_it_was_not_steady():
    costs = iter(2.0**-number for number in range(100))
    result = warm_up(lambda: {"bulk": next(costs)}, say=lambda _: None, most_rounds=4)
    assert (len(result.costs), result.is_steady) == (4, False)


def test_each_load_of_a_round_counts_by_its_relative_change():
    # Seconds for a GB beside seconds for a request: the second load still gets cheaper, by half.
    rounds = iter([{"bulk": 10, "small": 8e-4}, {"bulk": 10, "small": 4e-4}, {"bulk": 10, "small": 2e-4}])
    result = warm_up(lambda: next(rounds), say=lambda _: None, most_rounds=3)
    assert not result.is_steady


def test_it_ends_after_the_most_seconds():
    result = warm_up(lambda: {"bulk": 1.0}, say=lambda _: None, most_s=0.0)
    assert (list(result.costs), result.is_steady) == ([], False)


def test_a_load_that_is_too_short_to_cost_anything_does_not_count():
    rounds = iter([{"bulk": 4.0, "short": 0.0}, {"bulk": 0.0}])
    assert list(warm_up(lambda: next(rounds), say=lambda _: None, most_rounds=2).costs) == [4.0, 0.0]
