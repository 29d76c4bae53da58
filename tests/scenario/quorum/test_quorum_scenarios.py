"""The Raft of the metadata log as stories: KIP-595, KIP-853, KIP-996. `quorum_stage.py` lists the commands."""

from pathlib import Path

import pytest

from tests.scenario.quorum.quorum_stage import Stage

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_quorum_scenario(path, play):
    play(path, Stage())
