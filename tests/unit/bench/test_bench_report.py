"""Results: read back as written, shown with a column for each section, and put into README by their markers."""

import json
import re
from dataclasses import replace

import pytest

from ottla.bench import compare, replication, tiering
from ottla.bench.figures import MEGABYTES_A_SECOND, SECONDS, Figure, Goal, Table
from ottla.bench.profiles import ALL, PARTS, Profile
from ottla.bench.readme import DOCUMENTS, with_figures
from ottla.bench.report import (
    RESULTS,
    Report,
    Section,
    all_rows,
    as_json,
    as_markdown,
    from_json,
    latest,
    overview,
    save,
)
from ottla.bench.targets.memory import memory_table
from ottla.bench.turns import Turn, turns_table
from ottla.bench.warm_up import WarmUp
from tests.harness.bench_result import ENVIRONMENT


def table(name, *, kafka, ottla):
    figures = (
        Figure(metric="bytes_per_s", title="throughput", unit=MEGABYTES_A_SECOND, goal=Goal(at_least=1.3)),
        Figure(metric="start_s", title="start", unit=SECONDS),
    )
    samples = {"kafka": [{"bytes_per_s": kafka}], "ottla": [{"bytes_per_s": ottla, "start_s": 1.0}]}
    return Table(name=name, title=f"load {name}", note="what was done", figures=figures, samples=samples)


def section(settings, place, *tables):
    memory = memory_table({"kafka": [{"private_bytes": 1.2e9}], "ottla": [{"private_bytes": 30e6}]})
    return Section(
        settings=settings,
        place=place,
        file_system="xfs",
        properties={"socket.send.buffer.bytes": "-1"},
        tables=[*tables, memory],
        warm_ups={"kafka": WarmUp(costs=[9.0, 3.0, 3.0, 3.0], is_steady=True)},
    )


REPORT = Report(
    program="compare",
    environment=ENVIRONMENT,
    runs=3,
    seconds=1.0,
    duration_s=1500.0,
    headlines=[("a", "bytes_per_s")],
    sections=[
        section("default", "disk", table("a", kafka=100e6, ottla=150e6), table("b", kafka=100e6, ottla=90e6)),
        section("tuned", "tmpfs", table("a", kafka=100e6, ottla=50e6)),
    ],
)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def row_of(lines, start):
    return next(cells(line) for line in lines if line.startswith(f"| {start}"))


def test_a_result_is_read_back_as_it_was_written():
    # Tuples come back as lists: the text decides.
    read = from_json(as_json(REPORT))
    assert as_json(read) == as_json(REPORT)
    assert as_markdown(read) == as_markdown(REPORT)


def observed():
    """REPORT with turns and a profile in its first section."""
    turns = {
        "load a": [Turn(own_s=0.0064, running_s=0.005, where="storage/files.py:103 pwrite")],
        "load b": [],
    }
    profile = Profile(
        load="a",
        metric="bytes_per_s",
        cpu=3e6,
        parts={ALL: dict.fromkeys(PARTS, 0.0) | {"checksum": 1e6, "sending (socket)": 2e6}},
        functions={"storage/log.py: append": 1e6},
    )
    first, *others = REPORT.sections
    table = turns_table(turns, {})
    first = replace(first, tables=[*first.tables, table], turns=turns, profiles=[profile])
    return replace(REPORT, sections=[first, *others])


def test_turns_and_profiles_are_read_back_and_shown():
    read = from_json(as_json(observed()))
    assert read.sections[0].turns == observed().sections[0].turns
    text = as_markdown(read)
    assert text == as_markdown(observed())
    assert "- Turns above 5 ms, load a: 1: 6 ms (5 running) in storage/files.py:103 pwrite\n" in text
    assert "5 ms, load b: " not in text
    lines = text.splitlines()
    assert row_of(lines, "Event loops of all nodes")[1:4] == [
        "turns above 5 ms, count",
        "Ottla ≤ 0",
        "- / 1 **missed**",
    ]
    at = lines.index("## load a (Kafka's defaults, disk)")
    assert lines[at + 2] == "CPU of Ottla, MB/s: 3 while it was profiled, 150 in the timed runs, floor -."
    assert [cells(line) for line in lines[at + 4 :] if line.startswith("|")] == [
        ["part", "all brokers"],
        ["-" * len(cells(lines[at + 5])[0]), "-" * len("all brokers") + "-" * 2],
        ["sending (socket)", "2"],
        ["checksum", "1"],
        ["all", "3"],
        ["function, its own Python", "MB/s"],
        [cells(lines[at + 11])[0], cells(lines[at + 11])[1]],
        ["storage/log.py: append", "1"],
    ]


