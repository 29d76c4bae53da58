"""Dumps: every file of a log's folder is shown, and garbage is reported with its position."""

import json
from random import Random
from uuid import UUID

import pytest
from click.testing import CliRunner

from ottla.broker.cli.output import text_of
from ottla.command_line import main
from ottla.metadata.frame import encode_record
from ottla.metadata.records import RECORD_CLASSES, TopicRecord
from ottla.protocol.checksum import crc32c
from ottla.protocol.codec import encode_struct
from ottla.protocol.coordinator import record_codec as group_codec
from ottla.protocol.coordinator import transaction_records
from ottla.protocol.coordinator.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.coordinator.share_state_records import SharePartitionKey, ShareUpdateValue
from ottla.protocol.coordinator.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.protocol.messages.k_raft_version_record import KRaftVersionRecord
from ottla.protocol.messages.leader_change_message import LeaderChangeMessage
from ottla.protocol.messages.leader_change_message import Voter as LeaderVoter
from ottla.protocol.messages.snapshot_footer_record import SnapshotFooterRecord
from ottla.protocol.messages.snapshot_header_record import SnapshotHeaderRecord
from ottla.protocol.messages.voters_record import Voter, VotersRecord
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import Compression
from ottla.protocol.records.quorum import build_quorum_batch
from ottla.protocol.records.record import Record
from ottla.protocol.remote import record_codec as remote_codec
from ottla.protocol.remote.records import RemoteLogSegmentMetadataUpdateRecord
from ottla.remote.topic_metadata import snapshot
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.topic import Position
from ottla.storage import kept_times
from tests.unit.broker.cli.files.files_support import flip
from tests.unit.metadata.metadata_cases import CASES as METADATA_CASES
from tests.unit.metadata.metadata_cases import versions
from tests.unit.storage.storage_support import NOW_MS

SUBSCRIPTION = bytes.fromhex("0000000000010006" + b"orders".hex() + "ffffffff")
ASSIGNMENT = bytes.fromhex("0000000000010006" + b"orders".hex() + "0000000100000002ffffffff")


def run(*arguments):
    return CliRunner().invoke(main, ["dump-log", *map(str, arguments)])


def rows_of(*arguments, exit_code=0):
    done = run("--json", *arguments)
    assert done.exit_code == exit_code, done.output[-2000:]
    return [json.loads(line) for line in done.output.splitlines()]


def write_log(directory, pairs, **fields):
    """A log file of one batch."""
    directory.mkdir(exist_ok=True)
    path = directory / "00000000000000000000.log"
    rows = [
        Record(number, NOW_MS, key, value, (("h", b"\xff"),)) for number, (key, value) in enumerate(pairs)
    ]
    path.write_bytes(build_batch(rows, **fields))
    return path


def test_batches_with_all_fields_of_their_headers(made):
    log = max((made / "orders-0").glob("*.log"))
    file, *rows = rows_of(log)
    assert file == {"kind": "file", "file": str(log), "type": "log"}
    batch = rows[-1]
    assert batch == {
        "kind": "batch", "file": str(log), "base_offset": 243, "last_offset": 245,
        "position": log.stat().st_size - batch["size_bytes"], "size_bytes": batch["size_bytes"],
        "records_count": 3, "crc": batch["crc"], "crc_is_valid": True, "magic": 2, "partition_leader_epoch": 3,
        "compression": "none", "timestamp_type": "CreateTime", "is_transactional": True, "is_control": False,
        "delete_horizon_ms": None, "base_timestamp": NOW_MS, "max_timestamp": NOW_MS + 2, "producer_id": 0,
        "producer_epoch": 0, "base_sequence": 80, "last_sequence": 82,
    }  # fmt: skip
    assert not [row for row in rows if row["kind"] == "record"]
    assert [row["type"] for row in rows if row["kind"] == "control"] == ["ABORT", "COMMIT", "ABORT"]


