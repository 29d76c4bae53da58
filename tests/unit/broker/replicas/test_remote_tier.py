"""The remote tier of a broker as a whole, with its tasks, on a real directory and virtual time (KIP-405)."""

import asyncio

import pytest
from replicas_support import TOPIC_ID, BrokerInFolder, batch
from tiered_support import TIERED

from ottla.broker.api import k01_fetch
from ottla.broker.tiering.remote_tier import RemoteTier
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import standalone_profile
from ottla.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import RemoteStorageError
from ottla.remote.reading.index_cache_files import DIRECTORY, IndexFiles
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.runtime.pools import WAITING_FOR_STORES
from ottla.storage.files import Files
from ottla.stories.partition.remote_metadata import InMemoryMetadataManager, RemoteMetadataLog


class ClosedMetadata(InMemoryMetadataManager):
    """No call follows `close`."""

    is_closed = False

    async def close(self):
        self.is_closed = True

    def on_partition_leadership_changes(self, *, leaders, followers):
        assert not self.is_closed
        super().on_partition_leadership_changes(leaders=leaders, followers=followers)

    def on_stop_partitions(self, partitions):
        assert not self.is_closed
        super().on_stop_partitions(partitions)


class Broker(BrokerInFolder):
    """A broker that leads t-0."""

    def __init__(self, folder, runtime):
        super().__init__(folder / "data", runtime)
        store = LocalDirectory()
        store.configure({"dir": str(folder / "tier")})
        store.create()
        self.remote = RemoteTier(
            runtime=runtime,
            config=BrokerConfig(standalone_profile()),
            store=store,
            metadata=ClosedMetadata(RemoteMetadataLog()),
            index_files=IndexFiles(folder / "data" / DIRECTORY, files=Files(), store=store),
        )
        self.replicas.tier = self.remote

    async def start(self):
        await self.remote.index_cache.start()
        self.remote.start()
        self.create(config=TIERED | {"local.retention.ms": "1000"})

    @property
    def log(self):
        return self.replicas.partition(TopicPartition("t", 0)).log

    async def write_segments(self, count):
        """Each with one record; all are copied, and removed locally."""
        for number in range(count):
            now_ms = self.runtime.now_ms()
            records = batch(b"%d" % number, timestamp=now_ms)
            partition = self.replicas.partition(TopicPartition("t", 0))
            partition.as_leader().append_records(records, required_acks=-1, now_ms=now_ms)
            self.log.roll(now_ms)
        await asyncio.sleep(60)
        self.log.apply_retention(self.runtime.now_ms())
        assert self.log.local_log_start_offset == count

    async def fetch(self, offset):
        row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
        topic = FetchTopic(topic_id=TOPIC_ID, topic="t", partitions=[row])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1_000_000, topics=[topic])
        response = await self.raw(k01_fetch, request, 17)
        return response.responses[0].partitions[0]

    def lead_again(self):
        self.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, leader=1, isr=[1], replicas=[1]))


@pytest.fixture
def play(simulation, tmp_path):
    def run(story):
        async def main():
            broker = Broker(tmp_path, simulation.runtime("broker"))
            await broker.start()
            try:
                await story(broker)
            finally:
                await broker.remote.stop()

        simulation.run(main())

    return run


def test_the_indexes_of_a_deleted_copy_go_with_it(play, tmp_path):
    async def story(broker):
        await broker.write_segments(2)
        for offset in range(2):
            assert (await broker.fetch(offset)).records
        assert len(broker.remote.index_cache) == 2
        broker.configs["t"] |= {"retention.ms": "1000"}
        broker.log.update_config(broker.topic_config("t"))
        await asyncio.sleep(60)
        assert broker.log.log_start_offset == 2
        assert len(broker.remote.index_cache) == 0
        assert list((tmp_path / "data" / DIRECTORY).iterdir()) == []

    play(story)


def test_roles_that_change_after_the_stop_are_ignored(play):
    async def story(broker):
        await broker.write_segments(1)
        await broker.remote.stop()
        broker.lead_again()

    play(story)


def test_the_store_is_open_before_the_first_read(play, monkeypatch, caplog):
    """The import of a store's client takes long.

    What fails now is an error of each use of the store, not of the start.
    """
    opened = []

    def fails():
        opened.append(False)
        raise RemoteStorageError("no such region")

    async def story(broker):
        monkeypatch.setattr(broker.remote.store.store, "open_store", fails)
        broker.remote.on_broker_ready()
        await asyncio.sleep(1)
        assert opened == [False]
        monkeypatch.undo()
        await broker.write_segments(1)

    play(story)
    assert [record.message for record in caplog.records] == [
        "the remote store cannot be used, so that closed segments stay on the local disks: no such region",
    ]


def test_a_store_that_does_not_close_does_not_keep_the_process(simulation, tmp_path, monkeypatch):
    """The end of the runtime waits for all work of other pools, as long as it takes."""
    pools = {}

    async def main():
        runtime = simulation.runtime("broker")
        broker = Broker(tmp_path, runtime)
        await broker.start()
        run_blocking = runtime.run_blocking

        def noted(function, *args, pool):
            pools[function] = pool
            return run_blocking(function, *args, pool=pool)

        monkeypatch.setattr(runtime, "run_blocking", noted)
        await broker.remote.stop()
        assert pools[broker.remote.store.close] in WAITING_FOR_STORES

    simulation.run(main())


def test_more_reader_threads_begin_the_reads_that_wait(play):
    async def story(broker):
        def config(threads):
            return BrokerConfig(standalone_profile() | {"remote.log.reader.threads": threads})

        async def read():
            async with slots.enter():
                await asyncio.Event().wait()

        slots = broker.remote.reads.slots
        broker.remote.config = config("1")
        reads = [asyncio.ensure_future(read()) for _ in range(2)]
        await asyncio.sleep(0)
        assert slots.waiting_count == 1
        broker.remote.config = config("2")
        assert slots.waiting_count == 0
        for each in reads:
            each.cancel()
        await asyncio.wait(reads)

    play(story)


class Removers:
    """The part of PartitionRemovers that a role's end is reported to."""

    def __init__(self):
        self.last_led = []

    def on_last_leader(self, partition):
        self.last_led.append(str(partition.topic_partition))

    async def stop(self):
        pass


@pytest.mark.parametrize("was_leader", [True, False])
def test_the_last_leader_of_a_deleted_partition_is_reported(play, was_leader):
    async def story(broker):
        broker.remote.removers = removers = Removers()
        await broker.write_segments(1)
        if not was_leader:
            broker.replay(
                PartitionChangeRecord(
                    topic_id=TOPIC_ID, partition_id=0, leader=2, isr=[1, 2], replicas=[1, 2]
                )
            )
        broker.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
        assert removers.last_led == (["t-0"] if was_leader else [])

    play(story)
