"""A node's stop leaves its directories clean, and its start refuses those of others."""

import asyncio
import shutil
import threading

import pytest

from ottla.bench.components.processes import PATIENCE_S
from ottla.broker.network import NetworkServer
from ottla.broker.node import CannotStart, Node
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.runtime import Pool
from ottla.runtime.pools import THREADS
from ottla.runtime.production import run
from ottla.runtime.simulated import SimulatedRuntime

METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


def live(*folders, topics=()):
    """Start a node, create topics, and stop it."""
    runtime = SimulatedRuntime(seed=1)

    async def scenario():
        config = load_config(overrides=[f"log.dirs={','.join(map(str, folders))}"])
        node = await Node.start(runtime, config)
        for name in topics:
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            await node.broker.controller.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))
        await node.stop()

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


@pytest.mark.logs("Log directory", "The node stops", "the metadata log was not closed")
def test_a_metadata_log_that_could_not_be_closed_is_not_called_clean(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("ottla.controller.metadata_log.log.MetadataLog.close", fails)
        live(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    live(tmp_path)


@pytest.mark.parametrize("listener", ["CONTROLLER", "PLAINTEXT"])
def test_a_port_in_use_leaves_a_clean_stop_clean(tmp_path, monkeypatch, listener):
    """Before the metadata log is opened, and behind it."""
    live(tmp_path)
    mark = tmp_path / ".kafka_cleanshutdown"
    closed = mark.read_text()

    async def listen(server, name, host, port):
        if name == listener:
            raise OSError(98, "Address already in use")
        return await real_listen(server, name, host, port)

    real_listen = NetworkServer.listen
    with monkeypatch.context() as patch:
        patch.setattr(NetworkServer, "listen", listen)
        for _ in range(2):
            with pytest.raises(CannotStart, match="Address already in use"):
                live(tmp_path)
            assert mark.read_text() == closed
    live(tmp_path)


@pytest.mark.logs("the log is renamed to a stray")
def test_a_partition_in_two_directories_is_in_the_one_that_the_metadata_names(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    live(one, two, topics=["t"])
    shutil.copytree(one / "t-0", two / "t-0")
    live(one, two)
    assert (one / "t-0").exists()
    assert not (two / "t-0").exists()
    assert len(list(two.glob("t-0.*-stray"))) == 1


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{}", '{"leaderId":1,"leaderEpoch":"x","votedId":-1,"data_version":0}']
)
def test_a_quorum_state_that_cannot_be_read_is_refused_with_its_remedy(tmp_path, text):
    live(tmp_path)
    state = tmp_path / "__cluster_metadata-0/quorum-state"
    kept = state.read_text()
    state.write_text(text)
    with pytest.raises(CannotStart, match=r"quorum-state cannot be read .* delete the file"):
        live(tmp_path)
    state.write_text(kept)
    live(tmp_path)


def test_a_folder_of_another_node_is_refused(tmp_path):
    live(tmp_path)
    meta = tmp_path / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    with pytest.raises(CannotStart, match=r"belongs to node 2, but node\.id is 1"):
        live(tmp_path)


def test_a_metadata_log_in_a_directory_of_its_own(tmp_path):
    runtime = SimulatedRuntime(seed=1)
    config = load_config(overrides=[f"log.dirs={tmp_path}/data", f"metadata.log.dir={tmp_path}/metadata"])

    async def scenario():
        node = await Node.start(runtime, config)
        await node.stop()

    runtime.run(scenario())
    runtime.simulation.close()
    assert (tmp_path / "metadata" / METADATA_LOG).exists()
    assert not (tmp_path / "data/__cluster_metadata-0").exists()
    assert {path.name for path in tmp_path.glob("*/meta.properties")} == {"meta.properties"}


def test_metadata_is_committed_while_all_other_blocking_work_waits(tmp_path):
    """Eight cold reads of some seconds deposed the quorum's leader: its votes and flushes waited behind them."""
    release = threading.Event()

    async def scenario(runtime):
        config = load_config(overrides=[f"log.dirs={tmp_path}"], port=0)
        node = await Node.start(runtime, config)
        busy = [
            asyncio.ensure_future(runtime.run_blocking(release.wait, pool=pool))
            for pool in set(Pool) - {Pool.METADATA}
            for _ in range(THREADS[pool] + 1)
        ]
        try:
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            request = CreateTopicsRequest(topics=[topic])
            response = await asyncio.wait_for(
                node.broker.controller.request(ApiKey.CREATE_TOPICS, request), PATIENCE_S
            )
            assert response.topics[0].error_code == 0
        finally:
            release.set()
        await asyncio.gather(*busy)
        await node.stop()

    run(scenario)
