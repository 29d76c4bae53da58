"""The exit of `ottla bench run` reports that records were lost."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from ottla.bench.figures import Goal, LoadFailed
from ottla.bench.runs import command
from ottla.bench.runs.run import Outcome
from tests.harness import bench_result


def outcome(folder, *, lost=0.0, **fields):
    """The outcome of one of five runs of Kafka."""
    report = bench_result.report()
    [section] = report.sections
    [table] = section.tables
    table.samples["kafka"][3]["lost"] = lost
    never = Goal(at_most=0, is_absolute=True)
    figures = [
        replace(each, is_fault=True, goal=never) if each.metric == "lost" else each for each in table.figures
    ]
    report = replace(report, sections=[replace(section, tables=[replace(table, figures=figures)])])
    done = {"failure": None, "was_interrupted": False, **fields}
    return Outcome(folder=folder, page=folder / "report.html", report=report, **done)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, 0, ""),
        ({"lost": 2.0}, 1, "Error: kafka, A leader is killed: 2 records lost\n"),
        (
            {"lost": 2.0, "failure": LoadFailed("a broker has ended")},
            1,
            "Error: a broker has ended; kafka, A leader is killed: 2 records lost\n",
        ),
        ({"lost": 2.0, "was_interrupted": True}, 1, "Error: kafka, A leader is killed: 2 records lost\n"),
        ({"was_interrupted": True}, 130, "Stopped: the result is of what there was.\n"),
    ],
)
def test_the_exit_status_says_whether_a_run_was_right(monkeypatch, tmp_path, fields, status, words):
    monkeypatch.setattr(command, "run", lambda options: outcome(tmp_path, **fields))
    done = CliRunner().invoke(command.run_workload, ["smoke", "--start", "ottla"])
    assert done.exit_code == status, done.output
    assert done.stderr == words
    assert f"written: {tmp_path}" in done.stdout
