"""A log continues behind its remote part (KIP-405): what it takes over, and a crash at each step of it."""

from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from storage_support import NOW_MS, TP, batch, marker, open_log

from ottla.config.log_config import LogConfig
from ottla.protocol.errors import OutOfOrderSequenceNumber
from ottla.storage import leader_epoch_cache, producer_snapshot
from ottla.storage.appending import AppendOrigin
from ottla.storage.files import Files
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.manager.log_manager import LogManager
from ottla.storage.producer_snapshot import CorruptSnapshot
from ottla.storage.producer_state import BatchMetadata, ProducerState
from ottla.storage.remote_restart import RemoteState
from ottla.storage.verify import verify
from ottla.stories.partition.faulty_files import FaultyFiles, Killed, Loss

TIERED = LogConfig(segment_bytes=300, index_interval_bytes=1, remote_storage_enable=True, retention_ms=None)
IDEMPOTENT, TRANSACTIONAL = 5, 6
LINEAGE = [EpochEntry(0, 0), EpochEntry(1, 20), EpochEntry(4, 60)]


def snapshot(*, last_offset=98, transaction_offset=90) -> bytes:
    idempotent = ProducerState(
        producer_id=IDEMPOTENT,
        epoch=0,
        coordinator_epoch=None,
        last_timestamp=NOW_MS,
        transaction_first_offset=None,
    )
    idempotent.batches.append(BatchMetadata(7, last_offset, 0, NOW_MS))
    transactional = ProducerState(
        producer_id=TRANSACTIONAL,
        epoch=2,
        coordinator_epoch=None,
        last_timestamp=NOW_MS,
        transaction_first_offset=transaction_offset,
    )
    transactional.batches.append(BatchMetadata(0, transaction_offset, 0, NOW_MS))
    return producer_snapshot.encode({IDEMPOTENT: idempotent, TRANSACTIONAL: transactional})


def remote_state(**changes) -> RemoteState:
    values = {
        "offset": 100,
        "log_start_offset": 30,
        "leader_epochs": LINEAGE,
        "producer_snapshot": snapshot(),
    }
    return RemoteState.of(**{**values, **changes})


def fill(log, count, *, epoch=0):
    for _ in range(count):
        log.append_as_leader(batch(value=b"x" * 50), leader_epoch=epoch, now_ms=NOW_MS)


def check_taken_over(log, *, log_start_offset=30, lineage=((1, 30), (4, 60))):
    offsets = log.offsets
    assert (offsets.log_start_offset, offsets.local_log_start_offset) == (log_start_offset, 100)
    assert (offsets.high_watermark, offsets.log_end_offset) == (100, 100)
    # The first offset of the open transaction, which is in the remote tier.
    assert offsets.last_stable_offset == 90
    assert log.leader_epochs.entries == lineage
    assert [segment.base_offset for segment in log.segments] == [100]


@pytest.mark.parametrize("stop", [None, "clean", "crash"])
def test_the_log_is_empty_behind_its_remote_part_and_knows_what_is_in_it(tmp_path, stop):
    log = open_log(tmp_path / "orders-0", config=TIERED)
    fill(log, 50)
    log.restart_from_remote(remote_state(), now_ms=NOW_MS)
    assert log.offsets.remote_end_offset == log.offsets.earliest_pending_upload_offset == 100
    if stop is not None:
        log.close() if stop == "clean" else log.close_files()
        log = open_log(
            log.directory,
            config=TIERED,
            log_start_offset=30,
            recovery_point=log.recovery_point,
            is_clean=stop == "clean",
        )
    check_taken_over(log)
    assert not [name for name in Files().list(log.directory) if name.endswith(".tmp")]
    assert not [it for it in verify(log.directory, Files()) if it.is_error]
    log.close_files()


