"""Followers of a tiered partition, as stories: KIP-405's five follower scenarios, and what else may happen to them.

`tests.harness.tiered_stage` has the commands. Followers, fetchers, logs and handlers are those of a broker;
the store is a directory, and copies are made when a story says so.
"""

from pathlib import Path

import pytest

from tests.harness.tiered_stage import TieredStage

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.fixture
def stage():
    stage = TieredStage()
    yield stage
    stage.close()


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
@pytest.mark.logs(
    "Fetch from broker",
    "below the high watermark",
    "out of the leader's range",
    "removing all records",
    "the next attempt is in",
)
def test_scenario(play, stage, path):
    play(path, stage)


def test_every_story_names_its_kip():
    assert _FILES
    for path in _FILES:
        assert "KIP-" in path.read_text().splitlines()[0], path
