"""`make setup` takes a Python that Ottla runs on, if possible one with profile-guided optimization, and says why."""

import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ottla.bench.components.choose_python import (
    NAMES,
    OLDEST,
    TESTED,
    Interpreter,
    choose,
    explanation,
    is_link_time_optimized,
    is_profile_guided,
    this_interpreter,
    unfitness,
)

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench/components/choose_python.py"
USUAL_BUILD = Interpreter(
    executable="/usr/bin/python3", prefix="/usr", version="3.11.2", compiler="GCC 12.2.0",
    is_profile_guided=True, is_link_time_optimized=False, has_venv=True, is_debug=False, is_free_threaded=False,
)  # fmt: skip


def interpreter(version="3.11.7", **differences):
    return USUAL_BUILD._replace(
        version=version, executable=f"/opt/{version}/bin/python3", prefix=f"/opt/{version}", **differences
    )


PLAIN = interpreter(is_profile_guided=False)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], None),
        ([interpreter("3.10.13")], None),
        ([interpreter("3.10.13"), PLAIN], 1),
        ([interpreter(has_venv=False)], None),
        ([interpreter(has_venv=False), PLAIN], 1),
        ([PLAIN, USUAL_BUILD], 1),
        ([USUAL_BUILD, PLAIN], 0),
        ([interpreter("3.13.0"), USUAL_BUILD], 0),  # of equal ones, the first of PATH
        ([interpreter("3.19.0"), PLAIN], 1),  # perhaps without wheels: rather slower
        ([interpreter("3.19.0")], 0),
        ([interpreter(is_free_threaded=True), PLAIN], 1),
        ([interpreter(is_debug=True), interpreter("3.19.0")], 1),
    ],
)
def test_the_first_optimized_one_of_a_tested_version_is_chosen(found, chosen):
    assert choose(found) == (None if chosen is None else found[chosen])


def test_what_was_taken_comes_first_with_its_build_and_what_speaks_against_each():
    assert explanation(USUAL_BUILD, [PLAIN, USUAL_BUILD, interpreter("3.10.1"), interpreter("3.12.0")]) == [
        "Taken: Python 3.11.2 of /usr/bin/python3 (GCC 12.2.0, profile-guided optimization)",
        (
            "Not:   Python 3.11.7 of /opt/3.11.7/bin/python3 (GCC 12.2.0, no profile-guided optimization): "
            "it takes a fifth longer"
        ),
        (
            "Not:   Python 3.10.1 of /opt/3.10.1/bin/python3 (GCC 12.2.0, profile-guided optimization): "
            "it is older than 3.11"
        ),
        (
            "Not:   Python 3.12.0 of /opt/3.12.0/bin/python3 (GCC 12.2.0, profile-guided optimization): "
            "it comes later in PATH"
        ),
    ]


def test_a_python_that_is_slower_is_taken_with_a_hint():
    taken, hint = explanation(PLAIN, [PLAIN])
    assert taken.endswith("no profile-guided optimization), but it takes a fifth longer")
    assert "distributions" in hint.lower()


def test_without_a_fitting_one_a_sentence_says_what_is_needed():
    old = interpreter("3.6.15")
    assert (
        explanation(None, [old])[-1]
        == "Ottla needs Python 3.11 or newer with venv; name one: make setup PYTHON=..."
    )
    assert unfitness(interpreter(has_venv=False)).endswith("apt-get install python3-venv)")


PAIR = {"PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction"}


@pytest.mark.parametrize(
    ("variables", "by_profile", "at_link_time"),
    [
        ({}, False, False),
        ({"CONFIG_ARGS": "'--enable-shared'", **PAIR}, False, False),  # `configure` sets the pair in any case
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", **PAIR}, True, True),
        ({"PY_CFLAGS_NODIST": "-fprofile-use -flto", **PAIR}, True, True),
        ({"PY_CORE_CFLAGS": "-fprofile-instr-use=code.profclangd"}, True, False),
        ({"CONFIG_ARGS": "'--without-ensurepip'", **PAIR, "PGO_PROF_USE_FLAG": ""}, True, False),  # Debian
        ({"PGO_PROF_GEN_FLAG": "", "PGO_PROF_USE_FLAG": ""}, False, False),  # a compiler without profiles
    ],
)
def test_the_build_follows_from_its_variables(variables, by_profile, at_link_time):
    assert is_profile_guided(variables) is by_profile
    assert is_link_time_optimized(variables) is at_link_time


@pytest.mark.parametrize(
    ("by_profile", "at_link_time", "words"),
    [
        (True, True, "profile-guided and link-time optimization"),
        (True, False, "profile-guided optimization"),
        (False, True, "no profile-guided optimization"),
    ],
)
def test_a_build_in_words(by_profile, at_link_time, words):
    each = USUAL_BUILD._replace(is_profile_guided=by_profile, is_link_time_optimized=at_link_time)
    assert each.build() == f"GCC 12.2.0, {words}"


def run(*arguments, path=None):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        env=os.environ | ({} if path is None else {"PATH": str(path)}),
        capture_output=True,
        text=True,
        check=False,
    )


def command(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_command_passes_over_what_does_not_run(tmp_path):
    command(tmp_path / "python3", "exit 127")
    command(tmp_path / NAMES[1], "echo no description")
    command(tmp_path / NAMES[2], f'exec {sys.executable} "$@"')
    done = run(path=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")
    assert done.stderr.startswith(f"Taken: Python {this_interpreter().version} of {sys.executable}")


def test_one_installation_is_named_once(tmp_path):
    for name in NAMES:
        command(tmp_path / name, f'exec {sys.executable} "$@"')
    assert run(path=tmp_path).stderr.count(sys.executable) == 1


def test_without_any_python_the_command_fails(tmp_path):
    done = run(path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Ottla needs Python" in done.stderr


def test_the_one_that_the_user_names_is_taken(tmp_path):
    done = run("--this", path=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n")


def test_versions_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]}"
    assert project["classifiers"] == [
        f"Programming Language :: Python :: {major}.{minor}" for major, minor in TESTED
    ]
