"""The image: what each record does to it, and what it reports as changed."""

from uuid import UUID

import pytest

from ottla.metadata import records as r
from ottla.metadata.image import (
    ConfigResource,
    ConfigResourceType,
    Endpoint,
    InvalidMetadata,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
)

T1, T2 = UUID(int=101), UUID(int=102)
DIR = UUID(int=5000)


def broker(broker_id: int = 1, epoch: int = 5, **fields: object) -> r.RegisterBrokerRecord:
    record = r.RegisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch, rack=None, log_dirs=[DIR])
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def topic(topic_id: UUID = T1, name: str = "t", partitions: int = 1) -> list[r.MetadataRecord]:
    return [
        r.TopicRecord(name=name, topic_id=topic_id),
        *(
            r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=[1, 2],
                isr=[1, 2],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[DIR, DIR],
            )
            for index in range(partitions)
        ),
    ]


def config(name: str, value: str | None, kind: int = 2, resource: str = "t") -> r.ConfigRecord:
    return r.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


def test_a_topic_is_there_under_both_names():
    image = MetadataImage()
    delta = image.replay_all(topic(partitions=2))
    assert image.topics_by_name["t"] is image.topics_by_id[T1]
    assert image.partition(T1, 1) == PartitionImage((1, 2), (1, 2), 1, 0, 0, (DIR, DIR))
    assert image.partition(T1, 2) is None
    assert image.partition(T2, 0) is None
    assert delta.topics_created == {T1}
    assert delta.partitions_changed == {T1: {0, 1}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # a leader that is named again has a new epoch, too (KIP-101)
        ({"leader": 1}, {"leader": 1, "leader_epoch": 1}),
        ({"leader": 2, "isr": [2]}, {"leader": 2, "leader_epoch": 1, "isr": (2,)}),
        ({"leader": -1}, {"leader": None, "leader_epoch": 1}),
        ({"isr": [2]}, {"isr": (2,)}),
        ({"replicas": [2, 1]}, {"replicas": (2, 1)}),
        ({"eligible_leader_replicas": [1], "last_known_elr": [2]}, {"elr": (1,), "last_known_elr": (2,)}),
        ({"leader_recovery_state": 1}, {"leader_recovery_state": LeaderRecoveryState.RECOVERING}),
        (
            {"adding_replicas": [3], "removing_replicas": [1]},
            {"adding_replicas": (3,), "removing_replicas": (1,)},
        ),
    ],
)
def test_a_partition_change(change: dict, expected: dict):
    image = MetadataImage()
    image.replay_all(topic())
    before = image.partition(T1, 0)
    delta = image.replay_all([r.PartitionChangeRecord(partition_id=0, topic_id=T1, **change)])
    assert before is not None
    assert image.partition(T1, 0) == before._replace(partition_epoch=1, **expected)
    assert delta.partitions_changed == {T1: {0}}


def test_a_removed_topic_takes_its_configurations_along():
    image = MetadataImage()
    image.replay_all([*topic(), config("retention.ms", "1")])
    gone = image.topics_by_name["t"]
    delta = image.replay_all([r.RemoveTopicRecord(topic_id=T1)])
    assert (image.topics_by_name, image.topics_by_id, image.configs) == ({}, {}, {})
    assert delta.topics_deleted == {T1: gone}
    assert delta.configs_changed == {ConfigResource(ConfigResourceType.TOPIC, "t")}


def test_a_topic_that_came_and_went_does_not_appear():
    delta = MetadataImage().replay_all([*topic(), r.RemoveTopicRecord(topic_id=T1)])
    assert (delta.topics_created, delta.topics_deleted, delta.partitions_changed) == (set(), {}, {})


def test_a_topic_that_is_created_again_is_deleted_and_created():
    image = MetadataImage()
    image.replay_all(topic())
    delta = image.replay_all([r.RemoveTopicRecord(topic_id=T1), *topic(T2)])
    assert set(delta.topics_deleted) == {T1}
    assert delta.topics_created == {T2}


def test_brokers():
    image = MetadataImage()
    endpoint = r.BrokerEndpoint(name="P", host="h", port=9, security_protocol=2)
    feature = r.BrokerFeature(name="f", min_supported_version=0, max_supported_version=2)
    image.replay_all([broker(endpoints=[endpoint], features=[feature])])
    registered = image.brokers[1]
    assert registered.endpoints == {"P": Endpoint("h", 9, 2)}
    assert registered.features == {"f": range(3)}
    assert registered.is_fenced
    assert not registered.is_active

    def change(**fields: object) -> None:
        record = r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5)
        for name, value in fields.items():
            setattr(record, name, value)
        delta = image.replay_all([record])
        assert delta.brokers_changed == {1}

    change(fenced=-1)
    assert image.brokers[1].is_active
    change(in_controlled_shutdown=1)
    assert not image.brokers[1].is_active
    change(log_dirs=[T1], cordoned_log_dirs=[])
    assert image.brokers[1].log_dirs == (T1,)
    assert image.brokers[1].cordoned_log_dirs == ()
    change(fenced=1)
    assert image.brokers[1].is_fenced
    image.replay_all([r.UnfenceBrokerRecord(id=1, epoch=5)])
    assert not image.brokers[1].is_fenced
    image.replay_all([r.FenceBrokerRecord(id=1, epoch=5)])
    assert image.brokers[1].is_fenced
    image.replay_all([r.UnregisterBrokerRecord(broker_id=1, broker_epoch=5)])
    assert image.brokers == {}


