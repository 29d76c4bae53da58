"""The same bombs for every place that opens batches: each is bounded in bytes and records, and refuses them at once."""

import re
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from ottla.broker.cli.files import dump
from ottla.broker.groups import loader
from ottla.broker.page import records as page_records
from ottla.broker.tiering import metadata_topic_messages
from ottla.config.log_config import LogConfig
from ottla.controller.metadata_log import record_batches, snapshots
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.errors import InvalidRecord, KafkaError
from ottla.protocol.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, read_header
from ottla.protocol.records.compression import MAX_DECOMPRESSED_BYTES, Compression
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.record import OF_BROKERS, decode_records, payload_of
from ottla.remote.reading import copy_reader
from ottla.storage import compaction
from ottla.storage.compaction import CleanedTransactions
from ottla.storage.files import Files
from ottla.storage.validation import NeedsThread, validate
from ottla.storage.verify import metadata_log
from ottla.storage.verify.batches import BatchCheck
from ottla.storage.verify.compare import _difference
from ottla.storage.verify.findings import Findings
from tests.harness.bombs import NOW_MS, SMALLEST_RECORD, batch_of, bombs
from tests.harness.loop_turns import OneTurn
from tests.unit.storage.storage_support import open_log

ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"from ottla\.protocol\.records\.(?:record|compression) import (?:\([^)]*\)|[^\n]*)")
PACKAGES = (
    "runtime",
    "protocol",
    "metadata",
    "replication",
    "config",
    "storage",
    "remote",
    "controller",
    "broker",
    "bench",
    "testing",
    "stories",
)


def produce(config: LogConfig) -> Callable[[bytes, Path], None]:
    def check(batch: bytes, folder: Path) -> None:
        options = {"first_offset": 0, "now_ms": NOW_MS, "config": config, "leader_epoch": 0}
        with pytest.raises((NeedsThread, InvalidRecord)):
            validate(batch, **options, turns=OneTurn())
        with pytest.raises(InvalidRecord):
            validate(batch, **options)

    return check


def look_up(batch: bytes, folder: Path) -> None:
    log = open_log(folder / "orders-0", config=LogConfig())
    log.append_as_follower(memoryview(bytearray(batch)), leader_epoch=0, now_ms=NOW_MS)
    for search in (lambda: log.reader.offset_for_timestamp(NOW_MS), log.reader.max_timestamp_offset):
        with pytest.raises(KafkaError):
            search()
    segment = log.segments.active
    assert segment.times.read(segment.log, end=segment.size) == NOW_MS


def remote_look_up(batch: bytes, folder: Path) -> None:
    piece = SimpleNamespace(body=memoryview(batch), batches=SimpleNamespace(ends=[len(batch)]))
    with pytest.raises(KafkaError):
        copy_reader._first_record(piece, NOW_MS, start_offset=0, is_cancelled=lambda: False)


def compact(batch: bytes, folder: Path) -> None:
    cleaning = SimpleNamespace(now_ms=NOW_MS, active_producers={}, end_offset=10**12)
    with pytest.raises(KafkaError):
        compaction.retain(
            read_header(batch), memoryview(batch), cleaning, compaction.OffsetMap(10), CleanedTransactions()
        )


def load_groups(batch: bytes, folder: Path) -> None:
    header = read_header(batch)
    try:
        assert loader._small_payload(header, memoryview(batch)) is None
    except KafkaError:
        return
    with pytest.raises(KafkaError):  # in a thread
        payload_of(header, batch, OF_BROKERS)


def load_remote_metadata(batch: bytes, folder: Path) -> None:
    header = read_header(batch)
    rows = list(metadata_topic_messages._records([(header, memoryview(batch))], 0))
    assert [type(row.value) for row in rows] != []
    assert len(rows) <= metadata_topic_messages._BOUNDS.max_records


def load_metadata(batch: bytes, folder: Path) -> None:
    log = SimpleNamespace(directory=folder)
    with pytest.raises(InvalidMetadata):
        record_batches._decode(log, read_header(batch), memoryview(batch))
    path = folder / "00000000000000000001-0000000000.checkpoint"
    path.write_bytes(batch)
    with pytest.raises(InvalidMetadata):
        list(snapshots.read(path, Files()))
    with pytest.raises(InvalidMetadata):
        snapshots.quorum_messages(path, Files())


def show(batch: bytes, folder: Path) -> None:
    header = read_header(batch)
    with pytest.raises(KafkaError):
        list(decode_records(payload_of(header, batch, page_records._BOUNDS), header))


