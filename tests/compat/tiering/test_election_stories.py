"""Followers with little local data, and elections that know of it, on real brokers (KIP-1023, draft
KIP-1303): `elections/*.txt`.

The commands are those of `stage.py` and `election_stage.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.bench.components.minio import MinioServer
from tests.compat.tiering.election_stage import ElectionStage
from tests.compat.tiering.test_tiering_stories import play
from tests.compat.tiering.tiered_cluster import DirectoryTier, MinioTier

_STORIES = sorted((Path(__file__).parent / "elections").glob("*.txt"))


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.mark.parametrize("path", _STORIES, ids=lambda path: path.stem)
def test_election_story(path, tmp_path, minio):
    # Kafka's only store is the directory of its tests.
    is_mixed = "kafka" in path.read_text().partition("\n")[2].partition("\n")[0]
    store = DirectoryTier(tmp_path / "tier") if is_mixed else MinioTier(minio, path.stem.replace("_", "-"))
    play(path, tmp_path, store, stage_of=ElectionStage)