# KIP-48, KIP-919
def test_everything_else_comes_and_goes():
    image = MetadataImage()
    entity = [r.EntityData(entity_type="user", entity_name=None)]
    image.replay_all(
        [
            config("a", "1"),
            config("b", "2"),
            config("a", None),
            r.FeatureLevelRecord(name="x", feature_level=2),
            r.FeatureLevelRecord(name="metadata.version", feature_level=30),
            r.ProducerIdsRecord(next_producer_id=1000),
            r.ClientQuotaRecord(entity=entity, key="k", value=1.5),
            r.AccessControlEntryRecord(id=T1),
            r.UserScramCredentialRecord(name="u", mechanism=1),
            r.DelegationTokenRecord(token_id="d"),
            r.RegisterControllerRecord(controller_id=9, incarnation_id=T2),
            r.NoOpRecord(),
            r.ZkMigrationStateRecord(),
        ]
    )
    assert image.topic_config("t") == {"b": "2"}
    assert image.topic_config("other") == {}
    assert image.features == {"x": 2, "metadata.version": 30}
    assert image.metadata_version == 30
    assert image.next_producer_id == 1000
    assert image.client_quotas == {(("user", None),): {"k": 1.5}}
    assert image.controllers[9].incarnation_id == T2
    delta = image.replay_all(
        [
            config("b", None),
            config("never", None, resource="other"),
            r.FeatureLevelRecord(name="x", feature_level=0),
            r.ClientQuotaRecord(entity=entity, key="k", remove=True),
            r.RemoveAccessControlEntryRecord(id=T1),
            r.RemoveUserScramCredentialRecord(name="u", mechanism=1),
            r.RemoveDelegationTokenRecord(token_id="d"),
        ]
    )
    assert (image.configs, image.client_quotas, image.acls, image.scram_credentials) == ({}, {}, {}, {})
    assert image.delegation_tokens == {}
    assert image.features == {"metadata.version": 30}
    assert delta.features_changed == {"x"}
    assert delta.quotas_changed == {(("user", None),)}
    assert delta.acls_changed == {T1}
    assert delta.scram_credentials_changed == {("u", 1)}


@pytest.mark.parametrize("name", ["t", ""])
def test_the_elr_is_cleared(name: str):
    image = MetadataImage()
    image.replay_all(topic(partitions=2))
    image.replay_all([r.PartitionChangeRecord(partition_id=1, topic_id=T1, eligible_leader_replicas=[2])])
    delta = image.replay_all([r.ClearElrRecord(topic_name=name)])
    assert delta.partitions_changed == {T1: {1}}
    cleared = image.partition(T1, 1)
    assert cleared is not None
    assert (cleared.elr, cleared.partition_epoch) == ((), 2)


@pytest.mark.parametrize(
    "record",
    [
        r.TopicRecord(name="t", topic_id=T2),
        r.TopicRecord(name="u", topic_id=T1),
        r.PartitionRecord(partition_id=0, topic_id=T2),
        r.PartitionRecord(partition_id=9, topic_id=T1, leader_recovery_state=2),
        r.PartitionChangeRecord(partition_id=1, topic_id=T1),
        r.PartitionChangeRecord(partition_id=0, topic_id=T2),
        r.RemoveTopicRecord(topic_id=T2),
        r.ClearElrRecord(topic_name="u"),
        r.UnregisterBrokerRecord(broker_id=1, broker_epoch=4),
        r.FenceBrokerRecord(id=2, epoch=5),
        r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=7),
        r.ConfigRecord(resource_type=3, resource_name="t", name="a", value="1"),
        r.ProducerIdsRecord(next_producer_id=0),
        r.RemoveAccessControlEntryRecord(id=T1),
        r.RemoveUserScramCredentialRecord(name="u", mechanism=1),
        r.BeginTransactionRecord(),  # resolved before records get here
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_that_contradict_the_image_are_refused(record: r.MetadataRecord):
    image = MetadataImage()
    image.replay_all([*topic(), broker()])
    with pytest.raises(InvalidMetadata):
        image.replay_all([record])


def test_equal_replica_lists_are_kept_once():
    image = MetadataImage()
    image.replay_all(topic(partitions=2))
    first, second = image.topics_by_name["t"].partitions.values()
    assert first.replicas is second.replicas is first.isr
    assert first.directories is second.directories


def test_equal_lists_of_replicas_are_kept_once_and_not_forever(monkeypatch: pytest.MonkeyPatch):
    image = MetadataImage()
    image.replay_all(topic(partitions=2))
    assert image.partition(T1, 0).replicas is image.partition(T1, 1).replicas
    monkeypatch.setattr("ottla.metadata.image.MAX_SHARED_TUPLES", 2)
    image.replay_all([r.PartitionChangeRecord(partition_id=1, topic_id=T1, isr=[2])])
    assert len(image._shared) == 1
    assert image.partition(T1, 1).isr == (2,)
