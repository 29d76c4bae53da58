"""The fast path of an append beside the general one: two logs on two disks, of which one has no fast path."""

import struct
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.config.log_config import LogConfig
from ottla.config.topic_configs import HOUR_MS
from ottla.protocol.errors import (
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    RecordListTooLarge,
)
from ottla.protocol.records.batch import crc_of
from ottla.protocol.records.compression import Compression
from ottla.storage.fast_append import fast_path_bounds, fast_path_fields
from ottla.storage.validation import validate
from ottla.stories.partition.faulty_files import FaultyFiles
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log, state_of

pytestmark = pytest.mark.logs("")

DIRECTORY = Path("/data/orders-0")
SMALL = {"segment_bytes": 900, "segment_index_bytes": 64, "index_interval_bytes": 100}
CONFIGS = [
    *[LogConfig(**SMALL), LogConfig(segment_bytes=5000, index_interval_bytes=200), LogConfig()] * 4,
    LogConfig(**SMALL, segment_ms=50),
    LogConfig(**SMALL, max_message_bytes=120),
    LogConfig(**SMALL, compression_type="uncompressed"),
    LogConfig(**SMALL, compression_type="gzip"),
    LogConfig(**SMALL, cleanup_policy=("compact",)),
    LogConfig(**SMALL, message_timestamp_type="LogAppendTime"),
    LogConfig(**SMALL, message_timestamp_before_max_ms=HOUR_MS),
    LogConfig(**SMALL, message_timestamp_after_max_ms=3),
    LogConfig(**SMALL, flush_messages=3),
]
#: Number of records, size of each, how late they are, producer, codec.
BATCHES = st.tuples(
    st.integers(1, 4),
    st.integers(0, 120),
    st.integers(-3, 5),
    st.sampled_from((-1, 1, 1, 2)),
    st.sampled_from((0, 0, 0, 1, 3)),
)
#: Header fields that rules are about: layout, position, and values that break them or nearly do.
RULED_FIELDS = [
    (">q", 0, (0, 1)),
    (">i", 8, (49, 60, -1, 2**31 - 1)),
    (">b", 16, (2, 1)),
    (">h", 21, (0, 1, 3, 5, 7, 8, 0x10, 0x20, 0x40, 0x80, -1)),
    (">i", 23, (2, 1, -1, 2**31 - 1)),
    (">q", 27, (NOW_MS, -1, NOW_MS + 3)),
    (">q", 35, (NOW_MS + 2, -1, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS + 1)),
    (">q", 43, (-1, 5)),
    (">h", 51, (-1, 0)),
    (">i", 53, (-1, 0)),
    (">i", 57, (3, 2, 0, -1, 2**31 - 1)),
    (">b", 61, (22, 24, -1)),
]  # fmt: skip
CHANGED_FIELDS = st.lists(
    st.sampled_from(RULED_FIELDS).flatmap(
        lambda field: st.tuples(st.just(field[0]), st.just(field[1]), st.sampled_from(field[2]))
    ),
    max_size=3,
)
TAILS = st.sampled_from((b"", b"", b"", b"more", batch()))


def ruled(fields, *, is_summed, tail):
    """A batch with these header fields, and perhaps its checksum."""
    data = batch(3)
    for layout, position, value in fields:
        struct.pack_into(layout, data, position, value)
    if is_summed:
        struct.pack_into(">I", data, 17, crc_of(data))
    return data + tail


@given(
    data=st.builds(ruled, CHANGED_FIELDS, is_summed=st.integers(0, 9).map(bool), tail=TAILS),
    config=st.sampled_from(CONFIGS),
)
def test_a_batch_on_the_fast_path_is_valid_as_it_is(data, config):
    bounds = fast_path_bounds("t", config)
    fields = bounds and fast_path_fields(memoryview(data), bounds, now_ms=NOW_MS)
    if not fields:
        return
    sent = bytes(data)
    valid = validate(data, first_offset=0, now_ms=NOW_MS, config=config, leader_epoch=fields[2])
    assert valid.header == fields
    assert (valid.max_timestamp, valid.log_append_time_ms, valid.is_rebuilt) == (fields[8], None, False)
    assert b"".join(valid.buffers) == sent


