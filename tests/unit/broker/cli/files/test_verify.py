"""Verification finds nothing in what storage wrote, and whatever is changed in it."""

import json
import shutil
from struct import pack, unpack_from
from uuid import UUID

import pytest
from click.testing import CliRunner

from ottla.command_line import main
from ottla.protocol.records.batch import batches, patch
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Record
from ottla.protocol.types import TopicPartition
from ottla.remote.topic_metadata import snapshot
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.topic import Position
from ottla.storage.checkpoints import OffsetCheckpoint
from ottla.storage.files import Files
from ottla.storage.leader_epoch_cache import EpochEntry, encode
from ottla.storage.manager.log_directory import METADATA_TOPIC_ID
from ottla.storage.verify import Bound, compare, inspect, verify
from ottla.storage.verify.log_file import LogFile
from tests.unit.broker.cli.files.files_support import CONFIG, fill, flip, make_folder
from tests.unit.storage.storage_support import NOW_MS, batch, open_log


def errors(directory, **options):
    return [finding for finding in verify(directory, Files(), **options) if finding.is_error]


def run(*arguments):
    return CliRunner().invoke(main, ["verify-log", *map(str, arguments)])


def segment(directory, number, extension):
    """A file of the n-th segment."""
    return sorted(directory.glob("*.log"))[number].with_suffix(extension)


def test_nothing_is_wrong_in_a_folder_that_was_closed(made):
    report = inspect(made, Files(), is_deep=True)
    assert report.findings == []
    orders = next(part for part in report.partitions if part.directory.name == "orders-0")
    assert (orders.first_offset, orders.end_offset, orders.batches_count) == (0, 246, 124)
    assert orders.segments_count > 3
    assert orders.size_bytes == sum(path.stat().st_size for path in (made / "orders-0").glob("*.log"))


def test_nothing_is_wrong_in_a_log_that_is_open(tmp_path):
    log = open_log(tmp_path / "orders-0", config=CONFIG)
    fill(log)
    assert errors(log.directory) == []
    log.flush()
    log.close()
    assert errors(log.directory) == []


def test_nothing_is_changed(folder):
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }
    verify(folder, Files())
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }
    assert after == before


# -- one bit -------------------------------------------------------------------------------------------

#: Where the fields of a batch lie.
HEADER = {
    "base offset": 7, "length": 11, "leader epoch": 15, "magic": 16, "crc": 17, "attributes": 22,
    "last offset delta": 26, "base timestamp": 34, "max timestamp": 42, "producer id": 50,
    "producer epoch": 52, "base sequence": 56, "records count": 60, "record": 70,
}  # fmt: skip


@pytest.mark.parametrize("bit", [0, 5])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("field", HEADER)
def test_every_field_of_a_batch(folder, field, number, bit):
    log = segment(folder / "orders-0", 1, ".log")
    positions = [position for _, position, _ in LogFile(log, Files()).batches()]
    position = positions[number] + HEADER[field]
    flip(log, position, bit=bit)
    found = errors(folder)
    assert found
    assert {finding.path.parent for finding in found} == {folder / "orders-0"}
    assert run(folder).exit_code == 1


@pytest.mark.parametrize("field", HEADER)
def test_every_field_of_the_only_batch(folder, field):
    flip(folder / "orders-1" / "00000000000000000000.log", HEADER[field], bit=1)
    assert errors(folder)


@pytest.mark.parametrize("bit", [0, 4])
@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("number", [0, -1])
def test_every_byte_of_an_offset_index_entry(folder, number, byte, bit):
    index = segment(folder / "orders-0", 1, ".index")
    count = index.stat().st_size // 8
    flip(index, number % count * 8 + byte, bit=bit)
    found = errors(folder)
    assert {finding.path for finding in found} == {index}


@pytest.mark.parametrize("bit", [0, 4])
@pytest.mark.parametrize("byte", range(12))
@pytest.mark.parametrize("number", [0, -1])
def test_every_byte_of_a_time_index_entry(folder, number, byte, bit):
    index = segment(folder / "orders-0", 1, ".timeindex")
    count = index.stat().st_size // 12
    flip(index, number % count * 12 + byte, bit=bit)
    found = errors(folder)
    assert {finding.path for finding in found} == {index}


@pytest.mark.parametrize("byte", range(34))
def test_every_byte_of_an_aborted_transaction(folder, byte):
    (index,) = (folder / "orders-0").glob("*.txnindex")
    flip(index, 34 + byte)
    assert {finding.path for finding in errors(folder)} == {index}