def test_results_from_before_turns_and_profiles_are_read():
    data = json.loads(as_json(REPORT))
    for each in data["sections"]:
        del each["turns"], each["profiles"]
    assert as_markdown(from_json(json.dumps(data))) == as_markdown(REPORT)


def test_results_of_another_format_are_passed_over(tmp_path):
    (tmp_path / "2026-11-23-compare.json").write_text('{"environment": {}, "samples": {}}')
    assert latest("compare", tmp_path) is None
    save(REPORT, tmp_path)
    found = latest("compare", tmp_path)
    assert found is not None
    assert found.environment.date == "2026-11-22"


WORKLOAD_REPORT = Report(
    program="smoke",
    environment=ENVIRONMENT,
    runs=5,
    seconds=None,
    duration_s=60.0,
    headlines=[],
    sections=[
        Section(
            settings="",
            place="",
            file_system="",
            properties={},
            tables=[replace(table("load", kafka=1e6, ottla=2e6), samples={"old": [{"start_s": 4.0}]})],
        )
    ],
    targets={"old": "Ottla 0.1", "new": "Ottla 0.2"},
    title="Smoke",
    about="Does it work?",
    command="ottla bench run smoke --target old=a:1 --target new=b:1",
)


def test_the_result_of_a_workload_has_its_targets_and_its_command():
    read = from_json(as_json(WORKLOAD_REPORT))
    assert list(read.targets) == ["old", "new"]
    assert as_json(read) == as_json(WORKLOAD_REPORT)
    text = as_markdown(read)
    assert "Targets: old: Ottla 0.1; new: Ottla 0.2." in text
    assert "Medians of 5 interleaved runs. Each cell is old / new = ratio new / old." in text
    assert "Measured by `ottla bench run smoke --target old=a:1 --target new=b:1`." in text
    assert row_of(all_rows(read), "load load | start")[-1] == "4.00 / -"
    assert "stopped" not in text
    assert "The measurement was stopped before its end." in as_markdown(replace(read, is_partial=True))


def test_results_of_the_format_before_are_of_kafka_and_ottla():
    data = json.loads(as_json(REPORT)) | {"format": 2}
    for added in ("targets", "title", "about", "command", "is_partial"):
        del data[added]
    read = from_json(json.dumps(data))
    assert as_markdown(read) == as_markdown(REPORT)
    assert list(read.targets) == ["kafka", "ottla"]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_committed_results_are_read(path):
    read = from_json(path.read_text())
    assert read is not None
    assert all(row.cell(list(read.targets)) for section in read.sections for row in section.rows())


def test_the_latest_result_is_the_one_with_the_last_date(tmp_path):
    for date in ("2026-11-22", "2026-12-01", "2026-11-30"):
        save(replace(REPORT, environment=replace(ENVIRONMENT, date=date)), tmp_path)
    found = latest("compare", tmp_path)
    assert found is not None
    assert found.environment.date == "2026-12-01"


def test_the_short_table_has_goals_worst_row_memory_and_headlines_of_each_section():
    lines = overview(REPORT)
    assert cells(lines[0])[1:] == ["Kafka's defaults, disk", "tuned, tmpfs"]
    assert row_of(lines, "goals")[1:] == ["1 of 3 missed", "1 of 2 missed"]
    assert row_of(lines, "worst row")[1:] == [
        "load b: throughput 100 / 90 = 0.90 **missed** (≥ 1.3)",
        "load a: throughput 100 / 50 = 0.50 **missed** (≥ 1.3)",
    ]
    assert row_of(lines, "load a: throughput")[1:] == ["100 / 150 = 1.50", "100 / 50 = 0.50 **missed**"]
    assert row_of(lines, "Memory of the largest broker under load: resident, page cache aside")[1] == (
        "1,200 / 30 = 0.03"
    )
    assert not any(line.startswith("| load b") for line in lines)


