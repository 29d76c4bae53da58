"""Copies of deleted topics are deleted, whichever broker was up (KIP-405): on a metadata topic in memory, on
virtual time.

Brokers have images of one log of the cluster's metadata, each as far as it has caught up, and share one store.
"""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.tiering.partition_remover import PartitionRemover
from ottla.broker.tiering.partition_removers import MetadataBarrier, PartitionRemovers
from ottla.metadata import records as r
from ottla.metadata.image import MetadataImage
from ottla.protocol.errors import CoordinatorLoadInProgress
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsResponse
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.remote.records import RemotePartitionDeleteState as DeleteState
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.log_manager.settings import RemoteLogManagerSettings
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.remote.storage_manager import LogSegmentData
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.topic_metadata.records import from_value, to_value
from ottla.remote.topic_metadata.topic import TOPIC
from ottla.runtime.simulated import SimulatedRuntime
from ottla.storage.leader_epoch_cache import EpochEntry
from tests.harness.memory_topic import MemoryTopic
from tests.harness.waiting import until

DEADLINE_MS = 60_000
METADATA_PARTITIONS = 3


class Cluster:
    """The controller's log, the metadata topic, the store; and the brokers that run."""

    def __init__(self, runtime, folder):
        self.runtime = runtime
        self.folder = folder
        self.log = []
        self.next_producer_id = 0
        self.is_controller_up = True
        self.topic = MemoryTopic(runtime, partition_count=METADATA_PARTITIONS)
        self.store = FaultyDirectory()
        self.store.configure({"dir": str(folder / "tier")})
        self.store.create()
        self.brokers = {}
        self.copy_count = 0
        for node_id in (1, 2):
            self.commit(r.RegisterBrokerRecord(broker_id=node_id, broker_epoch=node_id, fenced=False))
        self.create(TOPIC, UUID(int=999), METADATA_PARTITIONS, leader=1)

    def commit(self, *records):
        self.log += records
        for broker in self.brokers.values():
            broker.catch_up()

    def create(self, name, topic_id, count, leader):
        self.commit(
            r.TopicRecord(name=name, topic_id=topic_id),
            *(
                r.PartitionRecord(
                    topic_id=topic_id, partition_id=number, replicas=[1, 2], isr=[1, 2], leader=leader,
                    leader_epoch=0, partition_epoch=0,
                )
                for number in range(count)
            ),
        )  # fmt: skip

    def create_tiered(self, topic, count, *, leader):
        """The topic that `partition(topic, ...)` names."""
        self.create(f"t{topic}", UUID(int=topic), count, leader)

    def delete(self, topic):
        self.commit(r.RemoveTopicRecord(topic_id=UUID(int=topic)))

    def elect(self, leader):
        """Broker `leader` leads all partitions of the metadata topic."""
        self.commit(
            *(
                r.PartitionChangeRecord(topic_id=UUID(int=999), partition_id=number, leader=leader)
                for number in range(METADATA_PARTITIONS)
            )
        )

    async def allocate(self, request):
        """The active controller's part of AllocateProducerIds."""
        await asyncio.sleep(0.01)
        if not self.is_controller_up:
            raise CoordinatorLoadInProgress("no controller")
        start, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1000
        self.commit(r.ProducerIdsRecord(broker_id=request.broker_id, next_producer_id=self.next_producer_id))
        return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=1000)

    @asynccontextmanager
    async def running(self, *node_ids):
        """These brokers; more may be started meanwhile."""
        for node_id in node_ids:
            self.start(node_id)
        try:
            yield
        finally:
            for node_id in list(self.brokers):
                await self.stop(node_id)

    def start(self, node_id, *, offset=None):
        """`offset`: its image is behind, as of this number of records."""
        self.brokers[node_id] = broker = Broker(self, node_id)
        broker.limit = offset
        broker.catch_up()
        broker.removers.start()
        broker.metadata.on_broker_ready()
        return broker

    async def stop(self, node_id):
        broker = self.brokers.pop(node_id)
        await broker.removers.stop()
        await broker.metadata.close()

    # -- copies

    async def copy(self, broker, partition, *, is_finished=True, writes=True):
        """Broker `broker`, the partition's leader, copies a segment."""
        self.copy_count += 1
        number = self.copy_count
        metadata = broker.metadata
        metadata.on_partition_leadership_changes(leaders=[partition], followers=[])
        await self.until(lambda: metadata.is_ready(partition))
        copy = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, UUID(int=number)),
            start_offset=number,
            end_offset=number + 1,
            max_timestamp_ms=0,
            broker_id=broker.node_id,
            event_timestamp_ms=0,
            segment_size_bytes=10,
            leader_epochs=(EpochEntry(0, number),),
        )
        await metadata.add_remote_log_segment_metadata(copy)
        if writes:
            self.write(copy)
        if is_finished:
            await metadata.update_remote_log_segment_metadata(
                RemoteLogSegmentMetadataUpdate(
                    segment_id=copy.segment_id, state=State.COPY_SEGMENT_FINISHED,
                    broker_id=broker.node_id, event_timestamp_ms=0,
                )
            )  # fmt: skip
        return copy

    def write(self, copy):
        """The objects of a copy."""
        path = self.folder / "a segment"
        path.write_bytes(bytes(10))
        LocalDirectory.copy_log_segment_data(
            self.store,
            copy,
            LogSegmentData(
                log_segment=path, offset_index=path, time_index=path, transaction_index=None,
                producer_snapshot=path, leader_epoch_index=b"",
            ),
        )  # fmt: skip

    def objects(self):
        return {each.segment_id.id.int for each in self.store.list_objects()}

    def states(self, partition):
        """The states of the partition's deletion, in the topic's order."""
        changes = [from_value(value) for log in self.topic.partitions.values for value in log]
        return [
            each.state.name.removeprefix("DELETE_PARTITION_")
            for each in changes
            if isinstance(each, RemotePartitionDeleteMetadata) and each.partition == partition
        ]

    def deleted_copies(self):
        changes = [from_value(value) for log in self.topic.partitions.values for value in log]
        return sum(each.state is State.DELETE_SEGMENT_FINISHED for each in changes)

    async def until(self, condition, timeout_s=3600):
        await until(condition, within_s=timeout_s, pause_s=0.1)

    async def until_deleted(self, *partitions, timeout_s=3600):
        await self.until(
            lambda: all(self.states(each)[-1:] == ["FINISHED"] for each in partitions), timeout_s
        )


