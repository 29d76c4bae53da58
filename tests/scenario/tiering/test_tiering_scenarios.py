"""The tasks of the RemoteLogManager as stories (KIP-405). See the files next to this one.

`tests.harness.remote_log_stage` has the commands. Replicas, managers, tasks and the store, a directory,
are the real ones.
"""

from pathlib import Path

import pytest

from tests.harness.remote_log_stage import RemoteLogStage

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.fixture
def stage():
    stage = RemoteLogStage()
    yield stage
    stage.close()


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
@pytest.mark.logs(
    "Fetch from broker", "below the high watermark", "has failed, the next attempt", "copying stops"
)
def test_scenario(play, stage, path):
    play(path, stage)


def test_every_story_names_its_kip():
    assert _FILES
    for path in _FILES:
        assert path.read_text().startswith("# KIP-"), path
