"""The records of a snapshot make an equal image; a copy does not change; the difference of two images."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.controller.metadata_log.record_versions import version_of
from ottla.controller.metadata_log.snapshot_writer import UnwritableMetadata, records_of
from ottla.metadata import records as r
from ottla.metadata.frame import decode_record, encode_record
from ottla.metadata.image import DIRECTORY_MIGRATING, InvalidMetadata, MetadataImage
from ottla.metadata.image_delta import difference
from ottla.protocol.local_log import LocalLogState, ReplicaLocalLog

LATEST = 33
NAMES = ("a", "b", "c.d", "_-9")


def replayed(records) -> MetadataImage:
    image = MetadataImage()
    image.replay_all(records)
    return image


def through_bytes(image: MetadataImage, metadata_version: int) -> MetadataImage:
    """The image that a reader of the snapshot has."""
    framed = [
        encode_record(record, version_of(record, metadata_version=metadata_version))
        for record in records_of(image, metadata_version=metadata_version)
    ]
    return replayed(map(decode_record, framed))


class Story:
    """Records of all types that fit what went before, drawn from a seed; a few at a time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.image = MetadataImage()
        self.image.replay_all([r.FeatureLevelRecord(name="metadata.version", feature_level=LATEST)])
        self.ids = iter(range(100, 10**6))
        self.kinds = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("make_")]

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            for record in self.random.choice(self.kinds)():
                self.image.replay_all([record])

    def uuid(self) -> UUID:
        return UUID(int=next(self.ids))

    def some(self, values, least: int = 0) -> list:
        values = list(values)
        return self.random.sample(values, self.random.randint(min(least, len(values)), len(values)))

    def local_logs(self, replicas) -> list[ReplicaLocalLog] | None:
        state = LocalLogState(local_log_start_offset=5, local_log_bytes=2**40, oldest_local_timestamp=-1)
        known = [ReplicaLocalLog(replica_id=replica, state=state) for replica in self.some(replicas)]
        return self.random.choice([None, known])

    def make_topic(self):
        name = self.random.choice(NAMES)
        if name in self.image.topics_by_name:
            return
        topic_id = self.uuid()
        yield r.TopicRecord(name=name, topic_id=topic_id)
        for index in range(self.random.randint(1, 4)):
            replicas = self.some((1, 2, 3, 4), least=1)
            yield r.PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=self.some(replicas),
                adding_replicas=self.some(replicas),
                removing_replicas=self.some(replicas),
                leader=self.random.choice([-1, *replicas]),
                leader_recovery_state=self.random.randint(0, 1),
                leader_epoch=self.random.randint(0, 9),
                partition_epoch=self.random.randint(0, 9),
                directories=[DIRECTORY_MIGRATING] * len(replicas)
                if self.random.random() < 0.3
                else [self.uuid() for _ in replicas],
                eligible_leader_replicas=self.random.choice([None, self.some(replicas)]),
                last_known_elr=self.random.choice([None, self.some(replicas)]),
                local_logs=self.local_logs(replicas),
            )

    def make_partition_change(self):
        for topic in self.some(self.image.topics_by_id.values())[:1]:
            index = self.random.choice(list(topic.partitions))
            yield r.PartitionChangeRecord(
                partition_id=index,
                topic_id=topic.topic_id,
                leader=self.random.randint(-2, 4),
                isr=self.some(topic.partitions[index].replicas),
                eligible_leader_replicas=self.random.choice([None, []]),
                leader_recovery_state=self.random.randint(-1, 1),
                local_logs=self.local_logs(topic.partitions[index].replicas),
            )

    def make_topic_end(self):
        for topic in self.some(self.image.topics_by_id.values())[:1]:
            yield r.RemoveTopicRecord(topic_id=topic.topic_id)

    def make_elr_clearing(self):
        yield r.ClearElrRecord(topic_name=self.random.choice(["", *self.image.topics_by_name]))

    def make_broker(self):
        yield r.RegisterBrokerRecord(
            broker_id=self.random.randint(1, 4),
            incarnation_id=self.uuid(),
            broker_epoch=next(self.ids),
            endpoints=[
                r.BrokerEndpoint(name=name, host=f"h{name}", port=9, security_protocol=3)
                for name in self.some(NAMES)
            ],
            features=[
                r.BrokerFeature(name=name, min_supported_version=0, max_supported_version=4)
                for name in self.some(NAMES)
            ],
            rack=self.random.choice([None, "", "r"]),
            fenced=self.random.random() < 0.5,
            in_controlled_shutdown=self.random.random() < 0.5,
            log_dirs=[self.uuid() for _ in range(self.random.randint(0, 2))],
            cordoned_log_dirs=self.random.choice([None, [], [self.uuid()]]),
        )

    def make_broker_change(self):
        for broker in self.some(self.image.brokers.values())[:1]:
            key = {"id": broker.broker_id, "epoch": broker.epoch}
            yield self.random.choice([r.FenceBrokerRecord, r.UnfenceBrokerRecord])(**key)
            yield r.BrokerRegistrationChangeRecord(
                broker_id=broker.broker_id,
                broker_epoch=broker.epoch,
                fenced=self.random.randint(-1, 1),
                in_controlled_shutdown=self.random.randint(0, 1),
                log_dirs=[self.uuid()],
                cordoned_log_dirs=self.random.choice([None, []]),
            )

    def make_broker_end(self):
        for broker in self.some(self.image.brokers.values())[:1]:
            yield r.UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch)

    def make_controller_end(self):
        for controller_id in self.some(self.image.controllers)[:1]:
            yield r.UnregisterControllerRecord(controller_id=controller_id)

    def make_controller(self):
        yield r.RegisterControllerRecord(
            controller_id=self.random.randint(1, 3),
            incarnation_id=self.uuid(),
            endpoints=[
                r.ControllerEndpoint(name=name, host="h", port=65535, security_protocol=0)
                for name in self.some(NAMES)
            ],
            features=[
                r.ControllerFeature(name=name, min_supported_version=1, max_supported_version=1)
                for name in self.some(NAMES)
            ],
        )

    def make_config(self):
        yield r.ConfigRecord(
            resource_type=self.random.choice([2, 4, 16, 32]),
            resource_name=self.random.choice(["", *NAMES]),
            name=self.random.choice(NAMES),
            value=self.random.choice([None, "", "v"]),
        )

    def make_feature(self):
        name = self.random.choice(["group.version", "share.version", "kraft.version"])
        yield r.FeatureLevelRecord(name=name, feature_level=self.random.randint(0, 1))

    def make_quota(self):
        types = self.some(("user", "client-id", "ip"), least=1)
        yield r.ClientQuotaRecord(
            entity=[
                r.EntityData(entity_type=each, entity_name=self.random.choice([None, *NAMES]))
                for each in types
            ],
            key=self.random.choice(NAMES),
            value=self.random.random(),
            remove=self.random.random() < 0.3,
        )

    def make_producer_ids(self):
        yield r.ProducerIdsRecord(
            broker_id=1, broker_epoch=1, next_producer_id=self.image.next_producer_id + 1000
        )

    def make_acl(self):
        yield r.AccessControlEntryRecord(
            id=self.uuid(),
            resource_type=2,
            resource_name=self.random.choice(NAMES),
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        )

    def make_acl_end(self):
        for acl in self.some(self.image.acls)[:1]:
            yield r.RemoveAccessControlEntryRecord(id=acl)

    def make_scram(self):
        yield r.UserScramCredentialRecord(
            name=self.random.choice(NAMES),
            mechanism=self.random.randint(1, 2),
            salt=self.random.randbytes(3),
            stored_key=b"s",
            server_key=b"",
            iterations=4096,
        )

    def make_scram_end(self):
        for name, mechanism in self.some(self.image.scram_credentials)[:1]:
            yield r.RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)

    def make_token(self):
        yield r.DelegationTokenRecord(
            owner="User:a",
            requester="User:b",
            renewers=self.some(NAMES),
            issue_timestamp=1,
            max_timestamp=2**60,
            expiration_timestamp=3,
            token_id=self.random.choice(NAMES),
        )

    def make_token_end(self):
        yield r.RemoveDelegationTokenRecord(token_id=self.random.choice(NAMES))

    def make_nothing(self):
        yield r.NoOpRecord()
        yield r.ZkMigrationStateRecord()


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 120))
def test_the_records_of_an_image_make_an_equal_one(seed: int, steps: int):
    story = Story(seed)
    story.go_on(steps)
    again = through_bytes(story.image, LATEST)
    assert difference(story.image, again) == difference(again, story.image) == difference(again, again)
    assert again.next_producer_id == story.image.next_producer_id
    assert list(again.topics_by_name) == [topic.name for topic in again.topics_by_id.values()]
    # The order is part of it: equal logs make equal snapshots on every node.
    assert list(records_of(again, metadata_version=LATEST)) == list(
        records_of(story.image, metadata_version=LATEST)
    )