def verify(batch: bytes, folder: Path) -> None:
    findings = Findings()
    check = BatchCheck(findings, may_have_gaps=False, is_deep=True)
    check.begin_segment(folder / "x.log", 0)
    check.on_batch(read_header(batch), memoryview(batch), 0)
    assert findings.all
    path = folder / "00000000000000000000.log"
    path.write_bytes(batch)
    rows = list(dump.batches(path, Files(), has_data=True, decoder=None))
    assert rows[-1]["kind"] == "problem"
    one, two = (SimpleNamespace(data=data) for data in (batch, batch[:-1]))
    assert "cannot be read" in (_difference(one, two, may_lack=True) or "")


PLACES: dict[str, Callable[[bytes, Path], None]] = {
    "produce to a compacted topic": produce(LogConfig(cleanup_policy=("compact",), max_message_bytes=10**9)),
    "produce with another codec": produce(
        LogConfig(compression_type="uncompressed", max_message_bytes=10**9)
    ),
    "produce with a bound": produce(LogConfig(max_decompressed_message_bytes=1000, max_message_bytes=10**9)),
    "look-up by time": look_up,
    "look-up by time in the remote tier": remote_look_up,
    "compaction": compact,
    "load of __consumer_offsets": load_groups,
    "load of __remote_log_metadata": load_remote_metadata,
    "load of the metadata log": load_metadata,
    "verification and dump": verify,
    "records on the page": show,
}

#: Each module that opens batches is a place above, or says here why not.
OPENERS = {
    "broker/api/k72_push_telemetry.py",  # metrics of clients, not batches; within telemetry.max.bytes
    "broker/page/records.py",
    "broker/groups/loader.py",
    "broker/tiering/metadata_topic_messages.py",
    "broker/cli/files/dump.py",
    "controller/metadata_log/record_batches.py",
    "controller/metadata_log/snapshots.py",
    "protocol/records/control.py",
    "protocol/records/record.py",
    "remote/reading/copy_reader.py",
    "testing/records.py",  # in a test, of records that the test itself has made; within `ANY_BATCH`
    # Records that a story itself has written.
    "stories/partition/message_lines.py",
    "stories/partition/remote_log_stage.py",
    "stories/partition/replica_state.py",
    "stories/partition/tiered_stage.py",
    "stories/quorum/quorum_lines.py",
    "stories/quorum/quorum_rules.py",
    "stories/quorum/raft_replicas.py",
    "remote/spark_source/reading.py",  # in Spark's process; by `payload_of`, within `ANY_BATCH`
    "storage/compaction.py",
    "storage/segment_reader.py",
    "storage/segment_times.py",
    "storage/fast_append.py",
    "storage/validation.py",
    "storage/verify/batches.py",
    "storage/verify/compare.py",
    "storage/verify/metadata_log.py",
}


@cache
def bombs_of(codec: Compression) -> list[tuple[bytes, int, bool]]:
    """The payloads compressed once, for all places."""
    made = []
    for payload, count, is_compressed in bombs(codec):
        batch = batch_of(payload, count=count, codec=codec, is_compressed=is_compressed)
        made.append((bytes(batch[61:]), count, True))
    return made


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.logs("")
def test_bombs_are_refused_with_bounded_memory(place, codec, tmp_path):
    for number, (payload, count, is_compressed) in enumerate(bombs_of(codec)):
        batch = batch_of(payload, count=count, codec=codec, is_compressed=is_compressed)
        folder = tmp_path / str(number)
        folder.mkdir()
        tracemalloc.start()
        try:
            PLACES[place](batch, folder)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1.5 * MAX_DECOMPRESSED_BYTES + 4 * len(batch), (number, peak)


def test_a_batch_is_rebuilt_without_an_object_for_each_record():
    count = 20_000
    batch = batch_of(SMALLEST_RECORD * count, count=count)  # all at offset 0: they are written again
    tracemalloc.start()
    try:
        validate(
            batch, first_offset=0, now_ms=NOW_MS, config=LogConfig(compression_type="gzip"), leader_epoch=0
        )
        assert tracemalloc.get_traced_memory()[1] < 60 * count
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_markers(codec, tmp_path):
    for payload, count, is_compressed in bombs_of(codec):
        batch = batch_of(
            payload,
            count=count,
            codec=codec,
            is_compressed=is_compressed,
            attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG,
            producer_id=5,
        )
        with pytest.raises(KafkaError):
            end_transaction_marker(batch)
        assert not CleanedTransactions().is_marker_obsolete(read_header(batch), batch)
        findings = Findings()
        path = tmp_path / "00000000000000000001-0000000000.checkpoint"
        path.write_bytes(batch)
        metadata_log.check_snapshot(path, Files(), findings)
        assert findings.all


def test_every_module_that_opens_batches_is_a_place():
    names = "payload_of|keys_of|values_of|times_of|latest_time|records|decompress"
    opener = re.compile(rf"import .*\b(?:{names})\b", re.DOTALL)
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(opener.search(each) for each in re.findall(_IMPORT, path.read_text()))
    }
    assert found == OPENERS
