"""README's first screen, as a reader types it: the client's example, and each command with the options that
it names.
"""

import re
import subprocess
import sys

import pytest

from ottla.bench.components.processes import PATIENCE_S
from tests.compat.admin import read
from tests.harness.ottla import OttlaServer
from tests.harness.readme import README, check_options, shown_commands

EXAMPLE = re.search(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[1]


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


@pytest.mark.parametrize("command", shown_commands(of_bench=False))
def test_a_command_has_the_options_that_it_is_shown_with(command):
    check_options(command)
