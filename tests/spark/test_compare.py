"""`ottla bench compare` by Spark SQL: of result folders, and of the results that are committed."""

import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.bench.aggregation.command import compare as compare_command
from ottla.bench.aggregation.command import names_of, read_result
from ottla.bench.aggregation.comparison import NothingToCompare, compare
from ottla.bench.aggregation.noise import Noise
from ottla.bench.environment import REPOSITORY
from ottla.bench.figures import MILLISECONDS, Figure, Table
from ottla.bench.report import RESULTS, Report, Section, as_json, latest

FIGURES = [
    Figure(metric="producer_p99_s", title="producer: p99", unit=MILLISECONDS),
    Figure(metric="event_led_s", title="led", unit=MILLISECONDS),
]
RUNS = {"kafka": [0.010, 0.012, 0.011, 0.014, 0.013], "ottla": [0.005, 0.004, 0.006, 0.007, 0.0065]}


@pytest.fixture(scope="module")
def committed():
    report = latest("compare")
    assert report is not None
    return report


def result(environment, runs, *, program="latency"):
    samples = {target: [{"producer_p99_s": value} for value in values] for target, values in runs.items()}
    samples["kafka"][0]["event_led_s"] = 2.0
    table = Table(name="load", title="load", note="", figures=FIGURES, samples=samples)
    return Report(
        program=program,
        environment=environment,
        runs=5,
        seconds=None,
        duration_s=1.0,
        headlines=[],
        sections=[Section(settings="", place="", file_system="", properties={}, tables=[table])],
        targets=dict.fromkeys(runs, ""),
    )


def test_targets_of_a_result_are_compared_run_by_run(spark, committed):
    [found] = compare(spark, [("one", result(committed.environment, RUNS))])
    assert (found.reference_side, found.side, found.row.figure.metric) == ("kafka", "ottla", "producer_p99_s")
    for spread, runs in ((found.reference, RUNS["kafka"]), (found.compared, RUNS["ottla"])):
        lower, median, upper = statistics.quantiles(runs, n=4, method="inclusive")
        assert (spread.lower, spread.median, spread.upper) == pytest.approx((lower, median, upper))
        assert sorted(spread.runs) == sorted(runs)
    assert found.ratio == pytest.approx(0.006 / 0.012)
    assert found.p == pytest.approx(2 / 252)
    assert found.noise is Noise.EXCEEDED


def test_the_same_targets_of_two_results_are_compared(spark, committed):
    slower = RUNS | {"ottla": [value * 3 for value in RUNS["ottla"]]}
    results = [("old", result(committed.environment, RUNS)), ("new", result(committed.environment, slower))]
    found = {(it.reference_side, it.side, it.row.figure.metric): it for it in compare(spark, results)}
    changed = found["ottla (old)", "ottla (new)", "producer_p99_s"]
    assert (changed.ratio, changed.noise) == (pytest.approx(3.0), Noise.EXCEEDED)
    assert found["kafka (old)", "kafka (new)", "producer_p99_s"].noise is Noise.WITHIN
    # One run each is no basis for anything, unless they are equal.
    assert found["kafka (old)", "kafka (new)", "event_led_s"].noise is Noise.EQUAL
    assert len(found) == 5


def test_every_row_of_a_committed_result_is_compared_and_three_runs_say_nothing(spark, committed):
    found = compare(spark, [("committed", committed)])
    rows = [
        row
        for section in committed.sections
        for row in section.rows()
        if row.median("kafka") is not None and row.median("ottla") is not None
    ]
    assert [(it.row.key, it.section) for it in found] == [
        (row.key, section.title) for section in committed.sections for row in section.rows() if row in rows
    ]
    assert {it.noise for it in found} <= {Noise.UNKNOWN, Noise.EQUAL}
    for it, row in zip(found, rows, strict=True):
        assert it.ratio is None or it.ratio == pytest.approx(row.ratio)


def test_results_without_a_common_figure_are_refused(spark, committed):
    results = [
        ("one", result(committed.environment, RUNS | {"ottla": []})),
        ("other", replace(committed, sections=[])),
    ]
    with pytest.raises(
        NothingToCompare, match=r"No figure is in two of these: one \(latency of kafka, ottla\), "
    ):
        compare(spark, results)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file or directory"),
        ("{", "is not JSON of `ottla bench run`"),
        ('{"sections": []}', "is of another format: measure it again"),
    ],
)
def test_what_is_no_result_is_refused_before_spark_starts(tmp_path, content, sentence):
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    done = CliRunner().invoke(compare_command, [str(path)])
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {path} is ")
    assert sentence in done.output
    assert done.output.count("\n") == 1


def test_the_command_prints_a_table_for_each_pair_of_targets(tmp_path, committed):
    path = tmp_path / "latency.json"
    path.write_text(as_json(result(committed.environment, RUNS)))
    done = subprocess.run(
        [Path(sys.executable).with_name("ottla"), "bench", "compare", "--master", "local[1]", path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "## ottla compared with kafka: medians" in done.stdout
    [row] = [line for line in done.stdout.splitlines() if line.startswith("| load: producer: p99, ms")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "12.00 (11.00 to 13.00)",
        "6.00 (5.00 to 6.50)",
        "0.50",
        "exceeds the noise (p 0.008, 5 and 5 runs)",
    ]


def test_a_result_is_a_folder_its_summary_or_a_file(tmp_path, committed):
    (tmp_path / "20261122-latency").mkdir()
    summary = tmp_path / "20261122-latency" / "summary.json"
    summary.write_text(as_json(committed))
    file = max(RESULTS.glob("*-compare.json"))
    assert names_of([summary.parent, file]) == ["20261122-latency", file.stem]
    assert names_of([summary]) == ["20261122-latency"]
    assert read_result(summary.parent) == read_result(summary)
