"""Kafka's own storage classes on a copy of our log: its cleaner makes the same files of it, byte for byte, and so does its
splitting of segments whose offsets overflow.

Uncompressed: a codec's bytes are its library's affair.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from protocol.records.builder import build_batch
from protocol.records.record import Record
from storage.log import AppendOrigin, Log
from tests.compat.test_dumped_files import COMPACTED, append, clean, fill, split, transact
from tests.harness import fetch
from tests.unit.storage.storage_support import NOW_MS, marker, open_log

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.environ.get("KAFKA_ORACLE") == "1", reason="is about our own files"),
]

_ORACLE = Path(__file__).parent / "StorageOracle.java"
_CONFIG = (
    "internal.segment.bytes=6000", "index.interval.bytes=200", "cleanup.policy=compact", "delete.retention.ms=1000",
    "file.delete.delay.ms=0",
)  # fmt: skip


def kafka(directory: Path, *rounds: int, now_ms: int, is_clean: bool = True) -> str:
    """What Kafka's storage says when it opens the log's folder, cleans it, and closes it."""
    command = [
        "java", "-XX:TieredStopAtLevel=1", "-cp", f"{fetch.kafka_jars()}/*", str(_ORACLE), str(directory),
        "clean" if is_clean else "crashed", str(now_ms), *map(str, rounds), "--", *_CONFIG,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".deleted"}


def keyed(log: Log, part: int) -> None:
    """Few keys and many, tombstones, several records and one, several epochs."""
    random = Random(part)
    for number in range(250):
        keys = [b"%d" % random.randrange(random.choice((20, 2000))) for _ in range(number % 5 + 1)]
        rows = [
            Record(at, NOW_MS + random.randrange(90), key, b"v" * random.randrange(60) if random.random() < 0.7 else None)
            for at, key in enumerate(keys)
        ]  # fmt: skip
        append(log, bytearray(build_batch(rows)), epoch=part)


def transactional(log: Log, part: int) -> None:
    """Committed, aborted and empty transactions, producers that go on, and plain batches between."""
    if part == 0:
        transact(log, 130)
    for producer_id in range(3):
        for commit in (producer_id != part % 3, True):
            data = marker(producer_id=producer_id, commit=commit, timestamp=NOW_MS + 600)
            log.append_as_leader(data, leader_epoch=part, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
        for number in range(12):
            is_transactional = number < 6
            rows = [Record(at, NOW_MS + at, b"%d" % (number * 2 + at), b"v" * 40) for at in range(2)]
            data = build_batch(
                rows,
                is_transactional=is_transactional,
                producer_id=producer_id + 10 * part + (100 if is_transactional else 200),
                producer_epoch=0,
                base_sequence=number % 6 * 2,
            )
            append(log, bytearray(data), epoch=part)
        data = marker(
            producer_id=producer_id + 10 * part + 100, commit=producer_id == 1, timestamp=NOW_MS + 700
        )
        log.append_as_leader(data, leader_epoch=part, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    fill(log, 30, start=part * 30, epoch=part)


@pytest.mark.parametrize("write", [keyed, transactional])
def test_both_cleaners_make_the_same_files(tmp_path: Path, write: Callable[[Log, int], None]):
    """Three rounds with appends between, late enough for tombstones and markers to go."""
    directory = tmp_path / "orders-0"
    cleaned, now_ms = 0, NOW_MS
    for part in range(3):
        log = open_log(directory, config=COMPACTED, now_ms=now_ms)
        write(log, part)
        log.close()
        theirs = shutil.copytree(directory, tmp_path / f"kafka{part}" / "orders-0")
        log = open_log(directory, config=COMPACTED, now_ms=now_ms)
        size = log.size_bytes
        told = kafka(theirs, cleaned, log.segments.active.base_offset, now_ms=now_ms)
        cleaned = clean(log, cleaned, now_ms, max_keys=100_000)
        assert log.size_bytes < size
        end = log.log_end_offset
        log.close()
        assert told.splitlines() == [f"clean to {cleaned}", f"end {end}"]
        ours, made = files_of(directory), files_of(theirs)
        assert sorted(ours) == sorted(made)
        for name in ours:
            assert ours[name] == made[name], (part, name)
        now_ms += 800


def test_both_split_a_segment_the_same_way(tmp_path: Path):
    """Of what KAFKA-6264 left (after a crash: else Kafka does not look)."""
    (tmp_path / "first").mkdir()
    split(tmp_path / "first" / "orders-0").close_files()
    source = b"".join(path.read_bytes() for path in sorted((tmp_path / "first" / "orders-0").glob("*.log")))
    folders = [tmp_path / name / "orders-0" for name in ("ours", "kafkas")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / f"{0:020d}.log").write_bytes(source)
    log = open_log(folders[0], config=COMPACTED, is_clean=False)
    log.close()
    kafka(folders[1], now_ms=NOW_MS, is_clean=False)
    ours, made = (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".log", ".index", ".timeindex")}
        for folder in folders
    )  # fmt: skip
    assert len(ours) > 9
    assert sorted(ours) == sorted(made)
    for name in ours:
        assert ours[name] == made[name], name