def test_the_long_table_has_every_row_of_any_section():
    lines = all_rows(REPORT)
    assert [cells(line)[0] for line in lines[2:]] == [
        *["load a"] * 2,
        *["load b"] * 2,
        *["Memory of the largest broker under load"] * 2,
    ]
    assert row_of(lines, "load b")[1:] == ["throughput, MB/s", "≥ 1.3", "100 / 90 = 0.90 **missed**", "-"]


@pytest.mark.parametrize(("is_changed", "is_said"), [(True, True), (False, False)])
def test_a_report_of_a_dirty_tree_says_so(is_changed, is_said):
    report = replace(REPORT, environment=replace(ENVIRONMENT, is_changed=is_changed))
    assert ("with uncommitted changes" in as_markdown(report)) is is_said
    assert "abc1234" in as_markdown(report)


def test_a_report_of_a_server_that_was_not_warm_says_so():
    cold = replace(REPORT.sections[1], warm_ups={"kafka": WarmUp(costs=[9.0, 8.0], is_steady=False)})
    assert "still fell" not in as_markdown(REPORT)
    assert "The CPU of Kafka still fell when its warm-up ended after 2 rounds (tuned, tmpfs)." in as_markdown(
        replace(REPORT, sections=[REPORT.sections[0], cold])
    )


def test_a_report_with_floors_says_what_a_floor_is():
    floored = table("a", kafka=100e6, ottla=90e6)
    floored.samples["floor"] = [{"bytes_per_s": 300e6}]
    report = replace(REPORT, sections=[section("default", "disk", floored), REPORT.sections[1]])
    assert row_of(all_rows(report), "load a")[3:] == [
        "100 / 90 = 0.90 **missed**, floor 300",
        "100 / 50 = 0.50 **missed**",
    ]
    assert as_json(from_json(as_json(report))) == as_json(report)
    assert "A floor is the same load" in as_markdown(report)
    assert "A floor is" not in as_markdown(REPORT)


def test_readme_gets_the_figures_between_its_markers_and_stays_as_it_is_elsewhere(tmp_path):
    text = "before\n<!-- figures of compare -->\nold\n<!-- end of figures -->\nafter\n"
    empty = with_figures(text, tmp_path)
    assert "There is no result yet: `python -m ottla.bench.compare`" in empty
    save(REPORT, tmp_path)
    filled = with_figures(empty, tmp_path)
    assert filled.startswith("before\n<!-- figures of compare -->\n")
    assert filled.endswith("<!-- end of figures -->\nafter\n")
    assert "old" not in filled
    assert all(line in filled for line in [*overview(REPORT), *all_rows(REPORT)])
    assert with_figures(filled, tmp_path) == filled


def test_documents_have_the_figures_of_the_latest_results():
    texts = [document.read_text() for document in DOCUMENTS]
    assert texts == [with_figures(text) for text in texts], "make figures"
    programs = re.findall(r"<!-- figures of (\w+) -->", "".join(texts))
    assert {*programs} >= {"compare", "replication", "tiering", "quorum"}


# Goals

