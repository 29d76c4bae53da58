"""The findings of `ottla tier` from metadata and listed objects (KIP-405)."""

from uuid import UUID

import pytest

from ottla.broker.cli.tier.comparison import LogRange, OrphanKind, certain, findings, holes, orphans
from ottla.broker.cli.tier.progress import Progress
from ottla.broker.cli.tier.report import bar
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.remote.records import RemotePartitionDeleteState
from ottla.protocol.types import TopicPartition
from ottla.remote.known_copies import KnownCopies
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.object_storage import ListedObject, key_of
from ottla.remote.stores.stored_segments import StoredSegments
from ottla.storage.leader_epoch_cache import EpochEntry

PARTITION = TopicIdPartition(UUID(int=7), TopicPartition("t", 0))
OTHER = TopicIdPartition(UUID(int=7), TopicPartition("t", 1))
ELSEWHERE = TopicIdPartition(UUID(int=8), TopicPartition("t", 0))
FINISHED, STARTED = State.COPY_SEGMENT_FINISHED, State.COPY_SEGMENT_STARTED
DELETING, DELETED = State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED


def copy_of(number, start, end, *, partition=PARTITION, has_transactions=False):
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=number,
        segment_size_bytes=(end - start) * 100,
        leader_epochs=(EpochEntry(0, start),),
        is_transaction_index_empty=not has_transactions,
    )


def update(copy, state):
    return RemoteLogSegmentMetadataUpdate(
        segment_id=copy.segment_id, state=state, broker_id=1, event_timestamp_ms=5
    )


def known(*rows):
    """(copy, states that follow) ..."""
    made = KnownCopies()
    for copy, *states in rows:
        made.apply(copy)
        for state in states:
            made.apply(update(copy, state))
    return made


def listed(copy, *, without=(), size=None, with_transactions=False):
    kinds = [None, *IndexType] if with_transactions else [None, *(set(IndexType) - {IndexType.TRANSACTION})]
    return [
        ListedObject(key_of(copy, each), (size or copy.segment_size_bytes) if each is None else 10, 1000)
        for each in kinds
        if each not in without
    ]


def stored(*rows):
    return StoredSegments.of([each for row in rows for each in row])


A, B = copy_of(1, 0, 10), copy_of(2, 10, 20)


@pytest.mark.parametrize(("states", "state", "is_deleted"), [
    ([],                                     STARTED,  False),
    ([FINISHED],                             FINISHED, False),
    ([FINISHED, FINISHED],                   FINISHED, False),  # written twice
    ([FINISHED, DELETING],                   DELETING, False),
    ([DELETING],                             DELETING, False),
    ([DELETING, FINISHED],                   DELETING, False),  # refused, as by brokers
    ([DELETED],                              STARTED,  False),
    ([FINISHED, DELETING, DELETED],          None,     True),
    ([FINISHED, DELETING, DELETED, FINISHED], None,    True),
])  # fmt: skip
def test_records_are_folded(states, state, is_deleted):
    found = known((A, *states))
    assert (found.copies[A.segment_id].state if A.segment_id in found.copies else None) == state
    assert (A.segment_id in found.deleted) == is_deleted
    found.apply(A)  # the first record, written twice
    assert (A.segment_id in found.copies) == (not is_deleted)


def test_an_update_of_an_unknown_copy_is_ignored():
    found = KnownCopies()
    found.apply(update(A, FINISHED))
    assert not found.copies
    assert not found.deleted


def test_a_deleted_partition_has_no_copies():
    found = known((A, FINISHED, DELETING, DELETED), (copy_of(3, 0, 10, partition=OTHER), FINISHED))
    for state in RemotePartitionDeleteState:
        found.apply(deletion(state))
    assert [copy.partition for copy in found.copies.values()] == [OTHER]
    assert found.deleted == {A.segment_id}
    assert found.deletions[PARTITION] is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


def test_a_deletion_is_not_finished_while_there_are_copies():
    """Begun while the remover wrote its last record: brokers refuse that record, and delete the copy, too."""
    found = known((A, FINISHED))
    for state in RemotePartitionDeleteState:
        found.apply(deletion(state))
    assert [copy.segment_id for copy in found.copies.values()] == [A.segment_id]
    assert found.deletions[PARTITION] is RemotePartitionDeleteState.DELETE_PARTITION_STARTED


def deletion(state):
    return RemotePartitionDeleteMetadata(partition=PARTITION, state=state, broker_id=1, event_timestamp_ms=5)


@pytest.mark.parametrize(("copies", "start", "end", "missing"), [
    ([(0, 10), (10, 20)],           0,  20, []),
    ([(0, 10), (10, 20)],           5,  15, []),
    ([(0, 10), (10, 20)],           0,  25, [(20, 25)]),
    ([(5, 10), (12, 20)],           0,  20, [(0, 5), (10, 12)]),
    ([(0, 20), (5, 10), (15, 30)],  0,  30, []),   # overlapping copies
    ([(12, 20)],                    0,  10, [(0, 10)]),
    ([],                            0,  0,  []),
    ([],                            3,  3,  []),
])  # fmt: skip
def test_holes(copies, start, end, missing):
    made = [copy_of(number, *each) for number, each in enumerate(copies)]
    assert list(holes(made, start_offset=start, end_offset=end)) == missing


LOG = {PARTITION: LogRange(log_start_offset=0, local_log_start_offset=10, log_end_offset=30)}


