"""Kafka's dump tool on every kind of file that storage writes, whatever has happened to the log: it has nothing to say.

A folder each for logs that were written, compacted, truncated, trimmed, recovered, split and copied; read by
`kafka-dump-log` batch by batch, and index by index.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from ottla.config.log_config import LogConfig
from ottla.protocol.records.batch import patch
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.record import Record
from ottla.storage import cleaner
from ottla.storage.compaction import BYTES_A_KEY
from ottla.storage.files import Files
from ottla.storage.log import AppendOrigin, Log
from ottla.storage.transaction_index import TransactionIndex
from tests.harness.kafka import run_tool
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=500, file_delete_delay_ms=0)
COMPACTED = LogConfig(
    segment_bytes=6_000,
    index_interval_bytes=200,
    file_delete_delay_ms=0,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1_000,
)


def append(log: Log, data: bytearray, *, epoch: int = 0, now_ms: int = NOW_MS) -> None:
    log.append_as_leader(data, leader_epoch=epoch, now_ms=now_ms)


def fill(log: Log, count: int, *, start: int = 0, epoch: int = 0) -> None:
    """Batches of two records, in time now forwards and now back."""
    for number in range(start, start + count):
        append(log, batch(2, value=b"v" * 80, timestamp=NOW_MS + number * 7 % 500 + number), epoch=epoch)


def transact(log: Log, count: int) -> None:
    """Interleaved transactions of three producers in several epochs, every third one aborted; one stays open."""
    sequences = [0, 0, 0]
    for number in range(count):
        producer_id = number % 3
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequences[producer_id]}
        data = batch(2, value=b"v" * 80, timestamp=NOW_MS + number * 7 % 500, is_transactional=True, **fields)
        append(log, data, epoch=number // 150)
        sequences[producer_id] += 2
        if number % 20 == 19:
            end = marker(producer_id=producer_id, commit=number % 60 != 59, timestamp=NOW_MS + number)
            log.append_as_leader(
                end, leader_epoch=number // 150, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
            )


def transactions(folder: Path) -> Log:
    log = open_log(folder, config=CONFIG)
    transact(log, 400)
    return log


def codecs(folder: Path) -> Log:
    """Each codec, as it came, made by us, and with the broker's time."""
    for wanted in ("producer", "gzip", "snappy", "lz4", "zstd", "uncompressed"):
        for time in ("CreateTime", "LogAppendTime"):
            log = open_log(
                folder,
                config=LogConfig(
                    segment_bytes=20_000,
                    index_interval_bytes=500,
                    compression_type=wanted,
                    message_timestamp_type=time,
                ),
            )
            for number, codec in enumerate(list(Compression) * 4):
                data = batch(5, value=b"v" * 80, timestamp=NOW_MS + number, compression=codec)
                append(log, data, now_ms=NOW_MS + 9 * number)
            log.close()
    return open_log(folder, config=CONFIG)


def truncated(folder: Path) -> Log:
    """To the middle of a segment and of an index entry's batches, twice, and written on; transactions with it."""
    log = transactions(folder)
    for offset in (601, 177):
        assert log.truncate_to(offset, now_ms=NOW_MS)
        fill(log, 90, epoch=5)
    return log


def restarted_empty(folder: Path) -> Log:
    log = transactions(folder)
    log.truncate_fully_and_start_at(5_000, now_ms=NOW_MS)
    fill(log, 200, epoch=7)
    return log


def trimmed(folder: Path) -> Log:
    """A log that is trimmed by retention, and by DeleteRecords to the middle of a segment."""
    log = transactions(folder)
    log.update_high_watermark(log.log_end_offset)
    log.update_config(LogConfig(segment_bytes=20_000, retention_bytes=60_000, file_delete_delay_ms=0))
    assert log.apply_retention(NOW_MS) > 0
    assert log.maybe_increment_log_start_offset(log.segments.first.base_offset + 11)
    return log


def recovered(folder: Path) -> Log:
    """Killed in the middle of a write, indexes lost and old; more is appended."""
    log = transactions(folder)
    log.close_files()
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-50])
    for number, path in enumerate(sorted(folder.glob("*index"))):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:24] + bytes(240))
    again = open_log(folder, config=CONFIG, is_clean=False)
    fill(again, 30, epoch=7)
    return again


def preallocated(folder: Path) -> Log:
    log = open_log(folder, config=LogConfig(segment_bytes=20_000, index_interval_bytes=500, preallocate=True))
    fill(log, 300)
    return log


