"""ListOffsets and DeleteRecords of logs in two tiers, through their handlers."""

import asyncio
from contextlib import suppress

import pytest
from replicas_support import NOW_MS
from test_offsets_apis import DEBUGGING, delete_records, list_offsets

from ottla.broker.api import k02_list_offsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.runtime import Pool
from ottla.stories.partition.tiered_log import remove_local_segments
from tests.harness.bombs import MANY, understated_batch
from tests.harness.faulty_store import Fault, refuse

EARLIEST, LATEST, MAX, LOCAL, TIERED_END, PENDING = -2, -1, -3, -4, -5, -6
NOTHING = (-1, -1, -1)


# KIP-405, KIP-734, KIP-1005, KIP-1023
@pytest.mark.parametrize(
    ("timestamp", "answer"),
    [
        (EARLIEST, (-1, 0, 0)),
        (LATEST, (-1, 6, 0)),
        (MAX, (NOW_MS + 5, 5, 0)),
        (LOCAL, (-1, 4, 0)),
        (TIERED_END, (-1, 5, 0)),
        # All is copied: as Kafka, no offset that cannot be fetched yet.
        (PENDING, NOTHING),
        (0, (NOW_MS, 0, 0)),
        (NOW_MS + 2, (NOW_MS + 2, 2, 0)),
        (NOW_MS + 4, (NOW_MS + 4, 4, 0)),
        (NOW_MS + 6, NOTHING),
    ],
)
def test_offsets_of_both_tiers(simulation, tiered, timestamp, answer):
    """Offsets 0 to 5, each in a segment with its own timestamp; 0 to 5 are copied, 4 and 5 are local, too."""
    tiered.fill(6, local_from=4)
    assert list_offsets(simulation, tiered, (0, timestamp, 0)) == [(ErrorCode.none, *answer)]


@pytest.mark.parametrize("timestamp", [NOW_MS + 700, NOW_MS + 1000, MAX])
def test_records_in_a_copy_are_found_that_no_header_claims(simulation, tiered, timestamp):
    tiered.fill(1)
    sent = understated_batch(base_ms=NOW_MS, last_ms=NOW_MS + 1000, claimed_ms=NOW_MS + 60)
    tiered.partition().as_leader().append_records(memoryview(sent), required_acks=-1, now_ms=NOW_MS)
    tiered.partition().log.roll(NOW_MS)
    tiered.fill(0)
    found = list_offsets(simulation, tiered, (0, timestamp, 0))
    assert found == [(ErrorCode.none, NOW_MS + 1000, MANY - 1, 0)]


@pytest.mark.logs("log start offset advances")
def test_records_in_a_part_of_a_copy_are_found_that_no_header_claims(simulation, tiered):
    tiered.fill(1)
    leader = tiered.partition().as_leader()
    for last_ms in (NOW_MS + 2000, NOW_MS + 1000):
        sent = understated_batch(base_ms=NOW_MS, last_ms=last_ms, claimed_ms=NOW_MS + 60)
        leader.append_records(memoryview(sent), required_acks=-1, now_ms=NOW_MS)
    tiered.partition().log.roll(NOW_MS)
    tiered.fill(0)
    tiered.partition().log.maybe_increment_log_start_offset(MANY)
    found = list_offsets(simulation, tiered, (0, MAX, 0))
    assert found == [(ErrorCode.none, NOW_MS + 1000, 2 * MANY - 1, 0)]


# KIP-734
def test_the_largest_timestamp_may_be_in_the_remote_tier(simulation, tiered):
    """Kafka 4.3.1 returns that of the local segments."""
    tiered.fill(4, local_from=3, timestamps=(10, 40, 20, 30))
    assert list_offsets(simulation, tiered, (0, MAX, -1)) == [(ErrorCode.none, 40, 1, 0)]


# KIP-405, KIP-734
@pytest.mark.parametrize("local_from", [0, 1])
@pytest.mark.parametrize(("timestamp", "answer"), [(20, (40, 2, 0)), (MAX, (40, 2, 0)), (35, (40, 2, 0))])
def test_local_retention_takes_segments_during_a_search(simulation, tiered, local_from, timestamp, answer):
    """Segments with copies leave the local log before the thread reads them: their copies are searched."""
    tiered.fill(5, local_from=local_from, timestamps=(5, 10, 40, 20, 30))
    tiered.runtime.pools[Pool.LOOK_UPS].blocking_s = lambda: 5  # before it, and after it
    rows = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=rows)])

    async def main():
        waiting = tiered.runtime.create_task(tiered.call(k02_list_offsets, request, 11), name="a request")
        await asyncio.sleep(2)
        assert not waiting.done()
        remove_local_segments(tiered.partition().log, 4)
        (row,) = (await waiting).topics[0].partitions
        return (row.timestamp, row.offset, row.leader_epoch)

    assert simulation.run(main()) == answer


