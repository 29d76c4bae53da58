"""docs/benchmarks as files: written from a result folder with its pictures, replaced by the next one,
refused if unfit.
"""

from dataclasses import replace

import pytest
from click.testing import CliRunner
from PIL import Image

from ottla.bench.page.docs import main
from ottla.bench.report import as_json
from tests.harness import bench_result


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_pages_and_pictures_are_written_and_replaced(tmp_path):
    result, out = bench_result.write_result(tmp_path / "result"), tmp_path / "docs"
    for _ in range(2):
        done = run(result, "--out", out)
        assert done.exit_code == 0, done.output
        names = [
            "README.md", "fail-over.json", "fail-over.md",
            "fail-over.phase-1.png", "fail-over.png", "overview.png",
        ]  # fmt: skip
        assert sorted(path.name for path in out.iterdir()) == names
        (out / "fail-over.phase-2.png").touch()  # of an older result with more phases
    assert (out / "fail-over.json").read_text() == (result / "summary.json").read_text()
    for path in out.glob("*.png"):
        if path.stat().st_size:
            with Image.open(path) as image:
                assert image.width > 800
                assert path.stat().st_size < 150_000


def test_another_workload_stays_in_the_index(tmp_path):
    out = tmp_path / "docs"
    for name in ("one", "two"):
        result = bench_result.write_result(tmp_path / name)
        (result / "summary.json").write_text(as_json(replace(bench_result.report(), program=name)))
        assert run(result, "--out", out).exit_code == 0
    index = (out / "README.md").read_text()
    assert "[one](one.md)" in index
    assert "[two](two.md)" in index


def test_the_command_is_published_without_the_folder_of_the_result(tmp_path):
    result, out = bench_result.write_result(tmp_path / "result"), tmp_path / "docs"
    command = "ottla bench run latency --master 'local[2]' --out here --runs 5"
    (result / "summary.json").write_text(as_json(replace(bench_result.report(), command=command)))
    assert run(result, "--out", out).exit_code == 0
    page = (out / "fail-over.md").read_text()
    assert "ottla bench run latency --master 'local[2]' --runs 5" in page
    assert "here" not in page


ENVIRONMENT = replace(bench_result.report().environment, is_changed=True)


@pytest.mark.parametrize(("changes", "words"), [
    ({"environment": ENVIRONMENT}, "was measured with uncommitted changes"),
    ({"is_partial": True},         "was stopped before its last run"),
    ({"runs": 4},                  "has 4 runs, fewer than 5"),
])  # fmt: skip
def test_what_is_not_fit_to_be_published_is_refused(tmp_path, changes, words):
    result = bench_result.write_result(tmp_path / "result")
    (result / "summary.json").write_text(as_json(replace(bench_result.report(), **changes)))
    done = run(result, "--out", tmp_path / "docs")
    assert done.exit_code == 1
    assert words in done.output
    assert not (tmp_path / "docs").exists()
