"""A broker with a remote tier: a directory as store, the metadata of copies in memory; handlers are called by hand."""

from replicas_support import NOW_MS, TOPIC_ID, BrokerInFolder, batch

from ottla.broker.replicas.reading.remote_reads import RemoteReads
from ottla.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.protocol.types import TopicPartition
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.reading.index_cache import IndexCache
from ottla.remote.reading.index_cache_files import DIRECTORY, IndexFiles
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.segment_metadata import RemoteLogSegmentMetadataUpdate, TopicIdPartition
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.runtime import Pool
from ottla.storage.files import Files
from ottla.stories.partition.tiered_log import Tier, remove_local_segments
from tests.harness.faulty_store import FaultyStore

TIERED = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.ms": "60000"}


class Quota:
    """Bytes are admitted while `is_open`."""

    def __init__(self):
        self.is_open, self.recorded, self.waits = True, 0, []

    def try_take(self, size_bytes):
        return self.is_open

    def record(self, size_bytes):
        self.recorded += size_bytes

    def record_wait(self, waited_s):
        self.waits.append(waited_s)


class TieredBroker(BrokerInFolder):
    """A broker with a remote tier; `reads` is what handlers ask for."""

    def __init__(self, folder, runtime):
        super().__init__(folder / "data", runtime)
        directory = LocalDirectory()
        directory.configure({"dir": str(folder / "tier")})
        directory.create()
        self.store = FaultyStore(directory)
        self.tier = Tier(self.store)
        self.settings = RemoteReadSettings()
        self.quota = Quota()
        self.metrics = RemoteStorageMetrics(runtime.monotonic)
        self.cache = IndexCache(
            IndexFiles(folder / "data" / DIRECTORY, files=Files(), store=self.store),
            runtime=runtime,
            settings=lambda: self.settings,
        )
        reader = RemoteLogReader(
            store=self.store,
            metadata=self.tier.metadata,
            index_cache=self.cache,
            metrics=self.metrics,
            runtime=runtime,
        )
        self.reads = RemoteReads(
            runtime=runtime, reader=reader, settings=lambda: self.settings, quota=self.quota
        )
        self.remote = self
        self.replicas.tier = self

    def on_role(self, partition):
        self.reads.on_role(partition)

    def on_stopped(self, partition, *, is_topic_deleted):
        self.reads.on_role(partition)

    def partition(self, index=0, topic="t"):
        return self.replicas.partition(TopicPartition(topic, index))

    #: A pool that `slow_store` does not slow down.
    other_pool = Pool.LOADING

    def append(self, index, *, timestamp=NOW_MS, size=100):
        self.partition(index).as_leader().append_records(
            batch(b"x" * size, timestamp=timestamp), required_acks=-1, now_ms=NOW_MS
        )

    def fill_in_one_segment(self, count):
        """Fill the log as `fill` does, but in one segment, which stays local."""
        for number in range(count):
            self.append(0, timestamp=NOW_MS + number)
        self.partition().log.roll(NOW_MS)

    def fill(self, count, *, index=0, size=100, local_from=None, timestamps=None):
        """`count` batches of one record each, each in a segment of its own; local from `local_from` on."""
        partition = self.partition(index)
        for number in range(count):
            timestamp = NOW_MS + number if timestamps is None else timestamps[number]
            self.append(index, timestamp=timestamp, size=size)
            partition.log.roll(NOW_MS)
        self.tier.copy_closed_segments(partition.log, TopicIdPartition(TOPIC_ID, partition.topic_partition))
        remove_local_segments(
            partition.log, partition.log.log_end_offset if local_from is None else local_from
        )

    def forget_copy(self, offset):
        """The copy that begins at `offset`, of partition 0, is deleted in the metadata."""
        cache = self.tier.metadata.cache(TopicIdPartition(TOPIC_ID, TopicPartition("t", 0)))
        copy = next(each for each in cache.segments() if each.start_offset == offset)
        cache.update(
            RemoteLogSegmentMetadataUpdate(
                segment_id=copy.segment_id,
                state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
                broker_id=1,
                event_timestamp_ms=0,
            )
        )

    def change_leader(self, leader, *, epoch):
        self.replay(
            PartitionChangeRecord(
                topic_id=TOPIC_ID, partition_id=0, leader=leader, isr=[leader], replicas=[1, 2]
            )
        )
        assert self.partition().leader_epoch == epoch

    def delete(self):
        self.replay(RemoveTopicRecord(topic_id=TOPIC_ID))

    def slow_store(self, delay_s):
        """Each job of the reading threads takes so long, before and after it."""
        self.runtime.pools[Pool.REMOTE_READS].blocking_s = lambda: delay_s