def test_every_type_is_in_the_stories():
    story, seen = Story(1), set()
    for kind in story.kinds * 40:
        for record in kind():
            story.image.replay_all([record])
            seen.add(type(record))
    transactions = {r.BeginTransactionRecord, r.EndTransactionRecord, r.AbortTransactionRecord}
    assert seen == set(r.RECORD_CLASSES.values()) - transactions


@given(seed=st.integers(0, 2**32), before=st.integers(0, 60), after=st.integers(0, 60))
def test_a_copy_stays_as_it_was(seed: int, before: int, after: int):
    story = Story(seed)
    story.go_on(before)
    copy = story.image.copy()
    frozen = list(records_of(copy, metadata_version=LATEST))
    assert copy == story.image
    story.go_on(after)
    assert list(records_of(copy, metadata_version=LATEST)) == frozen
    assert all(copy.topics_by_name[topic.name] is topic for topic in copy.topics_by_id.values())


@given(seed=st.integers(0, 2**32), before=st.integers(0, 60), after=st.integers(0, 60))
def test_the_difference_is_what_the_records_between_changed(seed: int, before: int, after: int):
    story = Story(seed)
    story.go_on(before)
    old = story.image.copy()
    story.go_on(after)
    delta = difference(old, story.image)
    new, gone = story.image, old.topics_by_id.keys() - story.image.topics_by_id.keys()
    assert delta.topics_created == new.topics_by_id.keys() - old.topics_by_id.keys()
    assert delta.topics_deleted == {topic_id: old.topics_by_id[topic_id] for topic_id in gone}
    for topic_id, topic in new.topics_by_id.items():
        for index, partition in topic.partitions.items():
            is_changed = old.partition(topic_id, index) != partition
            assert (index in delta.partitions_changed.get(topic_id, ())) == is_changed
    for name in ("configs", "brokers", "controllers", "features", "acls", "scram_credentials"):
        was, now = getattr(old, name), getattr(new, name)
        changed = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
        assert getattr(delta, f"{name}_changed") == changed