@pytest.mark.parametrize("number", [0, 1, -1])
def test_every_byte_of_a_producer_snapshot(folder, number):
    snapshot = sorted((folder / "orders-0").glob("*.snapshot"))[number]
    for position in range(snapshot.stat().st_size):
        flip(snapshot, position)
        assert {finding.path for finding in errors(folder / "orders-0")} == {snapshot}, position
        flip(snapshot, position)


def test_every_byte_of_the_leader_epochs(folder):
    path = folder / "orders-0" / "leader-epoch-checkpoint"
    for position, byte in enumerate(path.read_bytes()):
        if chr(byte).isdigit():
            flip(path, position)
            assert {finding.path for finding in errors(folder / "orders-0")} == {path}, position
            flip(path, position)


# -- whole files ---------------------------------------------------------------------------------------


def _drop_middle_segment(directory):
    for extension in (".log", ".index", ".timeindex"):
        segment(directory, 1, extension).rename(directory / f"x{extension}")


def _drop_log_only(directory):
    segment(directory, 1, ".log").unlink()


def _drop_offset_index(directory):
    segment(directory, 1, ".index").unlink()


def _drop_time_index(directory):
    segment(directory, 1, ".timeindex").unlink()


def _drop_transaction_index(directory):
    next(directory.glob("*.txnindex")).unlink()


def _drop_epochs(directory):
    (directory / "leader-epoch-checkpoint").unlink()


def _cut_log(directory):
    log = segment(directory, 1, ".log")
    log.write_bytes(log.read_bytes()[:-1])


def _cut_index(directory):
    index = segment(directory, 1, ".index")
    index.write_bytes(index.read_bytes()[:-1])


def _cut_last_time(directory):
    index = segment(directory, 1, ".timeindex")
    index.write_bytes(index.read_bytes()[:-12])


def _garbage_behind_log(directory):
    log = segment(directory, -1, ".log")
    log.write_bytes(log.read_bytes() + b"garbage" * 20)


def _zeros_behind_closed_log(directory):
    log = segment(directory, 0, ".log")
    log.write_bytes(log.read_bytes() + bytes(1000))


def _zeros_behind_closed_index(directory):
    index = segment(directory, 0, ".index")
    index.write_bytes(index.read_bytes() + bytes(800))


def _renamed_segment(directory):
    log = segment(directory, 1, ".log")
    for extension in (".log", ".index", ".timeindex"):
        path = log.with_suffix(extension)
        path.rename(path.with_name(f"{int(path.stem) + 1:020d}{extension}"))


def _older_epoch_behind(directory):
    log = segment(directory, -1, ".log")
    extra = bytearray(build_batch([Record(246, NOW_MS, None, b"x")], base_offset=246, leader_epoch=1))
    log.write_bytes(log.read_bytes() + extra)


def _same_offsets_again(directory):
    log = segment(directory, 1, ".log")
    data = log.read_bytes()
    log.write_bytes(data + data[:1000])


def _epoch_behind_the_end(directory):
    path = directory / "leader-epoch-checkpoint"
    entries = [EpochEntry(0, 0), EpochEntry(1, 90), EpochEntry(2, 180), EpochEntry(3, 240)]
    assert path.read_bytes() == encode(entries)
    path.write_bytes(encode([*entries, EpochEntry(4, 247)]))


def _epochs_that_go_back(directory):
    (directory / "leader-epoch-checkpoint").write_bytes(encode([EpochEntry(3, 0), EpochEntry(1, 90)]))


def _snapshot_behind_the_end(directory):
    newest = max(directory.glob("*.snapshot"))
    newest.rename(directory / "00000000000000009999.snapshot")


def _snapshot_of_another_offset(directory):
    newest = max(directory.glob("*.snapshot"))
    newest.rename(directory / "00000000000000000210.snapshot")


def _zero_topic_id(directory):
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")


DAMAGES = [value for name, value in list(globals().items()) if name.startswith("_") and callable(value)]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_what_happens_to_whole_files(folder, damage):
    damage(folder / "orders-0")
    assert errors(folder)
    assert run("--json", folder).exit_code == 1


