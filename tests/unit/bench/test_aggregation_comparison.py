"""The sides and results that are compared, and the form in which a difference is shown."""

import pytest

from ottla.bench.aggregation.comparison import Difference, Spread, as_markdown, pairs_of
from ottla.bench.figures import COUNT, SECONDS, Figure, Row, Table
from ottla.bench.report import Report
from tests.harness.bench_result import ENVIRONMENT


def result(*targets, program="smoke"):
    return Report(
        program=program,
        environment=ENVIRONMENT,
        runs=5,
        seconds=None,
        duration_s=1.0,
        headlines=[],
        sections=[],
        targets=dict.fromkeys(targets, ""),
    )


@pytest.mark.parametrize(
    ("results", "pairs"),
    [
        ([result("kafka", "ottla")], [("kafka", "ottla")]),
        ([result("kafka", "ottla", "other")], [("kafka", "ottla"), ("kafka", "other")]),
        ([result("ottla")], []),
        # The same target, before and after.
        ([result("ottla"), result("ottla")], [("ottla (0)", "ottla (1)")]),
        (
            [result("kafka", "ottla"), result("kafka", "ottla")],
            [
                ("kafka (0)", "ottla (0)"),
                ("kafka (0)", "kafka (1)"),
                ("kafka (1)", "ottla (1)"),
                ("ottla (0)", "ottla (1)"),
            ],
        ),
        # Another target, in a result of its own.
        ([result("kafka"), result("ottla")], [("kafka (0)", "ottla (1)")]),
        ([result("kafka"), result("kafka", program="latency")], []),
        (
            [result("ottla", program="latency"), result("ottla"), result("ottla")],
            [("ottla (1)", "ottla (2)")],
        ),
    ],
)
def test_a_side_is_compared_with_its_baseline_and_with_the_first_result_of_its_target(results, pairs):
    assert pairs_of([(str(at), report) for at, report in enumerate(results)]) == pairs


def spread(*runs):
    return Spread(runs=runs, lower=min(runs), median=sorted(runs)[len(runs) // 2], upper=max(runs))


def test_the_text_has_medians_quartiles_ratio_and_what_can_be_said():
    figure = Figure(metric="s", title="time", unit=SECONDS)
    row = Row(table=Table(name="load", title="load", note="", figures=[figure]), figure=figure)
    both = {"reference_side": "kafka", "side": "ottla", "section": "medians", "row": row}
    few = Difference(**both, reference=spread(1, 2, 3), compared=spread(4, 5, 6), ratio=2.5, p=0.1)
    zero = Difference(**both, reference=spread(0, 0, 0, 0), compared=spread(1, 1, 1, 1), ratio=None, p=0.0286)
    text = as_markdown([few, zero])
    assert "## ottla compared with kafka: medians" in text
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "load: time" in line
    ]
    assert cells == [
        [
            "load: time, s",
            "2.00 (1.00 to 3.00)",
            "5.00 (4.00 to 6.00)",
            "2.50",
            "cannot say with 3 and 3 runs",
        ],
        [
            "load: time, s",
            "0.00 (0.00 to 0.00)",
            "1.00 (1.00 to 1.00)",
            "-",
            "exceeds the noise (p 0.029, 4 and 4 runs)",
        ],
    ]
    assert "1 exceeds the noise, 1 cannot say." in text


def test_a_fault_of_a_single_run_is_no_noise():
    figure = Figure(metric="lost", title="lost", unit=COUNT, is_fault=True)
    row = Row(table=Table(name="load", title="load", note="", figures=[figure]), figure=figure)
    both = {"reference_side": "kafka", "side": "ottla", "section": "medians", "row": row, "ratio": None}
    none = spread(0, 0, 0, 0, 0)
    once = Difference(**both, reference=none, compared=spread(0, 0, 3, 0, 0), p=1.0)
    assert once.words() == "exceeds the noise: at most 0 and 3 in a run (5 and 5 runs)"
    assert Difference(**both, reference=none, compared=none, p=1.0).words() == "equal"
