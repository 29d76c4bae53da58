"""The whole pipeline on tiny loads, on both servers: `make bench-smoke`."""

import json

import pytest

from tests.spark.smoke_support import check_counts, rows_of, run_smoke, summary_of

TARGETS = ("ottla", "kafka")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke") / "here"
    return run_smoke(folder, "--start", "ottla", "--start", "kafka")


@pytest.mark.parametrize("target", TARGETS)
def test_each_record_is_counted_once(result, target):
    check_counts(result, target)


def test_the_summary_has_both_targets_and_how_it_came_about(result):
    summary = summary_of(result)
    assert set(summary["targets"]) == set(TARGETS)
    assert summary["command"].startswith("ottla bench run smoke --runs 1")
    assert summary["environment"]["commit"]
    assert not summary["is_partial"]
    [section] = summary["sections"]
    assert set(section["warm_ups"]) == set(TARGETS)


def test_brokers_are_measured_from_outside(result):
    samples = rows_of(result, "samples")
    for target in TARGETS:
        paced = [row for row in samples if row["target"] == target and row["phase"] == "paced"]
        brokers = [row for row in paced if row["node"].startswith("broker")]
        assert sum(row["cpu_s"] for row in brokers) > 0
        assert all(row["resident_bytes"] > 10_000_000 for row in brokers)
    assert json.loads((result / "events.json").read_text()) == []


def test_a_page_and_pictures_show_it(result):
    page = (result / "report.html").read_text()
    for words in ("Does the whole pipeline work?", "Ottla", "Kafka", "bulk", "paced", "catch-up", "<svg"):
        assert words in page
    sizes = {path.name: path.stat().st_size for path in result.glob("*.png")}
    assert any("paced" in name for name in sizes), sizes
    assert all(size > 5_000 for size in sizes.values()), sizes