DATA_FOLDER = {
    "meta.properties": ["", None, "cluster.id=x\nversion=1\nnode.id=one\n", "version=0\n"],
    "recovery-point-offset-checkpoint": ["0\n1\norders 0 247\n", "0\n2\norders 0 5\n", "1\n0\n", "garbage\nx\n",
                                         "0\n2\norders 0 5\norders 0 6\n", "0\n2\norders 1 5\norders 01 5\n"],
    "replication-offset-checkpoint": ["0\n1\norders 1 6\n"],
    "log-start-offset-checkpoint": ["0\n1\norders 0 -1\n"],
    "cleaner-offset-checkpoint": ["0\n1\nempty 0 1\n"],
    ".kafka_cleanshutdown": ["{", "[]", "{}", '{"version":0,"brokerEpoch":"5"}'],
    "bootstrap.checkpoint": ["garbage"],
    "orders-1/partition.metadata": [
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAZQ", "garbage",
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
    ],
    "__cluster_metadata-0/quorum-state": ["", "{}"],
    "__cluster_metadata-0/00000000000000000009-0000000001.checkpoint": ["", "garbage"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name in DATA_FOLDER for text in DATA_FOLDER[name]]
)
def test_files_of_the_data_folder(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.parent.name == "__cluster_metadata-0":
        (path.parent / "quorum-state").write_text('{"leaderEpoch": 1}')
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert {finding.path for finding in errors(folder)} == {path}


def metadata_log(folder, *, epochs=(0, 1, 2), first_offset=0):
    """A quorum's log as a clean stop leaves it: `quorum-state` of its newest epoch, a topic id, no recovery point."""
    log = open_log(
        folder / "__cluster_metadata-0",
        config=CONFIG,
        topic_id=METADATA_TOPIC_ID,
        log_start_offset=first_offset,
    )
    for epoch in epochs:
        log.append_as_leader(batch(3), leader_epoch=epoch, now_ms=NOW_MS)
    log.close()
    (log.directory / "quorum-state").write_text(json.dumps({"leaderEpoch": max(epochs), "leaderId": 1}))
    return log.directory


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        # Batches of epochs 0 to 2:
        ({"leaderEpoch": 2}, None),
        ({"leaderEpoch": 3}, None),                     # an election that has written nothing yet
        ({"leaderEpoch": 1}, "leaderEpoch 1, but the log has epoch 2"),
        ({"leaderEpoch": 0}, "leaderEpoch 0, but the log has epoch 2"),
        ({"leaderEpoch": -1}, "does not say"),
        ({"leaderEpoch": True}, "does not say"),
        ([], "no JSON object"),
        (None, "the file is missing"),
    ],
)  # fmt: skip
def test_the_quorums_epoch_is_not_older_than_its_log(folder, state, reported):
    path = metadata_log(folder) / "quorum-state"
    if state is None:
        path.unlink()
    else:
        path.write_text(json.dumps(state))
    assert [(it.path, reported in it.message) for it in errors(folder)] == (
        [] if reported is None else [(path, True)]
    )
    assert [it.path for it in errors(path.parent)] == ([] if reported is None else [path])


def test_a_quorum_that_has_not_begun_has_no_state(folder):
    (folder / "__cluster_metadata-0").mkdir()
    assert errors(folder) == []


def test_a_snapshots_epoch_is_known_to_the_quorum(folder):
    directory = metadata_log(folder)
    snapshot = directory / f"{6:020d}-{4:010d}.checkpoint"
    snapshot.write_bytes(b"")
    found = {it.path for it in errors(folder)}
    assert found == {snapshot, directory / "quorum-state"}  # the former is empty


def test_what_a_metadata_log_has_lost_is_in_a_snapshot(folder):
    directory = metadata_log(folder, first_offset=50)
    (found,) = errors(folder)
    assert found.path == directory
    assert "begins at 50, and no snapshot" in found.message


def test_the_metadata_log_has_its_own_topic_id(folder):
    path = metadata_log(folder) / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ")
    assert [it.path for it in errors(folder)] == [path]


def test_a_snapshot_of_a_clean_stop_that_is_missing_is_noted(folder):
    """It is also noted for the log's folder alone. After a crash it is expected."""
    newest = max((folder / "orders-0").glob("*.snapshot"))
    assert newest.name == f"{246:020d}.snapshot"
    newest.unlink()
    for directory in (folder, folder / "orders-0"):
        (note,) = verify(directory, Files())
        assert (note.path, note.is_error) == (newest, False)
    (folder / ".kafka_cleanshutdown").unlink()
    assert verify(folder, Files()) == []


