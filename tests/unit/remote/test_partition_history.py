"""The copies of which a history consists: tables. The objects of copies are in a real store."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
from remote_support import PARTITION, copy_of

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.errors import RemoteStorageError
from ottla.remote.history.partition_history import check_no_holes, history_of
from ottla.remote.storage_manager import LogSegmentData
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.storage import leader_epoch_cache, producer_snapshot
from ottla.storage.leader_epoch_cache import EpochEntry
from ottla.storage.producer_state import ProducerState


@pytest.fixture
def store(tmp_path):
    with ExitStack() as stack:
        found = LocalDirectory()
        found.configure({"dir": str(tmp_path / "tier")})
        found.create()
        stack.callback(found.close)
        yield found


def put(store, folder, copy, lineage, open_from=()):
    """The copy's objects: with the leader epochs of its log, and transactions that are open at its end."""
    (folder / "empty").write_bytes(b"")
    producers = {
        number: ProducerState(producer_id=number, epoch=0, transaction_first_offset=offset)
        for number, offset in enumerate(open_from)
    }
    (folder / "snapshot").write_bytes(producer_snapshot.encode(producers))
    (folder / "log").write_bytes(bytes(copy.segment_size_bytes))
    entries = [EpochEntry(*each) for each in lineage if each[1] < copy.end_offset]
    store.copy_log_segment_data(
        copy,
        LogSegmentData(
            log_segment=folder / "log",
            offset_index=folder / "empty",
            time_index=folder / "empty",
            transaction_index=None,
            producer_snapshot=folder / "snapshot",
            leader_epoch_index=leader_epoch_cache.encode(entries),
        ),
    )


def finished(number, start, end, *epochs):
    return replace(copy_of(number, start, end, *epochs), state=State.COPY_SEGMENT_FINISHED)


def history(store, folder, copies, lineage, *, open_from=(), log=(None, None)):
    """The history of copies (start, end, epochs...); `lineage` is that of the newest one."""
    of = [finished(number, *each) for number, each in enumerate(copies, 1)]
    for each in of:
        put(store, folder, each, lineage, open_from)
    return history_of(store, PARTITION, of, log_start_offset=log[0], log_end_offset=log[1])


@pytest.mark.parametrize(("copies", "lineage", "pieces", "holes"), [
    # One leader.
    ([(0, 20, (0, 0)), (20, 40, (0, 20))], [(0, 0)], [(1, 0, 20), (2, 20, 40)], []),
    # Retention has deleted the beginning; the leader's epochs begin there.
    ([(20, 40, (0, 20))],                  [(0, 20)], [(1, 20, 40)], []),
    # It has deleted more since they were copied.
    ([(20, 40, (0, 20))],                  [(0, 0)], [(1, 20, 40)], []),
    # The log started within the first segment.
    ([(0, 20, (0, 7)), (20, 40, (0, 20))], [(0, 7)], [(1, 7, 20), (2, 20, 40)], []),
    # Two leaders with other segments: nothing twice.
    ([(0, 20, (0, 0)), (0, 30, (0, 0)), (20, 40, (0, 20), (1, 30))], [(0, 0), (1, 30)],
     [(2, 0, 30), (3, 30, 40)], []),
    # The module's example: an unclean election at 50.
    ([(0, 60, (0, 0)), (40, 100, (0, 40), (1, 50)), (60, 90, (0, 60))], [(0, 0), (1, 50)],
     [(1, 0, 50), (2, 50, 100)], []),
    # The branch that was given up had copied more than the new leader.
    ([(0, 50, (0, 0), (1, 40)), (50, 100, (1, 50)), (50, 80, (2, 50))], [(0, 0), (1, 40), (2, 50)],
     [(1, 0, 50), (3, 50, 80)], []),
    # An epoch that wrote nothing.
    ([(0, 20, (0, 0)), (20, 40, (2, 20))], [(0, 0), (2, 20)], [(1, 0, 20), (2, 20, 40)], []),
    # A copy is missing; so are two.
    ([(0, 20, (0, 0)), (40, 60, (0, 40))], [(0, 0)], [(1, 0, 20), (2, 40, 60)], [(20, 40)]),
    ([(0, 20, (0, 0)), (30, 40, (1, 30)), (50, 60, (2, 55))], [(0, 0), (1, 30), (2, 55)],
     [(1, 0, 20), (2, 30, 40), (3, 55, 60)], [(20, 30), (40, 55)]),
    # The other branch's copy of the missing offsets is not this log's.
    ([(0, 20, (0, 0)), (20, 40, (1, 20)), (40, 60, (2, 40))], [(0, 0), (2, 20)],
     [(1, 0, 20), (3, 40, 60)], [(20, 40)]),
])  # fmt: skip
def test_pieces(store, tmp_path, copies, lineage, pieces, holes):
    found = history(store, tmp_path, copies, lineage)
    numbered = [(each.copy.segment_id.id.int, each.start_offset, each.end_offset) for each in found.pieces]
    assert numbered == pieces
    assert list(found.holes) == holes
    assert (found.start_offset, found.end_offset) == (pieces[0][1], pieces[-1][2])
    assert found.stable_end_offset == found.end_offset


@pytest.mark.parametrize(("log", "expected"), [
    ((None, None), [(1, 0, 20), (2, 20, 40)]),
    ((0, 50),      [(1, 0, 20), (2, 20, 40)]),
    ((7, 31),      [(1, 7, 20), (2, 20, 31)]),  # DeleteRecords; an unclean election, of which nothing is copied yet
    ((20, 40),     [(2, 20, 40)]),
    ((40, 60),     []),                         # all copies have expired
    ((0, 0),       []),
])  # fmt: skip
def test_bounds_of_the_log(store, tmp_path, log, expected):
    found = history(store, tmp_path, [(0, 20, (0, 0)), (20, 40, (0, 20))], [(0, 0)], log=log)
    assert [
        (each.copy.segment_id.id.int, each.start_offset, each.end_offset) for each in found.pieces
    ] == expected


def test_open_transactions_end_what_is_committed(store, tmp_path):
    found = history(store, tmp_path, [(0, 20, (0, 0)), (20, 40, (0, 20))], [(0, 0)], open_from=(33, None, 12))
    assert (found.stable_end_offset, found.end_offset) == (12, 40)


@pytest.mark.parametrize("state", [State.COPY_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED])
def test_copies_that_are_not_finished_do_not_count(store, tmp_path, state):
    done, other = finished(1, 0, 20), replace(copy_of(2, 20, 40), state=state)
    put(store, tmp_path, done, [(0, 0)])
    found = history_of(store, PARTITION, [done, other])
    assert [each.copy for each in found.pieces] == [done]


def test_no_copies(store):
    found = history_of(store, PARTITION, [])
    assert (found.pieces, found.start_offset, found.end_offset, found.stable_end_offset) == ((), 0, 0, 0)
    check_no_holes(found)


def test_holes_are_named(store, tmp_path):
    found = history(store, tmp_path, [(0, 20, (0, 0)), (40, 60, (0, 40))], [(0, 0)])
    with pytest.raises(
        RemoteStorageError, match=r"t-0: no copy in the store has the offsets \[20, 40\), which"
    ):
        check_no_holes(found)


def test_damaged_epochs(store, tmp_path):
    copy = finished(1, 0, 20)
    put(store, tmp_path, copy, [(3, 0)])
    with pytest.raises(
        RemoteStorageError, match="offset 0 is of epoch 3 in its leader epochs, of 0 in its metadata"
    ):
        history_of(store, PARTITION, [copy])