def append(log, data, *, is_fast, leader_epoch=0, now_ms=NOW_MS):
    """(offsets or the error, what is in the caller's buffer then, whether the fast path was taken)."""
    sent = bytearray(data)
    try:
        if is_fast:
            before = state_of(log)
            first = log.fast.append_as_leader(memoryview(sent), leader_epoch=leader_epoch, now_ms=now_ms)
            if first is not None:
                end = log.log_end_offset
                return (first, end - 1, None, log.log_start_offset, len(sent), end - first), sent, True
            assert sent == data
            for segment in before["segments"] + (state := state_of(log))["segments"]:
                segment.pop("first timestamp")  # may have been read meanwhile
            assert state == before
        info = log.append_as_leader(memoryview(sent), leader_epoch=leader_epoch, now_ms=now_ms)
    except KafkaError as error:
        return (type(error), error.message), sent, False
    kept = (info.first_offset, info.last_offset, info.log_append_time_ms)
    return (*kept, info.log_start_offset, info.size_bytes, info.records_count), sent, False


def copy(log, data, *, is_fast, leader_epoch=0, now_ms=NOW_MS):
    """(size and end offset, or the error; whether the fast path was taken), of a follower."""
    view = memoryview(bytes(data))
    try:
        if is_fast:
            before = state_of(log)
            if log.fast.append_as_follower(view, leader_epoch=leader_epoch, now_ms=now_ms):
                return (len(view), log.log_end_offset), True
            for segment in before["segments"] + (state := state_of(log))["segments"]:
                segment.pop("first timestamp")  # may have been read meanwhile
            assert state == before
        info = log.append_as_follower(view, leader_epoch=leader_epoch, now_ms=now_ms)
    except KafkaError as error:
        return (type(error), error.message), False
    return (info.size_bytes, log.log_end_offset), False


