"""Figures belong to a commit: a tree that differs from it is refused, or the report says so."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from ottla.bench.components.choose_python import this_interpreter
from ottla.bench.environment import DirtyTree, check_tree, current
from ottla.bench.targets.settings import DISK, TMPFS, WrongPlace, check_place
from tests.harness.bench_result import ENVIRONMENT


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@e", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init")
    (tmp_path / "code.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    return tmp_path


def test_a_clean_tree_is_measured(checkout):
    assert check_tree(checkout, allow_dirty=False) is False


@pytest.mark.parametrize("name", ["bench/results/2026-11-22-compare.json", "docs/benchmarks/latency.md"])
def test_new_results_leave_a_tree_clean(checkout, name):
    (checkout / name).parent.mkdir(parents=True)
    (checkout / name).write_text("{}")
    assert check_tree(checkout, allow_dirty=False) is False


@pytest.mark.parametrize("name", ["code.py", "untracked.py"])
def test_a_dirty_tree_is_refused_by_name(checkout, name):
    (checkout / name).write_text("x = 2\n")
    with pytest.raises(DirtyTree, match=name):
        check_tree(checkout, allow_dirty=False)


def test_a_dirty_tree_may_be_allowed_and_is_known_as_one(checkout):
    (checkout / "code.py").write_text("x = 2\n")
    assert check_tree(checkout, allow_dirty=True) is True


def test_without_git_there_are_no_figures(checkout, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    with pytest.raises(DirtyTree, match="git is not installed"):
        check_tree(checkout, allow_dirty=True)


def test_without_java_it_is_left_to_what_needs_it_to_say_so(tmp_path, monkeypatch):
    """`ottla bench run` ended here with a stack trace, before it looked for Spark's Java."""
    (tmp_path / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert current(allow_dirty=True).java == "no java"
    java = tmp_path / "home/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert current(allow_dirty=True).java == 'openjdk version "21"'


def test_without_a_commit_there_are_no_figures(tmp_path):
    with pytest.raises(DirtyTree, match="no git checkout"):
        check_tree(tmp_path, allow_dirty=True)


@pytest.mark.parametrize(
    ("place", "file_system", "is_right"),
    [
        (DISK, "ext4", True),
        (DISK, "xfs", True),
        (DISK, "tmpfs", False),
        (TMPFS, "tmpfs", True),
        (TMPFS, "ext4", False),
    ],
)
def test_logs_are_where_the_report_says(tmp_path, place, file_system, is_right):
    if is_right:
        check_place(place, tmp_path, file_system)
    else:
        with pytest.raises(WrongPlace, match=f"--{place}"):
            check_place(place, tmp_path, file_system)


def test_a_report_names_the_interpreter_with_its_build():
    words = replace(
        ENVIRONMENT, python_build="GCC 12.2.0, profile-guided optimization", touched_bytes=12_340_000_000
    ).words()
    assert "Python 3.11.7 (GCC 12.2.0, profile-guided optimization, 30 ns for a step of a loop)" in words
    assert words.endswith(", 12.3 GB of free memory used once before")


def test_older_results_do_not_know_the_build():
    assert "Python 3.11.7 (30 ns for a step of a loop), openjdk 17" in ENVIRONMENT.words()
    assert ENVIRONMENT.words().endswith("openjdk 17")


def test_the_build_is_that_of_this_interpreter(monkeypatch):
    monkeypatch.setattr("ottla.bench.environment.check_tree", lambda *_, **__: False)
    assert current(allow_dirty=True).python_build == this_interpreter().build()
