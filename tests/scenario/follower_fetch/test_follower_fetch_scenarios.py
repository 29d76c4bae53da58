"""Consumers that read from followers (KIP-392), as stories: see the files next to this one.

`tests.harness.replica_stage` has the commands.
"""

from pathlib import Path

import pytest

from tests.harness.replica_stage import Stage

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    stage.close()


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
@pytest.mark.logs("Fetch from broker")
def test_scenario(play, stage, path):
    play(path, stage)


def test_every_story_names_its_kip():
    assert _FILES
    for path in _FILES:
        assert "KIP-" in path.read_text().splitlines()[0], path