# KIP-1005, KIP-1023
def test_what_is_not_known_yet(simulation, tiered):
    """After a start, before the first run of the partition's task."""
    tiered.fill(4, local_from=2)
    log = tiered.partition().log
    log.offsets.forget_remote_end()
    assert list_offsets(simulation, tiered, (0, TIERED_END, -1)) == [(ErrorCode.none, *NOTHING)]
    assert list_offsets(simulation, tiered, (0, PENDING, -1)) == [(ErrorCode.none, *NOTHING)]
    log = tiered.partition(1).log
    tiered.fill(2, index=1, local_from=0)
    log.offsets.forget_remote_end()
    assert list_offsets(simulation, tiered, (1, PENDING, -1)) == [(ErrorCode.none, -1, 0, 0)]


# KIP-1023
def test_a_follower_learns_the_offset_also_where_nothing_is_left_to_be_copied(simulation, tiered):
    """Kafka's leader returns -1: a follower then waits for the next record."""
    tiered.fill(6, local_from=4)
    assert list_offsets(simulation, tiered, (0, PENDING, 0), replica_id=2) == [(ErrorCode.none, -1, 6, 0)]
    tiered.append(0)
    assert list_offsets(simulation, tiered, (0, PENDING, 0), replica_id=2) == [(ErrorCode.none, -1, 6, 0)]
    assert list_offsets(simulation, tiered, (1, PENDING, 0), replica_id=2) == [(ErrorCode.none, -1, 0, 0)]


# KIP-1023
@pytest.mark.parametrize(("remote_end", "log_start", "pending"), [
    (None, 0, None),   # before the first run of the partition's task
    (0, 0, 4),         # limited to the local log start, as in LocalLeaderEndPoint of Kafka 4.3.1
    (4, 0, 4),
    (5, 0, 5),
    (4, 5, 5),         # DeleteRecords within the local segments: limited to the log start
    (None, 5, 5),      # nothing is tiered from the log start on
])  # fmt: skip
def test_the_earliest_pending_upload_offset_is_in_the_local_log(
    simulation, tiered, remote_end, log_start, pending
):
    tiered.fill(6, local_from=4)
    tiered.append(0)
    if log_start:
        tiered.partition().as_leader().delete_records(log_start)
    offsets = tiered.partition().log.offsets
    offsets.forget_remote_end()
    if remote_end is not None:
        offsets.advance_remote_end(remote_end)
    expected = NOTHING if pending is None else (-1, pending, 0)
    for replica_id in (-1, 2):
        asked = list_offsets(simulation, tiered, (0, PENDING, 0), replica_id=replica_id)
        assert asked == [(ErrorCode.none, *expected)]
    (row,) = list_offsets(simulation, tiered, (0, PENDING, 0), version=10, replica_id=2)
    assert row[0] == ErrorCode.unsupported_version


# KIP-1005, KIP-1023
def test_what_is_not_copied_yet(simulation, tiered):
    tiered.fill(4, local_from=2)
    tiered.append(0)
    log = tiered.partition().log
    assert log.offsets.remote_end_offset == 4
    assert list_offsets(simulation, tiered, (0, TIERED_END, -1)) == [(ErrorCode.none, -1, 3, 0)]
    assert list_offsets(simulation, tiered, (0, PENDING, -1)) == [(ErrorCode.none, -1, 4, 0)]
    assert list_offsets(simulation, tiered, (1, TIERED_END, -1)) == [(ErrorCode.none, *NOTHING)]
    assert list_offsets(simulation, tiered, (1, PENDING, -1)) == [(ErrorCode.none, *NOTHING)]


def test_the_epochs_of_remote_offsets(simulation, tiered):
    tiered.fill(2)
    tiered.change_leader(1, epoch=1)
    tiered.fill(2, local_from=4)
    found = list_offsets(simulation, tiered, (0, EARLIEST, 1))
    found += list_offsets(simulation, tiered, (0, LOCAL, 1))
    found += list_offsets(simulation, tiered, (0, TIERED_END, 1))
    found += list_offsets(simulation, tiered, (0, NOW_MS, 1))
    found += list_offsets(simulation, tiered, (0, NOW_MS + 1, 1))
    assert [row[2:] for row in found] == [(0, 0), (3, 1), (3, 1), (0, 0), (1, 0)]


# KIP-1075
@pytest.mark.parametrize(
    ("version", "timeout_ms", "waits_s"), [(10, 2000, 2), (10, 0, 7), (9, 2000, 7), (11, 300, 0.3)]
)
def test_a_search_that_is_not_complete_in_time(simulation, tiered, version, timeout_ms, waits_s):
    tiered.settings = RemoteReadSettings(list_offsets_timeout_ms=7000)
    tiered.fill(4)
    tiered.append(1, timestamp=NOW_MS)
    tiered.slow_store(60)
    rows = [ListOffsetsPartition(partition_index=index, timestamp=NOW_MS) for index in range(2)]
    request = ListOffsetsRequest(
        replica_id=-1,
        timeout_ms=timeout_ms if version >= 10 else 0,
        topics=[ListOffsetsTopic(name="t", partitions=rows)],
    )

    async def main():
        began = simulation.loop.time()
        response = await tiered.call(k02_list_offsets, request, version)
        assert simulation.loop.time() - began == pytest.approx(waits_s)
        return [(ErrorCode(row.error_code), row.offset) for row in response.topics[0].partitions]

    # The other partition has its answer.
    assert simulation.run(main()) == [(ErrorCode.request_timed_out, -1), (ErrorCode.none, 0)]
    assert tiered.reads.expired_list_offsets_count == 1


