"""Consumers' fetches of what is in the remote tier only (KIP-405), through the handler of Fetch."""

import pytest
from replicas_support import NOW_MS, TOPIC_ID, BrokerInFolder, batch, image

from broker.api import k01_fetch
from broker.reads.remote_reads import RemoteReads
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from protocol.records.batch import batches
from protocol.records.record import records
from protocol.types import TopicPartition
from remote.index_cache import IndexCache
from remote.index_cache_files import DIRECTORY, IndexFiles
from remote.metrics import RemoteStorageMetrics
from remote.reader import RemoteLogReader
from remote.reading.settings import RemoteReadSettings
from remote.segment_metadata import TopicIdPartition
from remote.stores.local_directory import LocalDirectory
from runtime import Pool
from storage.files import Files
from tests.harness.faulty_store import Fault, FaultyStore, refuse, truncated
from tests.harness.tiered_log import Tier, remove_local_segments

TIERED = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.ms": "60000"}
FETCHES = pytest.mark.logs("cannot be read from the remote tier")


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
        self.store = FaultyStore(directory)
        self.tier = Tier(self.store)
        self.settings = RemoteReadSettings()
        self.quota = Quota()
        self.metrics = RemoteStorageMetrics()
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

    def fill(self, count, *, index=0, size=100, local_from=None):
        """`count` batches of one record each, each in a segment of its own; local from `local_from` on."""
        partition = self.partition(index)
        for number in range(count):
            partition.as_leader().append_records(
                batch(b"%d" % number + b"x" * size, timestamp=NOW_MS + number),
                required_acks=-1,
                now_ms=NOW_MS,
            )
            partition.log.roll(NOW_MS)
        self.tier.copy_closed_segments(partition.log, TopicIdPartition(TOPIC_ID, partition.topic_partition))
        remove_local_segments(partition.log, count if local_from is None else local_from)

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


@pytest.fixture
def broker(simulation, tmp_path):
    broker = TieredBroker(tmp_path, simulation.runtime("broker"))
    simulation.run(broker.cache.start())
    broker.create(partitions=3, config=TIERED)
    yield broker
    broker.reads.close()
    broker.cache.close()


def request(offsets, *, max_wait_ms=500, **fields):
    defaults = {"min_bytes": 1, "max_bytes": 10**6, "session_id": 0, "session_epoch": -1}
    limit = fields.pop("partition_max_bytes", 10**6)
    epoch = fields.pop("epoch", -1)
    rows = [
        FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=limit, current_leader_epoch=epoch
        )
        for index, offset in offsets.items()
    ]
    topics = [FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=rows)] if rows else []
    return FetchRequest(topics=topics, max_wait_ms=max_wait_ms, **(defaults | fields))


def fetch(simulation, broker, offsets, **fields):
    """The rows by partition, and how long it took."""

    async def main():
        began = simulation.loop.time()
        response = broker.raw(k01_fetch, request(offsets, **fields), 12)
        if hasattr(response, "__await__"):
            response = await response
        rows = {row.partition_index: row for topic in response.responses for row in topic.partitions}
        return rows, simulation.loop.time() - began

    return simulation.run(main())


def offsets_in(row):
    return [record.offset for _, part in batches(memoryview(bytes(row.records))) for record in records(part)]


def test_both_tiers_are_read_as_one_log(simulation, broker):
    broker.fill(4, local_from=2)
    assert broker.partition().log.local_log_start_offset == 2
    for offset in range(4):
        rows, _ = fetch(simulation, broker, {0: offset})
        row = rows[0]
        assert (ErrorCode(row.error_code), row.high_watermark, row.log_start_offset) == (ErrorCode.none, 4, 0)
        assert offsets_in(row) == [offset]


def test_the_first_read_waits_and_a_kept_one_does_not(simulation, broker):
    broker.fill(2)
    broker.slow_store(0.05)
    rows, took = fetch(simulation, broker, {0: 0})
    assert offsets_in(rows[0]) == [0]
    assert 0 < took < 0.5
    rows, took = fetch(simulation, broker, {0: 0})
    assert offsets_in(rows[0]) == [0]
    assert took == 0


