"""The replica manager follows the image: logs are made, led, set aside and deleted as it says."""

import asyncio
from uuid import UUID

import pytest
from replicas_support import NODE_ID, TOPIC_ID, BrokerInFolder, batch, follower_fetches, image, topic_records

from ottla.broker.replicas.partition import Partition
from ottla.config.log_config import LogConfig
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import ConfigRecord, PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.errors import (
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition

T0 = TopicPartition("t", 0)
NEW_ID = UUID(int=0xB)


class Listener:
    def __init__(self) -> None:
        self.notified: list[tuple[str, int, int]] = []

    def on_election(self, topic_partition, leader_epoch):
        assert topic_partition.topic == "t"
        self.notified.append(("leads", topic_partition.partition, leader_epoch))

    def on_resignation(self, topic_partition, leader_epoch):
        assert topic_partition.topic == "t"
        self.notified.append(("resigned", topic_partition.partition, leader_epoch))


def append(broker, *values, topic_partition=T0):
    return broker.writer.append_as_coordinator(topic_partition, batch(*values))


# KIP-516
def test_a_topic_is_found_by_name_and_by_id(broker):
    broker.create(partitions=2)
    partition = broker.replicas.partition(T0)
    assert partition is broker.replicas.hosted.by_key[TOPIC_ID, 0]
    assert partition.is_leader
    assert (broker.logs.get(T0).directory / "partition.metadata").exists()
    assert len(list(broker.replicas.partitions())) == 2


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (("u", 0), UnknownTopicOrPartition),
        (("t", 7), UnknownTopicOrPartition),
        (("t", 1), NotLeaderOrFollower),
        ((UUID(int=1), 0), UnknownTopicId),
        ((TOPIC_ID, 7), UnknownTopicOrPartition),
        ((TOPIC_ID, 1), NotLeaderOrFollower),
    ],
)
def test_why_a_partition_is_not_here(broker, key, error):
    broker.create(partitions={0: image(), 1: image(leader=2, replicas=(2,))})
    assert type(broker.replicas.hosted.missing_partition_error(key)) is error


def test_a_deleted_topic_leaves_no_log_and_its_name_is_free(broker):
    broker.create()
    append(broker, b"old")
    old = broker.replicas.partition(T0)
    broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID), *topic_records("t", NEW_ID, {0: image(), 1: image()}))
    new = broker.replicas.partition(T0)
    assert old.is_deleted
    assert new.topic_id == NEW_ID
    assert new.log.log_end_offset == 0
    assert (TOPIC_ID, 0) not in broker.replicas.hosted.by_key


def test_a_partition_that_moves_away_is_deleted(broker):
    broker.create(partitions={0: image(replicas=(NODE_ID, 2))})
    broker.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, replicas=[2], isr=[2], leader=2))
    with pytest.raises(NotLeaderOrFollower):
        broker.replicas.partition(T0)
    assert broker.logs.get(T0) is None


def test_leaders_listen(broker):
    listener = Listener()
    broker.create(partitions={0: image(epoch=3), 1: image(leader=2, epoch=1, replicas=(NODE_ID, 2))})
    broker.replicas.add_leadership_listener(listener)
    assert listener.notified == [("leads", 0, 3)]
    listener.notified.clear()
    broker.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, leader=NODE_ID))
    assert listener.notified == [("leads", 1, 2)]
    # Another epoch of the same leader: a coordinator's state is still what the log says, and its members wait on.
    broker.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, leader=NODE_ID))
    assert listener.notified == [("leads", 1, 2), ("leads", 1, 3)]
    broker.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=1, leader=2))
    broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
    assert listener.notified == [("leads", 1, 2), ("leads", 1, 3), ("resigned", 1, 3), ("resigned", 0, 3)]


def test_topic_configurations_reach_the_log(broker):
    broker.create()
    broker.configs["t"] = {"retention.ms": "1000"}
    broker.replay(ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1000"))
    assert broker.logs.get(T0).config.retention_ms == 1000


def test_other_defaults_reach_every_log_and_cost_one_walk(broker, monkeypatch):
    """One walk for each topic would block the loop for seconds with thousands of them."""
    for number in range(20):
        broker.create(f"topic-{number}", UUID(int=100 + number), partitions=2)
    walks, asked = [], []
    all_logs = broker.logs.all_logs
    monkeypatch.setattr(broker.logs, "all_logs", lambda: walks.append(1) or all_logs())

    def topic_config(name):
        asked.append(name)
        return LogConfig(retention_ms=1000 if name == "topic-7" else 2000)

    broker.replicas.change_defaults(topic_config)
    assert {log.config.retention_ms for log in all_logs()} == {1000, 2000}
    assert broker.logs.get(TopicPartition("topic-7", 1)).config.retention_ms == 1000
    assert sorted(asked) == sorted(f"topic-{number}" for number in range(20))
    assert len(walks) == 1


def test_a_larger_min_isr_holds_before_a_smaller_isr_that_came_with_it(broker):
    """Otherwise a record would be committed that a replica lacks which the controller has kept eligible
    (KIP-966)."""
    broker.create(config={"min.insync.replicas": "1"}, partitions={0: image(replicas=(NODE_ID, 2))})
    partition = broker.replicas.partition(T0)
    append(broker, b"a")
    broker.configs["t"] = {"min.insync.replicas": "2"}
    broker.replay(
        ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2"),
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=[NODE_ID], eligible_leader_replicas=[2]),
    )
    assert partition.isr == (NODE_ID,)
    assert partition.log.high_watermark == 0