@pytest.mark.parametrize("is_started_again", [False, True])
def test_the_rebuilt_replica_leads(tmp_path, is_started_again):
    """Kafka 4.3.1 deletes the snapshot when it is loaded: it appends the duplicate, and accepts the gap."""
    log = open_log(tmp_path / "orders-0", config=TIERED)
    log.restart_from_remote(remote_state(), now_ms=NOW_MS)
    if is_started_again:
        log.close_files()
        log = open_log(log.directory, config=TIERED, log_start_offset=30, is_clean=False)
    fields = {"producer_id": IDEMPOTENT, "producer_epoch": 0}
    again = log.append_as_leader(batch(base_sequence=7, **fields), leader_epoch=9, now_ms=NOW_MS)
    assert again.is_duplicate
    assert again.first_offset == 98
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append_as_leader(batch(base_sequence=9, **fields), leader_epoch=9, now_ms=NOW_MS)
    info = log.append_as_leader(batch(base_sequence=8, **fields), leader_epoch=9, now_ms=NOW_MS)
    assert info.first_offset == 100
    log.append_as_leader(
        marker(producer_id=TRANSACTIONAL, epoch=2, commit=False),
        leader_epoch=9,
        now_ms=NOW_MS,
        origin=AppendOrigin.COORDINATOR,
    )
    log.update_high_watermark(102)
    assert log.last_stable_offset == 102
    (aborted,) = log.reader.aborted_transactions(30, 102)
    assert (aborted.first_offset, aborted.last_offset) == (90, 101)
    log.close_files()


class Recorded(Files):
    """Whether it has waited for the disk."""

    has_waited = False

    def fsync(self, fd):
        self.has_waited = True
        super().fsync(fd)


def test_nothing_waits_for_the_disk_on_the_event_loop(tmp_path):
    files = Recorded()
    log = open_log(tmp_path / "orders-0", config=TIERED, files=files)
    fill(log, 50)
    log.flush()
    state = remote_state()
    jobs = []
    while True:
        files.has_waited = False
        job = log.remote_restart.next_job(state)
        if job is None:
            break
        assert not files.has_waited, job.name
        job.complete()
        jobs.append(job.name)
    assert len(jobs) == 2
    log.restart_from_remote(state, now_ms=NOW_MS)
    assert not files.has_waited
    check_taken_over(log)
    log.remote_restart.discard()
    log.close_files()


def test_an_abandoned_restart_leaves_the_log_as_it_was(tmp_path):
    log = open_log(tmp_path / "orders-0", config=TIERED)
    fill(log, 50, epoch=2)
    while (job := log.remote_restart.next_job(remote_state())) is not None:
        job.complete()
    fill(log, 1, epoch=3)  # this replica leads: nothing was changed
    log.remote_restart.discard()
    assert not [name for name in Files().list(log.directory) if name.endswith(".tmp")]
    assert (log.log_start_offset, log.log_end_offset) == (0, 51)
    assert log.leader_epochs.entries == ((2, 0), (3, 50))
    log.close_files()


@pytest.mark.parametrize("change", ["another state", "truncated", "moved"])
def test_what_was_prepared_for_another_log_is_not_used(tmp_path, change):
    log = open_log(tmp_path / "orders-0", config=TIERED)
    fill(log, 50)
    state = remote_state()
    while (job := log.remote_restart.next_job(state)) is not None:
        job.complete()
    if change == "another state":
        state = remote_state(log_start_offset=10)
    elif change == "truncated":
        log.truncate_to(20, now_ms=NOW_MS)
    else:
        log.rename_directory(log.directory.with_name("orders-0.1-future"))
    assert log.remote_restart.next_job(state) is not None
    log.restart_from_remote(state, now_ms=NOW_MS)
    check_taken_over(log, log_start_offset=state.log_start_offset, lineage=state.leader_epochs)
    assert not [name for name in Files().list(log.directory) if name.endswith(".tmp")]
    log.close_files()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        snapshot()[:-1],
        snapshot(last_offset=100),  # of a later offset
        snapshot(transaction_offset=100),
    ],
)
def test_a_damaged_snapshot_makes_no_state(damaged):
    """It is checked where it is read, in a thread: no log gets that far."""
    with pytest.raises(CorruptSnapshot):
        remote_state(producer_snapshot=damaged)


