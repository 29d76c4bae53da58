"""The command and the environment of a Python process that runs a module of this program."""

import os
import sys


def command_of(module: str, *arguments: str) -> list[str]:
    """The command that runs `python -m module`, with the environment of `environment`.

    `-P`: without it the working directory is the first entry of the child's import path. A folder there that is
    named as one of our packages, written by others, would be imported in place of it, by the process that has a
    store's credentials.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """The environment of this process; the child finds modules where this process finds them.

    The working directory is one of these places only if this process was started so, as by `python -c`.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