@pytest.mark.parametrize(
    "name",
    ["orders-0/00000000000000000000.log.deleted", "orders-0/00000000000000000000.log.cleaned",
     "orders-0/00000000000000000000.index.swap", "orders-0/leader-epoch-checkpoint.tmp", "orders-0/stranger",
     "orders-7.0123456789abcdef0123456789abcdef-delete/x", "orders-7.0123456789abcdef0123456789abcdef-stray/x",
     "strange/x"],
)  # fmt: skip
def test_leftovers_are_noted(folder, name):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"anything")
    (note,) = verify(folder, Files())
    assert not note.is_error
    assert note.path in (path, path.parent)
    done = run(folder)
    assert done.exit_code == 0
    assert f"note: {note}" in done.output


# -- logs that lack offsets ----------------------------------------------------------------------------


def _write_gap(tmp_path, *, lost_records: bool):
    """Offsets 0 to 4 and 10 to 14; with `lost_records` the last batch once had more records."""
    directory = tmp_path / "kept-0"
    log = open_log(directory, config=CONFIG)
    for base in (0, 10):
        data = batch(5, base_offset=base, leader_epoch=0)
        log.append_as_follower(memoryview(data), leader_epoch=0, now_ms=NOW_MS)
    if lost_records:
        rows = [Record(15, NOW_MS, b"k", b"v"), Record(17, NOW_MS, b"k", b"v")]
        data = bytearray(build_batch(rows, base_offset=15, leader_epoch=0))
        log.append_as_follower(memoryview(data), leader_epoch=0, now_ms=NOW_MS)
    log.close()
    return directory


def test_missing_offsets_are_an_error_unless_the_log_is_compacted(tmp_path):
    directory = _write_gap(tmp_path, lost_records=False)
    (finding,) = errors(directory)
    assert "offsets 5 to 9 are missing" in finding.message
    assert errors(directory, is_compacted=True) == []
    assert run("--compacted", directory).exit_code == 0
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nkept 0 15\n")
    assert errors(directory) == []


def test_a_batch_that_has_lost_records_shows_compaction(tmp_path):
    assert errors(_write_gap(tmp_path, lost_records=True)) == []


def test_a_log_whose_beginning_was_deleted(tmp_path):
    directory = make_folder(tmp_path / "data") / "orders-0"
    for path in list(directory.iterdir()):
        if path.name < "00000000000000000120" and path.suffix in (
            ".log",
            ".index",
            ".timeindex",
            ".snapshot",
        ):
            path.unlink()
    first = min(int(path.stem) for path in directory.glob("*.log"))
    entries = [EpochEntry(1, first), EpochEntry(2, 180), EpochEntry(3, 240)]
    (directory / "leader-epoch-checkpoint").write_bytes(encode(entries))
    assert 90 < first < 180
    assert [str(finding) for finding in errors(directory)] == []


# -- comparing -----------------------------------------------------------------------------------------


def test_replicas_with_other_segments_are_equal(made, tmp_path):
    source = open_log(tmp_path / "a" / "orders-0", config=CONFIG)
    fill(source)
    copy = open_log(tmp_path / "b" / "orders-0")
    for header, data in source.reader.records_since(0):
        if header.next_offset < 210:
            copy.append_as_follower(memoryview(bytearray(data)), leader_epoch=3, now_ms=NOW_MS)
    source.close()
    copy.close()
    for one, two in ((source, copy), (copy, source)):
        (part,) = compare(one.directory, two.directory, files=Files()).partitions
        assert part.findings == []
        assert part.end_offset == copy.log_end_offset


@pytest.mark.parametrize(
    ("field", "reported"), [("leader epoch", "partition_leader_epoch"), ("record", "records")]
)
def test_replicas_that_differ(folder, made, field, reported):
    log = segment(folder / "orders-0", 1, ".log")
    flip(log, HEADER[field])
    report = compare(made, folder, files=Files())
    (finding,) = report.findings
    assert finding.offset == int(log.stem)
    assert reported in finding.message
    done = run(made, "--compare", folder)
    assert done.exit_code == 1
    assert str(finding) in done.output


def checkpoint(directory, name, offset):
    """The checkpoint row of the log, in the folder above it."""
    OffsetCheckpoint(directory.parent / name, Files()).write({TopicPartition("orders", 0): offset})