# -- truncations below the local part ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "log_start_offset", "epochs"),
    [
        (70, 30, [(1, 30), (4, 60)]),
        (60, 30, [(1, 30)]),
        (30, 30, []),
        (10, 10, []),  # below the log start: nothing is left
    ],
)
@pytest.mark.logs("below the high watermark")
def test_a_truncation_below_the_local_part_keeps_the_remote_one(tmp_path, offset, log_start_offset, epochs):
    """The log is [30, 105), its local part [100, 105). Kafka gives up the log start and the lineage."""
    log = open_log(tmp_path / "orders-0", config=TIERED)
    log.restart_from_remote(remote_state(), now_ms=NOW_MS)
    fill(log, 5, epoch=5)
    while (job := log.truncation.next_job(offset, now_ms=NOW_MS)) is not None:
        job.complete()
    log.truncate_to(offset, now_ms=NOW_MS)
    log.truncation.discard()
    offsets = log.offsets
    assert offsets.log_start_offset == log_start_offset
    assert offsets.local_log_start_offset == offsets.log_end_offset == offsets.high_watermark == offset
    assert list(log.leader_epochs.entries) == epochs
    assert offsets.remote_end_offset is None
    log.close()
    again = open_log(log.directory, config=TIERED, log_start_offset=log_start_offset)
    assert (again.log_start_offset, again.log_end_offset) == (log_start_offset, offset)
    assert list(again.leader_epochs.entries) == epochs
    again.close_files()


# -- crashes -------------------------------------------------------------------------------------------


#: Six segments.
LARGER = replace(TIERED, segment_bytes=1200)


def open_manager(files):
    return LogManager.open(
        [Path("/data/a")], files=files, cluster_id="c", node_id=1, directory_id=lambda: UUID(int=5), random=Random(1),
        now_ms=NOW_MS, default_config=LARGER,
    )  # fmt: skip


OLD = [(at, 0 if at < 30 else 1) for at in range(50)]


def prepare(files):
    """A log of another branch, with what is flushed and checkpointed of it: epoch 1 began at 30, not at 20."""
    manager = open_manager(files)
    log = manager.get_or_create(TP, topic_id=UUID(int=7), config=LARGER, now_ms=NOW_MS)
    fill(log, 30, epoch=0)
    fill(log, 20, epoch=1)
    log.flush(48)
    log.update_high_watermark(50)
    for job in manager.maintain(NOW_MS + 100_000):
        job.complete()
    return manager, log


def rebuild(log):
    state = remote_state()
    while (job := log.remote_restart.next_job(state)) is not None:
        job.complete()
    log.restart_from_remote(state, now_ms=NOW_MS)


def kind_of(log) -> str:
    """The state that a crash has left: the old or the new one; fails for a mixture."""
    if log.log_end_offset == 100:
        check_taken_over(log, log_start_offset=log.log_start_offset)
        assert log.log_start_offset <= 30
        assert log.producers.producers[IDEMPOTENT].last_sequence == 7
        return "new"
    assert not log.producers.producers
    found = [
        (header.base_offset, header.partition_leader_epoch)
        for header, _ in log.reader.records_since(log.log_start_offset)
    ]
    assert found == OLD[: len(found)]
    assert log.log_end_offset == len(found)
    assert log.leader_epochs.entries == (((0, 0), (1, 30)) if len(found) > 30 else ((0, 0),) if found else ())
    return "old" if found else "empty"


@pytest.mark.logs("")  # what a crash leaves
@pytest.mark.parametrize("loss", [Loss.NOTHING, Loss.SUFFIX, Loss.PAGES, Loss.EVERYTHING])
def test_a_crash_at_each_step_leaves_the_old_log_or_none_or_the_new_one(loss):
    kinds = set()
    nth = 0
    while True:
        nth += 1
        files = FaultyFiles(random=Random(nth))
        manager, log = prepare(files)
        files.fail(None, nth=nth, errno=None)
        try:
            rebuild(log)
            manager.shutdown(NOW_MS, broker_epoch=1)
        except Killed:
            pass
        else:
            break
        files = files.after_crash(Random(nth), loss)
        log = open_manager(files).logs[TP]
        kinds.add(kind_of(log))
        log.close_files()
        again = open_manager(files.after_crash(Random(nth), Loss.NOTHING)).logs[TP]
        kind_of(again)
    assert nth > 40, "the restart has many steps"
    assert kinds >= {"old", "new"}
    assert "empty" in kinds or loss is not Loss.NOTHING


def test_the_epochs_that_are_written_are_those_of_the_range():
    state = remote_state(
        log_start_offset=30, offset=60, producer_snapshot=snapshot(last_offset=59, transaction_offset=50)
    )
    assert state.leader_epochs == ((1, 30),)
    assert leader_epoch_cache.decode(leader_epoch_cache.encode(state.leader_epochs)) == [(1, 30)]