def test_a_store_slower_than_the_wait_does_not_stop_a_consumer(simulation, broker):
    """Aiven's README, "Fetching": with Kafka each read is thrown away after remote.fetch.max.wait.ms, and begun again."""
    broker.fill(2)
    broker.slow_store(0.8)
    answers = []
    for _ in range(20):
        rows, took = fetch(simulation, broker, {0: 0})
        answers.append(offsets_in(rows[0]))
        assert rows[0].error_code == 0
        assert took <= 0.51
        if answers[-1]:
            break
    assert answers[-1] == [0]
    assert broker.store.count("segment") == 1
    assert broker.reads.expired_fetch_count == len(answers) - 1


@pytest.mark.parametrize(
    ("max_wait_ms", "remote_ms", "waits_s"), [(100, 500, 0.1), (5000, 300, 0.3), (0, 500, 0)]
)
def test_the_wait_is_the_shorter_one(simulation, broker, max_wait_ms, remote_ms, waits_s):
    broker.settings = RemoteReadSettings(fetch_max_wait_ms=remote_ms)
    broker.fill(2)
    broker.slow_store(60)
    rows, took = fetch(simulation, broker, {0: 0}, max_wait_ms=max_wait_ms)
    assert took == pytest.approx(waits_s)
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [])


def test_several_remote_partitions_and_a_local_one(simulation, broker):
    for index in range(2):
        broker.fill(2, index=index)
    broker.partition(2).as_leader().append_records(batch(b"x" * 100), required_acks=-1, now_ms=NOW_MS)
    broker.slow_store(0.05)
    # What is there is sent at once, if it is min_bytes.
    rows, took = fetch(simulation, broker, {0: 0, 1: 0, 2: 0})
    assert [offsets_in(rows[index]) for index in range(3)] == [[], [], [0]]
    assert took == 0
    # For more, both are waited for.
    rows, took = fetch(simulation, broker, {0: 0, 1: 0, 2: 0}, min_bytes=400)
    assert [offsets_in(rows[index]) for index in range(3)] == [[0], [0], [0]]
    assert 0 < took < 0.5


@FETCHES
@pytest.mark.parametrize("effect", [refuse(403), refuse(404), refuse(503), truncated(10)])
def test_a_failing_store_is_an_error_of_its_row_only(simulation, broker, effect):
    broker.fill(2)
    broker.fill(2, index=1, local_from=0)
    broker.store.faults.append(Fault("segment", effect, times=1000))
    codes = []
    for _ in range(5):
        rows, took = fetch(simulation, broker, {0: 0, 1: 2})
        assert took <= 0.51
        codes.append(ErrorCode(rows[0].error_code))
        assert rows[1].error_code == 0
    assert ErrorCode.unknown_server_error in codes
    assert set(codes) <= {ErrorCode.none, ErrorCode.unknown_server_error}
    # No tight loop: the store is asked a few times, whatever the consumer does.
    assert broker.store.count("segment") <= 12
    broker.store.faults.clear()
    for _ in range(20):
        rows, _ = fetch(simulation, broker, {0: 0})
        if offsets_in(rows[0]):
            break
    assert offsets_in(rows[0]) == [0]


def test_a_short_failure_is_not_seen(simulation, broker):
    broker.fill(2)
    broker.store.faults.append(Fault("segment", refuse(503)))
    rows, took = fetch(simulation, broker, {0: 0})
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [0])
    assert took < 0.5


@FETCHES
def test_too_many_reads_are_refused(simulation, broker):
    """remote.log.reader.max.pending.tasks"""
    broker.settings = RemoteReadSettings(reader_threads=1, max_pending_reads=1)
    for index in range(3):
        broker.fill(2, index=index)
    broker.slow_store(60)
    rows, _ = fetch(simulation, broker, {0: 0, 1: 0, 2: 0}, max_bytes=10**7)
    codes = [ErrorCode(rows[index].error_code) for index in range(3)]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_server_error]


