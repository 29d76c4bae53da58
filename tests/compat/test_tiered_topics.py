"""A tiered topic accepts and refuses the same configurations as in Kafka, at its creation and later (KIP-405,
KIP-950).

With KAFKA_ORACLE=1 the same table is held against Kafka 4.3.1 with its LocalTieredStorage.
"""

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from tests.compat.admin import PATIENCE_S, admin_of, code_of, create_topic
from tests.compat.conftest import make_server

INVALID = "INVALID_CONFIG"
#: Defaults of the broker that topics fall back to: 10,000 ms and 10,000 bytes in all, 5,000 of each locally.
BROKER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "log.retention.ms": "10000",
    "log.retention.bytes": "10000",
    "log.local.retention.ms": "5000",
    "log.local.retention.bytes": "5000",
}


def configs(text: str) -> dict[str, str]:
    """The configurations of a text such as `remote.storage.enable=true retention.ms=5`, whose names may be
    abbreviated."""
    names = {"tiered": "remote.storage.enable", "copy.disable": "remote.log.copy.disable",
             "delete": "remote.log.delete.on.disable"}  # fmt: skip
    pairs = (each.partition("=") for each in text.split())
    return {names.get(name, name): value for name, _, value in pairs}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiered")
    server = make_server(folder / "server", {**BROKER, "rsm.config.dir": str(folder / "tier")})
    yield server.start()
    server.stop()


@pytest.fixture
def admin(tiered):
    return admin_of(tiered.bootstrap)


@pytest.mark.parametrize(("asked", "error"), [
    ("tiered=true",                                                None),
    ("tiered=true cleanup.policy=delete",                          None),
    ("tiered=true cleanup.policy=",                                None),
    ("tiered=true cleanup.policy=compact",                         INVALID),
    ("tiered=true cleanup.policy=compact,delete",                  INVALID),
    ("cleanup.policy=compact copy.disable=true",                   None),
    # Local retention is within the whole one, the broker's defaults included
    ("tiered=true local.retention.ms=10000",                       None),
    ("tiered=true local.retention.ms=10001",                       INVALID),
    ("tiered=true local.retention.ms=-1",                          INVALID),
    ("tiered=true local.retention.ms=-2",                          None),
    ("tiered=true retention.ms=4999",                              INVALID),
    ("tiered=true retention.ms=4999 local.retention.ms=-2",        None),
    ("tiered=true retention.ms=-1 local.retention.ms=-1",          None),
    ("tiered=true retention.ms=-1 local.retention.ms=0",           None),
    ("tiered=true local.retention.bytes=10001",                    INVALID),
    ("tiered=true local.retention.bytes=-1",                       INVALID),
    ("tiered=true retention.bytes=-1 local.retention.bytes=-1",    None),
    ("tiered=true retention.bytes=4999",                           INVALID),
    ("tiered=true local.retention.ms=-3",                          INVALID),
    # Without tiering the local retention is not compared
    ("local.retention.ms=10001",                                   None),
    ("retention.ms=1",                                             None),
    # A read-only remote tier
    ("tiered=true copy.disable=true",                              INVALID),  # 5,000 of 10,000 locally
    ("tiered=true copy.disable=true local.retention.ms=-2 local.retention.bytes=-2", None),
    ("tiered=true copy.disable=true local.retention.ms=10000 local.retention.bytes=10000", None),
    ("tiered=true copy.disable=true local.retention.ms=10000 local.retention.bytes=9999", INVALID),
    ("tiered=true copy.disable=true local.retention.ms=9999 local.retention.bytes=10000", INVALID),
    ("delete=true",                                                None),
    ("tiered=maybe",                                               INVALID),
])  # fmt: skip
def test_at_creation(admin, topic, asked, error):
    new = NewTopic(topic, 1, 1, config=configs(asked))
    assert code_of(admin.create_topics([new], validate_only=True)[topic]) == error
    assert code_of(admin.create_topics([new])[topic]) == error


def change(admin, topic: str, text: str, *, validate_only: bool = False) -> str | None:
    """Set, or with an empty value delete, these keys; the error's name."""
    entries = [
        ConfigEntry(
            name,
            value or None,
            incremental_operation=AlterConfigOpType.SET if value else AlterConfigOpType.DELETE,
        )
        for name, value in configs(text).items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return code_of(admin.incremental_alter_configs([resource], validate_only=validate_only)[resource])


@pytest.mark.parametrize(("first", "changed", "error"), [
    ("",                              "tiered=true",                     None),     # an existing topic
    ("cleanup.policy=compact",        "tiered=true",                     INVALID),
    ("cleanup.policy=compact",        "tiered=true cleanup.policy=delete", None),
    ("tiered=true",                   "cleanup.policy=compact",          INVALID),
    ("tiered=true",                   "tiered=false",                    INVALID),
    ("tiered=true",                   "tiered=",                         INVALID),
    ("tiered=true",                   "tiered=false delete=true",        None),
    ("tiered=true delete=true",       "tiered=",                         None),
    ("tiered=true delete=true",       "tiered= delete=",                 INVALID),
    ("tiered=true",                   "local.retention.ms=20000",        INVALID),
    ("tiered=true",                   "local.retention.ms=20000 retention.ms=20000", None),
    ("tiered=true retention.ms=20000 local.retention.ms=20000", "retention.ms=", INVALID),
    ("tiered=true",                   "copy.disable=true",               INVALID),
    ("tiered=true local.retention.ms=-2 local.retention.bytes=-2", "copy.disable=true", None),
    ("tiered=true local.retention.ms=-2 local.retention.bytes=-2 copy.disable=true", "local.retention.ms=1", INVALID),
    ("tiered=true local.retention.ms=-2 local.retention.bytes=-2 copy.disable=true", "copy.disable=false", None),
])  # fmt: skip
def test_later(tiered, admin, topic, first, changed, error):
    create_topic(tiered.bootstrap, topic, config=configs(first))
    assert change(admin, topic, changed, validate_only=True) == error
    assert change(admin, topic, changed) == error


def test_described(tiered, admin, topic):
    """All of them, with where their values come from."""
    create_topic(tiered.bootstrap, topic, config=configs("tiered=true local.retention.ms=7"))
    resource = ConfigResource(ResourceType.TOPIC, topic)
    rows = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    names = [
        name
        for name in rows
        if name.startswith(("remote.", "local."))
        and name not in ("remote.copy.lag.ms", "remote.copy.lag.bytes")  # which Kafka 4.3.1 does not have
    ]
    default, broker, own = (
        ConfigSource.DEFAULT_CONFIG,
        ConfigSource.STATIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )
    assert {name: (rows[name].value, ConfigSource(rows[name].source)) for name in names} == {
        "remote.storage.enable": ("true", own),
        "remote.log.copy.disable": ("false", default),
        "remote.log.delete.on.disable": ("false", default),
        "local.retention.ms": ("7", own),
        "local.retention.bytes": ("5000", broker),
    }


def test_a_broker_without_remote_tier(server, topic):
    new = NewTopic(topic, 1, 1, config={"remote.storage.enable": "true"})
    admin = admin_of(server.bootstrap)
    assert code_of(admin.create_topics([new])[topic]) == INVALID