COMPARE_GOALS = {
    "librdkafka produce, 1 KB": {"throughput": "≥ 1.3", "broker CPU": "≤ 0.6"},
    "librdkafka produce, 100 B": {"throughput": "≥ 1.1", "broker CPU": "≤ 0.6"},
    "Java perf-test produce, 1 KB": {"throughput": "≥ 1.3", "broker CPU": "≤ 0.5"},
    "Java perf-test produce, 100 B": {"throughput": "≥ 1.1", "broker CPU": "≤ 0.5"},
    "200 B batches": {"throughput": "≥ 4", "broker CPU for each request": "≤ 0.2"},
    "16,384 B batches": {"throughput": "≥ 1.5", "broker CPU for each request": "≤ 0.45"},
    "ApiVersions, one at a time": {"p50": "≤ 0.8"},
    "Metadata of one topic, one at a time": {"p50": "≤ 0.8"},
    "Fetch of one record of 1 KB, topic by name (v12), one at a time": {"p50": "≤ 0.8"},
    "Fetch of one record of 1 KB, topic by id (v16), one at a time": {"p50": "≤ 0.8"},
    "one request at a time": {"throughput": "≥ 1.5", "p99": "≤ 0.6", "broker CPU for each request": "≤ 0.5"},
    "1,000 requests/s": {"p99": "≤ 0.6", "broker CPU for each request": "≤ 0.5"},
    "librdkafka consume, 1 KB, 1 p": {"throughput": "≥ 1.1", "broker CPU": "Ottla ≤ 0.36 s/GB"},
    "librdkafka consume, 1 KB, 6 p": {"throughput": "≥ 1", "broker CPU": "Ottla ≤ 0.36 s/GB"},
    "librdkafka consume, 100 B, 1 p": {"throughput": "≥ 1.1", "broker CPU": "Ottla ≤ 0.36 s/GB"},
    "librdkafka consume, 100 B, 6 p": {"throughput": "≥ 1", "broker CPU": "Ottla ≤ 0.36 s/GB"},
    "Java perf-test consume, 1 KB, 1 p": {"throughput": "≥ 1.1", "broker CPU": "Ottla ≤ 0.36 s/GB"},
    "Java perf-test consume, 1 KB, 6 p": {"throughput": "≥ 1", "broker CPU": "Ottla ≤ 0.36 s/GB"},
    "Start with a new folder": {
        "to the first answer": "Ottla ≤ 0.3 s",
        "resident when idle, page cache aside": "Ottla ≤ 40 MB",
    },
    "Start inside a process": {"until it serves": "Ottla ≤ 30 ms"},
    "Imports until it is ready": {},
    "Memory of the largest broker under load": {"resident, page cache aside": "Ottla ≤ 80 MB"},
    "Event loops of all nodes": {"turns above 5 ms": "Ottla ≤ 0"},
}
REPLICATION_GOALS = {
    "librdkafka produce, 1 KB": {"throughput": "≥ 1.3", "CPU of all brokers": "≤ 0.55", "p99": "≤ 0.7"},
    "one request at a time": {
        "throughput": "≥ 1.5",
        "p99": "≤ 0.6",
        "CPU of all brokers for each request": "≤ 0.6",
    },
    "1,000 requests/s": {"p99": "≤ 0.6", "CPU of all brokers for each request": "≤ 0.7"},
    "librdkafka consume from a follower": {"throughput": "≥ 1", "CPU of all brokers": "≤ 0.55"},
    "high watermark on a follower: one": {"p99": "≤ 1"},
    "high watermark on a follower: steady rates": {
        f"p50 at {rate} records/s": "Ottla ≤ 1 ms" for rate in ("100", "600", "900", "1,000")
    },
    "a restarted follower catches up": {"rate": "≥ 1", "start until in all ISRs": "≤ 1"},
    "a partition's leader is killed": {"gap": "≤ 1"},
    "Memory of the largest broker under load": {"resident, page cache aside": "Ottla ≤ 80 MB"},
    "Event loops of all nodes": {"turns above 5 ms": "Ottla ≤ 0"},
}
TIERING_GOALS = {
    "2: a consumer catches up, from a directory": {
        "upload / put": "Ottla ≥ 0.8 times",
        "catch-up": "≥ 1",
        "catch-up / the slower of both": "Ottla ≥ 0.8 times",
    },
    "2: a consumer catches up, from MinIO": {
        "upload / put": "Ottla ≥ 0.8 times",
        "catch-up / the slower of both": "Ottla ≥ 0.8 times",
    },
    "Memory of the largest broker under load": {"resident, page cache aside": "Ottla ≤ 150 MB"},
    "Event loops of all nodes": {"turns above 5 ms": "Ottla ≤ 0"},
}
PROGRAMS = (compare.PROGRAM, replication.PROGRAM, tiering.PROGRAM)


@pytest.mark.parametrize(
    ("program", "goals"),
    list(zip(PROGRAMS, (COMPARE_GOALS, REPLICATION_GOALS, TIERING_GOALS), strict=True)),
    ids=lambda it: getattr(it, "name", ""),
)
def test_no_goal_is_dropped_in_silence(program, goals):
    tables = [
        *(measure.table() for measure in program.measures),
        memory_table({}, goal_bytes=program.memory_goal_bytes),
        turns_table({}, {}),
    ]
    for table in tables:
        wanted = [goals_ for title, goals_ in goals.items() if table.title.startswith(title)]
        found = {
            row.figure.title: row.figure.goal.words(row.figure.unit)
            for row in table.rows()
            if row.figure.goal is not None
        }
        assert [found] == wanted, table.title
    assert all(any(table.title.startswith(title) for table in tables) for title in goals)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda it: it.name)
def test_headlines_are_rows_that_are_measured(program):
    keys = {row.key for measure in program.measures for row in measure.table().rows()}
    assert set(program.headlines) <= keys