class FastBesideGeneral(RuleBasedStateMachine):
    """Whatever happens, both logs, their files and their answers are the same."""

    @initialize(config=st.sampled_from(CONFIGS))
    def begin(self, config):
        self.config = config
        self.epoch = 0
        self.now_ms = NOW_MS
        #: Producer id -> its next sequence.
        self.sequences = dict.fromkeys((-1, 1, 2), 0)
        self.disks = [FaultyFiles(random=Random(1), now_ms=NOW_MS) for _ in range(2)]
        for disk in self.disks:
            disk.make_dir(DIRECTORY.parent)
        self.open(is_clean=True, recovery_point=0)

    def open(self, **options):
        """The general log, and the one that tries the fast path first."""
        self.logs = [
            open_log(
                DIRECTORY, files=disk, config=self.config, now_ms=self.now_ms, random=Random(1), **options
            )
            for disk in self.disks
        ]

    def both(self, act):
        """The result of both ways, or their common reason for a refusal."""
        found = []
        for log in self.logs:
            try:
                found.append(act(log))
            except KafkaError as error:
                found.append((type(error), error.message))
        assert found[0] == found[1]

    def send(self, data):
        pairs = [
            append(log, data, is_fast=is_fast, leader_epoch=self.epoch, now_ms=self.now_ms)
            for log, is_fast in zip(self.logs, (False, True), strict=True)
        ]
        (general, buffer, _), (fast, other, is_taken) = pairs
        assert general == fast
        # After an error it is not read; a disk may fail before or after it is patched.
        assert buffer == other or not isinstance(general[0], int)
        event(f"fast path: {is_taken}")
        return isinstance(general[0], int)

    @rule(sent=st.lists(BATCHES, min_size=1, max_size=12), step=st.integers(-5, 40))
    def produce(self, sent, step):
        for count, size, late, producer, codec in sent:
            self.now_ms += step
            fields = {}
            if producer >= 0:
                fields = {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": self.sequences[producer],
                }
            data = batch(
                count,
                value=b"x" * size,
                timestamp=self.now_ms + late,
                compression=Compression(codec),
                **fields,
            )
            if self.send(data) and producer >= 0:
                self.sequences[producer] = (self.sequences[producer] + count) % 2**31

    @rule(
        producer=st.sampled_from((1, 2)),
        epoch=st.sampled_from((0, 0, 0, 1, -1)),
        distance=st.sampled_from((-3, -2, -1, 0, 1)),
        count=st.integers(1, 3),
        is_transactional=st.sampled_from((False, False, True)),
    )
    def other_sequences(self, producer, epoch, distance, count, is_transactional):
        sequence = (self.sequences[producer] + distance) % 2**31
        data = batch(
            count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
            is_transactional=is_transactional,
        )  # fmt: skip
        if self.send(data) and (distance == 0 or epoch == 1):
            self.sequences[producer] = (sequence + count) % 2**31

    @rule(producer=st.sampled_from((1, 2)))
    def sequences_are_about_to_wrap(self, producer):
        """A follower adopts what its leader has."""
        base = self.logs[0].log_end_offset
        data = batch(
            2, producer_id=producer, producer_epoch=0, base_sequence=2**31 - 3, base_offset=base,
            leader_epoch=self.epoch,
        )  # fmt: skip
        self.both(lambda log: log.append_as_follower(data, leader_epoch=self.epoch, now_ms=self.now_ms))
        self.sequences[producer] = 2**31 - 1

    @rule(sent=st.lists(st.builds(ruled, CHANGED_FIELDS, is_summed=st.integers(0, 9).map(bool), tail=TAILS)))
    def ruled(self, sent):
        for data in sent:
            self.send(data)

    @rule(data=st.binary(max_size=100))
    def garbage(self, data):
        self.send(data)

    def copy(self, data):
        """Append what a leader sends, which may be anything; whether it was appended."""
        pairs = [
            copy(log, data, is_fast=is_fast, leader_epoch=self.epoch, now_ms=self.now_ms)
            for log, is_fast in zip(self.logs, (False, True), strict=True)
        ]
        assert pairs[0][0] == pairs[1][0]
        event(f"fast path on a follower: {pairs[1][1]}")
        return isinstance(pairs[0][0][0], int)

    @rule(
        sent=st.lists(st.tuples(BATCHES, st.sampled_from((0, 0, 0, 0, 1))), min_size=1, max_size=12),
        step=st.integers(-5, 40),
        cut=st.sampled_from((0, 0, 0, 1, 80)),
    )
    def replicate(self, sent, step, cut):
        """Some batches of the present epoch, with gaps between them; maybe the last one is cut off."""
        data, offset, sequences = bytearray(), self.logs[0].log_end_offset, dict(self.sequences)
        for (count, size, late, producer, codec), gap in sent:
            self.now_ms += step
            offset += gap
            fields = {}
            if producer >= 0:
                fields = {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": sequences[producer],
                }
                sequences[producer] = (sequences[producer] + count) % 2**31
            data += batch(
                count, value=b"x" * size, timestamp=self.now_ms + late, compression=Compression(codec),
                base_offset=offset, leader_epoch=self.epoch, **fields,
            )  # fmt: skip
            offset += count
        if self.copy(data[: len(data) - cut]) and not cut:
            self.sequences = sequences

    @rule(
        producer=st.sampled_from((1, 2, 3)),
        epoch=st.sampled_from((0, 0, 1)),
        leader_epoch=st.sampled_from((-2, -1, 0, 0, 0, 1)),
        sequence=st.sampled_from((-1, 0, 2, 2**31 - 1)),
        is_transactional=st.sampled_from((False, False, True)),
        distance=st.sampled_from((-1, 0, 0, 0)),
    )
    def replicate_exceptions(self, producer, epoch, leader_epoch, sequence, is_transactional, distance):
        """Replicate exceptions between two other batches."""
        offset = max(0, self.logs[0].log_end_offset + distance)
        fields = {
            "producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence,
            "is_transactional": is_transactional, "leader_epoch": max(-1, self.epoch + leader_epoch),
        }  # fmt: skip
        plain = {"leader_epoch": self.epoch}
        batches = (
            batch(2, base_offset=offset + at, **it)
            for at, it in zip((0, 2, 4), (plain, fields, plain), strict=True)
        )
        self.copy(b"".join(batches))

    @rule(fields=CHANGED_FIELDS, is_summed=st.integers(0, 9).map(bool), tail=TAILS, is_first=st.booleans())
    def replicate_ruled(self, fields, is_summed, tail, is_first):
        offset, data = self.logs[0].log_end_offset, bytearray()
        if not is_first:
            data += batch(base_offset=offset, leader_epoch=self.epoch)
        head = [(">q", 0, offset + 1 - is_first), (">i", 12, self.epoch)]
        self.copy(data + ruled([*head, *fields], is_summed=is_summed, tail=tail))

    @rule(producer=st.sampled_from((1, 2)))
    def a_transaction_ends(self, producer):
        data = marker(producer_id=producer, commit=True)
        struct.pack_into(">q", data, 0, self.logs[0].log_end_offset)
        struct.pack_into(">i", data, 12, self.epoch)
        self.copy(data)

    @rule(is_assigned=st.booleans())
    def lead_again(self, is_assigned):
        self.epoch += 1
        if is_assigned:
            self.both(lambda log: log.assign_epoch(self.epoch, start_offset=log.log_end_offset))

    @rule()
    def roll(self):
        self.both(lambda log: log.roll(self.now_ms).base_offset)

    @rule(part=st.floats(0, 1))
    def commit(self, part):
        self.both(lambda log: log.maybe_increment_high_watermark(int(log.log_end_offset * part)))

    @rule(part=st.floats(0.5, 1))
    def truncate(self, part):
        offset = int(self.logs[0].log_end_offset * part)
        self.both(lambda log: log.truncate_to(offset, now_ms=self.now_ms))
        self.epoch += 1
        known = self.logs[0].producers.producers
        for producer in (1, 2):
            last = known[producer].last_sequence if producer in known else None
            self.sequences[producer] = 0 if last is None else (last + 1) % 2**31

    @rule()
    def flush(self):
        self.both(lambda log: log.flush())

    @rule(config=st.sampled_from(CONFIGS), sent=BATCHES)
    def alter(self, config, sent):
        self.config = config
        self.both(lambda log: log.update_config(config))
        self.produce([sent, sent], 1)

    @rule()
    def alter_a_little(self):
        changed = replace(self.config, max_message_bytes=self.config.max_message_bytes + 1)
        self.alter(changed, (1, 10, 0, -1, 0))

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        """Afterwards the disk works again."""
        for disk in self.disks:
            disk.faults.clear()
        recovery_point, start = self.logs[0].recovery_point, self.logs[0].log_start_offset
        is_clean = is_clean and self.logs[0].is_writable
        self.disks = [disk.after_kill() for disk in self.disks] if not is_clean else self.disks
        if is_clean:
            self.both(lambda log: log.close())
        self.open(
            is_clean=is_clean,
            recovery_point=self.logs[0].recovery_point if is_clean else recovery_point,
            log_start_offset=start,
        )
        known = self.logs[0].producers.producers
        for producer in (1, 2):
            last = known[producer].last_sequence if producer in known else None
            self.sequences[producer] = 0 if last is None else (last + 1) % 2**31

    @rule(
        operation=st.sampled_from(("write", "read", "create")),
        nth=st.integers(1, 5),
        is_lasting=st.booleans(),
    )
    def fail(self, operation, nth, is_lasting):
        if not all(log.is_writable for log in self.logs):
            self.restart(is_clean=False)
        for disk in self.disks:
            disk.fail(operation, nth=nth, errno=5, is_lasting=is_lasting)

    @rule(sent=BATCHES)
    def another_log_of_the_directory_fails(self, sent):
        for log in self.logs:
            log.availability.take_offline(OSError(5, "Input/output error"))
        self.produce([sent], 0)
        self.restart(is_clean=False)

    @invariant()
    def both_are_the_same(self):
        assert state_of(self.logs[0]) == state_of(self.logs[1])
        assert self.disks[0].contents() == self.disks[1].contents()


