"""`--tier`: the remote tier in one text (KIP-405)."""

from pathlib import Path

import pytest

from ottla.broker.roles.tiering import create_storage_manager
from ottla.config.load import load_config
from ottla.config.tier_text import PARAMETERS, metadata_topic_properties, tier_properties
from ottla.protocol.errors import InvalidConfig
from ottla.remote.stores import s3_settings
from ottla.storage.files import Files

CLASS = "remote.log.storage.manager.class.name"
ENABLED = {"remote.log.storage.system.enable": "true"}


@pytest.mark.parametrize(("tier", "class_name", "settings"), [
    ("/mnt/tier",                 "directory", {"dir": "/mnt/tier"}),
    ("file:///mnt/my%20tier",     "directory", {"dir": "/mnt/my tier"}),
    ("s3://b",                    "s3", {"bucket": "b"}),
    ("s3://b/",                   "s3", {"bucket": "b"}),
    ("s3://b/kafka/eu%2F1/?region=eu-west-1", "s3", {"bucket": "b", "prefix": "kafka/eu/1", "region": "eu-west-1"}),
    ("s3://b/p?endpoint=http://127.0.0.1:9000", "s3",
     {"bucket": "b", "prefix": "p", "endpoint": "http://127.0.0.1:9000", "path.style": "true"}),
    ("s3://b?endpoint=https://s3.example.com&path.style=false", "s3",
     {"bucket": "b", "endpoint": "https://s3.example.com", "path.style": "false"}),
    ("s3://b?access.key=a&secret.key=x%2By", "s3", {"bucket": "b", "access.key": "a", "secret.key": "x+y"}),
    ("minio://b/p?endpoint=http://m:9000", "minio",
     {"bucket": "b", "prefix": "p", "endpoint": "http://m:9000", "path.style": "true"}),
])  # fmt: skip
def test_what_it_sets(tier, class_name, settings):
    expected = ENABLED | {CLASS: class_name} | {f"rsm.config.{name}": text for name, text in settings.items()}
    assert tier_properties(tier) == expected


def test_a_relative_directory():
    assert tier_properties("a/tier")["rsm.config.dir"] == str(Path.cwd() / "a" / "tier")


@pytest.mark.parametrize(("tier", "sentence"), [
    ("",                       "name a directory, or s3://bucket/prefix"),
    ("s3:///prefix",           "names no bucket: it must be s3://BUCKET/PREFIX"),
    ("gs://b",                 "is no remote tier: it must be a directory, s3://BUCKET/PREFIX or minio"),
    ("file://host/p",          "is no remote tier"),
    ("s3://b?regoin=eu",       "unknown parameters, regoin: known are endpoint, region"),
    ("s3://b?bucket=c",        "unknown parameters, bucket"),
    ("s3://b?region=a&region=b", "the same parameter twice"),
    ("minio://b",              "lacks the store's address: add .endpoint=http://HOST:PORT"),
])  # fmt: skip
def test_what_it_refuses(tier, sentence):
    with pytest.raises(InvalidConfig, match=sentence):
        tier_properties(tier)


def test_no_secret_is_in_a_message():
    with pytest.raises(InvalidConfig) as refused:
        tier_properties("s3://b?secret.key=hush&regoin=eu")
    assert "hush" not in str(refused.value)


def test_the_parameters_are_the_stores_settings():
    assert {*PARAMETERS, "bucket", "prefix"} == set(s3_settings.SETTINGS)


def test_a_standalone_broker(tmp_path):
    """Nothing else is needed; what is set by the user stays."""
    config = load_config(data_dir=tmp_path / "data", tier=str(tmp_path / "tier"))
    assert config.remote_log_storage_system_enable
    assert config.texts["rlmm.config.remote.log.metadata.topic.replication.factor"] == "1"
    assert config.texts["rlmm.config.remote.log.metadata.topic.min.isr"] == "1"
    manager = create_storage_manager(config, lambda module, setup: None, Files(), [tmp_path / "data"])
    assert (tmp_path / "tier" / "kafka-tiered-storage").is_dir()
    manager.close()
    own = ["rlmm.config.remote.log.metadata.topic.min.isr=2", "rsm.config.dir=/elsewhere"]
    config = load_config(data_dir=tmp_path / "data", tier=str(tmp_path / "tier"), overrides=own)
    assert config.texts["rlmm.config.remote.log.metadata.topic.min.isr"] == "2"
    assert config.texts["rsm.config.dir"] == "/elsewhere"


def test_a_node_of_a_cluster(tmp_path):
    """One node does not know the replicas of the metadata's topic, so Kafka's default applies."""
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://:9092\ncontroller.listener.names=C\n"
        "listener.security.protocol.map=C:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        "controller.quorum.bootstrap.servers=h:1\nrsm.config.bucket=other\n"
    )
    config = load_config(file, tier="s3://b/p?region=r")
    assert config.texts["rsm.config.bucket"] == "b"
    assert not [name for name in config.texts if name.startswith("rlmm.")]


@pytest.mark.parametrize("inside", ["", "tier", "a/b"])
def test_a_directory_inside_of_a_log_directory(inside, tmp_path):
    with pytest.raises(
        InvalidConfig, match=r"is inside of the log directory .*: choose a directory beside it"
    ):
        load_config(data_dir=tmp_path, tier=str(tmp_path / inside))


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (9, 3, 2)])
def test_replicas_of_the_metadatas_topic(brokers, replicas, in_sync):
    assert list(metadata_topic_properties(brokers).values()) == [str(replicas), str(in_sync)]
