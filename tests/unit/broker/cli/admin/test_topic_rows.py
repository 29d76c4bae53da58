"""Output of `ottla topics` and `ottla configs`, made of a cluster's responses."""

from uuid import UUID

import pytest

from ottla.broker.cli.admin.config_rows import config_lines, detailed_lines, shown
from ottla.broker.cli.admin.configs import Change, Resource, changes_of, check_change
from ottla.broker.cli.admin.topic_rows import LogRange, described_lines, described_row, state_of
from ottla.broker.cli.admin.topics import check_partitions, shown_topics
from ottla.broker.cli.bootstrap import check_names
from ottla.broker.cluster_client.client import addresses_of
from ottla.broker.cluster_client.errors import ClusterError
from ottla.config.config_def import AlterOperation
from ottla.metadata.image import ConfigResourceType
from ottla.protocol.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.types import TopicPartition

TOPIC = Resource(ConfigResourceType.TOPIC, "orders")


def partition(leader=1, replicas=(1, 2, 3), isr=(1, 2, 3), index=0):
    return MetadataResponsePartition(
        partition_index=index, leader_id=leader, replica_nodes=list(replicas), isr_nodes=list(isr)
    )


@pytest.mark.parametrize(("leader", "isr", "min_isr", "state"), [
    (1,  (1, 2, 3), 2,    "in sync"),
    (1,  (1, 2),    2,    "under-replicated"),
    (1,  (1,),      2,    "under min ISR"),
    (1,  (1,),      None, "under-replicated"),  # min.insync.replicas is not known
    (1,  (1, 2, 3), 5,    "in sync"),           # it cannot be more than there are replicas
    (-1, (1, 2, 3), 2,    "leaderless"),
])  # fmt: skip
def test_the_state_of_a_partition(leader, isr, min_isr, state):
    assert state_of(partition(leader, isr=isr), min_isr=min_isr) == state


def test_a_topic_as_it_is_described():
    topic = MetadataResponseTopic(
        name="orders", topic_id=UUID(int=1), partitions=[partition(-1, isr=(), index=1), partition()]
    )
    logs = {TopicPartition("orders", 0): LogRange(start=3, end=10)}
    row = described_row(topic, {"retention.ms": "5", "secret": None}, logs, min_isr=2)
    assert list(described_lines(row)) == [
        "orders  id AAAAAAAAAAAAAAAAAAAAAQ, partitions 2, replicas 3",
        "  retention.ms=5",
        "  secret=(sensitive)",
        "  PARTITION  STATE       LEADER  REPLICAS  ISR    LOG START  LOG END  OFFSETS",
        "  0          in sync     1       1,2,3     1,2,3          3       10        7",
        "  1          leaderless  -       1,2,3     -              -        -        -",
        "",
    ]


def test_internal_topics_are_shown_on_request():
    names = {"orders": False, "__consumer_offsets": True, "__remote_log_metadata": False}
    metadata = MetadataResponse(
        topics=[MetadataResponseTopic(name=name, is_internal=is_so) for name, is_so in names.items()]
        + [MetadataResponseTopic(name="gone", error_code=3)]
    )
    assert [each.name for each in shown_topics(metadata, has_internal=False)] == ["orders"]
    assert [each.name for each in shown_topics(metadata, has_internal=True)] == sorted(names)


def config(name, value, source, **named):
    return DescribeConfigsResourceResult(name=name, value=value, config_source=source, **named)


def test_configurations_as_they_are_described():
    found = {
        "retention.ms": config(
            "retention.ms", "5", 1, documentation="How long  a record\nis kept.",
            synonyms=[DescribeConfigsSynonym(name="log.retention.ms", value="7", source=4)],
        ),
        "key.password": config("key.password", None, 4, is_sensitive=True, read_only=True),
        "cleanup.policy": config("cleanup.policy", "delete", 5),
    }  # fmt: skip
    assert [each.name for each in shown(found, has_defaults=True)] == sorted(found)
    assert config_lines(shown(found, has_defaults=False)) == [
        "KEY           VALUE        SOURCE",
        "key.password  (sensitive)  static broker, read-only",
        "retention.ms  5            topic",
    ]
    assert list(detailed_lines(found["retention.ms"])) == [
        "retention.ms=5  (topic)",
        "  static broker: log.retention.ms=7",
        "  How long a record is kept.",
    ]


SET = AlterOperation.SET
KNOWN = {
    "retention.ms": config("retention.ms", "5", 5),
    "log.dirs": config("log.dirs", "/data", 4, read_only=True),
    "max.connections": config("max.connections", "9", 5),
}


@pytest.mark.parametrize(("key", "sentence"), [
    ("retention.ms", None),
    ("listener.name.internal.max.connections", None),
    ("retention.mss", "topic orders: there is no configuration retention.mss. Did you mean retention.ms?"),
    ("log.dirs", "log.dirs=1: log.dirs is read-only, as brokers use it at their start."),
])  # fmt: skip
def test_a_change_that_a_broker_would_not_use_is_refused(key, sentence):
    change = Change(SET, key, "1")
    if sentence is None:
        check_change(TOPIC, change, KNOWN, is_forced=False)
        return
    with pytest.raises(ClusterError) as raised:
        check_change(TOPIC, change, KNOWN, is_forced=False)
    assert str(raised.value).startswith(sentence)


def test_an_unknown_key_can_be_forced():
    check_change(TOPIC, Change(SET, "plugin.key", "1"), KNOWN, is_forced=True)


@pytest.mark.parametrize(("settings", "unset", "sentence"), [
    (["a"],    [],    "'a' is not a setting: it must be KEY=VALUE."),
    (["=1"],   [],    "'=1' is not a setting: it must be KEY=VALUE."),
    (["a=1"],  ["a"], "a is named twice: one change of a key is possible at a time."),
])  # fmt: skip
def test_changes_that_cannot_be(settings, unset, sentence):
    with pytest.raises(ClusterError) as raised:
        changes_of(settings, unset)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(("wanted", "is_refused"), [(2, True), (3, True), (4, False)])
def test_the_number_of_partitions_only_grows(wanted, is_refused):
    if not is_refused:
        check_partitions("orders", 3, wanted)
        return
    with pytest.raises(ClusterError, match=f"--partitions {wanted}: the topic orders has 3 partitions"):
        check_partitions("orders", 3, wanted)


@pytest.mark.parametrize(("missing", "sentence"), [
    (["order"],   "The cluster has no topic order. Did you mean orders? Create it."),
    (["xyzw"],    "The cluster has no topic xyzw. Create it."),
    (["a", "b"],  "The cluster has no topic a, b. Create it."),
])  # fmt: skip
def test_an_unknown_name_suggests_similar_ones(missing, sentence):
    with pytest.raises(ClusterError) as raised:
        check_names("topic", missing, ["orders", "payments"], remedy="Create it.")
    assert str(raised.value) == sentence


@pytest.mark.parametrize(("text", "addresses"), [
    ("a:1",          (("a", 1),)),
    ("a:1, [::1]:2", (("a", 1), ("::1", 2))),
    ("a",            None),
    ("a:70000",      None),
    (":1",           None),
])  # fmt: skip
def test_the_addresses_of_brokers(text, addresses):
    if addresses is not None:
        assert addresses_of(text) == addresses
        return
    with pytest.raises(ClusterError, match=r"--bootstrap-server .* is no address of a broker"):
        addresses_of(text)