class Broker:
    def __init__(self, cluster, node_id):
        self.node_id = node_id
        self._log = cluster.log
        self.cache = MetadataCache(MetadataImage())
        self._applied = 0
        self.limit = None
        self.metrics = RemoteStorageMetrics(cluster.runtime.monotonic)
        topic = MemoryTopic(cluster.runtime, shared=cluster.topic)
        self.metadata = TopicBasedRemoteLogMetadataManager(runtime=cluster.runtime, topic=topic)
        self.metadata.configure(
            {
                "log.dir": str(cluster.folder),
                "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
                "remote.log.metadata.consume.wait.ms": 5000,
            }
        )
        self.removers = PartitionRemovers(
            node_id=node_id,
            runtime=cluster.runtime,
            cluster=self.cache,
            barrier=MetadataBarrier(self.cache, cluster.allocate, node_id=node_id),
            metadata=self.metadata,
            remover=PartitionRemover(
                node_id=node_id,
                runtime=cluster.runtime,
                metadata=self.metadata,
                store=cluster.store,
                settings=lambda: RemoteLogManagerSettings(transfer_deadline_ms=DEADLINE_MS),
                metrics=self.metrics,
            ),
        )

    def catch_up(self):
        end = len(self._log) if self.limit is None else min(self.limit, len(self._log))
        if end > self._applied:
            records, base = self._log[self._applied : end], self._applied
            self._applied = end
            self.cache.on_commit(records, base, end)


class FaultyDirectory(LocalDirectory):
    """A store whose deletions fail while it is down, or always for some topics."""

    failure = None
    refused = ()

    def delete_log_segment_data(self, metadata):
        if self.failure is not None:
            raise self.failure
        if metadata.partition.topic_partition.topic in self.refused:
            raise RemoteStorageError("403")
        super().delete_log_segment_data(metadata)


def partition(topic, number=0):
    return TopicIdPartition(UUID(int=topic), TopicPartition(f"t{topic}", number))


@pytest.fixture(params=range(2))
def play(tmp_path, request):
    """Run `story(cluster)` on virtual time."""

    def run(story):
        runtime = SimulatedRuntime(seed=request.param)

        async def main():
            await story(Cluster(runtime, tmp_path))
            await runtime.close()

        with runtime.simulation:
            runtime.run(main())

    return run


