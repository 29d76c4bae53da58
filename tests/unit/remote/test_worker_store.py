"""A storage manager in a process of its own keeps the contract, and survives whatever becomes of that process
(KIP-405).
"""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import uuid1

import psutil
import pytest

from ottla.bench.components.processes import PATIENCE_S, has_ended, wait_until
from ottla.protocol.types import TopicPartition
from ottla.remote.errors import (
    DamagedSegment,
    RemoteResourceNotFound,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from ottla.remote.plugins import load_storage_manager
from ottla.remote.segment_metadata import TopicIdPartition
from ottla.remote.testing import RemoteStorageManagerContract, Segment, read
from ottla.remote.transfers.messages import Setup
from ottla.remote.transfers.worker_store import WORKER_MODULE, WorkerStore
from ottla.runtime.spawned_worker import SpawnedWorker
from ottla.storage.files import Files
from ottla.storage.index import TimeIndex
from ottla.storage.segment_times import SegmentFile, times_of_file
from tests.harness.bombs import MANY, NOW_MS, understated_batch

MIB = 1024 * 1024


def open_store(class_name, configs, *, silence_s=60.0):
    setup = Setup(class_name=class_name, class_path=None, configs=configs, checks_batches=False)
    copies, deletions = (SpawnedWorker(WORKER_MODULE, setup, niceness=10) for _ in range(2))
    store = load_storage_manager(class_name, configs, creates_store=True)
    return closing(WorkerStore(store, copies=copies, deletions=deletions, silence_s=silence_s))


def store_of(tmp_path, *, silence_s=60.0, **configs):
    """A store that misbehaves as `does` says."""
    configs = {"dir": str(tmp_path / "tier"), "broker.id": 1, **configs}
    return open_store("tests.harness.hostile_store.HostileStore", configs, silence_s=silence_s)


def segment_in(folder, **fields):
    partition = TopicIdPartition(uuid1(), TopicPartition("t", 0))
    settings = {"start_offset": 0, "size": 100, "is_transactional": False, "random": Random(uuid1().int)}
    return Segment.make(folder, partition, **{**settings, **fields})


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory):
    """One process for all tests of the contract."""
    with open_store("directory", {"dir": str(tmp_path_factory.mktemp("tier")), "broker.id": 1}) as store:
        yield store


class TestContract(RemoteStorageManagerContract):
    @pytest.fixture
    def manager(self, shared_store):
        return shared_store


def test_copies_run_in_a_process_of_low_priority_which_the_first_one_starts(tmp_path):
    with store_of(tmp_path) as store:
        assert store.copies.process_id is None
        copied = segment_in(tmp_path).copy_to(store)
        process_id, priority = map(int, copied.metadata.custom_metadata.split())
        assert process_id == store.copies.process_id != os.getpid()
        assert priority == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        assert read(store.fetch_log_segment(copied.metadata, start_position=0)) == copied.log
    assert not is_running(process_id)


def test_the_process_reads_the_times_of_a_segment(tmp_path):
    sent = understated_batch(base_ms=NOW_MS, last_ms=NOW_MS + 5000, claimed_ms=NOW_MS + 60)
    (tmp_path / "f").write_bytes(sent)
    segment = SegmentFile(path=tmp_path / "f", base_offset=0, size_bytes=len(sent), index_interval_bytes=4096)
    with store_of(tmp_path) as store:
        found = store.read_times(segment)
        with pytest.raises(FileNotFoundError):
            store.read_times(replace(segment, path=tmp_path / "g"))
    assert found == times_of_file(segment, Files(), on_piece=lambda: None)
    assert found == (NOW_MS + 5000, TimeIndex.ENTRY.pack(NOW_MS + 5000, MANY - 1))


def test_a_damaged_segment_is_not_copied(tmp_path):
    """The worker checks its batches: here bytes that are none."""
    setup = Setup(class_name="directory", class_path=None, configs={"dir": str(tmp_path / "tier")})
    copies, deletions = (SpawnedWorker(WORKER_MODULE, setup, niceness=10) for _ in range(2))
    reader = load_storage_manager(setup.class_name, setup.configs)
    with (
        closing(WorkerStore(reader, copies=copies, deletions=deletions)) as store,
        pytest.raises(DamagedSegment, match="is damaged from offset 0 on"),
    ):
        segment_in(tmp_path).copy_to(store)
    assert not list(tmp_path.rglob("tier/*/*/*.log"))


def test_a_killed_worker_is_a_retriable_error_and_the_next_copy_starts_another(tmp_path):
    with store_of(tmp_path) as store:
        copied = segment_in(tmp_path, size=3 * MIB)

        def kill(count):
            os.kill(store.copies.process_id, signal.SIGKILL)

        first = segment_in(tmp_path).copy_to(store)
        with pytest.raises(RetriableRemoteStorageError, match="has ended"):
            store.copy_log_segment_data(copied.metadata, replace(copied.data, on_bytes=kill))
        second = copied.copy_to(store)
        assert first.metadata.custom_metadata != second.metadata.custom_metadata
        assert read(store.fetch_log_segment(second.metadata, start_position=0)) == second.log