def replica(directory, sizes, *, epochs=None, config=CONFIG):
    """A log of batches of these many records, as a leader of these epochs wrote them."""
    log = open_log(directory, config=config)
    for number, (count, epoch) in enumerate(zip(sizes, epochs or [0] * len(sizes), strict=True)):
        data = batch(count, timestamp=NOW_MS + number)
        log.append_as_leader(data, leader_epoch=epoch, now_ms=NOW_MS)
    log.close()
    return log.directory


def test_three_brokers(tmp_path):
    """All are held against the one that ends last: two that agree with each other do not outvote it."""
    longest = replica(tmp_path / "1" / "orders-0", [2, 3, 4, 5])
    replica(tmp_path / "2" / "orders-0", [2, 3, 4])
    replica(tmp_path / "3" / "orders-0", [2, 3])
    replica(tmp_path / "3" / "alone-0", [1])
    report = compare(tmp_path / "2", tmp_path / "1", tmp_path / "3", files=Files())
    assert [(part.directory.parent.name, part.end_offset, part.batches_count) for part in report.partitions] == [
        ("2", 9, 3), ("3", 5, 2),
    ]  # fmt: skip
    (note,) = report.findings
    assert not note.is_error
    assert note.path.name == "alone-0"
    flip(longest / f"{0:020d}.log", 70)
    done = run(tmp_path / "2", "--compare", tmp_path / "3", "--compare", tmp_path / "1")
    assert done.exit_code == 1
    assert done.output.count("error: ") == 2


@pytest.mark.parametrize(
    ("high_watermarks", "is_equal", "end"),
    [
        ((5, 9), True, 5),
        ((9, 5), True, 5),
        ((5, None), True, 5),
        ((9, 9), False, 5),
        ((None, None), False, 5),
    ],
)
def test_up_to_the_lower_high_watermark(tmp_path, high_watermarks, is_equal, end):
    """Each of two leaders has written something of its own behind offset 5."""
    paths = [
        replica(tmp_path / str(number) / "orders-0", [2, 3, 4], epochs=[0, 0, number]) for number in (1, 2)
    ]
    for path, offset in zip(paths, high_watermarks, strict=True):
        if offset is not None:
            checkpoint(path, "replication-offset-checkpoint", offset)
    report = compare(tmp_path / "1", tmp_path / "2", files=Files(), up_to=Bound.HIGH_WATERMARK)
    assert report.is_sound is is_equal
    assert report.partitions[0].end_offset == end
    assert not compare(*paths, files=Files()).is_sound
    done = run(tmp_path / "1", "--compare", tmp_path / "2", "--up-to", "high-watermark")
    assert done.exit_code == (0 if is_equal else 1)


def test_a_torn_tail_is_above_the_high_watermark_or_a_loss(tmp_path):
    paths = [replica(tmp_path / str(number) / "orders-0", [2, 3, 4]) for number in (1, 2)]
    log = paths[1] / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    for path in paths:
        checkpoint(path, "replication-offset-checkpoint", 5)
    assert compare(*paths, files=Files(), up_to=Bound.HIGH_WATERMARK).findings == []
    for path in paths:
        checkpoint(path, "replication-offset-checkpoint", 9)
    (finding,) = compare(*paths, files=Files(), up_to=Bound.HIGH_WATERMARK).findings
    assert finding.path == paths[1]
    assert "high watermark 9 are missing" in finding.message


def test_replicas_that_begin_at_different_offsets(tmp_path):
    """Batches before the later log start are only one's; after it, one that is missing is a difference."""
    paths = [replica(tmp_path / str(number) / "orders-0", [2, 3, 4, 5]) for number in (1, 2)]
    checkpoint(paths[0], "log-start-offset-checkpoint", 5)
    log = paths[1] / f"{0:020d}.log"
    data = log.read_bytes()
    sizes = [header.size_bytes for header, _ in batches(memoryview(data))]
    log.write_bytes(data[sum(sizes[:2]) :])
    (part,) = compare(*paths, files=Files()).partitions
    assert (part.findings, part.first_offset, part.end_offset) == ([], 5, 14)
    log.write_bytes(data[sum(sizes[:3]) :])
    assert not compare(*paths, files=Files()).is_sound