def test_all_copies_of_a_deleted_topic_are_deleted_and_no_others(play):
    async def story(cluster):
        async with cluster.running(1):
            cluster.create_tiered(1, 2, leader=1)
            cluster.create_tiered(2, 1, leader=1)
            broker = cluster.brokers[1]
            for at in (partition(1, 0), partition(1, 0), partition(1, 1), partition(2)):
                last = await cluster.copy(broker, at)
            cluster.delete(1)
            await cluster.until_deleted(partition(1, 0))
            await cluster.until_deleted(partition(1, 1))
            assert cluster.objects() == {last.segment_id.id.int}
            assert cluster.states(partition(1, 0)) == ["MARKED", "STARTED", "FINISHED"]
            assert cluster.states(partition(2)) == []
            assert broker.metrics.all_topics.remote_delete_requests == 3
            # One block of producer ids, for a single comparison.
            assert cluster.next_producer_id == 1000

    play(story)


def test_the_only_broker_was_down_when_the_topic_was_deleted(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=1)
        async with cluster.running(1):
            await cluster.copy(cluster.brokers[1], partition(1))
            await cluster.stop(1)
            cluster.delete(1)
            assert cluster.objects()
            cluster.start(1)
            await cluster.until_deleted(partition(1))
            assert cluster.objects() == set()

    play(story)


@pytest.mark.logs("whether topics are deleted")
def test_a_broker_that_lags_deletes_nothing_of_a_topic_that_it_does_not_know_yet(play):
    async def story(cluster):
        async with cluster.running(1):
            cluster.elect(leader=2)
            behind = len(cluster.log)
            cluster.create_tiered(1, 1, leader=1)
            copied = await cluster.copy(cluster.brokers[1], partition(1))
            lagging = cluster.start(2, offset=behind)
            assert lagging.cache.topic("t1") is None
            await asyncio.sleep(300)
            assert cluster.states(partition(1)) == []
            assert cluster.objects() == {copied.segment_id.id.int}
            assert cluster.next_producer_id > 0, "the barrier was requested"
            lagging.limit = None
            lagging.catch_up()
            await asyncio.sleep(300)
            assert cluster.states(partition(1)) == []
            assert cluster.objects() == {copied.segment_id.id.int}

    play(story)


@pytest.mark.logs("whether topics are deleted is not known")
def test_nothing_is_deleted_while_no_controller_confirms_it(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=1)
        async with cluster.running(1):
            await cluster.copy(cluster.brokers[1], partition(1))
            cluster.is_controller_up = False
            cluster.delete(1)
            await asyncio.sleep(600)
            assert cluster.states(partition(1)) == []
            cluster.is_controller_up = True
            await cluster.until_deleted(partition(1))
            assert cluster.objects() == set()

    play(story)


@pytest.mark.logs("its topic is deleted, its copies in the remote tier cannot be")
@pytest.mark.parametrize(
    "failure", [RetriableRemoteStorageError("503"), RemoteStorageError("403"), ZeroDivisionError("a plugin")]
)
def test_a_store_that_fails_for_an_hour_is_retried_until_it_answers(play, failure):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=1)
        async with cluster.running(1):
            for _ in range(12):
                await cluster.copy(cluster.brokers[1], partition(1))
            cluster.store.failure = failure
            cluster.delete(1)
            await asyncio.sleep(3600)
            assert cluster.states(partition(1)) == ["MARKED", "STARTED"]
            assert len(cluster.objects()) == 12
            errors = cluster.brokers[1].metrics.all_topics.remote_delete_errors
            assert 100 < errors < 2000, "it backs off"
            cluster.store.failure = None
            await cluster.until_deleted(partition(1))
            assert cluster.objects() == set()

    play(story)


@pytest.mark.logs("its topic is deleted, its copies in the remote tier cannot be")
def test_the_next_leader_of_the_metadata_continues(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=1)
        async with cluster.running(1, 2):
            for _ in range(3):
                await cluster.copy(cluster.brokers[1], partition(1))
            cluster.store.failure = RetriableRemoteStorageError("503")
            cluster.delete(1)
            await cluster.until(lambda: cluster.states(partition(1)) == ["MARKED", "STARTED"])
            await cluster.stop(1)
            cluster.store.failure = None
            await asyncio.sleep(100)
            assert len(cluster.objects()) == 3, "broker 2 does not lead"
            cluster.elect(leader=2)
            await cluster.until_deleted(partition(1))
            assert cluster.objects() == set()

    play(story)


def test_a_copy_that_its_leader_has_not_finished_is_deleted_again_when_it_cannot_be_written_any_more(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=2)
        async with cluster.running(1, 2):
            copy = await cluster.copy(cluster.brokers[2], partition(1), is_finished=False)
            began = cluster.runtime.monotonic()
            cluster.delete(1)
            await cluster.until(lambda: not cluster.objects())
            assert cluster.runtime.monotonic() - began < 30, "at once"
            await asyncio.sleep(DEADLINE_MS / 1000 / 2)
            cluster.write(copy)  # its leader does not know of the deletion yet
            await cluster.until_deleted(partition(1))
            assert cluster.runtime.monotonic() - began >= DEADLINE_MS / 1000
            assert cluster.objects() == set()

    play(story)


