"""README's commands, as a reader types them."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from ottla.bench.components.processes import PATIENCE_S

ROOT: Final = Path(__file__).parents[2]
README: Final = (ROOT / "README.md").read_text()
#: What `ottla` finds on a system where nothing but its environment is active.
BARE: Final = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def shown_commands(*, of_bench: bool) -> list[str]:
    """The commands of the first screen: those that need `make setup-bench`, or the others."""
    return [
        command.strip()
        for line in re.findall(r"^    (ottla .*)", README, re.MULTILINE)
        for command in line.partition("#")[0].split(";")
        if ("setup-bench" in line) is of_bench
    ]


def check_options(command: str) -> None:
    """Its help has each option that it is shown with."""
    words = command.split()
    # The words before the first option or placeholder name the command: "ottla cluster up".
    name = itertools.takewhile(lambda word: re.fullmatch(r"[a-z]+(-[a-z]+)*", word), words)
    activate = shlex.quote(str(Path(sys.prefix) / "bin/activate"))
    done = subprocess.run(
        ["sh", "-c", f". {activate} && exec {' '.join(name)} --help"],
        env=BARE, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", command):
        assert re.search(rf"{option}\b", done.stdout), option
