"""Both sides get the same settings: what Kafka reads from its file, Ottla reads from its command line."""

import pytest

from ottla.bench.targets.clusters import Cluster, KafkaCluster, OttlaCluster
from ottla.bench.targets.servers import Kafka, Ottla
from ottla.bench.targets.settings import SETTINGS
from ottla.bench.targets.started import started
from ottla.bench.targets.tiering_clusters import TIER_PROPERTIES, TieredKafka, TieredOttla
from ottla.bench.workloads.model import ClusterNeeds, Tier
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import read_properties, standalone_profile

#: Who a node is, where it listens and where its files are.
IDENTITY = {
    "process.roles",
    "node.id",
    "listeners",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "log.dirs",
}


def without_identity(properties):
    return {key: value for key, value in properties.items() if key not in IDENTITY}


@pytest.mark.parametrize("name", SETTINGS)
def test_one_broker_of_either_side_has_the_same_properties(tmp_path, name):
    kafka = Kafka(tmp_path / "kafka", SETTINGS[name])
    ottla = Ottla(tmp_path / "ottla", SETTINGS[name])
    # Without a file, the profile of a standalone broker comes first and --set overrules it.
    settings = standalone_profile() | dict(override.split("=", 1) for override in ottla.overrides)
    assert without_identity(settings) == without_identity(read_properties(kafka.properties_file))


@pytest.mark.parametrize("name", SETTINGS)
def test_clusters_of_either_side_have_the_same_properties(tmp_path, name):
    def properties(kind):
        cluster = kind(tmp_path / kind.name, SETTINGS[name], brokers=1, controllers=1)
        return [without_identity(read_properties(node.properties_file)) for node in cluster.nodes]

    kafka, ottla = properties(KafkaCluster), properties(OttlaCluster)
    assert kafka == ottla
    assert all(SETTINGS[name].items() <= node.items() for node in ottla)


def test_tiered_clusters_have_the_same_properties_and_a_store_each(tmp_path):
    kafka, ottla = (
        kind(tmp_path / kind.name, SETTINGS["default"] | TIER_PROPERTIES)
        for kind in (TieredKafka, TieredOttla)
    )
    files = [[read_properties(node.properties_file) for node in cluster.nodes] for cluster in (kafka, ottla)]
    stores = [{node.pop("rsm.config.dir") for node in nodes} for nodes in files]
    assert stores == [{str(tmp_path / "kafka" / "tier")}, {str(tmp_path / "ottla" / "tier")}]
    assert [without_identity(node) for node in files[0]] == [without_identity(node) for node in files[1]]


def test_the_default_settings_are_kafkas_defaults():
    assert {key: str(BrokerConfig.default(key)) for key in SETTINGS["default"]} == SETTINGS["default"]


def properties_of(target):
    """The properties of each node of a started target."""
    match target.nodes:
        case Kafka() as server:
            return [read_properties(server.properties_file)]
        case Ottla() as server:
            return [standalone_profile() | dict(override.split("=", 1) for override in server.overrides)]
        case Cluster() as cluster:
            return [read_properties(node.properties_file) for node in cluster.nodes]


@pytest.mark.parametrize("tier", [Tier.NONE, Tier.DIRECTORY])
@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_targets_have_the_same_properties_and_those_of_the_workload(tmp_path, brokers, tier):
    needs = ClusterNeeds(brokers=brokers, tier=tier, properties={"num.network.threads": "5"})
    kafka, ottla = (properties_of(started(name, needs, tmp_path / name)) for name in ("kafka", "ottla"))
    stores = [{node.pop("rsm.config.dir", None) for node in nodes} for nodes in (kafka, ottla)]
    if tier is Tier.DIRECTORY:
        assert stores == [{str(tmp_path / name / "tier")} for name in ("kafka", "ottla")]
    else:
        assert stores == [{None}, {None}]
    assert len(kafka) == (1 if brokers == 1 else brokers + 1)  # and a controller
    assert [without_identity(node) for node in kafka] == [without_identity(node) for node in ottla]
    assert all(node["num.network.threads"] == "5" for node in kafka)
