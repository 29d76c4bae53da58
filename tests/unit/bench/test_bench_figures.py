"""Medians, ratios and goals: what is met, what is missed, what was not measured, and which row is the worst."""

import doctest
import math

import pytest

from ottla.bench import figures, warm_up
from ottla.bench.figures import (
    COUNT,
    MEGABYTES,
    MEGABYTES_A_SECOND,
    MILLISECONDS,
    Figure,
    Goal,
    Row,
    Table,
    Verdict,
    percentiles,
    tally,
    worst,
)
from ottla.bench.generators import histograms


def row(goal=None, *, kafka=(), ottla=(), unit=MEGABYTES_A_SECOND, name="load", is_fault=False):
    figure = Figure(metric="m", title="figure", unit=unit, goal=goal, is_fault=is_fault)
    samples = {"kafka": [{"m": value} for value in kafka], "ottla": [{"m": value} for value in ottla]}
    return Row(table=Table(name=name, title=name, note="", figures=(figure,), samples=samples), figure=figure)


@pytest.mark.parametrize("module", [figures, histograms, warm_up], ids=lambda module: module.__name__)
def test_examples_in_docstrings_are_right(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize(
    ("goal", "kafka", "ottla", "verdict"),
    [
        (Goal(at_least=1.3), [100], [130], Verdict.MET),
        (Goal(at_least=1.3), [100], [129], Verdict.MISSED),
        # Judged as shown: 1.296 is 1.30.
        (Goal(at_least=1.3), [1000], [1296], Verdict.MET),
        (Goal(at_most=0.6), [100], [60], Verdict.MET),
        (Goal(at_most=0.6), [100], [61], Verdict.MISSED),
        (Goal(at_most=80e6, is_absolute=True), [], [80e6], Verdict.MET),
        (Goal(at_most=80e6, is_absolute=True), [1], [80.1e6], Verdict.MISSED),
        (Goal(at_least=1.3), [], [1], Verdict.NOT_MEASURED),
        (Goal(at_least=1.3), [1], [], Verdict.NOT_MEASURED),
        (Goal(at_least=1.3), [0], [1], Verdict.NOT_MEASURED),
        (Goal(at_least=1.3), [1], [0], Verdict.MISSED),
        (None, [1], [1], None),
        # None at all may be lost.
        (Goal(at_most=0, is_absolute=True), [5], [0], Verdict.MET),
        (Goal(at_most=0, is_absolute=True), [0], [1], Verdict.MISSED),
    ],
)  # fmt: skip
def test_a_goal_is_met_missed_or_not_measured(goal, kafka, ottla, verdict):
    assert row(goal, kafka=kafka, ottla=ottla).verdict is verdict


def test_what_is_judged_is_the_median_of_the_runs():
    slow_once = row(Goal(at_least=1.0), kafka=[10, 11, 30], ottla=[11, 12, 1])
    assert (slow_once.median("kafka"), slow_once.median("ottla")) == (11, 11)
    assert slow_once.verdict is Verdict.MET


def test_a_fault_of_a_single_run_counts():
    lost = row(Goal(at_most=0, is_absolute=True), kafka=[0, 0, 0], ottla=[0, 0, 3], unit=COUNT, is_fault=True)
    assert lost.verdict is Verdict.MISSED
    assert lost.cell() == "0 / 3 **missed**"


def test_a_sample_without_the_metric_is_left_out():
    table = row(kafka=[1]).table
    table.samples["ottla"] = [{}, {"m": 3}, {"other": 1}]
    assert Row(table=table, figure=table.figures[0]).median("ottla") == 3


def test_a_cell_has_both_figures_the_ratio_and_a_miss():
    assert row(Goal(at_least=1.3), kafka=[441e6], ottla=[485e6]).cell() == "441 / 485 = 1.10 **missed**"
    assert row(kafka=[0.002], ottla=[0.001], unit=MILLISECONDS).cell() == "2.00 / 1.00 = 0.50"
    assert (
        row(Goal(at_most=80e6, is_absolute=True), ottla=[90e6], unit=MEGABYTES).cell() == "- / 90 **missed**"
    )
    assert row(Goal(at_least=1.3)).cell() == "not measured"


def test_a_cell_has_the_floor_where_it_was_measured():
    missed = row(Goal(at_most=0.2), kafka=[42.3e6], ottla=[10e6], unit=MEGABYTES)
    missed.table.samples["floor"] = [{"m": 4e6}, {"m": 4e6}, {"m": 9e6}]
    assert missed.cell() == "42 / 10 = 0.24 **missed**, floor 4"
    assert missed.verdict is Verdict.MISSED
    missed.table.samples.pop("kafka")
    missed.table.samples.pop("ottla")
    assert missed.cell() == "- / -, floor 4"
    missed = row(Goal(at_most=0.2), kafka=[42.3e6], ottla=[10e6], unit=MEGABYTES)
    missed.table.samples["floor"] = [{"other": 1.0}]
    assert missed.cell() == "42 / 10 = 0.24 **missed**"


@pytest.mark.parametrize(
    ("targets", "cell"),
    [
        (["old"], "100"),
        (["old", "new"], "100 / 150 = 1.50"),
        (["new", "old"], "150 / 100 = 0.67"),
        (["old", "new", "absent", "zero"], "100 / 150 (1.50) / - / 0 (0.00)"),
        (["zero", "old"], "0 / 100"),
        (["absent"], "not measured"),
    ],
)
def test_a_cell_of_any_targets_compares_each_with_the_first_one(targets, cell):
    samples = {name: [{"m": value}] for name, value in (("old", 100e6), ("new", 150e6), ("zero", 0.0))}
    figure = Figure(metric="m", title="figure", unit=MEGABYTES_A_SECOND)
    table = Table(name="load", title="load", note="", figures=(figure,), samples=samples)
    assert Row(table=table, figure=figure).cell(targets) == cell


def test_the_worst_row_misses_its_goal_by_the_largest_factor():
    met = row(Goal(at_least=1.0), kafka=[1], ottla=[2], name="met")
    missed_by_a_tenth = row(Goal(at_most=0.5), kafka=[100], ottla=[55], name="a tenth")
    missed_by_half = row(Goal(at_least=1.5), kafka=[1], ottla=[1], name="half")
    absent = row(Goal(at_least=9.0), name="absent")
    without_goal = row(kafka=[1], ottla=[0.001], name="without goal")
    rows = [met, missed_by_a_tenth, missed_by_half, absent, without_goal]
    assert worst(rows) is missed_by_half
    assert worst([met, absent]) is met
    assert worst([absent, without_goal]) is None
    assert Goal(at_least=1.0).shortfall(0) == math.inf


def test_goals_are_counted_rows_without_one_are_not():
    rows = [
        row(Goal(at_least=1.0), kafka=[1], ottla=[2]),
        row(Goal(at_least=3.0), kafka=[1], ottla=[2]),
        row(Goal(at_least=3.0)),
        row(kafka=[1], ottla=[2]),
    ]
    assert tally(rows).words() == "1 of 2 missed, 1 not measured"


def test_percentiles():
    assert percentiles([*range(1001)]) == {"p50_s": 500, "p99_s": 990, "p999_s": 999}
