"""All logs of a broker: directories, their locks and owners, start and stop of both kinds, the place of new logs."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from ottla.protocol.errors import InconsistentTopicId
from ottla.protocol.types import TopicPartition
from ottla.storage.files import Files
from ottla.storage.manager.log_manager import InconsistentMetaProperties, LogDirInUse
from ottla.storage.manager.meta_properties import MetaProperties, read
from tests.unit.storage.log_manager_support import TOPIC_ID, A, append, crash, open_manager, run
from tests.unit.storage.storage_support import NOW_MS, offsets_in

pytestmark = pytest.mark.logs("Log directory")


def test_stop_and_start(tmp_path):
    manager = open_manager(tmp_path)
    assert not manager.was_clean
    log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    append(log, 30)
    log.update_high_watermark(20)
    manager.shutdown(NOW_MS, broker_epoch=77)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 77}
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 30\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\na 0 20\n"

    again = open_manager(tmp_path)
    assert again.was_clean
    assert again.previous_broker_epoch == 77
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert again.directory_ids == manager.directory_ids
    log = again.get(A)
    assert (log.log_end_offset, log.high_watermark, log.topic_id) == (30, 20, TOPIC_ID)
    crash(again)
    killed = open_manager(tmp_path)
    assert not killed.was_clean
    assert killed.previous_broker_epoch is None
    assert offsets_in(killed.get(A)) == list(range(30))


def test_killed_process_loses_nothing(tmp_path):
    """A real one: without notice, so that nothing is closed."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.unit.storage.log_manager_support import *
manager = open_manager(Path({str(tmp_path)!r}))
log = manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
append(log, 100)
print(log.log_end_offset, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "100\n", done.stderr
    assert offsets_in(open_manager(tmp_path).get(A)) == list(range(100))


def test_a_directory_is_used_once(tmp_path):
    manager = open_manager(tmp_path)
    with pytest.raises(LogDirInUse, match="in use by another process"):
        open_manager(tmp_path)
    manager.shutdown(NOW_MS, broker_epoch=1)
    open_manager(tmp_path).shutdown(NOW_MS, broker_epoch=1)


@pytest.mark.parametrize(("options", "message"), [
    ({"cluster_id": "other"}, "belongs to cluster cluster"), ({"node_id": 4}, "belongs to node 3"),
])  # fmt: skip
def test_a_directory_of_someone_else(tmp_path, options, message):
    open_manager(tmp_path).shutdown(NOW_MS, broker_epoch=1)
    with pytest.raises(InconsistentMetaProperties, match=message):
        open_manager(tmp_path, **options)
    assert open_manager(tmp_path, cluster_id=None).cluster_id == "cluster"


def test_meta_properties_is_kafkas(tmp_path):
    (tmp_path / "meta.properties").write_text(
        "#\n#Sat Nov 21 09:12:11 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nversion=1\n"
        "directory.id=AAAAAAAAAAAAAAAAAAAABw\nnode.id=1\n"
    )
    assert read(tmp_path, Files()) == MetaProperties(
        cluster_id="MkU3OEVBNTcwNTJENDM2Qg", node_id=1, directory_id=UUID(int=7)
    )


@pytest.mark.parametrize(
    "text",
    [
        b"version=0\nbroker.id=1\n",
        b"version=1\ncluster.id=x\n",
        b"version=1\ncluster.id=x\nnode.id=y\n",
        b"version=1\ncluster.id=\xff\xfe\nnode.id=1\n",
    ],
)
def test_meta_properties_that_say_nothing(tmp_path, text):
    (tmp_path / "meta.properties").write_bytes(text)
    with pytest.raises(InconsistentMetaProperties):
        open_manager(tmp_path)


def test_new_logs_go_where_there_are_fewest(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    manager = open_manager(one, two)
    for partition in range(5):
        manager.get_or_create(TopicPartition("t", partition), topic_id=TOPIC_ID, now_ms=NOW_MS)
    counts = Counter(log.directory.parent for log in manager.all_logs())
    assert sorted(counts.values()) == [2, 3]
    manager.shutdown(NOW_MS, broker_epoch=1)
    assert len(open_manager(one, two).logs) == 5


def test_topic_id_of_an_older_topic(tmp_path):
    manager = open_manager(tmp_path)
    manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS)
    with pytest.raises(InconsistentTopicId):
        manager.get_or_create(A, topic_id=UUID(int=8), now_ms=NOW_MS)


def test_new_logs_go_where_nothing_is_cordoned(tmp_path):
    """KIP-1066 adds cordoned log directories."""
    paths = [tmp_path / name for name in ("one", "two", "three")]
    manager = open_manager(*paths)
    numbers = iter(range(100))

    def made(count=6):
        logs = [
            manager.get_or_create(TopicPartition("t", next(numbers)), topic_id=TOPIC_ID, now_ms=NOW_MS)
            for _ in range(count)
        ]
        return [paths.index(log.directory.parent) for log in logs]

    assert sorted(made()) == [0, 0, 1, 1, 2, 2]
    manager.cordoned_dirs = frozenset(paths[:1])
    assert sorted(made()) == [1, 1, 1, 2, 2, 2]
    manager.take_offline(paths[1], OSError(5, "Input/output error"))
    assert made() == [2] * 6
    manager.cordoned_dirs = frozenset(paths)
    assert made() == [0] * 6, "they have been put on this broker, and must go somewhere"


@pytest.mark.logs("is corrupt and not used")
def test_corrupt_checkpoints_are_done_without(tmp_path):
    manager = open_manager(tmp_path)
    append(manager.get_or_create(A, topic_id=TOPIC_ID, now_ms=NOW_MS), 30)
    run(manager.maintain(NOW_MS + 60_000))
    crash(manager)
    for path in tmp_path.glob("*-checkpoint"):
        path.write_bytes(b"\x00garbage")
    assert offsets_in(open_manager(tmp_path).get(A)) == list(range(30))


@pytest.mark.logs("its name is not that of a partition")
def test_what_is_no_log_is_left_alone(tmp_path):
    for name in ("__cluster_metadata-0", "lost+found", "t-x", "t-0-future", ".snapshots"):
        (tmp_path / name).mkdir()
    manager = open_manager(tmp_path)
    assert manager.logs == {}
    run(manager.maintain(NOW_MS + 10**9))
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 5
