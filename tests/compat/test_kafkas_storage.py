"""Kafka's own storage classes beside ours: the same steps make the same files, byte for byte.

Appends, transactions, truncations, deletions; its cleaner on a copy of our log, and its splitting of segments whose
offsets overflow.

Uncompressed: a codec's bytes are its library's affair.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ottla.bench.components import fetch
from ottla.bench.components.processes import PATIENCE_S
from ottla.config.log_config import LogConfig
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record
from ottla.storage.log import AppendOrigin, Log
from tests.compat.test_dumped_files import COMPACTED, append, clean, fill, split, transact
from tests.unit.storage.storage_support import NOW_MS, batch, marker, open_log

_ORACLE = Path(__file__).parent / "StorageOracle.java"
_CONFIG = (
    "internal.segment.bytes=6000", "index.interval.bytes=200", "cleanup.policy=compact", "delete.retention.ms=1000",
    "file.delete.delay.ms=0",
)  # fmt: skip


def kafka(
    directory: Path,
    *steps: str,
    now_ms: int = NOW_MS,
    is_clean: bool = True,
    config: tuple[str, ...] = _CONFIG,
) -> list[str]:
    """The output of Kafka's storage classes as they open the log's folder, take the steps, and close it."""
    command = [
        "java", "-XX:TieredStopAtLevel=1", "-cp", f"{fetch.kafka_jars()}/*", str(_ORACLE), str(directory),
        "clean" if is_clean else "crashed", str(now_ms), *config,
    ]  # fmt: skip
    done = subprocess.run(
        command, input="\n".join(steps), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".deleted"}


def assert_same_files(ours: Path, kafkas: Path) -> None:
    made, expected = files_of(ours), files_of(kafkas)
    assert sorted(made) == sorted(expected)
    for name, data in expected.items():
        assert made[name] == data, name


def keyed(log: Log, part: int) -> None:
    """Few keys and many, tombstones, several records and one, several epochs."""
    random = Random(part)
    for number in range(250):
        keys = [b"%d" % random.randrange(random.choice((20, 2000))) for _ in range(number % 5 + 1)]
        rows = [
            Record(
                at, NOW_MS + random.randrange(90), key,
                b"v" * random.randrange(60) if random.random() < 0.7 else None,
            )
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
        size = log.segments.size_bytes
        output = kafka(theirs, f"clean {cleaned} {log.segments.active.base_offset}", now_ms=now_ms)
        cleaned = clean(log, cleaned, now_ms, max_keys=100_000)
        assert log.segments.size_bytes < size
        end = log.log_end_offset
        log.close()
        assert output == [f"clean to {cleaned}", f"end {end}"]
        assert_same_files(directory, theirs)
        now_ms += 800


def test_both_split_a_segment_the_same_way(tmp_path: Path):
    """The segment is one of KAFKA-6264, after a crash, since Kafka does not check it otherwise."""
    (tmp_path / "first").mkdir()
    split(tmp_path / "first" / "orders-0").close_files()
    source = b"".join(path.read_bytes() for path in sorted((tmp_path / "first" / "orders-0").glob("*.log")))
    folders = [tmp_path / name / "orders-0" for name in ("ours", "kafkas")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / f"{0:020d}.log").write_bytes(source)
    log = open_log(folders[0], config=COMPACTED, is_clean=False)
    log.close()
    kafka(folders[1], is_clean=False)
    ours, made = (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".log", ".index", ".timeindex")}
        for folder in folders
    )  # fmt: skip
    assert len(ours) > 9
    assert sorted(ours) == sorted(made)
    for name in ours:
        assert ours[name] == made[name], name


class Story:
    """Steps that our log takes at once, and Kafka's later."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.steps: list[str] = []
        self.sequences: dict[int, int] = {}

    def lead(
        self, data: bytearray, *, epoch: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> None:
        self.steps.append(f"lead {epoch} {now_ms} {origin.name} {data.hex()}")
        self.log.append_as_leader(data, leader_epoch=epoch, now_ms=now_ms, origin=origin)

    def produce(
        self, producer_id: int, *, epoch: int, now_ms: int, records: int = 2, is_open: bool = False
    ) -> None:
        """A batch in this producer's next place; its record times go to and fro."""
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + records
        data = batch(
            records, value=b"v" * 70, timestamp=now_ms - len(self.steps) * 13 % 400, is_transactional=is_open,
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
        )  # fmt: skip
        self.lead(data, epoch=epoch, now_ms=now_ms)

    def end(self, producer_id: int, *, commit: bool, epoch: int, now_ms: int) -> None:
        data = marker(producer_id=producer_id, commit=commit, timestamp=now_ms)
        self.lead(data, epoch=epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR)

    def truncate(self, offset: int) -> None:
        self.steps.append(f"truncate {offset}")
        self.log.truncate_to(offset, now_ms=NOW_MS)

    def restart(self, offset: int) -> None:
        self.steps.append(f"restart {offset}")
        self.log.truncate_fully_and_start_at(offset, now_ms=NOW_MS)

    def trim(self, offset: int) -> None:
        self.steps.append(f"trim {offset}")
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.maybe_increment_log_start_offset(offset)

    def retain(self, now_ms: int) -> None:
        self.steps.append("retain")
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.apply_retention(now_ms)


def producing(story: Story) -> None:
    """Two idempotent producers and one without ids, several epochs; segments by size and by time."""
    for number in range(300):
        now_ms = NOW_MS + number * 30
        story.produce(number % 2, epoch=number // 90, now_ms=now_ms, records=number % 4 + 1)
        if number % 3 == 0:
            story.lead(batch(3, value=b"w" * 50, timestamp=now_ms), epoch=number // 90, now_ms=now_ms)


def transacting(story: Story) -> None:
    """Transactions that overlap, some aborted, one begun and ended by nothing, one open at the end."""
    for number in range(240):
        now_ms, producer_id = NOW_MS + number * 5, number % 3
        story.produce(producer_id, epoch=number // 100, now_ms=now_ms, is_open=True)
        if number % 17 == 16:
            story.end(producer_id, commit=number % 2 == 0, epoch=number // 100, now_ms=now_ms)
    story.end(9, commit=False, epoch=3, now_ms=NOW_MS + 2_000)


def diverging(story: Story) -> None:
    """Truncated by new leaders, at and between batches and segments; then emptied, with another start."""
    transacting(story)
    for epoch, offset in ((4, 433), (5, 432), (6, story.log.segments.active.base_offset), (7, 101)):
        story.truncate(offset)
        story.sequences.clear()
        for number in range(40):
            story.produce(20 + epoch, epoch=epoch, now_ms=NOW_MS + 3_000 + epoch * 100 + number)
    story.restart(10_000)
    producing_at = NOW_MS + 9_000
    for number in range(70):
        story.produce(40, epoch=9, now_ms=producing_at + number)


def deleting(story: Story) -> None:
    """DeleteRecords in the middle of a segment, and retention; the epochs and producers of before go."""
    producing(story)
    story.trim(500)
    story.retain(NOW_MS + 9_000)
    for number in range(40):
        story.produce(50, epoch=8, now_ms=NOW_MS + 9_500 + number)


_STORIES = {
    "producing": producing, "transacting": transacting, "diverging": diverging, "deleting": deleting,
}  # fmt: skip


@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("name", _STORIES)
def test_the_same_steps_leave_the_same_files(tmp_path: Path, name: str, time: str):
    """Segments, indexes, snapshots and epochs of a leader's log, whatever happens to it."""
    log = open_log(
        tmp_path / "ours" / "orders-0",
        config=LogConfig(
            segment_bytes=6000, index_interval_bytes=200, segment_ms=2_500, message_timestamp_type=time,
            retention_ms=4_000, file_delete_delay_ms=0,
        ),
    )  # fmt: skip
    story = Story(log)
    _STORIES[name](story)
    end = log.log_end_offset
    log.close()
    config = (
        "internal.segment.bytes=6000", "index.interval.bytes=200", "segment.ms=2500", f"message.timestamp.type={time}",
        "retention.ms=4000", "file.delete.delay.ms=0",
    )  # fmt: skip
    theirs = tmp_path / "kafkas" / "orders-0"
    assert kafka(theirs, *story.steps, config=config) == [f"end {end}"]
    assert_same_files(log.directory, theirs)