def test_replicas_that_were_compacted_each_on_its_own(tmp_path):
    """Before the higher clean offset records may be missing in either; what both have, and all behind it, is equal."""
    paths = []
    for number in (1, 2):
        log = open_log(tmp_path / str(number) / "orders-0")
        for at in range(4):
            kept = [
                Record(at * 3 + n, NOW_MS, b"%d" % n, b"v", ()) for n in range(3) if at > 1 or n != number
            ]
            data = bytearray(build_batch(kept, base_offset=at * 3, last_offset=at * 3 + 2, leader_epoch=0))
            if (number, at) != (1, 0):
                log.append_as_follower(memoryview(data), leader_epoch=0, now_ms=NOW_MS)
        log.close()
        paths.append(log.directory)
    assert not compare(*paths, files=Files()).is_sound
    checkpoint(paths[0], "cleaner-offset-checkpoint", 6)
    (part,) = compare(*paths, files=Files()).partitions
    assert (part.findings, part.batches_count, part.end_offset) == ([], 3, 12)
    checkpoint(paths[0], "cleaner-offset-checkpoint", 3)
    (finding,) = compare(*paths, files=Files()).findings
    assert finding.offset == 3
    checkpoint(paths[0], "cleaner-offset-checkpoint", 6)
    data = bytearray((paths[1] / f"{0:020d}.log").read_bytes())
    sizes = [header.size_bytes for header, _ in batches(memoryview(data))]
    (shared,) = [at for at in range(sizes[0], sizes[0] + sizes[1]) if data[at : at + 3] == b"\x02" + b"0\x02"]
    data[shared + 3] ^= 1  # the value of the one record that both have
    (paths[1] / f"{0:020d}.log").write_bytes(data)
    (finding,) = compare(*paths, files=Files()).findings
    assert "the record at offset 3" in finding.message


def test_replicas_of_two_topics_of_one_name(folder, made):
    path = folder / "orders-1" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ")
    (finding,) = (it for it in compare(made, folder, files=Files()).findings if it.is_error)
    assert finding.path.name == "partition.metadata"
    assert finding.path.parent.name == "orders-1"


def test_folders_of_two_clusters(folder, made):
    path = folder / "meta.properties"
    path.write_text(path.read_text().replace("q1Sh-9_ISia_zwGINzRvyQ", "AAAAAAAAAAAAAAAAAAAAAQ"))
    (finding,) = (it for it in compare(made, folder, files=Files()).findings if it.is_error)
    assert finding.path == path


def test_a_log_that_one_folder_lacks_is_noted(folder, made):
    shutil.rmtree(folder / "empty-0")
    (finding,) = compare(made, folder, files=Files()).findings
    assert not finding.is_error
    assert finding.path == made / "empty-0"


# -- the command ---------------------------------------------------------------------------------------


def test_the_table(made):
    done = run(made)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].split() == ["log", "segments", "batches", "bytes", "offsets", "errors"]
    assert lines[1].split() == ["empty-0", "1", "0", "0", "[0,", "0)", "0"]
    assert lines[-1].startswith("3 logs, ")
    assert lines[-1].endswith("nothing is wrong, 0 notes")


def test_json(folder):
    flip(folder / "orders-1" / "00000000000000000000.log", 70)
    rows = [json.loads(line) for line in run("--json", folder).output.splitlines()]
    assert [row["kind"] for row in rows[:3]] == ["log", "log", "log"]
    assert {row["kind"] for row in rows[3:]} == {"error"}
    assert ("the batch's CRC is wrong", 0, 0) in [
        (row["message"], row["position"], row["offset"]) for row in rows[3:]
    ]


def test_offsets_patched_consistently_are_still_seen(folder):
    """Base offset and epoch are outside of the CRC: only their neighbours and the epochs show it."""
    log = segment(folder / "orders-0", 1, ".log")
    data = bytearray(log.read_bytes())
    base, _, epoch = unpack_from(">qii", data)
    patch(data, base_offset=base - 1, leader_epoch=epoch)
    log.write_bytes(data)
    assert errors(folder)
    data[0:16] = pack(">qii", base, unpack_from(">i", data, 8)[0], epoch)
    log.write_bytes(data)
    assert errors(folder) == []


def test_what_the_remote_tier_keeps_in_a_folder_is_known(folder):
    """A damaged snapshot is no error: the topic is read again."""
    data = snapshot.encode(
        CopiesOverview(metadata_partition=0), metadata_topic_id=UUID(int=1), position=Position(7)
    )[1]
    path = folder / "orders-0" / CopiesOverview.file_name
    path.write_bytes(data)
    assert run(folder).output.splitlines()[-1].endswith("nothing is wrong, 0 notes")
    path.write_bytes(data[:-1])
    done = run(folder)
    assert done.exit_code == 0
    assert f"note: {path}: not used, and written again: the columns' CRC is wrong" in done.output
