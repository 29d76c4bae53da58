"""KIP-405 on real brokers: the stories of this folder, with a directory and with MinIO as store.

Most of them are Kafka's own tiered integration tests (`org.apache.kafka.tiered.storage.integration`),
rewritten. The commands are those of `stage.py`. A first line `# ...` says what the story is about. With
KAFKA_ORACLE=1 all brokers are Kafka's, which share the directory by its LocalTieredStorage, under our
controller: the stories hold there, too, unless they say `differs`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.bench.components.minio import MinioServer
from tests.compat.conftest import IS_ORACLE
from tests.compat.tiering.stage import Stage
from tests.compat.tiering.tiered_cluster import DirectoryTier, MinioTier, Store, TieredCluster

_STORIES = sorted(Path(__file__).parent.glob("*.txt"))
#: Stories that also run with a bucket: one for each kind of call of a store.
_WITH_MINIO = {"offload_and_consume", "delete_topic", "reassign_move"}


def differs(path: Path) -> bool:
    """Whether Kafka behaves differently."""
    return "# differs from Kafka:" in path.read_text()


def play(
    path: Path, folder: Path, store: Store, *, kind: str = "ottla", stage_of: type[Stage] = Stage
) -> None:
    """Run a story with brokers of this kind; a failure names its line."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    command, *kinds = lines[0].replace("ottla", kind).split()
    assert command == "brokers", lines[0]
    settings = dict(kind.split("=", 1) for kind in kinds if "=" in kind)
    kinds = [kind for kind in kinds if "=" not in kind]
    with TieredCluster(folder, kinds, store, settings) as cluster:
        stage = stage_of(cluster)
        for line in lines[1:]:
            try:
                stage.run(line)
            except Exception as error:
                error.add_note(f"{path.name}: {line}")
                raise


@pytest.mark.parametrize(
    "path",
    [path for path in _STORIES if not (IS_ORACLE and differs(path))],
    ids=lambda path: path.stem,
)
def test_story_with_a_directory(path, tmp_path, broker_kind):
    play(path, tmp_path, DirectoryTier(tmp_path / "tier"), kind=broker_kind)


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.mark.parametrize(
    "path", [path for path in _STORIES if path.stem in _WITH_MINIO], ids=lambda path: path.stem
)
def test_story_with_minio(path, tmp_path, minio):
    play(path, tmp_path, MinioTier(minio, path.stem.replace("_", "-")))