def test_partitions_that_wait_for_unfinished_copies_do_not_delay_others(play):
    async def story(cluster):
        cluster.create_tiered(1, 12, leader=1)
        cluster.create_tiered(2, 1, leader=1)
        async with cluster.running(1):
            for number in range(12):
                await cluster.copy(cluster.brokers[1], partition(1, number), is_finished=False)
            await cluster.copy(cluster.brokers[1], partition(2))
            began = cluster.runtime.monotonic()
            cluster.delete(1)
            cluster.delete(2)
            await cluster.until_deleted(partition(2))
            assert cluster.runtime.monotonic() - began < DEADLINE_MS / 1000
            await cluster.until_deleted(*(partition(1, each) for each in range(12)))
            assert cluster.runtime.monotonic() - began < 2 * DEADLINE_MS / 1000
            assert cluster.objects() == set()

    play(story)


@pytest.mark.logs("is being deleted")
@pytest.mark.logs("its topic is deleted, its copies in the remote tier cannot be")
def test_a_leader_that_does_not_know_of_the_deletion_begins_no_further_copy(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=2)
        async with cluster.running(1, 2):
            late = cluster.brokers[2]
            await cluster.copy(late, partition(1))
            late.limit = len(cluster.log)
            cluster.store.failure = RetriableRemoteStorageError("503")
            cluster.delete(1)
            await cluster.until(lambda: cluster.states(partition(1)) == ["MARKED", "STARTED"])
            with pytest.raises(RemoteStorageError, match="is being deleted"):
                await cluster.copy(late, partition(1))
            cluster.store.failure = None
            await cluster.until_deleted(partition(1))
            assert cluster.objects() == set()

    play(story)


def test_a_copy_that_is_begun_after_the_deletion_was_finished_is_deleted_too(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=2)
        async with cluster.running(1, 2):
            late = cluster.brokers[2]
            await cluster.copy(late, partition(1))
            late.limit = len(cluster.log)
            cluster.delete(1)
            await cluster.until_deleted(partition(1))
            await cluster.copy(late, partition(1))
            assert cluster.objects()
            await cluster.until(lambda: cluster.states(partition(1)).count("FINISHED") == 2)
            assert cluster.objects() == set()

    play(story)


def test_a_restarted_remover_continues_where_the_records_end(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=2)
        async with cluster.running(1, 2):
            await cluster.copy(cluster.brokers[2], partition(1), is_finished=False)
            cluster.delete(1)
            await cluster.until(lambda: cluster.states(partition(1)) == ["MARKED", "STARTED"])
            for _ in range(3):
                await asyncio.sleep(20)
                await cluster.stop(1)
                cluster.start(1)
            await cluster.until_deleted(partition(1))
            assert cluster.states(partition(1)) == ["MARKED", "STARTED", "FINISHED"]
            assert cluster.objects() == set()

    play(story)


def test_many_partitions(play):
    async def story(cluster):
        cluster.create_tiered(1, 30, leader=1)
        async with cluster.running(1):
            for number in range(30):
                await cluster.copy(cluster.brokers[1], partition(1, number))
            cluster.delete(1)
            await cluster.until_deleted(*(partition(1, each) for each in range(30)))
            assert cluster.objects() == set()

    play(story)


@pytest.mark.logs("its topic is deleted, its copies in the remote tier cannot be")
def test_partitions_whose_objects_cannot_be_deleted_let_others_go_first(play):
    async def story(cluster):
        cluster.create_tiered(1, 10, leader=1)
        cluster.create_tiered(2, 6, leader=1)
        cluster.store.refused = ("t1",)
        async with cluster.running(1):
            for number in range(10):
                await cluster.copy(cluster.brokers[1], partition(1, number))
            for number in range(6):
                await cluster.copy(cluster.brokers[1], partition(2, number))
            cluster.delete(1)
            await asyncio.sleep(20)
            began = cluster.runtime.monotonic()
            cluster.delete(2)
            await cluster.until_deleted(*(partition(2, number) for number in range(6)))
            assert cluster.runtime.monotonic() - began < 300
            # And none of them is forgotten.
            cluster.store.refused = ()
            await cluster.until_deleted(*(partition(1, number) for number in range(10)))
            assert cluster.objects() == set()

    play(story)