def a_log(**config):
    disk = FaultyFiles(random=Random(1), now_ms=NOW_MS)
    disk.make_dir(DIRECTORY.parent)
    log = open_log(DIRECTORY, files=disk, config=LogConfig(**config))
    first = batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(first, leader_epoch=0, now_ms=NOW_MS)
    return log


def of_producer(sequence, **fields):
    return batch(2, **{"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence, **fields})


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (batch(), {}),
        (batch(300), {}),
        (of_producer(1), {}),
        (batch(5, compression=Compression.ZSTD), {}),
        (batch(5, compression=Compression.LZ4), {"compression_type": "lz4"}),
        (batch(), {"compression_type": "uncompressed"}),
        (batch(), {"remote_storage_enable": True, "min_insync_replicas": 2}),
    ],
)  # fmt: skip
def test_what_is_fast(data, config):
    log = a_log(**config)
    assert append(log, data, is_fast=True)[2]
    log.close()


@pytest.mark.parametrize(
    ("data", "config"),
    [
        (of_producer(0), {}),
        (of_producer(3), {}),
        (of_producer(0, producer_id=2), {}),  # not known yet
        (of_producer(1, producer_epoch=1), {}),
        (of_producer(1, is_transactional=True), {}),
        (batch(2, compression=Compression.ZSTD), {"compression_type": "uncompressed"}),
        (batch(), {"compression_type": "lz4"}),
        (batch(), {"cleanup_policy": ("compact",)}),
        (batch(), {"message_timestamp_type": "LogAppendTime"}),
        (batch(), {"flush_messages": 1}),
        (batch(), {"segment_bytes": 100}),  # the segment is full
        (batch(timestamp=NOW_MS + 1), {"segment_ms": 0}),
    ],
)  # fmt: skip
def test_what_is_not(data, config):
    log = a_log(**config)
    assert not append(log, data, is_fast=True)[2]
    log.close()