@pytest.mark.parametrize("codec", Compression)
def test_records_with_their_data(tmp_path, codec):
    path = write_log(
        tmp_path / "orders-0", [(b"k", "Zoë".encode()), (None, b"\x00\xff\\")], compression=codec
    )
    records = [row for row in rows_of(path, "--print-data") if row["kind"] == "record"]
    assert [(row["offset"], row["key"], row["value"]) for row in records] == [
        (0, "k", "Zoë"),
        (1, None, "\\x00\\xff\\x5c"),
    ]
    assert records[0]["headers"] == [["h", "\\xff"]]
    text = run(path, "--print-data").output
    assert f'  record offset=0 timestamp={NOW_MS} key=k value="Zoë"' in text


def test_every_file_of_the_folder(made, tmp_path):
    paths = [path for path in made.rglob("*") if path.is_file() and path.name != ".lock"]
    state = {"clusterId": "", "leaderId": 1, "leaderEpoch": 3, "votedId": -1, "data_version": 1}
    paths.append(tmp_path / "quorum-state")
    paths[-1].write_text(json.dumps(state))
    rows = rows_of(*paths)
    types = {row["type"] for row in rows if row["kind"] == "file"}
    assert types == {
        "log", "offset index", "time index", "transaction index", "producer snapshot", "leader epochs",
        "offset checkpoint", "partition metadata", "meta properties",
        "quorum state", "clean shutdown",
    }  # fmt: skip
    assert [row["content"] for row in rows if row["kind"] == "quorum"] == [state]
    assert [row["content"] for row in rows if row["kind"] == "stopped"] == [{"version": 0, "brokerEpoch": 5}]
    aborted = [row for row in rows if row["kind"] == "aborted"]
    assert [(row["producer_id"], row["first_offset"], row["last_offset"]) for row in aborted] == [
        (0, 0, 240),
        (2, 4, 242),
    ]
    epochs = [(row["epoch"], row["start_offset"]) for row in rows if row["kind"] == "epoch"]
    assert epochs.count((3, 240)) == 1
    assert {"kind": "checkpoint", "topic": "orders", "partition": 0, "offset": 246}.items() <= next(
        row for row in rows if row["kind"] == "checkpoint" and row["offset"] == 246
    ).items()
    assert run(*paths).exit_code == 0


GROUP_KEY, GROUP_VALUE = group_codec.encode(group_codec.GroupRecord(
    GroupMetadataKey(group="g"),
    GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=[
        MemberMetadata(member_id="m", subscription=SUBSCRIPTION, assignment=ASSIGNMENT),
        MemberMetadata(member_id="other", subscription=b"\0\0\1", assignment=b""),
    ]),
))  # fmt: skip
OFFSET_COMMIT = group_codec.encode(
    group_codec.GroupRecord(
        OffsetCommitKey(group="g", topic="orders", partition=2), OffsetCommitValue(offset=7)
    )
)
TRANSACTION = transaction_records.encode(
    transaction_records.TransactionRecord(
        TransactionLogKey(transactional_id="tx"), TransactionLogValue(producer_id=9, transaction_status=1)
    ),
    version=1,
)
SHARE_STATE = (
    b"\0\1" + encode_struct(SharePartitionKey, 0, SharePartitionKey(group_id="g", partition=2)),
    b"\0\0" + encode_struct(ShareUpdateValue, 0, ShareUpdateValue(start_offset=4)),
)
METADATA = (None, encode_record(TopicRecord(name="orders"), 0))
REMOTE = (None, remote_codec.encode(RemoteLogSegmentMetadataUpdateRecord(remote_log_segment_state=3)))