def test_records_in_a_metadata_partition_that_is_not_theirs_are_no_work(play, caplog):
    """No broker writes them there: the remover's cache would not have them."""
    caplog.set_level("INFO")

    async def story(cluster):
        async with cluster.running(1):
            right = cluster.brokers[1].metadata.metadata_partition_of(partition(7))
            copy = RemoteLogSegmentMetadata(
                segment_id=RemoteLogSegmentId(partition(7), UUID(int=1)), start_offset=0, end_offset=1,
                max_timestamp_ms=0, broker_id=1, event_timestamp_ms=0, segment_size_bytes=10,
                leader_epochs=(EpochEntry(0, 0),),
            )  # fmt: skip
            await cluster.topic.append((right + 1) % METADATA_PARTITIONS, to_value(copy))
            await asyncio.sleep(100)
            assert cluster.states(partition(7)) == []
            assert "its topic is deleted" not in caplog.text

    play(story)


def test_partitions_that_are_added_to_the_metadata_topic_change_nothing(play):
    """Kafka's controller accepts them.

    The records of a partition stay where they are found: by the configured number.
    """

    async def story(cluster):
        cluster.create_tiered(1, 8, leader=1)
        async with cluster.running(1):
            for number in range(8):
                await cluster.copy(cluster.brokers[1], partition(1, number))
            cluster.commit(
                *(
                    r.PartitionRecord(
                        topic_id=UUID(int=999), partition_id=number, replicas=[1, 2], isr=[1, 2], leader=1,
                        leader_epoch=0, partition_epoch=0,
                    )
                    for number in range(METADATA_PARTITIONS, METADATA_PARTITIONS + 4)
                )
            )  # fmt: skip
            cluster.delete(1)
            await cluster.until_deleted(*(partition(1, number) for number in range(8)), timeout_s=100)
            assert cluster.objects() == set()

    play(story)


@pytest.mark.parametrize("is_kafkas", [True, False])
def test_the_last_leader_deletes_where_no_remover_does(play, is_kafkas):
    """Broker 2, Kafka's or not, leads the metadata topic; broker 1 led the deleted partitions."""

    async def story(cluster):
        cluster.create_tiered(1, 12, leader=1)
        cluster.elect(leader=2)
        async with cluster.running(*([1] if is_kafkas else [1, 2])):
            for number in range(12):
                await cluster.copy(cluster.brokers[1], partition(1, number))
                await cluster.copy(cluster.brokers[1], partition(1, number))
            cluster.delete(1)
            for number in range(12):
                cluster.brokers[1].removers.on_last_leader(partition(1, number))
            await cluster.until(lambda: not cluster.objects(), timeout_s=30)
            await asyncio.sleep(60)
            own = cluster.brokers[1].metrics.all_topics.remote_delete_requests
            assert own == (24 if is_kafkas else 0)
            expected = [] if is_kafkas else ["MARKED", "STARTED", "FINISHED"]
            assert all(cluster.states(partition(1, number)) == expected for number in range(12))

    play(story)


@pytest.mark.logs("its topic is deleted, its copies in the remote tier cannot be")
def test_a_last_leader_tries_for_a_while(play):
    async def story(cluster):
        cluster.create_tiered(1, 1, leader=1)
        cluster.elect(leader=2)
        async with cluster.running(1):
            await cluster.copy(cluster.brokers[1], partition(1))
            cluster.store.failure = RetriableRemoteStorageError("503")
            cluster.delete(1)
            cluster.brokers[1].removers.on_last_leader(partition(1))
            await asyncio.sleep(300)
            cluster.store.failure = None
            await cluster.until(lambda: not cluster.objects(), timeout_s=60)

    play(story)


def test_a_last_leader_that_waits_for_unfinished_copies_delays_no_other_partition(play):
    """Topics are deleted while they are copied: each partition may have a copy that waits for half an hour."""

    async def story(cluster):
        cluster.create_tiered(1, 21, leader=1)
        cluster.elect(leader=2)
        async with cluster.running(1):
            broker = cluster.brokers[1]
            for number in range(20):
                await cluster.copy(broker, partition(1, number), is_finished=False)
            await cluster.copy(broker, partition(1, 20))
            cluster.delete(1)
            for number in range(21):
                broker.removers.on_last_leader(partition(1, number))
            await cluster.until(lambda: not cluster.objects(), timeout_s=20)
            await cluster.until(lambda: cluster.deleted_copies() == 21, timeout_s=2 * DEADLINE_MS / 1000)

    play(story)


def test_the_states_are_kafkas():
    assert [each.name for each in DeleteState] == [
        "DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"
    ]  # fmt: skip
