"""docs/benchmarks: the pages and the index as text, README's part, and that what is committed belongs together."""

import re
from dataclasses import replace

import pytest

from ottla.bench.page.documents import (
    FOLDER,
    INDEX,
    PROGRAM_PAGES,
    committed,
    index_page,
    overview_rows,
    workload_page,
)
from ottla.bench.page.documents import (
    table as table_of,
)
from ottla.bench.readme import with_figures
from ottla.bench.report import as_json, as_markdown
from tests.harness import bench_result

REPORT = bench_result.report()


def test_a_page_has_the_question_the_command_its_pictures_and_all_figures():
    text = workload_page(REPORT, {"fail-over.png": "ratios", "fail-over.phase-1.png": "over time"})
    assert text.startswith(
        f"# Fail-over under load\n\n{REPORT.about}\n\n    {REPORT.command}\n\n![ratios](fail-over.png)\n"
    )
    assert "![over time](fail-over.phase-1.png)" in text
    assert text.endswith(as_markdown(REPORT))


def test_the_index_has_each_workload_with_its_first_and_its_worst_figure():
    reports = {"fail-over": REPORT, "other": replace(REPORT, about="One | two?\nThree?")}
    text = index_page(reports)
    assert re.search(r"^\| \[fail-over\]\(fail-over\.md\) +\| How long is the gap", text, re.MULTILINE)
    assert r"One \| two? Three?" in text
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if "fail-over.md" in line
    ]
    assert rows[1:] == [
        ["[Fail-over under load](fail-over.md)", "A leader is killed: producer: throughput, MB/s", "100 / 180 = 1.80"],
        ["[Fail-over under load](fail-over.md)", "A leader is killed: CPU of all brokers, s/GB (the worst)",
         "3.00 / 2.70 = 0.90 **missed**"],
    ]  # fmt: skip


def test_the_picture_of_all_workloads_has_the_rows_of_the_table():
    rows = overview_rows({"fail-over": REPORT})
    assert {label: row.ratios["ottla"] for label, row in rows.items()} == {
        "fail-over: A leader is killed: producer: throughput": pytest.approx(1.8),
        "fail-over: A leader is killed: CPU of all brokers": pytest.approx(0.9),
    }


def test_a_workload_of_one_target_is_in_the_table_without_a_ratio():
    [section] = REPORT.sections
    [table] = section.tables
    alone = replace(
        REPORT,
        targets={"ottla": ""},
        sections=[replace(section, tables=[replace(table, samples={"ottla": table.samples["ottla"]})])],
    )
    [row] = [line for line in table_of({"alone": alone}, "") if "alone.md" in line]
    assert row.rstrip("| ").endswith("180")
    assert overview_rows({"alone": alone}) == {}


def test_a_figure_with_a_goal_stands_for_its_workload_before_others():
    [(phase, rate), (_, p99), _] = REPORT.headlines
    text = index_page({"fail-over": replace(REPORT, headlines=[(phase, p99), (phase, rate)])})
    rows = [line.split("|")[2].strip() for line in text.splitlines() if "fail-over.md" in line][1:]
    assert rows == ["A leader is killed: producer: throughput, MB/s (the worst)"]


def test_what_compares_no_clusters_is_in_the_index_and_not_in_the_table():
    [section] = REPORT.sections
    tables = [
        replace(table, samples={"generator": table.samples["kafka"], "perf-test": table.samples["ottla"]})
        for table in section.tables
    ]
    calibration = replace(
        REPORT,
        targets={"generator": "", "perf-test": ""},
        sections=[replace(section, tables=tables)],
    )
    text = index_page({"calibrate": calibration})
    assert len([line for line in text.splitlines() if "calibrate.md" in line]) == 1
    assert overview_rows({"calibrate": calibration}) == {}


def test_readme_gets_one_picture_and_one_table_between_its_markers(tmp_path):
    text = "before\n<!-- benchmarks -->\nold\n<!-- end of benchmarks -->\nafter\n"
    empty = with_figures(text, documents=tmp_path)
    assert "There is no result yet: `ottla bench run WORKLOAD`" in empty
    (tmp_path / "fail-over.json").write_text(as_json(REPORT))
    filled = with_figures(empty, documents=tmp_path)
    assert filled.startswith("before\n<!-- benchmarks -->\n")
    assert filled.endswith("<!-- end of benchmarks -->\nafter\n")
    assert filled.count("![") == 1
    assert "](docs/benchmarks/overview.png)" in filled
    assert "[Fail-over under load](docs/benchmarks/fail-over.md)" in filled
    assert with_figures(filled, documents=tmp_path) == filled


# -- what is committed -----------------------------------------------------------------------------------

COMMITTED = committed()


def test_the_index_is_that_of_the_results_beside_it():
    assert FOLDER.exists() is bool(COMMITTED)
    if COMMITTED:
        assert (FOLDER / INDEX).read_text() == index_page(COMMITTED)


def test_a_committed_page_is_that_of_its_result_and_has_its_pictures():
    for name, report in COMMITTED.items():
        text = (FOLDER / f"{name}.md").read_text()
        pictures = {path: words for words, path in re.findall(r"^!\[(.*)\]\((.*)\)$", text, re.MULTILINE)}
        assert text == workload_page(report, pictures)
        assert [path for path in pictures if not (FOLDER / path).exists()] == []
        assert report.runs >= 5
        assert not report.is_partial
        assert not report.environment.is_changed
    named = {f"{name}.md" for name in COMMITTED} | {*PROGRAM_PAGES} | ({INDEX} if COMMITTED else set())
    assert {path.name for path in FOLDER.glob("*.md")} == named