def copied(offset, count=2, **fields):
    return batch(count, base_offset=offset, **{"leader_epoch": 0, **fields})


def copied_of_producer(offset, sequence, **fields):
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": sequence}
    return copied(offset, **{**producer, **fields})


def with_field(data, layout, position, value):
    struct.pack_into(layout, data, position, value)
    struct.pack_into(">I", data, 17, crc_of(data))
    return data


#: After `a_log`, whose producer 1 has written the sequence 0 at the offset 0.
USUAL_COPIES = [
    copied(1),
    copied(1) + copied(3) + copied(9),
    copied_of_producer(1, 1) + copied(3) + copied_of_producer(5, 3),
    copied_of_producer(1, 7),  # the leader has checked it
    copied(1, compression=Compression.ZSTD),
    copied(1, timestamp=-1),
]
UNUSUAL_COPIES = [
    b"",
    copied(0),
    copied(1) + copied(2),  # out of order
    copied(1) + copied(3)[:-1],
    copied(1) + copied(3)[:40],
    copied(1) + bytes(61),
    with_field(copied(1), ">i", 8, 40),
    copied(1, leader_epoch=1),
    copied(1) + copied(3, leader_epoch=1),
    copied(1, leader_epoch=-1),
    copied(1)[:-1] + b"!",
    with_field(copied(1, 1), ">i", 23, -1),
    copied_of_producer(1, 1, producer_id=2),
    copied_of_producer(1, 0, producer_epoch=1),
    copied_of_producer(1, -1),
    copied_of_producer(1, 1, is_transactional=True),
]  # fmt: skip