def copied(folder: Path) -> Log:
    """A follower's, in pieces that are not the leader's batches one by one."""
    source = transactions(folder.with_name("source-0"))
    log = open_log(folder, config=CONFIG)
    pieces = [bytes(data) for _, data in source.reader.records_since(0)]
    for at in range(0, len(pieces), 7):
        log.append_as_follower(b"".join(pieces[at : at + 7]), leader_epoch=9, now_ms=NOW_MS)
    assert log.log_end_offset == source.log_end_offset
    source.close_files()
    return log


def clean(log: Log, cleaned_to: int | None, now_ms: int, *, max_keys: int = 300) -> int:
    """One cleaning and the removal of what it replaces; up to where the log is clean."""
    ends: list[int | None] = []
    log.update_high_watermark(log.log_end_offset)
    chosen = cleaner.measure(log, cleaned_to=cleaned_to, now_ms=now_ms)
    cleaner.cleaning_job(
        chosen,
        now_ms=now_ms,
        on_done=lambda log, end: ends.append(end),
        dedupe_buffer_bytes=BYTES_A_KEY * max_keys,
    ).complete()
    for deleted in log.files.deleted_files:
        deleted.remove()
    log.files.deleted_files = []
    assert ends[0] is not None
    return ends[0]


def compacted(folder: Path) -> Log:
    """Keys, tombstones and codecs, cleaned again and again while it is written."""
    random = Random(3)
    log = open_log(folder, config=COMPACTED)
    cleaned, now_ms = None, NOW_MS
    for number in range(900):
        rows = [
            Record(
                at, now_ms + random.randrange(50), b"%d" % random.randrange(200),
                b"v" * 30 if random.random() < 0.8 else None, (),
            )
            for at in range(4)
        ]  # fmt: skip
        codec = random.choice((Compression.NONE, Compression.NONE, Compression.LZ4))
        append(log, bytearray(build_batch(rows, compression=codec)), epoch=number // 300, now_ms=now_ms)
        now_ms += 20
        if number % 200 == 199:
            cleaned = clean(log, cleaned, now_ms)
    assert any(header.delete_horizon_ms is not None for header, _ in log.reader.records_since(0))
    return log


def compacted_transactions(folder: Path) -> Log:
    """Aborted transactions lose their records, then their markers; empty batches remember the producers."""
    log = open_log(folder, config=COMPACTED)
    transact(log, 200)
    for producer_id in range(3):
        end = marker(producer_id=producer_id, commit=producer_id != 1, timestamp=NOW_MS + 500)
        log.append_as_leader(end, leader_epoch=2, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    fill(log, 60, epoch=2)
    cleaned = clean(log, None, NOW_MS)
    fill(log, 60, epoch=3)
    cleaned = clean(log, cleaned, NOW_MS + 2_000)
    fill(log, 30, epoch=3)
    return log


def compacted_and_recovered(folder: Path) -> Log:
    compacted(folder).close_files()
    return open_log(folder, config=COMPACTED, is_clean=False)


def split(folder: Path) -> Log:
    """A log from before Kafka 1.1, whose offsets are too far apart for one segment (KAFKA-6264)."""
    folder.mkdir()
    data, position = bytearray(), 0
    for number in range(60):
        data += batch(2, value=b"v" * 80, timestamp=NOW_MS + number)
        patch(data, base_offset=number * 2**27, leader_epoch=0, position=position)
        position = len(data)
    (folder / f"{0:020d}.log").write_bytes(data)
    log = open_log(folder, config=CONFIG)
    assert len(log.segments) > 3
    return log


KINDS: list[Callable[[Path], Log]] = [
    transactions, codecs, truncated, restarted_empty, trimmed, recovered, preallocated, copied, compacted,
    compacted_transactions, compacted_and_recovered, split,
]  # fmt: skip
#: Those that lack offsets: truncated within a batch, compacted, or made so.
WITH_HOLES = {"truncated", "compacted", "compacted_transactions", "compacted_and_recovered", "split"}
_HOLES = "Non-consecutive offsets in "
_MISMATCH = "Found timestamp mismatch in :"
_HEADS = (_HOLES, _MISMATCH)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A closed log of each kind."""
    made = {}
    for kind in KINDS:
        log = kind(tmp_path_factory.mktemp(kind.__name__) / "orders-0")
        log.close()
        for deleted in log.files.deleted_files:
            deleted.remove()
        made[kind.__name__] = log.directory
    return made


@pytest.fixture(scope="module")
def live_folders(tmp_path_factory) -> Iterator[dict[str, Path]]:
    """A log of each kind that is in use; and two whose active segments have one index entry, and none."""
    logs = {}
    for kind in [*KINDS, lambda folder: few(folder, 9), lambda folder: few(folder, 1)]:
        name = f"{kind.__name__}{len(logs)}"
        if kind is not preallocated:  # its log file ends with zeros, as Kafka's
            logs[name] = kind(tmp_path_factory.mktemp("live") / "orders-0")
    yield {name: log.directory for name, log in logs.items()}
    for log in logs.values():
        log.close()


def few(folder: Path, count: int) -> Log:
    log = open_log(folder, config=CONFIG)
    fill(log, count)
    return log


def dump(folders: dict[str, Path], *options: str) -> str:
    """The output of Kafka's dump tool for all files of all folders, which must have no error and no omission."""
    files = [
        str(path)
        for folder in folders.values()
        for path in sorted(folder.iterdir())
        if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    ]
    done = run_tool("kafka-dump-log", "--files", ",".join(files), *options)
    assert done.returncode == 0, done.stderr
    for complaint in ("isvalid: false", "invalid bytes"):
        assert complaint not in done.stdout
    for path in files:
        assert f"Dumping {path}\n" in done.stdout
    holes: dict[str, list[tuple[int, int]]] = {}
    about = ""
    for line in done.stderr.splitlines():
        if line.startswith(_HEADS):
            about = line
        elif about.startswith(_MISMATCH):
            # The tool looks for records; of a batch that compaction has emptied, as Kafka does, only the time is left.
            assert line.endswith(", log timestamp: -1"), line
            assert "compacted" in about
        elif not line.startswith("SLF4J: "):
            # Anything else than a hole is a complaint.
            before, _, after = line.strip().partition(" is followed by ")
            name = about.removeprefix(_HOLES)
            holes.setdefault(name, []).append((int(before), int(after)))
    for kind, folder in folders.items():
        for path in folder.glob("*.log") if kind not in WITH_HOLES else ():
            first = int(path.stem)
            assert holes.pop(str(path), [(-1, first)]) == [(-1, first)], path
    return done.stdout


def test_every_batch_and_record(folders):
    text = dump(folders, "--deep-iteration")
    assert text.count("isvalid: true") > 3_000
    assert "endTxnMarker: ABORT" in text
    assert "producerId: 2 producerEpoch: 0 coordinatorEpoch: 0" in text
    assert "deleteHorizonMs: OptionalLong[" in text
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec} " in text
    assert "LogAppendTime" in text


def test_every_index(folders):
    dump(folders, "--verify-index-only")


def test_every_index_of_a_log_that_is_in_use(live_folders):
    """The tool takes what an index file has for its entries: there must be no room for more in it."""
    files = [str(path) for folder in live_folders.values() for path in sorted(folder.glob("*index"))]
    done = run_tool("kafka-dump-log", "--files", ",".join(files), "--verify-index-only")
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stderr.splitlines() if not line.startswith("SLF4J: ")]
    # As in closed logs: the batch is one that compaction has emptied.
    assert all(line.startswith(_MISMATCH) or line.endswith(", log timestamp: -1") for line in found), found


def test_indexes_pass_kafkas_sanity_check(folders):
    text = dump(folders, "--index-sanity-check")
    indexes = [
        path for folder in folders.values() for path in folder.glob("*index") if path.suffix != ".txnindex"
    ]
    assert len(indexes) > 100
    for path in indexes:
        assert f"{path} passed sanity check." in text or f"{path} is empty." in text
        assert path.stat().st_size or f"{path} passed" not in text or path.suffix == ".timeindex"


def test_aborted_transactions(folders):
    """All that our indexes hold, in the same words; compaction has taken some with their records."""
    output = dump(folders).splitlines()
    counts = {}
    for kind, folder in folders.items():
        for path in sorted(folder.glob("*.txnindex")):
            index = TransactionIndex(path, base_offset=int(path.stem), files=Files(), is_new=False)
            counts[kind] = counts.get(kind, 0) + len(index.entries)
            for it in index.entries:
                assert (
                    f"version: 0 producerId: {it.producer_id} firstOffset: {it.first_offset} "
                    f"lastOffset: {it.last_offset} lastStableOffset: {it.last_stable_offset}"
                ) in output
    assert counts["transactions"] == counts["recovered"] == counts["copied"] > 3
    assert 0 < counts["truncated"] < counts["transactions"]