KNOWN = [
    ("consumer-offsets", (GROUP_KEY, GROUP_VALUE), "GroupMetadataValue", {"generation": 3}),
    ("consumer-offsets", OFFSET_COMMIT, "OffsetCommitValue", {"offset": 7}),
    ("transaction-state", TRANSACTION, "TransactionLogValue", {"transaction_status": "ONGOING", "producer_id": 9}),
    ("share-group-state", SHARE_STATE, "ShareUpdateValue", {"start_offset": 4}),
    ("cluster-metadata", METADATA, "TopicRecord", {"name": "orders"}),
    ("remote-log-metadata", REMOTE, "RemoteLogSegmentMetadataUpdateRecord",
     {"remote_log_segment_state": "DELETE_SEGMENT_FINISHED"}),
]  # fmt: skip


@pytest.mark.parametrize(("decoder", "pair", "name", "fields"), KNOWN)
def test_kafkas_own_topics_are_decoded(tmp_path, decoder, pair, name, fields):
    topic = f"__{decoder.replace('-', '_')}"
    by_folder = write_log(tmp_path / f"{topic}-3", [pair])
    elsewhere = write_log(tmp_path / "copied", [pair])
    for rows in (rows_of(by_folder, "--print-data"), rows_of(elsewhere, "--decoder", decoder)):
        (record,) = [row for row in rows if row["kind"] == "record"]
        assert record["value"]["type"] == name
        assert fields.items() <= record["value"].items()
    (record,) = [
        row for row in rows_of(by_folder, "--print-data", "--decoder", "none") if row["kind"] == "record"
    ]
    assert isinstance(record["value"], str)


def test_a_metadata_snapshot_with_every_record_there_is(tmp_path):
    """The dump has the frame and the records; as `.checkpoint`, and by Kafka's name for the decoder in any
    file."""
    frame = [
        SnapshotHeaderRecord(version=0, last_contained_log_timestamp=NOW_MS),
        KRaftVersionRecord(version=0, k_raft_version=1),
        VotersRecord(version=0, voters=[Voter(voter_id=1, voter_directory_id=UUID(int=7))]),
        LeaderChangeMessage(version=0, leader_id=1, voters=[LeaderVoter(voter_id=1)]),
    ]
    cases = [(record, version) for record in METADATA_CASES for version in versions(record)]
    records = [
        Record(offset, NOW_MS, None, encode_record(*case), ()) for offset, case in enumerate(cases, start=4)
    ]
    data = build_quorum_batch(frame, base_offset=0, leader_epoch=3, timestamp=NOW_MS)
    data += build_batch(records, base_offset=4, leader_epoch=3)
    data += build_quorum_batch(
        [SnapshotFooterRecord(version=0)], base_offset=4 + len(records), leader_epoch=3, timestamp=NOW_MS
    )
    snapshot = tmp_path / "00000000000000000009-0000000003.checkpoint"
    log = tmp_path / "00000000000000000000.log"
    for path, options in ((snapshot, ["--print-data"]), (log, ["--cluster-metadata-decoder"])):
        path.write_bytes(data)
        rows = rows_of(path, *options)
        control = [row for row in rows if row["kind"] == "control"]
        assert [row["type"] for row in control] == [
            "SNAPSHOT_HEADER", "KRAFT_VERSION", "KRAFT_VOTERS", "LEADER_CHANGE", "SNAPSHOT_FOOTER",
        ]  # fmt: skip
        assert control[0]["value"]["last_contained_log_timestamp"] == NOW_MS
        assert control[1]["value"]["k_raft_version"] == 1
        assert [voter["voter_id"] for voter in control[2]["value"]["voters"]] == [1]
        assert control[3]["value"]["leader_id"] == 1
        names = [row["value"]["type"] for row in rows if row["kind"] == "record"]
        assert names == [type(record).__name__ for record, _ in cases]
        assert len(set(names)) == len(RECORD_CLASSES)


