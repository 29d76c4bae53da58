"""The Python that the environment is made with: `make setup` asks this, with whatever `python3` there is.

    python3 bench/components/choose_python.py [--this]

Prints the path of the best Python of PATH, and says on the standard error why it took that one. `--this`:
the one that runs it, which `make setup PYTHON=...` has named; it is taken unless Ottla cannot run on it.

The best one is built with profile-guided optimization: the broker needs a fifth less processor time on it,
and its start too. Of several, the first one of PATH is taken, `python3` before `python3.11` and so on.

Runs on Pythons that are too old for Ottla (from 3.6 on), to say that: hence the older names of types and functions.
"""

import importlib.util
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

#: The version that pyproject.toml requires.
OLDEST = (3, 11)
#: Versions that are tested with the packages of the lock files: the first one by CI, the others by unit tests.
#: pyproject.toml has them as classifiers, too.
TESTED = ((3, 11), (3, 12), (3, 13))
#: The names of the commands, in the order in which they are tried.
NAMES = ("python3", *("python{}.{}".format(*version) for version in TESTED))

#: The variables of a build from which its optimizations follow.
_VARIABLES = (
    "CONFIG_ARGS",
    "PY_CFLAGS_NODIST",
    "PY_CORE_CFLAGS",
    "PY_CORE_LDFLAGS",
    "PGO_PROF_GEN_FLAG",
    "PGO_PROF_USE_FLAG",
)
_TIMEOUT_S = 20