def test_a_bug_in_one_isr_does_not_end_the_watching_of_others(simulation, broker, monkeypatch, caplog):
    broker.create(partitions={0: image(replicas=(NODE_ID, 2)), 1: image(replicas=(NODE_ID, 2))})
    for index in range(2):
        append(broker, b"a", topic_partition=TopicPartition("t", index))
    really = Partition.check_isr

    def check_isr(partition, now_ms):
        assert partition.topic_partition != T0, "a bug"
        really(partition, now_ms)

    monkeypatch.setattr(Partition, "check_isr", check_isr)

    async def main():
        watching = asyncio.ensure_future(broker.replicas.watch_isrs())
        await asyncio.sleep(100)
        assert not watching.done()
        watching.cancel()

    simulation.run(main())
    assert {each.topic_partition.partition for each in broker.proposals} == {1}
    assert "The ISR of t-0 cannot be checked" in caplog.text


@pytest.mark.logs("the log is renamed to a stray")
def test_a_restart_serves_what_was_there_and_sets_strays_aside(simulation, tmp_path):
    runtime = simulation.runtime("broker")
    folder = tmp_path / "data"
    before = BrokerInFolder(folder, runtime)
    before.create(partitions=2)
    before.create("gone", UUID(int=3))
    before.create("again", UUID(int=4))
    append(before, b"a", b"b")
    append(before, b"old", topic_partition=TopicPartition("again", 0))
    before.logs.shutdown(runtime.now_ms(), broker_epoch=1)

    after = BrokerInFolder(folder, runtime)
    metadata = MetadataImage()
    metadata.replay_all(topic_records("t", TOPIC_ID, {0: image(epoch=1), 1: image(epoch=1)}))
    metadata.replay_all(topic_records("again", UUID(int=5), {0: image()}))
    after.metadata.image = metadata
    after.replicas.apply_image(metadata)
    assert {path.name.split(".")[0] for path in folder.glob("*-stray")} == {"gone-0", "again-0"}
    log = after.writer.replica_log(T0)
    found = [record.value for _, part in log.reader.records_since(0) for record in records(part)]
    assert found == [b"a", b"b"]
    assert after.replicas.partition(T0).log.high_watermark == 2
    assert after.replicas.partition(TopicPartition("again", 0)).log.log_end_offset == 0


def test_coordinators_append_and_replay(broker):
    broker.create("__consumer_offsets", partitions=1)
    here = TopicPartition("__consumer_offsets", 0)
    info = append(broker, b"a", b"b", topic_partition=here)
    assert broker.writer.committed(here, info.last_offset + 1, timeout_ms=1000) is None
    append(broker, b"c", topic_partition=here)
    log = broker.writer.replica_log(here)
    found = [
        [header.base_offset for header, _ in batches(memoryview(log.read_for_replay(offset, max_bytes=size)))]
        for offset, size in [(0, 1), (0, 1000), (2, 1000), (3, 1000)]
    ]
    assert found == [[0], [0, 2], [2], []]
    with pytest.raises(UnknownTopicOrPartition):
        append(broker, b"c", topic_partition=TopicPartition("__consumer_offsets", 5))


def test_coordinators_wait_for_the_isr(simulation, broker):
    broker.create(partitions={0: image(replicas=(NODE_ID, 2))})
    partition = broker.replicas.partition(T0)

    async def main():
        info = append(broker, b"a")
        waiting = broker.writer.committed(T0, info.last_offset + 1, timeout_ms=5000)
        assert waiting is not None
        with pytest.raises(RequestTimedOut):
            await waiting
        waiting = broker.writer.committed(T0, info.last_offset + 1, timeout_ms=5000)
        follower_fetches(partition, 2, 1)
        partition.on_config_changed()
        await waiting
        info = append(broker, b"b")
        waiting = broker.writer.committed(T0, info.last_offset + 1, timeout_ms=5000)
        partition.apply(image(leader=2, epoch=1, replicas=(NODE_ID, 2)))
        with pytest.raises(NotLeaderOrFollower):
            await waiting
        await asyncio.sleep(0)

    simulation.run(main())
    assert broker.replicas.purgatory.delayed_count == 0
