"""Both sides get the same settings: what Kafka reads from its file, Ottla reads from its command line."""

import pytest

from bench.targets.clusters import KafkaCluster, OttlaCluster
from bench.targets.servers import Kafka, Ottla
from bench.targets.settings import SETTINGS
from bench.targets.tiering_clusters import TIER_PROPERTIES, TieredKafka, TieredOttla
from broker.config import BrokerConfig
from broker.config.load import read_properties, standalone_profile

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