class Interpreter(NamedTuple):
    """The description of an interpreter by itself."""

    executable: str
    #: The installation that it belongs to, also from within a virtual environment.
    prefix: str
    version: str
    compiler: str
    is_profile_guided: bool
    is_link_time_optimized: bool
    #: Whether it has what `python -m venv` needs; Debian has that in a package of its own.
    has_venv: bool
    is_debug: bool
    is_free_threaded: bool

    @property
    def release(self) -> Tuple[int, int]:
        """The release as two numbers, such as (3, 11)."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def build(self) -> str:
        """Return the build in words: compiler and optimizations."""
        link_time = " and link-time optimization"
        if self.is_profile_guided:
            words = "profile-guided" + (link_time if self.is_link_time_optimized else " optimization")
        else:
            words = "no profile-guided optimization"
        return "{}, {}".format(self.compiler, words)


def is_profile_guided(variables: Mapping[str, str]) -> bool:
    """Whether a build with these variables (`sysconfig`) is optimized by a profile.

    >>> is_profile_guided({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"})
    True
    """
    flags = " ".join(
        variables.get(name, "") for name in ("CONFIG_ARGS", "PY_CFLAGS_NODIST", "PY_CORE_CFLAGS")
    )
    if any(flag in flags for flag in ("--enable-optimizations", "-fprofile-use", "-fprofile-instr-use")):
        return True
    # Debian and Ubuntu build with a profile and remove the flags of that, so that no extension is compiled
    # with them. What remains is a pair of variables of which one is empty: `configure` sets both, for any
    # build.
    return bool(variables.get("PGO_PROF_GEN_FLAG")) and variables.get("PGO_PROF_USE_FLAG") == ""


def is_link_time_optimized(variables: Mapping[str, str]) -> bool:
    """Whether a build with these variables is optimized at link time; False also where Debian has removed the flags."""
    flags = " ".join(variables.get(name, "") for name in _VARIABLES)
    return "--with-lto" in flags or "-flto" in flags


def this_interpreter() -> Interpreter:
    """Return the interpreter that runs this."""
    variables: Dict[str, str] = {}
    for name in _VARIABLES:
        value = sysconfig.get_config_var(name)
        if value is not None:
            variables[name] = str(value)
    return Interpreter(
        executable=sys.executable,
        prefix=os.path.realpath(sys.base_prefix),
        version=platform.python_version(),
        compiler=platform.python_compiler(),
        is_profile_guided=is_profile_guided(variables),
        is_link_time_optimized=is_link_time_optimized(variables),
        has_venv=all(importlib.util.find_spec(module) for module in ("venv", "ensurepip")),
        is_debug=bool(sysconfig.get_config_var("Py_DEBUG")),
        is_free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )


def unfitness(interpreter: Interpreter) -> Optional[str]:
    """Return why Ottla's environment cannot be made with it, as the rest of a sentence; None: it can."""
    if interpreter.release < OLDEST:
        return "is older than {}.{}".format(*OLDEST)
    if not interpreter.has_venv:
        return "has no venv and ensurepip (on Debian: apt-get install python3-venv)"
    return None


#: The drawbacks of an interpreter that fits, the worst first.
_DRAWBACKS: Tuple[Tuple[str, Callable[[Interpreter], bool]], ...] = (
    ("is a debug build", lambda each: each.is_debug),
    (
        "has no global interpreter lock, on which packages of the lock files depend",
        lambda each: each.is_free_threaded,
    ),
    ("is newer than those that the tests ran on", lambda each: each.release not in TESTED),
    ("takes a fifth longer", lambda each: not each.is_profile_guided),
)


def drawback(interpreter: Interpreter) -> Optional[str]:
    """Return the worst drawback of an interpreter that fits, as the rest of a sentence."""
    return next((words for words, has in _DRAWBACKS if has(interpreter)), None)


def choose(found: Sequence[Interpreter]) -> Optional[Interpreter]:
    """Return the best of these, which are in the order of PATH; None if none fits."""
    fitting = [each for each in found if unfitness(each) is None]
    # `min` takes the first one of equal rank.
    return min(fitting, key=lambda each: [has(each) for _, has in _DRAWBACKS], default=None)


def explanation(chosen: Optional[Interpreter], found: Sequence[Interpreter]) -> List[str]:
    """Return a line for each interpreter: the one that was taken, and the drawback of each other one."""
    lines: List[str] = []
    for each in found:
        against = unfitness(each) or drawback(each)
        words = "Python {} of {} ({})".format(each.version, each.executable, each.build())
        if each is chosen:
            lines.insert(0, "Taken: {}{}".format(words, ", but it " + against if against else ""))
        else:
            lines.append("Not:   {}: it {}".format(words, against or "comes later in PATH"))
    if chosen is None:
        lines.append(
            "Ottla needs Python {}.{} or newer with venv; name one: make setup PYTHON=...".format(*OLDEST)
        )
    elif not chosen.is_profile_guided:
        lines.append(
            "Distributions' Pythons and those of the images python:3.x are built with profile-guided optimization."
        )
    return lines


def on_path(path: str) -> List[Interpreter]:
    """Yield the Pythons that run, each installation once, in the order in which they are preferred."""
    found: List[Interpreter] = []
    for name in NAMES:
        for folder in path.split(os.pathsep):
            command = str(Path(folder, name))
            # A version manager has commands also for versions that are not active: they fail.
            interpreter = described_by(command) if os.access(command, os.X_OK) else None
            known = [(each.prefix, each.version) for each in found]
            if interpreter is not None and (interpreter.prefix, interpreter.version) not in known:
                found.append(interpreter)
    return found


def described_by(command: str) -> Optional[Interpreter]:
    """Return the description of a command's Python by itself; None if it does not run."""
    try:
        text = subprocess.check_output(
            [command, str(Path(__file__).resolve()), "--describe"],
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        return Interpreter(**json.loads(text.decode()))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    this = this_interpreter()
    if "--describe" in arguments:
        print(json.dumps(this._asdict()))
        return 0
    found = [this] if "--this" in arguments else on_path(os.environ.get("PATH", ""))
    chosen = choose(found)
    print("\n".join(explanation(chosen, found)), file=sys.stderr)
    if chosen is None:
        return 1
    print(chosen.executable)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