def test_the_quota(simulation, broker):
    """remote.log.manager.fetch.max.bytes.per.second (KIP-956): no records and no error while it is exceeded."""
    broker.fill(2)
    broker.quota.is_open = False
    rows, took = fetch(simulation, broker, {0: 0})
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [])
    assert took == 0.5
    broker.quota.is_open = True
    rows, _ = fetch(simulation, broker, {0: 0})
    assert offsets_in(rows[0]) == [0]
    assert broker.quota.recorded == len(rows[0].records)
    assert broker.quota.waits == [0.5]


def test_appends_do_not_end_the_wait_of_a_throttled_fetch(simulation, broker):
    broker.fill(2)
    broker.quota.is_open = False

    async def main():
        waiting = broker.raw(k01_fetch, request({0: 0}), 12)
        began = simulation.loop.time()
        broker.partition().as_leader().append_records(batch(b"new"), required_acks=-1, now_ms=NOW_MS)
        await waiting
        assert simulation.loop.time() - began == pytest.approx(0.5)

    simulation.run(main())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("follower", ErrorCode.fenced_leader_epoch),
        ("deleted", ErrorCode.unknown_topic_or_partition),
        ("log start", ErrorCode.offset_out_of_range),
        ("new epoch", ErrorCode.fenced_leader_epoch),
    ],
)
def test_a_change_while_a_read_waits_is_noticed(simulation, broker, change, code):
    broker.fill(4, local_from=3)
    broker.slow_store(0.1)

    async def main():
        waiting = broker.raw(k01_fetch, request({0: 0}, epoch=0), 12)
        began = simulation.loop.time()
        match change:
            case "follower":
                broker.change_leader(2, epoch=1)
            case "new epoch":
                broker.change_leader(1, epoch=1)
            case "deleted":
                broker.delete()
            case "log start":
                broker.partition().log.maybe_increment_log_start_offset(2)
        response = await waiting
        (topic,) = response.responses
        assert ErrorCode(topic.partitions[0].error_code) == code
        if change != "log start":
            assert simulation.loop.time() - began < 0.05
        await broker.runtime.run_blocking(lambda: None, pool=Pool.REMOTE_READS)

    simulation.run(main())


def test_a_session_keeps_a_remote_partition_until_it_is_read(simulation, broker):
    broker.fill(2)
    broker.slow_store(0.8)
    broker.settings = RemoteReadSettings(fetch_max_wait_ms=100)

    async def main():
        response = await broker.raw(k01_fetch, request({0: 0, 1: 0}, session_epoch=0), 12)
        session, epoch = response.session_id, 1
        assert session
        found = []
        while not found and epoch < 60:
            response = broker.raw(k01_fetch, request({}, session_id=session, session_epoch=epoch), 12)
            if hasattr(response, "__await__"):
                response = await response
            epoch += 1
            found = [offsets_in(row) for topic in response.responses for row in topic.partitions]
        assert found == [[0]]

    simulation.run(main())


def test_without_a_remote_tier_the_offset_is_out_of_range(simulation, broker):
    broker.fill(2)
    broker.remote = None
    rows, _ = fetch(simulation, broker, {0: 0})
    assert rows[0].error_code == ErrorCode.offset_out_of_range


def test_a_follower_is_referred_to_the_remote_tier(simulation, broker):
    broker.fill(2)
    broker.partition().apply(image(epoch=1, replicas=(1, 2)))
    rows, _ = fetch(simulation, broker, {0: 0}, replica_id=2)
    assert rows[0].error_code == ErrorCode.offset_moved_to_tiered_storage


def test_a_sequential_consumer_finds_the_next_chunk_in_memory(simulation, broker):
    broker.fill(8)
    broker.slow_store(0.01)
    waits = []
    for offset in range(8):
        rows, took = fetch(simulation, broker, {0: offset})
        assert offsets_in(rows[0]) == [offset]
        waits.append(took)
        simulation.run(sleep(0.2))
    assert waits[0] > 0
    assert waits[3:] == [0] * 5
    assert broker.metrics.topic("t").remote_fetch_requests == broker.store.count("segment") == 7


async def sleep(seconds):
    import asyncio

    await asyncio.sleep(seconds)
