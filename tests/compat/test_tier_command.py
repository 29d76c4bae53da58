"""`ottla tier` on a real broker with a directory as remote tier: shown, verified, damaged, cleaned up,
rebuilt (KIP-405).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.bench.components.processes import PATIENCE_S
from tests.compat.admin import admin_of, create_topic, produce, read, wait_until
from tests.compat.commands import Commands
from tests.harness.ottla import OttlaServer

#: Everything periodic is often. A segment holds one batch: its index has room for one entry, and each batch gets one.
SETTINGS = {
    "remote.log.manager.task.interval.ms": "200",
    "remote.log.manager.task.retry.backoff.max.ms": "1000",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "log.index.size.max.bytes": "12",
    "log.index.interval.bytes": "1",
}
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}


class Tier:
    """A broker with a remote tier, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tier"
        self.server = OttlaServer(folder / "server", settings=SETTINGS, tier=self.folder).start()

    def run(self, command: str, *arguments: object, status: int = 0, store: object = None) -> str:
        """The output of `ottla tier command`, which ends with this status."""
        done = self._done(command, *arguments, status=status, store=store)
        return done.stdout + done.stderr

    def _done(
        self, command: str, *arguments: object, status: int, store: object = None
    ) -> subprocess.CompletedProcess[str]:
        words = ["--bootstrap-server", self.server.bootstrap]
        if command != "ls":
            words += ["--tier", str(store or self.folder)]
        done = subprocess.run(
            [sys.executable, "-m", "ottla", "tier", command, *words, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def rows(self, command: str, *arguments: object, status: int = 0) -> list[dict[str, object]]:
        """The rows that the command prints with --json."""
        done = self._done(command, "--json", *arguments, status=status)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def copies(self, topic: str) -> list[dict[str, object]]:
        """The finished copies of the topic."""
        return [row for row in self.rows("ls", topic) if row["state"] == "COPY_SEGMENT_FINISHED"]

    def objects(self, topic: str, suffix: str) -> list[Path]:
        """The files of this kind."""
        return sorted(self.folder.glob(f"kafka-tiered-storage/{topic}-*/*{suffix}"))


@pytest.fixture(scope="module")
def tier(tmp_path_factory):
    made = Tier(tmp_path_factory.mktemp("tier"))
    yield made
    made.server.stop()


@pytest.fixture
def tiered(tier, topic):
    create_in_both_tiers(tier, topic)
    return topic


def create_in_both_tiers(tier, topic):
    """A topic with ten segments, nine of them in the remote tier, and only the last one in the local log."""
    create_topic(tier.server.bootstrap, topic, config=TIERED)
    for number in range(10):
        produce(tier.server.bootstrap, topic, [f"{number}".encode()])
    wait_until(lambda: len(tier.copies(topic)) == 9)
    wait_until(lambda: "[9, 10)" in tier.run("ls", topic, "--no-table"))  # the local retention has run


def errors_of(tier, topic) -> list[str]:
    rows = tier.rows("verify", status=1)
    assert rows[-1]["errors"] == sum(row["kind"] == "error" for row in rows)
    return [row["message"] for row in rows if row["kind"] == "error" and row["partition"] == f"{topic}-0"]


def test_ls(tier, tiered):
    shown = tier.run("ls", tiered)
    head, remote, local, _, titles, *copies = shown.rstrip().splitlines()
    assert head == f"{tiered}-0  [0, 10)  leader 1, epoch 0"
    assert remote.split() == ["remote", "█" * 44, "[0,", "9)", "9", "copies,", "621", "B"]
    assert local.split() == ["local", "█" * 5, "[9,", "10)"]
    assert titles.split() == ["offsets", "epochs", "size", "state", "broker", "changed", "id"]
    assert [line.split()[:4] for line in copies[:2]] == [
        ["[0,", "1)", "e0@0", "69"],
        ["[1,", "2)", "e0@1", "69"],
    ]
    assert tier.run("ls", tiered, "--no-table") == f"{head}\n{remote}\n{local}\n\n"
    assert f"{tiered}-0  [0, 10)" in tier.run("ls")


def test_other_commands_know_both_tiers(tier, tiered):
    ottla = Commands(tier.server.bootstrap)
    assert ottla.text("consume", tiered) == "".join(f"{number}\n" for number in range(10))
    assert [row["offset"] for row in ottla.rows("consume", tiered, "--offset", 4, "--max-records", 2)] == [
        4,
        5,
    ]
    [partition] = ottla.rows("topics", "describe", tiered)[0]["rows"]
    assert (partition["log_start_offset"], partition["log_end_offset"]) == (0, 10)
    [status] = ottla.rows("cluster", "status")
    assert (status["level"], status["not_copied"] >= 1) == ("healthy", True)
    assert re.search(r"^tier +[0-9]+ tiered partitions?, [0-9]+ records? (is|are) not copied yet$",
                     ottla.text("cluster", "status"), re.MULTILINE)  # fmt: skip


def test_ls_without_any_copy(tmp_path):
    server = OttlaServer(tmp_path / "server", settings=SETTINGS, tier=tmp_path / "tier").start()
    try:
        words = [sys.executable, "-m", "ottla", "tier", "ls", "--bootstrap-server", server.bootstrap]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("No topic has copies in the remote tier")
        assert subprocess.run([*words, "--json"], capture_output=True, text=True, check=False).stdout == ""
    finally:
        server.stop()


def test_ls_of_a_topic_that_is_not_tiered(tier, topic):
    create_topic(tier.server.bootstrap, topic)
    produce(tier.server.bootstrap, topic, [b"a"])
    assert "nothing" in tier.run("ls", topic)
    assert topic not in tier.run("ls")


def test_verify(tier, tiered):
    assert tier.run("verify").splitlines()[-1].endswith("in the store: nothing is wrong")
    *_, summary = tier.rows("verify")
    assert summary["errors"] == 0
    assert summary["objects"] == 5 * summary["copies"]


def test_verify_while_segments_are_copied(tier, topic):
    """A change during the verification is not reported as an error."""
    create_topic(tier.server.bootstrap, topic, config=TIERED)
    for number in range(5):
        produce(tier.server.bootstrap, topic, [b"x"] * (number + 3))
        tier.run("verify")


@pytest.mark.parametrize(("suffix", "problem"), [
    (".index",                   "lacks objects in the store: index"),
    (".leader_epoch_checkpoint", "lacks objects in the store: leader_epoch_checkpoint"),
    (".log",                     "lacks objects in the store: log"),
])  # fmt: skip
def test_verify_notices_a_missing_object(tier, tiered, suffix, problem):
    missing = tier.objects(tiered, suffix)[2]
    with_it = missing.read_bytes()
    missing.unlink()
    [message] = errors_of(tier, tiered)
    assert message.startswith("the copy ")
    assert message.endswith(f"of [2, 3) {problem}")
    missing.write_bytes(with_it)
    tier.run("verify")


def test_verify_notices_a_log_that_is_cut_off(tier, tiered):
    cut = tier.objects(tiered, ".log")[0]
    with_it = cut.read_bytes()
    cut.write_bytes(with_it[:-1])
    [message] = errors_of(tier, tiered)
    assert message.endswith("of [0, 1) has 68 bytes in the store, but 69 in the metadata")
    cut.write_bytes(with_it)


def test_verify_reads_the_batches_if_it_is_asked_to(tier, tiered):
    assert tier.run("verify", "--data").splitlines()[-1].endswith("in the store: nothing is wrong")
    damaged = tier.objects(tiered, ".log")[4]
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    tier.run("verify")
    [message] = [row["message"] for row in tier.rows("verify", "--data", status=1) if row["kind"] == "error"]
    assert "of [4, 5) cannot be read" in message
    assert "is damaged from offset 4 on" in message
    damaged.write_bytes(sound)


def fake_copy(folder: Path, segment_id: str = "AAAAAAAAAAAAAAAAAAAABw") -> list[Path]:
    """The objects of a copy that no metadata names."""
    folder.mkdir(exist_ok=True)
    found = []
    for suffix in ("log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint"):
        path = folder / f"{3:020}-{segment_id}.{suffix}"
        path.write_bytes(b"\0" * 12)
        found.append(path)
    return found


def test_orphans(tier, tiered):
    """They are deleted only when they are old enough, and nothing else is."""
    assert f"{tiered}-0" not in tier.run("orphans")
    files = fake_copy(tier.objects(tiered, ".log")[0].parent)
    assert f"{tiered}-0 AAAAAAAAAAAAAAAAAAAABw from offset 3: 5 objects, 60 B, written " in tier.run(
        "orphans", status=1
    )
    assert "1 orphans, 60 B; 0 deleted" in tier.run("orphans", "--delete", status=1)
    for file in files:
        os.utime(file, (0, 0))
    [row] = tier.rows("orphans", "--delete")
    assert (row["why"], row["objects"], row["deleted"]) == ("unnamed", 5, True)
    assert not any(file.exists() for file in files)
    tier.run("orphans")
    tier.run("verify")


def test_orphans_of_a_topic_that_this_cluster_never_had(tier, tiered):
    """Another cluster may share the store: they are deleted only if the operator says so."""
    folder = tier.folder / "kafka-tiered-storage" / "elsewhere-0-AAAAAAAAAAAAAAAAAAAACQ"
    files = fake_copy(folder)
    (folder / "notes.txt").write_text("not ours")
    assert "perhaps another cluster's" in tier.run("orphans", "--delete", "--older-than", "0s", status=1)
    assert all(file.exists() for file in files)
    assert "elsewhere-0-AAAAAAAAAAAAAAAAAAAACQ/notes.txt is no object of a copy" in tier.run("verify")
    assert "1 deleted" in tier.run("orphans", "--delete", "--older-than", "0s", "--also", "unknown-topic")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_broker_that_starts_without_its_directory_waits_for_it(tmp_path, topic):
    """Its file system is not mounted: nothing is written below the mount point, and nothing counts as deleted."""
    tier = Tier(tmp_path)
    try:
        create_in_both_tiers(tier, topic)
        create_in_both_tiers(tier, deleted := f"{topic}-deleted")
        tier.server.stop()
        tier.folder.rename(tmp_path / "not-mounted")
        tier.folder.mkdir()
        tier.server.start()
        admin = admin_of(tier.server.bootstrap)
        admin.delete_topics([deleted])[deleted].result(PATIENCE_S)
        for number in range(10, 12):
            produce(tier.server.bootstrap, topic, [f"{number}".encode()])
        for failed in ("the copying of", "its topic is deleted, its copies"):
            wait_until(
                lambda failed=failed: re.search(f"{failed}.* is missing: mount", tier.server.child.output())
            )
        assert list(tier.folder.iterdir()) == []
        assert "[0, 9)" in tier.run("ls", topic)

        tier.folder.rmdir()
        (tmp_path / "not-mounted").rename(tier.folder)
        wait_until(lambda: len(tier.copies(topic)) == 11)
        wait_until(lambda: not tier.objects(deleted, ".log"))
        assert [each.value() for each in read(tier.server.bootstrap, topic, 12)] == [
            b"%d" % number for number in range(12)
        ]
        wait_until(lambda: "nothing is wrong" in tier.run("verify"))
    finally:
        tier.server.stop()


def test_metadata_is_rebuilt_from_the_store(tmp_path, topic):
    """The metadata's topic is lost with its disk; the objects are not."""
    tier = Tier(tmp_path)
    try:
        create_in_both_tiers(tier, topic)
        before = {row["id"]: row for row in tier.copies(topic)}
        tier.server.kill()
        for folder in tier.server.data_dir.glob("__remote_log_metadata-*"):
            shutil.rmtree(folder)
        for snapshot in tier.server.data_dir.glob(f"{topic}-0/remote_log_snapshot*"):
            snapshot.unlink()
        tier.server.start()

        assert "the offsets [0, 9) are in no tier" in tier.run("verify", status=1)
        assert "if that was lost, rebuild it first" in tier.run(
            "orphans", "--delete", "--older-than", "0s", status=1
        )
        planned = tier.run("rebuild-metadata", "--dry-run")
        assert planned.splitlines()[-1] == "18 records would be written; 0 copies left out"
        assert tier.copies(topic) == []
        assert tier.run("rebuild-metadata", topic).splitlines()[-1] == "18 records written; 0 copies left out"

        after = {row["id"]: row for row in tier.copies(topic)}
        said = (
            "start_offset",
            "end_offset",
            "leader_epochs",
            "bytes",
            "max_timestamp_ms",
            "topic_id",
            "broker",
        )
        assert {key: [row[name] for name in said] for key, row in after.items()} == {
            key: [row[name] for name in said] for key, row in before.items()
        }
        assert tier.run("rebuild-metadata").splitlines()[-1] == "0 records written; 0 copies left out"
        values = [message.value() for message in read(tier.server.bootstrap, topic, 10)]
        assert values == [f"{number}".encode() for number in range(10)]
        tier.run("verify")
        tier.run("orphans")
    finally:
        tier.server.stop()


@pytest.mark.parametrize(("command", "arguments", "sentence"), [
    ("ls",      ["no-such-topic"],              "The cluster has no topic no-such-topic"),
    ("ls",      ["--bootstrap-server", "nowhere"], "'nowhere' is no address of a broker: it must be HOST:PORT"),
    ("ls",      ["--bootstrap-server", "127.0.0.1:1"], "No broker answers at 127.0.0.1:1: "),
    ("verify",  ["--tier", "gs://b"],           "is no remote tier"),
    ("orphans", ["--older-than", "soon"],       "'soon' is no age: it must be as 30m, 12h or 7d"),
    ("orphans", ["--also", "everything"],       "is not one of 'needed', 'no-metadata', 'unknown-topic', 'unnamed'"),
])  # fmt: skip
def test_what_cannot_be_done(tier, command, arguments, sentence):
    assert sentence in tier.run(command, *arguments, status=2)


def test_a_store_must_be_named(tier):
    done = subprocess.run(
        [sys.executable, "-m", "ottla", "tier", "verify"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Which store? Name it by --tier" in done.stderr


def test_the_store_of_a_properties_file(tier, tiered, tmp_path):
    """A broker's server.properties names the store; a storage manager that cannot list its objects is
    refused."""
    file = tmp_path / "server.properties"
    file.write_text(f"remote.log.storage.manager.class.name=directory\nrsm.config.dir={tier.folder}\n")
    words = [
        sys.executable,
        "-m",
        "ottla",
        "tier",
        "verify",
        "--bootstrap-server",
        tier.server.bootstrap,
        "-c",
    ]
    done = subprocess.run([*words, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1].split(": ")[-1]) == (0, "nothing is wrong")