def test_kafkas_names_of_the_decoders(tmp_path):
    path = write_log(tmp_path / "copied", [SHARE_STATE])
    (record,) = [row for row in rows_of(path, "--share-group-state-decoder") if row["kind"] == "record"]
    assert record["key"]["type"] == "ShareUpdateKey"
    path = write_log(tmp_path / "copied", [TRANSACTION])
    assert rows_of(path, "--transaction-log-decoder")[2]["value"]["producer_id"] == 9
    path = write_log(tmp_path / "copied", [OFFSET_COMMIT])
    assert rows_of(path, "--offsets-decoder")[2]["value"]["offset"] == 7
    path = write_log(tmp_path / "copied", [REMOTE])
    assert rows_of(path, "--remote-log-metadata-decoder")[2]["value"]["broker_id"] == 0


def test_members_of_a_consumer_group_are_decoded_as_far_as_they_can_be(tmp_path):
    path = write_log(tmp_path / "__consumer_offsets-0", [(GROUP_KEY, GROUP_VALUE)])
    record = next(row for row in rows_of(path, "--print-data") if row["kind"] == "record")
    first, second = record["value"]["members"]
    assert first["subscription"]["topics"] == ["orders"]
    assert first["assignment"]["assigned_partitions"] == [{"topic": "orders", "partitions": [2]}]
    assert second["subscription"] == "\\x00\\x00\\x01"


@pytest.mark.parametrize(
    "decoder",
    ["consumer-offsets", "transaction-state", "share-group-state", "cluster-metadata", "remote-log-metadata"],
)
def test_records_with_wrong_lengths_are_shown_raw_and_reported(tmp_path, decoder):
    path = write_log(tmp_path / "x-0", [(b"\0", b"\1")])
    rows = rows_of(path, "--decoder", decoder, exit_code=1)
    assert [row["kind"] for row in rows] == ["file", "batch", "record", "problem"]
    assert rows[2]["value"] == "\\x01"
    assert rows[3]["offset"] == 0


@pytest.mark.parametrize(
    ("decoder", "pair"),
    [("consumer-offsets", (b"\0\x63", b"")), ("transaction-state", (b"\0\7", None)),
     ("share-group-state", (b"\0\2", None)),
     ("cluster-metadata", (None, b"\1\x63\0")), ("remote-log-metadata", (None, b"\1\x63\0"))],
)  # fmt: skip
def test_records_of_newer_software_are_no_problem(tmp_path, decoder, pair):
    path = write_log(tmp_path / "x-0", [pair])
    assert "not_known" in rows_of(path, "--decoder", decoder)[2]


# -- garbage -------------------------------------------------------------------------------------------


def test_where_a_log_stops_being_one(folder):
    log = min((folder / "orders-0").glob("*.log"))
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + b"\xff" * 100)
    *_, last = rows_of(log, exit_code=1)
    assert (last["kind"], last["position"]) == ("problem", size)
    assert "Not a record batch" in last["message"]
    assert f"problem position={size} " in run(log).output


def test_a_batch_that_is_cut_off(folder):
    log = folder / "orders-1" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1])
    *_, last = rows_of(log, exit_code=1)
    assert (last["kind"], last["position"]) == ("problem", 0)
    assert "Incomplete batch" in last["message"]


def test_a_wrong_crc_is_reported_and_the_rest_is_shown(folder):
    log = min((folder / "orders-0").glob("*.log"))
    flip(log, 60)
    rows = rows_of(log, exit_code=1)
    assert rows[1]["crc_is_valid"] is False
    assert (rows[2]["kind"], rows[2]["position"], rows[2]["offset"]) == ("problem", 0, 0)
    assert sum(row["kind"] == "batch" for row in rows) > 10