@pytest.mark.parametrize("cancelled_after_s", [0, 5, 15])
def test_a_connection_that_is_closed_ends_its_searches(simulation, tiered, cancelled_after_s):
    """They end even while the local log of another row is searched, for ten seconds here."""
    tiered.settings = RemoteReadSettings(reader_threads=1)
    tiered.fill(4)
    tiered.append(1, timestamp=NOW_MS)
    tiered.slow_store(60)
    tiered.runtime.pools[Pool.LOOK_UPS].blocking_s = lambda: 5
    rows = [ListOffsetsPartition(partition_index=index, timestamp=NOW_MS) for index in (0, 1)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=rows)])

    async def main():
        first, second = (
            tiered.runtime.create_task(tiered.call(k02_list_offsets, request, 11), name="a request")
            for _ in range(2)
        )
        await asyncio.sleep(cancelled_after_s)
        assert tiered.reads.slots.waiting_count == (1 if cancelled_after_s else 0)
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
        await asyncio.sleep(0)
        assert tiered.reads.slots.waiting_count == 0
        await first

    simulation.run(main())


# KIP-1075
@pytest.mark.parametrize("change", ["leader", "epoch", "deleted"])
def test_a_change_of_role_ends_a_search(simulation, tiered, change):
    tiered.fill(4)
    tiered.slow_store(60)
    rows = [ListOffsetsPartition(partition_index=0, timestamp=NOW_MS)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=rows)])

    async def main():
        waiting = tiered.runtime.create_task(tiered.call(k02_list_offsets, request, 11), name="a request")
        await tiered.runtime.run_blocking(lambda: None, pool=tiered.other_pool)
        began = simulation.loop.time()
        match change:
            case "leader":
                tiered.change_leader(2, epoch=1)
            case "epoch":
                tiered.change_leader(1, epoch=1)
            case "deleted":
                tiered.delete()
        response = await waiting
        assert simulation.loop.time() - began < 1
        return ErrorCode(response.topics[0].partitions[0].error_code)

    assert simulation.run(main()) == ErrorCode.not_leader_or_follower


@pytest.mark.logs("cannot be searched")
def test_a_failing_store(simulation, tiered):
    tiered.fill(4)
    tiered.store.faults.append(Fault("timeindex", refuse(403)))
    (row,) = list_offsets(simulation, tiered, (0, NOW_MS, -1))
    assert row[0] == ErrorCode.unknown_server_error
    (row,) = list_offsets(simulation, tiered, (0, NOW_MS, -1))
    assert row[0] == ErrorCode.none


@pytest.mark.parametrize(("times", "code"), [(2, ErrorCode.none), (3, ErrorCode.unknown_server_error)])
@pytest.mark.logs("cannot be searched")
def test_a_short_failure_is_not_seen(simulation, tiered, times, code):
    tiered.fill(4)
    tiered.store.faults.append(Fault("segment", refuse(503), times=times))
    (row,) = list_offsets(simulation, tiered, (0, NOW_MS, -1))
    assert row[0] == code


# KIP-107
def test_delete_records_in_the_remote_part(simulation, tiered):
    """The low watermark may be in the middle of a remote segment: what is before it is not found any more."""
    tiered.fill_in_one_segment(6)
    tiered.fill(3, local_from=8)
    log = tiered.partition().log
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 8)
    assert delete_records(tiered, {0: 3}) == {0: (ErrorCode.none, 3)}
    assert (log.log_start_offset, log.local_log_start_offset) == (3, 8)
    assert list_offsets(simulation, tiered, (0, EARLIEST, -1)) == [(ErrorCode.none, -1, 3, 0)]
    assert list_offsets(simulation, tiered, (0, 0, -1)) == [(ErrorCode.none, NOW_MS + 3, 3, 0)]
    assert delete_records(tiered, {0: 2}) == {0: (ErrorCode.none, 3)}
    assert log.log_start_offset == 3
    # Behind the remote part, both starts move.
    assert delete_records(tiered, {0: -1}) == {0: (ErrorCode.none, 9)}
    assert (log.log_start_offset, log.local_log_start_offset) == (9, 9)
    assert list_offsets(simulation, tiered, (0, NOW_MS, -1)) == [(ErrorCode.none, *NOTHING)]


def test_a_debugging_tool_may_ask_a_follower(simulation, tiered):
    tiered.fill(4)
    tiered.change_leader(2, epoch=1)
    (row,) = list_offsets(simulation, tiered, (0, NOW_MS + 1, -1), replica_id=DEBUGGING)
    assert row == (ErrorCode.none, NOW_MS + 1, 1, 0)
    (row,) = list_offsets(simulation, tiered, (0, NOW_MS + 1, -1))
    assert row[0] == ErrorCode.not_leader_or_follower
