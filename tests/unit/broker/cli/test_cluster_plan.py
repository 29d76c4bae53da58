"""The nodes of a cluster of processes, their addresses, and what is kept when it is started again."""

import pytest

from ottla.broker.cli.cluster import prepare
from ottla.broker.cli.cluster_plan import InvalidPlan, make_plan
from ottla.broker.roles.formatting import FormatterError
from ottla.config.load import load_config
from ottla.protocol.errors import InvalidConfig
from ottla.storage.files import Files
from ottla.storage.manager import meta_properties


def plan(folder, *, brokers=3, controllers=3, racks=("a", "b"), port=9092, ports=range(20_000, 20_100)):
    return make_plan(
        folder,
        broker_count=brokers,
        controller_count=controllers,
        racks=racks,
        port=port,
        free_ports=lambda count: list(ports[:count]),
    )


def test_nodes_ports_and_racks(tmp_path):
    made = plan(tmp_path / "new")
    assert {node.node_id: (node.role, node.rack, node.port) for node in made.nodes} == {
        1: ("broker", "a", 9092),
        2: ("broker", "b", 9093),
        3: ("broker", "a", 9094),
        101: ("controller", None, 9095),
        102: ("controller", None, 9096),
        103: ("controller", None, 9097),
    }
    assert [node.role for node in made.nodes] == ["controller"] * 3 + ["broker"] * 3
    assert made.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"


def test_every_configuration_loads(tmp_path):
    made = plan(tmp_path / "データ", port=0)  # no letter of java.util.Properties' own character set
    assert prepare(made, {"log.segment.bytes": "1048576"}) == []
    for node in made.nodes:
        config = load_config(node.properties_file)
        assert (config.node_id, config.process_roles, config.broker_rack) == (
            node.node_id,
            (node.role,),
            node.rack,
        )
        assert len(config.quorum_bootstrap_servers) == 3
        assert config.get("log.segment.bytes") == 1_048_576
        found = meta_properties.read(node.data_dir, Files())
        assert found is not None
        assert found.node_id == node.node_id
    files = {path.name for path in made.controllers[0].data_dir.glob("__cluster_metadata-0/*")}
    assert files == {f"{0:020d}-{0:010d}.checkpoint"}


def test_settings_that_cannot_be_leave_nothing_behind(tmp_path):
    made = plan(tmp_path)
    with pytest.raises(InvalidConfig, match=r"log\.cleanup\.policy"):
        prepare(made, {"log.cleanup.policy": "shred"})
    assert list(tmp_path.iterdir()) == []
    prepare(made, {"log.cleanup.policy": "compact"})
    assert prepare(made, {"log.cleanup.policy": "delete"}) == list(
        made.nodes
    )  # returned: these nodes are not new
    assert load_config(made.nodes[0].properties_file).get("log.cleanup.policy") == ("compact",)


def test_a_second_start_changes_nothing(tmp_path):
    first = plan(tmp_path, port=0)
    prepare(first)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = plan(tmp_path, port=0, ports=range(30_000, 30_100))
    prepare(again)
    assert again == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_a_folder_of_other_nodes_is_refused(tmp_path):
    prepare(plan(tmp_path))
    for changes in ({"brokers": 2}, {"controllers": 1}, {"brokers": 4}):
        with pytest.raises(InvalidPlan, match="other nodes: node-1, node-101"):
            plan(tmp_path, **changes)


def test_controllers_that_have_lost_their_disks_are_not_formatted_again(tmp_path):
    made = plan(tmp_path)
    prepare(made)
    (made.controllers[0].data_dir / "meta.properties").unlink()
    with pytest.raises(FormatterError, match="have no data directory any more"):
        prepare(made)


def test_a_broker_that_has_lost_its_disk_is(tmp_path):
    made = plan(tmp_path)
    prepare(made)
    lost = made.brokers[0].data_dir / "meta.properties"
    lost.unlink()
    prepare(made)
    assert lost.exists()


@pytest.mark.parametrize("counts", [{"brokers": 0}, {"controllers": 0}, {"brokers": 101}, {"port": 65_535}])
def test_clusters_that_cannot_be(tmp_path, counts):
    with pytest.raises(InvalidPlan):
        plan(tmp_path / "new", **counts)