@pytest.mark.parametrize("leader_epoch", [0, 1])
@pytest.mark.parametrize(
    ("data", "is_taken"), [(it, True) for it in USUAL_COPIES] + [(it, False) for it in UNUSUAL_COPIES]
)
def test_a_followers_append(data, is_taken, leader_epoch):
    general, fast = a_log(), a_log()
    found, _ = copy(general, data, is_fast=False, leader_epoch=leader_epoch)
    assert copy(fast, data, is_fast=True, leader_epoch=leader_epoch) == (found, is_taken)
    assert state_of(fast) == state_of(general)


def test_a_follower_of_an_older_leader():
    """The follower's log has records of a later epoch."""
    log = a_log()
    log.assign_epoch(2, start_offset=1)
    assert copy(log, copied(1, leader_epoch=2), is_fast=True, leader_epoch=1) == ((0, 1), False)


def test_a_followers_segment_is_full():
    log = a_log(segment_bytes=200)
    assert copy(log, copied(1), is_fast=True) == ((len(copied(1)), 3), True)
    assert copy(log, copied(3), is_fast=True) == ((len(copied(3)), 5), False)


def test_a_followers_response_is_larger_than_a_segment():
    log = a_log(segment_bytes=100)
    log.roll(NOW_MS)
    assert not log.segments.active.size
    (error, _), is_taken = copy(log, copied(1) + copied(3), is_fast=True)
    assert (error, is_taken) == (RecordListTooLarge, False)


def test_a_follower_with_an_open_transaction():
    log = a_log()
    copy(log, copied_of_producer(1, 1, is_transactional=True), is_fast=False)
    (error, _), is_taken = copy(log, copied_of_producer(3, 3), is_fast=True)
    assert (error, is_taken) == (InvalidTxnState, False)
    assert copy(log, copied(3), is_fast=True)[1]


def test_a_followers_disk_fails():
    log = a_log()
    log.files.file_system.fail("write", errno=5)
    assert copy(log, copied(1), is_fast=True)[0][0] is KafkaStorageError
    assert log.log_end_offset == 1
    assert not log.fast.append_as_follower(memoryview(copied(1)), leader_epoch=0, now_ms=NOW_MS)


def test_a_buffer_that_cannot_be_patched_is_not():
    log = a_log()
    assert log.fast.append_as_leader(memoryview(bytes(batch())), leader_epoch=0, now_ms=NOW_MS) is None


def test_neither_is_the_first_append_of_a_leader():
    log = a_log()
    assert log.fast.append_as_leader(memoryview(batch()), leader_epoch=1, now_ms=NOW_MS) is None


def test_the_disk_fails():
    """A later append is refused, by `append_as_leader`, whatever the disk does then."""
    log = a_log()
    log.files.file_system.fail("write", errno=5)
    with pytest.raises(KafkaStorageError, match="Injected EIO"):
        log.fast.append_as_leader(memoryview(batch()), leader_epoch=0, now_ms=NOW_MS)
    assert log.log_end_offset == 1
    assert log.fast.append_as_leader(memoryview(batch()), leader_epoch=0, now_ms=NOW_MS) is None


def test_a_topic_configuration_takes_effect_at_once():
    log = a_log()
    assert append(log, batch(), is_fast=True)[2]
    log.update_config(LogConfig(cleanup_policy=("compact",)))
    assert not append(log, batch(), is_fast=True)[2]
    log.update_config(LogConfig(max_message_bytes=50))
    (error, _), _, _ = append(log, batch(), is_fast=True)
    assert error is MessageTooLarge
    log.update_config(LogConfig())
    assert append(log, batch(), is_fast=True)[2]


TestFastBesideGeneral = FastBesideGeneral.TestCase
TestFastBesideGeneral.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