@pytest.mark.parametrize(("rows", "objects", "expected"), [
    ([(A, FINISHED)],   [listed(A)],                                []),
    ([(A, FINISHED)],   [listed(A, without=[IndexType.OFFSET, None])],
                                                                    ["error: lacks objects in the store: log, index"]),
    ([(A, FINISHED)],   [listed(A, size=7)],                        ["error: has 7 bytes in the store, but 1000"]),
    ([(A, FINISHED)],   [],                                         ["error: has no object in the store"]),
    ([(A, FINISHED)],   [listed(A, with_transactions=True)],        []),  # an empty index was stored
    ([(A,)],                    [listed(A)[:2]],
     ["note: COPY_SEGMENT_STARTED since broker 1 wrote it; 2 objects", "error: offsets [0, 10) are in no tier"]),
    ([(A, FINISHED), (B, DELETING)], [listed(A)],
     ["note: DELETE_SEGMENT_STARTED since broker 1 wrote it; no object"]),
    ([(B, FINISHED)],   [listed(B)],                                ["error: offsets [0, 10) are in no tier"]),
])  # fmt: skip
def test_findings(rows, objects, expected):
    found = list(findings(known(*rows), stored(*objects), LOG))
    assert len(found) == len(expected), found
    for each, words in zip(found, expected, strict=True):
        severity, _, part = words.partition(": ")
        assert each.is_error == (severity == "error")
        assert part in str(each)


def test_a_transaction_index_that_the_metadata_names_must_be_there():
    copy = copy_of(1, 0, 10, has_transactions=True)
    [found] = findings(known((copy, FINISHED)), stored(listed(copy)), LOG)
    assert "lacks objects in the store: txnindex" in str(found)
    assert not list(findings(known((copy, FINISHED)), stored(listed(copy, with_transactions=True)), LOG))


@pytest.mark.parametrize(("rows", "partitions", "kind"), [
    ([(A, FINISHED)],                     [PARTITION], OrphanKind.UNNAMED),
    ([(A, FINISHED), (B, FINISHED, DELETING, DELETED)], [PARTITION], OrphanKind.DELETED),
    ([],                                  [PARTITION], OrphanKind.NO_METADATA),
    ([],                                  [ELSEWHERE], OrphanKind.UNKNOWN_TOPIC),
    # A deleted topic of which some metadata is left
    ([(copy_of(9, 0, 10, partition=OTHER),)], [],      OrphanKind.UNNAMED),
])  # fmt: skip
def test_kinds_of_orphans(rows, partitions, kind):
    [found] = orphans(known(*rows), stored(listed(B)), partitions, LOG)
    assert (found.segment.segment_id, found.kind) == (B.segment_id, kind)


@pytest.mark.parametrize(("log", "kind"), [
    # log start, local log start; A = [0, 10) is finished, B = [10, 20) is in the store only
    ((0, 10),  OrphanKind.UNNAMED),
    ((0, 20),  OrphanKind.NEEDED),   # its metadata may be lost
    ((20, 20), OrphanKind.UNNAMED),
    ((0, 15),  OrphanKind.NEEDED),
    (None,     OrphanKind.NEEDED),   # no leader: unknown
])  # fmt: skip
def test_an_orphan_that_may_have_what_no_tier_has_is_not_deleted(log, kind):
    logs = {}
    if log is not None:
        logs[PARTITION] = LogRange(log_start_offset=log[0], local_log_start_offset=log[1], log_end_offset=30)
    found = known((A, FINISHED))
    [orphan] = orphans(found, stored(listed(A), listed(B)), [PARTITION], logs)
    assert orphan.kind is kind
    assert OrphanKind.NEEDED not in certain(found)


@pytest.mark.parametrize(("field", "count", "is_certain"), [
    ("removed_count", 0, True), ("removed_count", 1, False), ("unread_count", 1, False),
])  # fmt: skip
def test_what_incomplete_metadata_does_not_name_may_be_in_use(field, count, is_certain):
    found = known((A, FINISHED))
    setattr(found, field, count)
    assert (OrphanKind.UNNAMED in certain(found)) == is_certain
    assert OrphanKind.DELETED in certain(found)
    assert not {OrphanKind.NO_METADATA, OrphanKind.UNKNOWN_TOPIC} & certain(found)


def test_what_the_metadata_names_in_any_state_is_no_orphan():
    assert not list(
        orphans(known((A,), (B, FINISHED, DELETING)), stored(listed(A), listed(B)), [PARTITION], LOG)
    )


def test_other_names_are_no_copies():
    found = StoredSegments.of([ListedObject("x/readme", 1, 0), *listed(A)])
    assert [each.key for each in found.foreign] == ["x/readme"]
    assert (found.objects_count, found.size_bytes) == (5, 1040)


@pytest.mark.parametrize(("ranges", "half", "drawn"), [
    ([],                  [],          "    "),
    ([(0, 100)],          [],          "████"),
    ([(0, 25), (75, 80)], [],          "█  █"),
    ([(30, 31)],          [],          " █  "),   # also where there is little
    ([(0, 50)],           [(0, 100)],  "██▒▒"),
    ([(-50, 25)],         [],          "█   "),   # deleted from the log, not yet from the tier
    ([(90, 200)],         [],          "   █"),
])  # fmt: skip
def test_bars(ranges, half, drawn):
    assert bar(ranges, start_offset=0, end_offset=100, half=half, width=4) == drawn


def test_a_bar_of_an_empty_log():
    assert bar([(5, 5)], start_offset=5, end_offset=5, width=3) == "   "


def test_progress_is_shown_on_a_terminal_only(capsys):
    for is_shown in (False, True):
        progress = Progress(is_shown=is_shown)
        with progress.counting("objects") as count:
            for _ in range(501):
                count()
        with progress.measuring("records", 10) as done:
            done(3.5)
            done(10)
        with progress.measuring("nothing", 0):
            pass
        out, shown = capsys.readouterr()
        assert out == ""
        assert ("objects: 500" in shown, "objects: 501" in shown, "records" in shown) == (is_shown,) * 3