def test_metadata_version_comes_first_and_kafkas_order_is_kept():
    story = Story(3)
    story.go_on(400)
    types = [type(record) for record in records_of(story.image, metadata_version=LATEST)]
    groups = [kind for kind, before in zip(types, [None, *types], strict=False) if kind is not before]
    assert [kind for kind in groups if kind not in (r.TopicRecord, r.PartitionRecord)] == [
        r.FeatureLevelRecord,
        r.RegisterBrokerRecord,
        r.RegisterControllerRecord,
        r.ConfigRecord,
        r.ClientQuotaRecord,
        r.ProducerIdsRecord,
        r.AccessControlEntryRecord,
        r.UserScramCredentialRecord,
        r.DelegationTokenRecord,
    ]
    first = next(records_of(story.image, metadata_version=LATEST))
    assert first == r.FeatureLevelRecord(name="metadata.version", feature_level=LATEST)


def broker(**fields):
    return r.RegisterBrokerRecord(broker_id=1, rack=None, **fields)


def partition(**fields):
    return [
        r.TopicRecord(name="t", topic_id=UUID(int=9)),
        r.PartitionRecord(
            partition_id=0, topic_id=UUID(int=9), replicas=[1], isr=[1], leader=1, leader_epoch=0,
            partition_epoch=0, **fields,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("since", "records"),
    [
        (11, [r.UserScramCredentialRecord(name="u", mechanism=1)]),
        (14, [r.DelegationTokenRecord(token_id="t")]),
        (15, [r.RegisterControllerRecord(controller_id=1)]),
        (17, [broker(log_dirs=[UUID(int=4)])]),
        (17, partition(directories=[UUID(int=4)])),
        (23, partition(eligible_leader_replicas=[1])),
        (30, [broker(cordoned_log_dirs=[])]),
    ],
)
def test_what_an_older_metadata_version_cannot_say_is_not_lost_silently(since: int, records: list):
    image = replayed([r.FeatureLevelRecord(name="metadata.version", feature_level=since), *records])
    assert through_bytes(image, since) == image
    with pytest.raises(UnwritableMetadata, match=f"need metadata.version {since}"):
        list(records_of(image, metadata_version=since - 1))


def test_the_oldest_metadata_version_can_hold_a_cluster():
    records = [r.FeatureLevelRecord(name="metadata.version", feature_level=7), broker(), *partition()]
    image = replayed(records)
    assert through_bytes(image, 7) == image


def test_features_that_are_control_records_are_not_the_images():
    image = replayed([r.FeatureLevelRecord(name="kraft.version", feature_level=1)])
    assert image.features == {}


def test_producer_ids_that_go_back_are_refused():
    image = replayed([r.ProducerIdsRecord(next_producer_id=1000)])
    with pytest.raises(InvalidMetadata):
        image.replay_all(records_of(image, metadata_version=LATEST))
