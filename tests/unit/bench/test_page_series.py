"""Rows of all runs become lines: medians with their range, gaps without acknowledgements, events with their
times."""

import doctest
import math

import pytest

from ottla.bench.page import charts, colours, markup, ratios, scales
from ottla.bench.page.scales import linear, logarithmic, scale_for, time_ticks
from ottla.bench.page.series import Series
from ottla.bench.page.series import charts as charts_of
from tests.harness import bench_result
from tests.harness.bench_result import GAPS_S, KILLED_S, P99_S, PHASE, SECONDS

TARGETS = ["kafka", "ottla"]


@pytest.mark.parametrize(
    "module", [charts, colours, markup, ratios, scales], ids=lambda module: module.__name__
)
def test_examples_in_docstrings_are_right(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def found(**changed):
    series = {
        "seconds": bench_result.seconds(),
        "samples": bench_result.samples(),
        "events": bench_result.events(),
    }
    return {chart.title: chart for chart in charts_of(Series(**(series | changed)), PHASE, TARGETS)}


def strip_of(chart, name):
    return next(strip for strip in chart.strips if strip.name == name)


def test_a_phase_has_latency_throughput_and_brokers():
    assert {title: [strip.name for strip in chart.strips] for title, chart in found().items()} == {
        "Latency": ["producer, p50", "producer, p99", "producer, max"],
        "Throughput": ["producer"],
        # Nothing was written: no strip.
        "Brokers": ["CPU", "memory of the largest, page cache aside", "in the remote tier"],
    }


def test_a_line_is_the_median_of_the_runs_with_their_range():
    kafka, ottla = strip_of(found()["Latency"], "producer, p99").lines
    assert (kafka.target, ottla.target) == ("kafka", "ottla")
    assert (ottla.low[0], ottla.middle[0], ottla.high[0]) == pytest.approx((0.006, P99_S["ottla"], 0.010))


def test_a_second_without_an_acknowledgement_is_a_gap_of_latency_and_a_rate_of_zero():
    chart = found()
    for line in strip_of(chart["Latency"], "producer, p99").lines:
        gap = [second for second, value in enumerate(line.middle) if value is None]
        assert gap == list(range(KILLED_S, KILLED_S + GAPS_S[line.target]))
    for line in strip_of(chart["Throughput"], "producer").lines:
        assert line.middle[KILLED_S] == 0.0
        assert line.middle[KILLED_S - 1] == 90_000_000


def test_pandas_missing_numbers_are_missing():
    rows = [
        row | {"p99_s": math.nan if row["p99_s"] is None else row["p99_s"]} for row in bench_result.seconds()
    ]
    line = strip_of(found(seconds=rows)["Latency"], "producer, p99").lines[0]
    assert line.middle[KILLED_S] is None


def test_nodes_are_added_up_but_for_memory_which_is_the_largest_ones():
    brokers = found()["Brokers"]
    assert strip_of(brokers, "CPU").lines[0].middle[0] == pytest.approx(0.6)
    assert strip_of(brokers, "memory of the largest, page cache aside").lines[0].middle[0] == 60_000_000
    assert strip_of(brokers, "in the remote tier").lines[0].middle[-1] == (SECONDS - 1) * 50_000_000


def test_events_have_the_medians_of_their_times_and_say_where_a_condition_was_not_reached():
    assert [mark.words() for mark in found()["Latency"].marks] == [
        "broker 2 is killed, at 10 s; until led: Kafka 4.00 s, Ottla 2.00 s",
        "it is started again, at 20 s; until in sync: Kafka not reached, Ottla 3.50 s",
    ]


def test_a_target_that_measured_nothing_has_no_line():
    rows = [row for row in bench_result.seconds() if row["target"] == "ottla"]
    chart = found(seconds=rows)["Latency"]
    assert {line.target for strip in chart.strips for line in strip.lines} == {"ottla"}


def test_what_only_the_longest_runs_have_is_not_drawn():
    rows = [row for row in bench_result.seconds() if row["run"] < 2 or row["second"] < 20]
    line = strip_of(found(seconds=rows, samples=[], events=[])["Throughput"], "producer").lines[0]
    assert len(line.middle) == 20
    assert line.middle[19] is not None


def test_a_long_phase_has_the_mean_rate_and_the_highest_latency_of_several_seconds():
    rows = [
        {
            "target": "ottla", "run": 0, "phase": PHASE, "role": "consumer", "second": second, "errors": 0,
            "payload_bytes": 1_000_000 * (second % 2),
            "p50_s": 0.001, "p99_s": 0.5 if second == 301 else 0.002, "max_s": 1.0,
        }
        for second in range(480)
    ]  # fmt: skip
    chart = found(seconds=rows, samples=[], events=[])
    assert chart["Throughput"].step_s == 2
    assert set(strip_of(chart["Throughput"], "consumer").lines[0].middle) == {500_000.0}
    middle = strip_of(chart["Latency"], "consumer, p99").lines[0].middle
    assert [at for at, value in enumerate(middle) if value == 0.5] == [150]
    assert len(middle) == 240


@pytest.mark.parametrize(("count", "titles"), [(1, []), (2, []), (3, ["Latency", "Throughput"])])
def test_a_phase_of_a_second_or_two_has_no_lines(count, titles):
    rows = [row for row in bench_result.seconds() if row["second"] < count]
    assert list(found(seconds=rows, samples=[], events=[])) == titles


def test_errors_are_shown_where_there_are_any():
    rows = [row | {"errors": int(row["second"] == KILLED_S)} for row in bench_result.seconds()]
    assert [strip.name for strip in found(seconds=rows)["Throughput"].strips] == [
        "producer",
        "producer, errors",
    ]


@pytest.mark.parametrize(("values", "ticks"), [
    ([],                [0.0, 0.5, 1.0]),
    ([0.0],             [0.0, 0.5, 1.0]),
    ([9.9],             [0.0, 5.0, 10.0]),
    ([0.00062, 0.0004], [0.0, 0.0005, 0.001]),
    ([600e6],           [0.0, 2e8, 4e8, 6e8]),
])  # fmt: skip
def test_a_linear_axis_ends_at_a_round_number(values, ticks):
    assert linear(values).ticks == pytest.approx(ticks)


@pytest.mark.parametrize(("values", "least", "most"), [
    ([0.003, 4.0],  0.002, 5.0),
    ([0.02],        0.002, 0.2),  # one value has room on both sides
    ([0.0, 1.0, 3], 1.0,   5.0),  # no logarithm of zero
    ([1e-6, 10.0],  1e-6,  10.0),
    ([0.006, 0.41], 0.005, 0.5),  # 5 10 20 50 100 200 500 ms have no room
])  # fmt: skip
def test_a_logarithmic_axis_has_all_positive_values_and_ticks_in_it(values, least, most):
    scale = logarithmic(values)
    assert (scale.least, scale.most) == pytest.approx((least, most))
    assert 2 <= len(scale.ticks) <= 4
    assert all(0 <= scale.part(tick) <= 1 for tick in scale.ticks)
    assert [scale.part(tick) for tick in scale.ticks] == sorted(scale.part(tick) for tick in scale.ticks)


def test_an_axis_is_logarithmic_where_a_linear_one_hides_something():
    assert scale_for([0.001, 1.0], may_be_log=True).is_log
    assert not scale_for([0.001, 1.0], may_be_log=False).is_log
    assert not scale_for([0.5, 1.0], may_be_log=True).is_log
    assert not scale_for([], may_be_log=True).is_log


@pytest.mark.parametrize("seconds", [1, 2, 30, 61, 600, 3601, 50_000])
def test_a_time_axis_has_a_few_ticks_inside(seconds):
    ticks = time_ticks(seconds)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks[-1] <= seconds
