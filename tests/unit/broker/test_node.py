"""What a stop leaves behind, and what a start refuses."""

import shutil

import pytest

from broker.config.load import load_config
from broker.node import CannotStart, Node
from broker.runtime.simulated import SimulatedRuntime

METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


def live(*folders):
    """Start a node and stop it."""
    runtime = SimulatedRuntime(seed=1)

    async def scenario():
        await (
            await Node.start(runtime, load_config(overrides=[f"log.dirs={','.join(map(str, folders))}"]))
        ).stop()

    try:
        runtime.run(scenario())
    finally:
        runtime.simulation.close()


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_metadata_log_that_was_closed_and_is_damaged_is_refused(tmp_path):
    live(tmp_path)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    damage(tmp_path / METADATA_LOG)
    for _ in range(2):  # however often it is tried
        with pytest.raises(CannotStart, match="damaged at offset"):
            live(tmp_path)


def test_a_metadata_log_that_could_not_be_closed_is_not_called_clean(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("controller.metadata_log.MetadataLog.close", fails)
        live(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    live(tmp_path)


def test_a_partition_in_two_directories_is_refused(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    live(one, two)
    for folder in (one, two):
        (folder / "t-0").mkdir()
    with pytest.raises(CannotStart, match=r"t-0 is in .* and in "):
        live(one, two)
    shutil.rmtree(two / "t-0")
    live(one, two)