def test_room_that_was_allocated_ahead_is_no_problem(folder):
    log = max((folder / "orders-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + bytes(1000))
    assert rows_of(log)[-1]["kind"] == "note"


@pytest.mark.parametrize("extension", [".index", ".timeindex"])
def test_an_index_that_does_not_fit_its_log(folder, extension):
    index = min((folder / "orders-0").glob("*.log")).with_suffix(extension)
    flip(index, 7)
    (problem,) = [row for row in rows_of(index, exit_code=1) if row["kind"] == "problem"]
    assert problem["position"] == 0
    index.with_suffix(".log").unlink()
    assert rows_of(index)[-1]["kind"] == "note"


def test_random_bytes_under_any_name(made, tmp_path):
    random = Random(3)
    names = sorted(
        {path.name for path in made.rglob("*") if path.is_file() and not path.name.startswith(".")}
    )
    folder = tmp_path / "__consumer_offsets-0"
    folder.mkdir()
    for name in [*names, "00000000000000000009-0000000001.checkpoint", "unheard-of"]:
        path = folder / name
        for size in (1, 13, 61, 62, 200, 3000):
            path.write_bytes(random.randbytes(size))
            done = run("--print-data", path)
            assert isinstance(done.exception, SystemExit | None), (name, size)
            if name.endswith((".log", ".checkpoint", ".snapshot", "-checkpoint", ".metadata", ".properties")):
                assert done.exit_code == 1, (name, size)
                assert "problem" in done.output, (name, size)
        path.unlink()


def test_damaged_logs_never_raise(made, tmp_path):
    """Any bit of a real log, with records and decoders in the way."""
    random = Random(4)
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    whole = max((made / "orders-0").glob("*.log")).read_bytes()
    path = folder / "00000000000000000000.log"
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(3):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        done = run("--print-data", path)
        assert isinstance(done.exception, SystemExit), done.exception


def test_the_tools_are_listed_and_not_loaded():
    done = CliRunner().invoke(main, ["--help"])
    assert "dump-log" in done.output
    assert "verify-log" in done.output
    assert run("/no/such/file").exit_code == 2


@pytest.mark.parametrize(
    ("data", "text"), [(None, None), (b"", ""), (b"a b", "a b"), (b"\n", "\\x0a"), (b"\\n", "\\x5cn")]
)
def test_bytes_as_text(data, text):
    assert text_of(data) == text


def test_a_folder_is_all_of_its_files(tmp_path):
    """A data folder with a log, which another folder is beside."""
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    log = write_log(tmp_path / "orders-0", [(b"k", b"v")])
    (log.parent / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (tmp_path / "remote-log-index-cache").mkdir()
    (tmp_path / "remote-log-index-cache" / "0_x.index").write_bytes(b"?")
    (tmp_path / ".lock").touch()
    names = [row["file"].rpartition("/")[2] for row in rows_of(tmp_path) if row["kind"] == "file"]
    assert names == [
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
    ]
    assert [row["kind"] for row in rows_of(log.parent)] == ["file", "batch", "file", "epoch"]


def test_a_folder_without_files_of_logs(tmp_path):
    done = run(tmp_path)
    assert (done.exit_code, done.output) == (
        1,
        f"Error: {tmp_path}: there is no file of a log in this folder.\n",
    )


def test_the_header_of_what_is_known_of_the_remote_tier(tmp_path):
    overview = CopiesOverview(metadata_partition=3)
    position = Position(7, 2)
    _, data = snapshot.encode(overview, metadata_topic_id=UUID(int=1), position=position)
    path = tmp_path / CopiesOverview.file_name
    path.write_bytes(data)
    [_, row] = rows_of(path)
    assert (row["metadata_partition"], row["next_offset"], row["last_epoch"]) == (3, 7, 2)
    path.write_bytes(data[:-1] + b"?")
    [_, problem] = rows_of(path, exit_code=1)
    assert "CRC is wrong" in problem["message"]


def test_the_known_times_of_segments(tmp_path):
    path = tmp_path / kept_times.FILE_NAME
    line = "0 100 40 5 1 77 1234"
    path.write_text(f"0\n1\n{line} {crc32c(line.encode())}\n")
    [_, row] = rows_of(path)
    assert (row["base_offset"], row["size_bytes"], row["largest_timestamp"]) == (0, 100, 1234)
    path.write_text("0\n1\n0 100 40 5 1 77 1234 8\n")
    assert rows_of(path, exit_code=1)[1]["kind"] == "problem"
