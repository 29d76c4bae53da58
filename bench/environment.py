"""The environment of figures: code, machine, versions. Figures belong to a commit: a dirty tree is refused."""

import datetime
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import ottla
from ottla.bench.components.choose_python import this_interpreter
from ottla.bench.components.fetch import KAFKA_VERSION
from ottla.bench.spark.java import java_program

#: The folder from which `ottla` is imported: the repository, or its installation.
REPOSITORY: Final = Path(ottla.__file__).resolve().parents[1]
#: The folders of results: new ones are no change of the measured code.
_RESULTS: Final = ("bench/results", "docs/benchmarks")
_STEPS: Final = 100_000
#: The time limit for a program that prints its version.
_TIMEOUT_S: Final = 60


class DirtyTree(Exception):
    """The measured code would not be that of a commit; the sentence names the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment on which the figures depend."""

    date: str
    commit: str
    #: Whether the working tree differs from the commit (`--allow-dirty`).
    is_changed: bool
    cpu_count: int
    #: The load average of one minute before anything was started: other work on the machine.
    load_average: float
    kernel: str
    python: str
    #: The time of a step of a loop: it shows how busy the processors are. The effect of a build shows in
    #: calls, not here.
    python_step_ns: float
    java: str
    kafka: str
    #: The compiler and optimizations of Python (`bench/components/choose_python.py`); empty in older results.
    python_build: str = ""
    #: The free memory that was used once before (`bench/free_memory.py`); zero in older results.
    touched_bytes: int = 0

    def words(self) -> str:
        """Return everything in words, as the beginning of a sentence."""
        changed = " with uncommitted changes" if self.is_changed else ""
        touched = f", {self.touched_bytes / 1e9:.1f} GB of free memory used once before"
        return (
            f"Ottla {self.commit}{changed} and Apache Kafka {self.kafka}, {self.date}: {self.cpu_count} CPUs "
            f"(load {self.load_average:.1f} before), Linux {self.kernel}, Python {self.python} "
            f"({self.python_words()}), {self.java}{touched if self.touched_bytes else ''}"
        )

    def python_words(self) -> str:
        """Return the build of Python, and its speed, in words."""
        build = f"{self.python_build}, " if self.python_build else ""
        return f"{build}{self.python_step_ns:.0f} ns for a step of a loop"


def changes(repository: Path) -> list[str]:
    """Return the changes since the commit, untracked files included, one line of `git status` each."""
    command = ["git", "status", "--porcelain", "--", ".", *(f":(exclude){folder}" for folder in _RESULTS)]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise DirtyTree("git is not installed: it names the commit that is measured.") from None
    if done.returncode:
        raise DirtyTree(f"{repository} is no git checkout: {done.stderr.strip()}")
    return done.stdout.splitlines()


def check_tree(repository: Path, *, allow_dirty: bool) -> bool:
    """Whether the tree differs from its commit. Raises DirtyTree if it does and is not allowed to."""
    changed = changes(repository)
    if changed and not allow_dirty:
        names = "\n  ".join(changed)
        raise DirtyTree(f"Commit these changes first, or measure with --allow-dirty:\n  {names}")
    return bool(changed)


def current(*, allow_dirty: bool) -> Environment:
    """Return this machine and this code: a commit of the repository, or an installation. Raises DirtyTree."""
    is_changed, commit = False, f"{ottla.VERSION} as installed"
    if (REPOSITORY / ".git").exists():
        is_changed = check_tree(REPOSITORY, allow_dirty=allow_dirty)
        commit = _output("git", "rev-parse", "--short", "HEAD")
    return Environment(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        commit=commit,
        is_changed=is_changed,
        cpu_count=os.cpu_count() or 0,
        load_average=os.getloadavg()[0],
        kernel=platform.release(),
        python=platform.python_version(),
        python_step_ns=_python_step_ns(),
        # Kafka's is that of the search path; Spark's may be another one.
        java=_output(shutil.which("java") or java_program() or "java", "-version").split("\n")[0],
        kafka=KAFKA_VERSION,
        python_build=this_interpreter().build(),
    )


def _python_step_ns() -> float:
    """Return the least time of a step of a small loop."""

    def loop_s() -> float:
        began, x = time.perf_counter(), 0
        for i in range(_STEPS):
            x += i & 3
        return time.perf_counter() - began

    return min(loop_s() for _ in range(20)) / _STEPS * 1e9


def _output(*command: str) -> str:
    # `java -version` prints to the standard error.
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"no {Path(command[0]).name}"  # what needs it says so
    return done.stdout.strip()
