"""README's first screen, as a reader types it: the client's example, and each command with the options that it names."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.admin import read
from tests.harness.ottla import OttlaServer
from tests.harness.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
#: What `ottla` finds on a system where nothing but its environment is active.
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}

EXAMPLE = re.search(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]
COMMANDS = [
    line.strip()
    for lines in re.findall(r"^    (ottla .*)", README, re.MULTILINE)
    for line in lines.partition("#")[0].split(";")
]


@pytest.fixture
def ottla(tmp_path):
    server = OttlaServer(tmp_path / "server")
    yield server.start()
    server.stop()


def test_the_example_writes_what_it_says(ottla):
    example = EXAMPLE.replace("127.0.0.1:9092", ottla.bootstrap)
    assert example != EXAMPLE
    subprocess.run([sys.executable, "-c", example], check=True, timeout=PATIENCE_S, capture_output=True)
    [record] = read(ottla.bootstrap, "orders", count=1)
    assert (record.key(), record.value()) == (b"42", b"two apples")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_it_is_shown_with(command):
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
