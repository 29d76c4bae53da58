"""Logs with transactions, epochs and small segments; a tiered one, and its twin that has everything locally."""

from dataclasses import replace
from uuid import UUID

from hypothesis import strategies as st

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import batches
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record, records
from ottla.protocol.types import TopicPartition
from ottla.remote.metrics import RemoteStorageMetrics
from ottla.remote.reading.index_cache import IndexCache
from ottla.remote.reading.index_cache_files import DIRECTORY, IndexFiles
from ottla.remote.reading.remote_log_reader import RemoteLogReader
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.stories.partition.tiered_log import PartitionOfLog, Tier, remove_local_segments
from tests.harness.bombs import MANY, batch_claiming
from tests.harness.faulty_store import FaultyStore
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

TOPIC_ID = UUID(int=0xA)
TP = TopicPartition("orders", 0)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=1, retention_ms=None, remote_storage_enable=True)


class Producer:
    """Appends the same to several logs: plain and transactional batches, of several producers and epochs."""

    def __init__(self, *logs):
        self.logs = logs
        self.epoch = 0
        self._sequences = {}

    def append(self, *, count=1, value=b"x" * 40, timestamp=NOW_MS, producer=None):
        fields = {}
        if producer is not None:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
            fields = {
                "producer_id": producer, "producer_epoch": 0, "base_sequence": sequence, "is_transactional": True
            }  # fmt: skip
        self._append(batch(count, value=value, timestamp=timestamp, **fields), AppendOrigin.CLIENT)

    def append_at(self, times):
        """One batch: a record at each of these times after NOW_MS."""
        records = [Record(number, NOW_MS + time, None, b"x") for number, time in enumerate(times)]
        self._append(build_batch(records), AppendOrigin.CLIENT)

    def append_claiming(self, times, claimed_ms):
        """A batch whose header claims a largest timestamp, which is not checked."""
        self._append(batch_claiming(times, claimed_ms=claimed_ms), AppendOrigin.CLIENT)

    def end(self, producer, *, commit):
        self._append(marker(producer_id=producer, commit=commit), AppendOrigin.COORDINATOR)

    def roll(self):
        for log in self.logs:
            if log.segments.active.size:
                log.roll(NOW_MS)

    def _append(self, data, origin):
        for log in self.logs:
            log.append_as_leader(bytearray(data), leader_epoch=self.epoch, now_ms=NOW_MS, origin=origin)
            log.update_high_watermark(log.log_end_offset)


class TieredTwins:
    """A tiered log with everything that reads it, and an untiered one with the same records."""

    def __init__(self, folder, runtime, *, config=CONFIG, settings=None):
        self.runtime = runtime
        self.settings = settings or RemoteReadSettings()
        self.log = open_log(
            folder / "tiered" / "orders-0", config=config, topic_partition=TP, topic_id=TOPIC_ID
        )
        self.twin = open_log(
            folder / "twin" / "orders-0",
            config=replace(config, remote_storage_enable=False),
            topic_partition=TP,
            topic_id=TOPIC_ID,
        )
        self.producer = Producer(self.log, self.twin)
        directory = LocalDirectory()
        self.store_folder = folder / "store"
        directory.configure({"dir": str(self.store_folder)})
        directory.create()
        self.store = FaultyStore(directory)
        self.tier = Tier(self.store)
        self.partition = PartitionOfLog(self.log, TOPIC_ID)
        self.metrics = RemoteStorageMetrics(lambda: 0.0)
        self.cache = IndexCache(
            IndexFiles(folder / DIRECTORY, files=Files(), store=self.store),
            runtime=runtime,
            settings=lambda: self.settings,
        )
        self.reader = RemoteLogReader(
            store=self.store,
            metadata=self.tier.metadata,
            index_cache=self.cache,
            metrics=self.metrics,
            runtime=runtime,
        )

    def offload(self, before_offset):
        """Copy what is closed; the local tier keeps what ends behind `before_offset`."""
        copied = self.tier.copy_closed_segments(self.log, self.partition.id)
        remove_local_segments(self.log, before_offset)
        return copied

    def close(self):
        self.cache.close()
        self.log.close_files()
        self.twin.close_files()


def values_of(data, *, from_offset=0):
    """(offset, timestamp, value) of all records in whole batches."""
    return [
        (record.offset, record.timestamp, record.value)
        for _, part in batches(memoryview(bytes(data)))
        for record in records(part)
        if record.offset >= from_offset
    ]


def committed(data, aborted, *, from_offset=0):
    """The records that a read_committed consumer returns to the application, by the rules of Kafka's clients.

    `aborted` are pairs (first offset, producer id).
    """
    waiting = sorted(aborted)
    skipped = set()
    found = []
    for header, part in batches(memoryview(bytes(data))):
        while waiting and waiting[0][0] <= header.last_offset:
            skipped.add(waiting.pop(0)[1])
        if header.is_control:
            (control,) = records(part)
            if control.key[3] == 0:  # abort
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            found += [record.offset for record in records(part) if record.offset >= from_offset]
    return found


def offsets_of(data, aborted, offset, is_read_committed):
    if not is_read_committed:
        return values_of(data, from_offset=offset)
    return committed(data, [(each.first_offset, each.producer_id) for each in aborted], from_offset=offset)


def found_end(data, offset, end):
    headers = [header for header, _ in batches(memoryview(bytes(data)))]
    return headers[-1].next_offset if headers else end


def read_twin(twin, offset, *, is_read_committed):
    """The records that a consumer gets from `offset` on of a log that has everything locally."""
    end = twin.last_stable_offset if is_read_committed else twin.high_watermark
    found = []
    while offset < end:
        part = twin.reader.read(offset, max_bytes=10**6, max_offset=end, min_one_message=True)
        aborted = twin.reader.aborted_transactions(offset, end) if is_read_committed else []
        found += offsets_of(part.records, aborted, offset, is_read_committed)
        offset = found_end(part.records, offset, end)
    return found


# -- histories of a log --------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 9)),
        st.tuples(
            st.just("claim"), st.integers(0, 9), st.lists(st.integers(0, 100), min_size=MANY, max_size=MANY)
        ),
        st.tuples(st.just("transact"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("epoch"), st.integers(1, 2), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


def play(twins, steps):
    producer, is_open = twins.producer, set()
    for kind, number, other in steps:
        match kind:
            case "append":
                producer.append(count=number, timestamp=NOW_MS + other * 10)
            case "claim":
                producer.append_claiming([NOW_MS + at for at in other], NOW_MS + number * 10)
            case "transact":
                is_open.add(number)
                producer.append(producer=number, timestamp=NOW_MS + other * 10)
            case "end" if number in is_open:
                is_open.remove(number)
                producer.end(number, commit=other)
            case "roll":
                producer.roll()
            case "epoch":
                producer.epoch += number
                for log in producer.logs:
                    log.assign_epoch(producer.epoch, start_offset=log.log_end_offset)