def test_a_worker_whose_calls_are_all_silent_is_killed(tmp_path):
    with store_of(tmp_path, does="hang", silence_s=1.0) as store, ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(segment_in(tmp_path).copy_to, store) for _ in range(2)]:
            with pytest.raises(RetriableRemoteStorageError, match="was silent for 1 s"):
                each.result(PATIENCE_S)
        assert store.copies.process_id is None


def test_deletions_that_the_store_does_not_answer_disturb_no_copy(tmp_path):
    with (
        store_of(tmp_path, does="hang at deletions", silence_s=1.0) as store,
        ThreadPoolExecutor(3) as threads,
    ):
        copied = segment_in(tmp_path).copy_to(store)
        deletions = [threads.submit(store.delete_log_segment_data, copied.metadata) for _ in range(2)]
        slow = segment_in(tmp_path)
        pauses = threading.Event()
        slow.data = replace(slow.data, on_bytes=lambda count: pauses.wait(0.5))
        copying = threads.submit(slow.copy_to, store)
        for each in deletions:
            with pytest.raises(RetriableRemoteStorageError, match="was silent for 1 s"):
                each.result(PATIENCE_S)
        process_id, _ = map(int, copying.result(PATIENCE_S).metadata.custom_metadata.split())
        assert process_id == store.copies.process_id


@pytest.mark.parametrize(
    ("class_name", "configs", "silence_s"),
    [
        ("directory", {"dir": "/nowhere"}, 90.0),
        ("s3", {"bucket": "b"}, 90.0),
        ("s3", {"bucket": "b", "request.timeout.ms": "120000"}, 360.0),
        ("minio", {"bucket": "b", "endpoint": "http://h:1", "request.timeout.ms": "120000"}, 360.0),
    ],
)
def test_the_bound_of_a_silence_follows_the_time_out_of_the_store(class_name, configs, silence_s):
    store = load_storage_manager(class_name, configs)
    assert WorkerStore(store, None).silence_s == silence_s


def test_the_wait_of_the_caller_for_its_quota_is_no_silence(tmp_path):
    with store_of(tmp_path, silence_s=2.0) as store:
        segment_in(tmp_path).copy_to(store)  # the worker is up
        slow = segment_in(tmp_path)
        waiting = threading.Event()
        slow.data = replace(slow.data, on_bytes=lambda count: waiting.wait(0.6))
        slow.copy_to(store)  # five files


@pytest.mark.parametrize(
    ("does", "error", "words"),
    [
        ("exit", RetriableRemoteStorageError, "has ended"),
        ("retriable", RetriableRemoteStorageError, "503"),
        ("not found", RemoteResourceNotFound, "no such bucket"),
        ("unknown", RemoteStorageError, "_Unknown: what is this"),
        ("decode", RemoteStorageError, "UnicodeDecodeError"),
        ("cancel", RemoteStorageError, "CancelledError: by a loop"),
        ("leave", RemoteStorageError, "SystemExit: 3"),
        ("refuse", RetriableRemoteStorageError, "no worker, please"),
    ],
)
def test_errors_cross_with_their_class_and_message(tmp_path, does, error, words):
    with store_of(tmp_path, does=does) as store:
        for _ in range(2):
            with pytest.raises(error, match=words) as raised:
                segment_in(tmp_path).copy_to(store)
            assert type(raised.value) is error


def test_a_missing_local_file_is_no_error_of_the_store(tmp_path):
    with store_of(tmp_path) as store:
        missing = segment_in(tmp_path)
        missing.data.time_index.unlink()
        with pytest.raises(FileNotFoundError):
            missing.copy_to(store)


def test_close_ends_calls_that_the_store_does_not_answer(tmp_path):
    with ThreadPoolExecutor(1) as threads:
        with store_of(tmp_path, does="hang") as store:
            hanging = threads.submit(segment_in(tmp_path).copy_to, store)
            while store.copies.process_id is None:
                threading.Event().wait(0.01)
        with pytest.raises(RetriableRemoteStorageError):
            hanging.result(PATIENCE_S)
        with pytest.raises(RetriableRemoteStorageError, match="closed"):
            segment_in(tmp_path).copy_to(store)


#: A broker: prints the id of its worker, which copies a segment, and waits.
PARENT = """
import sys, threading
from pathlib import Path
from tests.unit.remote import test_worker_store as tests

store = tests.store_of(Path(sys.argv[1]), does=sys.argv[2]).thing
copying = threading.Thread(target=tests.segment_in(Path(sys.argv[1])).copy_to, args=(store,))
copying.start()
if sys.argv[2] != "hang":
    copying.join()
while store.copies.process_id is None:
    pass
print(store.copies.process_id, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("does", ["hang", "copy"])
def test_the_worker_ends_with_a_broker_that_is_killed(tmp_path, does):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), does],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with parent:
        process_id = int(parent.stdout.readline())
        assert is_running(process_id)
        parent.kill()
    wait_until(lambda: not is_running(process_id))


def is_running(process_id):
    try:
        return not has_ended(psutil.Process(process_id))
    except psutil.NoSuchProcess:
        return False
