"""Consumers' fetches of what is in the remote tier only (KIP-405), through the handler of Fetch."""

import pytest
from replicas_support import NOW_MS, TOPIC_ID, batch, image

from ottla.broker.api import k01_fetch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import records
from ottla.remote.reading.settings import RemoteReadSettings
from ottla.runtime import Pool
from ottla.storage.log import WouldBlock
from tests.harness.faulty_store import Fault, refuse, truncated

FETCHES = pytest.mark.logs("cannot be read from the remote tier")


def request(offsets, *, max_wait_ms=500, **fields):
    defaults = {"min_bytes": 1, "max_bytes": 10**6, "session_id": 0, "session_epoch": -1}
    limit = fields.pop("partition_max_bytes", 10**6)
    epoch = fields.pop("epoch", -1)
    rows = [
        FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=limit, current_leader_epoch=epoch
        )
        for index, offset in offsets.items()
    ]
    topics = [FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=rows)] if rows else []
    return FetchRequest(topics=topics, max_wait_ms=max_wait_ms, **(defaults | fields))


def fetch(simulation, tiered, offsets, **fields):
    """The rows by partition, and how long it took."""

    async def main():
        began = simulation.loop.time()
        response = tiered.raw(k01_fetch, request(offsets, **fields), 12)
        if hasattr(response, "__await__"):
            response = await response
        rows = {row.partition_index: row for topic in response.responses for row in topic.partitions}
        return rows, simulation.loop.time() - began

    return simulation.run(main())


def offsets_in(row):
    return [record.offset for _, part in batches(memoryview(bytes(row.records))) for record in records(part)]


def test_both_tiers_are_read_as_one_log(simulation, tiered):
    tiered.fill(4, local_from=2)
    assert tiered.partition().log.local_log_start_offset == 2
    for offset in range(4):
        rows, _ = fetch(simulation, tiered, {0: offset})
        row = rows[0]
        assert (ErrorCode(row.error_code), row.high_watermark, row.log_start_offset) == (ErrorCode.none, 4, 0)
        assert offsets_in(row) == [offset]


def test_the_first_read_waits_and_a_kept_one_does_not(simulation, tiered):
    tiered.fill(2)
    tiered.slow_store(0.05)
    rows, took = fetch(simulation, tiered, {0: 0})
    assert offsets_in(rows[0]) == [0]
    assert 0 < took < 0.5
    rows, took = fetch(simulation, tiered, {0: 0})
    assert offsets_in(rows[0]) == [0]
    assert took == 0


def test_the_time_of_a_read_of_the_store_is_observed(simulation, tiered):
    tiered.fill(2)
    tiered.slow_store(0.05)
    _, took = fetch(simulation, tiered, {0: 0})
    times = tiered.replicas.topic_stats.consumer_fetches.waits
    assert (times.count, times.sum_ms) == (1, pytest.approx(took * 1000))


def test_a_store_slower_than_the_wait_does_not_stop_a_consumer(simulation, tiered):
    """Aiven's README, "Fetching": with Kafka each read is thrown away after remote.fetch.max.wait.ms, and
    begun again.
    """
    tiered.fill(2)
    tiered.slow_store(0.8)
    answers = []
    for _ in range(20):
        rows, took = fetch(simulation, tiered, {0: 0})
        answers.append(offsets_in(rows[0]))
        assert rows[0].error_code == 0
        assert took <= 0.51
        if answers[-1]:
            break
    assert answers[-1] == [0]
    assert tiered.store.count("segment") == 1
    assert tiered.reads.expired_fetch_count == len(answers) - 1


@pytest.mark.parametrize(
    ("max_wait_ms", "remote_ms", "waits_s"), [(100, 500, 0.1), (5000, 300, 0.3), (0, 500, 0)]
)
def test_the_wait_is_the_shorter_one(simulation, tiered, max_wait_ms, remote_ms, waits_s):
    tiered.settings = RemoteReadSettings(fetch_max_wait_ms=remote_ms)
    tiered.fill(2)
    tiered.slow_store(60)
    rows, took = fetch(simulation, tiered, {0: 0}, max_wait_ms=max_wait_ms)
    assert took == pytest.approx(waits_s)
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [])


def test_several_remote_partitions_and_a_local_one(simulation, tiered):
    for index in range(2):
        tiered.fill(2, index=index)
    tiered.partition(2).as_leader().append_records(batch(b"x" * 100), required_acks=-1, now_ms=NOW_MS)
    tiered.slow_store(0.05)
    # What is there is sent at once, if it is min_bytes.
    rows, took = fetch(simulation, tiered, {0: 0, 1: 0, 2: 0})
    assert [offsets_in(rows[index]) for index in range(3)] == [[], [], [0]]
    assert took == 0
    # For more, both are waited for.
    rows, took = fetch(simulation, tiered, {0: 0, 1: 0, 2: 0}, min_bytes=400)
    assert [offsets_in(rows[index]) for index in range(3)] == [[0], [0], [0]]
    assert 0 < took < 0.5


@FETCHES
@pytest.mark.parametrize("effect", [refuse(403), refuse(404), refuse(503), truncated(10)])
def test_a_failing_store_is_an_error_of_its_row_only(simulation, tiered, effect):
    tiered.fill(2)
    tiered.fill(2, index=1, local_from=0)
    tiered.store.faults.append(Fault("segment", effect, times=1000))
    codes = []
    for _ in range(5):
        rows, took = fetch(simulation, tiered, {0: 0, 1: 2})
        assert took <= 0.51
        codes.append(ErrorCode(rows[0].error_code))
        assert rows[1].error_code == 0
    assert ErrorCode.unknown_server_error in codes
    assert set(codes) <= {ErrorCode.none, ErrorCode.unknown_server_error}
    # No tight loop: the store is asked a few times, whatever the consumer does.
    assert tiered.store.count("segment") <= 12
    tiered.store.faults.clear()
    for _ in range(20):
        rows, _ = fetch(simulation, tiered, {0: 0})
        if offsets_in(rows[0]):
            break
    assert offsets_in(rows[0]) == [0]


@FETCHES
def test_a_store_that_does_not_answer_is_an_error_in_the_end(simulation, tiered):
    """Its threads are occupied: partitions that wait for one get the error, too, and all continue when it answers."""
    tiered.settings = RemoteReadSettings(reader_threads=1)
    tiered.fill(2)
    tiered.fill(2, index=1)
    tiered.slow_store(100)
    codes = []
    for _ in range(2000):
        rows, took = fetch(simulation, tiered, {0: 0, 1: 0})
        assert took <= 0.51
        codes.append([ErrorCode(rows[index].error_code) for index in range(2)])
        if all(offsets_in(rows[index]) == [0] for index in range(2)):
            break
    assert set(map(tuple, codes[:115])) == {(ErrorCode.none, ErrorCode.none)}
    assert set(map(tuple, codes[121:300])) == {
        (ErrorCode.unknown_server_error, ErrorCode.unknown_server_error)
    }
    assert codes[-1] == [ErrorCode.none, ErrorCode.none]


def test_the_loop_does_not_wait_for_a_disk_after_the_wait_for_the_store(simulation, tiered, monkeypatch):
    """Local data of the same Fetch may leave the memory meanwhile: the next Fetch has it."""
    tiered.fill(2)
    tiered.append(1)
    reader = tiered.partition(1).log.reader
    really_read, modes = reader.read, []

    def read(*arguments, may_block, **fields):
        modes.append(may_block)
        if len(modes) > 1 and not may_block:
            raise WouldBlock({0})
        return really_read(*arguments, may_block=may_block, **fields)

    monkeypatch.setattr(reader, "read", read)
    monkeypatch.setattr(reader, "read_newest", lambda *_, **__: None)
    rows, _ = fetch(simulation, tiered, {0: 0, 1: 0}, min_bytes=10**5)
    assert (offsets_in(rows[0]), offsets_in(rows[1])) == ([0], [])
    assert modes == [False, False]
    rows, _ = fetch(simulation, tiered, {0: 0, 1: 0}, min_bytes=10**5)
    assert (offsets_in(rows[0]), offsets_in(rows[1])) == ([0], [0])


def test_a_short_failure_is_not_seen(simulation, tiered):
    tiered.fill(2)
    tiered.store.faults.append(Fault("segment", refuse(503)))
    rows, took = fetch(simulation, tiered, {0: 0})
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [0])
    assert took < 0.5


@FETCHES
def test_too_many_reads_are_refused(simulation, tiered):
    """The bound is remote.log.reader.max.pending.tasks."""
    tiered.settings = RemoteReadSettings(reader_threads=1, max_pending_reads=1)
    for index in range(3):
        tiered.fill(2, index=index)
    tiered.slow_store(60)
    rows, _ = fetch(simulation, tiered, {0: 0, 1: 0, 2: 0}, max_bytes=10**7)
    codes = [ErrorCode(rows[index].error_code) for index in range(3)]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_server_error]


def test_the_quota(simulation, tiered):
    """remote.log.manager.fetch.max.bytes.per.second (KIP-956): no records and no error while it is exceeded."""
    tiered.fill(2)
    tiered.quota.is_open = False
    rows, took = fetch(simulation, tiered, {0: 0})
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [])
    assert took == 0.5
    tiered.quota.is_open = True
    rows, _ = fetch(simulation, tiered, {0: 0})
    assert offsets_in(rows[0]) == [0]
    assert tiered.quota.recorded == len(rows[0].records)
    assert tiered.quota.waits == [0.5]


def test_the_metadata_of_copies_is_still_being_read(simulation, tiered):
    """After a start: no records and no error, where Kafka returns UNKNOWN_SERVER_ERROR."""
    tiered.fill(2)
    tiered.tier.metadata.is_late = True
    rows, took = fetch(simulation, tiered, {0: 0})
    assert (rows[0].error_code, offsets_in(rows[0])) == (0, [])
    assert took == 0.5
    tiered.tier.metadata.is_late = False
    rows, _ = fetch(simulation, tiered, {0: 0})
    assert offsets_in(rows[0]) == [0]


def test_a_fetch_is_answered_when_the_metadata_of_copies_is_read(simulation, tiered):
    """Its consumer does not wait for the rest of max_wait_ms, and its next Fetch returns the records."""
    tiered.fill(2)
    tiered.tier.metadata.is_late = True
    simulation.loop.call_later(0.1, lambda: setattr(tiered.tier.metadata, "is_late", False))
    rows, took = fetch(simulation, tiered, {0: 0})
    assert rows[0].error_code == 0
    assert 0.1 <= took < 0.2
    rows, _ = fetch(simulation, tiered, {0: 0})
    assert offsets_in(rows[0]) == [0]


def test_a_new_leader_serves_what_it_has_read_as_a_follower(simulation, tiered):
    """The metadata topic may have no leader for a while: consumers of the copies that are known do not notice."""
    tiered.fill(3)
    tiered.tier.metadata.is_catching_up = True
    rows, _ = fetch(simulation, tiered, {0: 0})
    assert offsets_in(rows[0]) == [0]
    tiered.forget_copy(1)
    rows, took = fetch(simulation, tiered, {0: 1})
    assert (rows[0].error_code, offsets_in(rows[0]), took) == (0, [], 0.5)
    tiered.tier.metadata.is_catching_up = False
    rows, _ = fetch(simulation, tiered, {0: 1})
    assert rows[0].error_code == ErrorCode.offset_out_of_range


def test_appends_do_not_end_the_wait_of_a_throttled_fetch(simulation, tiered):
    tiered.fill(2)
    tiered.quota.is_open = False

    async def main():
        waiting = tiered.raw(k01_fetch, request({0: 0}), 12)
        began = simulation.loop.time()
        tiered.partition().as_leader().append_records(batch(b"new"), required_acks=-1, now_ms=NOW_MS)
        await waiting
        assert simulation.loop.time() - began == pytest.approx(0.5)

    simulation.run(main())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("follower", ErrorCode.fenced_leader_epoch),
        ("deleted", ErrorCode.unknown_topic_or_partition),
        ("log start", ErrorCode.offset_out_of_range),
        ("new epoch", ErrorCode.fenced_leader_epoch),
    ],
)
def test_a_change_while_a_read_waits_is_noticed(simulation, tiered, change, code):
    tiered.fill(4, local_from=3)
    tiered.slow_store(0.1)

    async def main():
        waiting = tiered.raw(k01_fetch, request({0: 0}, epoch=0), 12)
        began = simulation.loop.time()
        match change:
            case "follower":
                tiered.change_leader(2, epoch=1)
            case "new epoch":
                tiered.change_leader(1, epoch=1)
            case "deleted":
                tiered.delete()
            case "log start":
                tiered.partition().log.maybe_increment_log_start_offset(2)
        response = await waiting
        (topic,) = response.responses
        assert ErrorCode(topic.partitions[0].error_code) == code
        if change != "log start":
            assert simulation.loop.time() - began < 0.05
        await tiered.runtime.run_blocking(lambda: None, pool=Pool.REMOTE_READS)

    simulation.run(main())


def test_a_session_keeps_a_remote_partition_until_it_is_read(simulation, tiered):
    tiered.fill(2)
    tiered.slow_store(0.8)
    tiered.settings = RemoteReadSettings(fetch_max_wait_ms=100)

    async def main():
        response = await tiered.raw(k01_fetch, request({0: 0, 1: 0}, session_epoch=0), 12)
        session, epoch = response.session_id, 1
        assert session
        found = []
        while not found and epoch < 60:
            response = tiered.raw(k01_fetch, request({}, session_id=session, session_epoch=epoch), 12)
            if hasattr(response, "__await__"):
                response = await response
            epoch += 1
            found = [offsets_in(row) for topic in response.responses for row in topic.partitions]
        assert found == [[0]]

    simulation.run(main())


def test_without_a_remote_tier_the_offset_is_out_of_range(simulation, tiered):
    tiered.fill(2)
    tiered.remote = None
    rows, _ = fetch(simulation, tiered, {0: 0})
    assert rows[0].error_code == ErrorCode.offset_out_of_range


def test_a_follower_is_referred_to_the_remote_tier(simulation, tiered):
    tiered.fill(2)
    tiered.partition().apply(image(epoch=1, replicas=(1, 2)))
    rows, _ = fetch(simulation, tiered, {0: 0}, replica_id=2)
    assert rows[0].error_code == ErrorCode.offset_moved_to_tiered_storage


def test_a_sequential_consumer_finds_the_next_chunk_in_memory(simulation, tiered):
    tiered.fill(8)
    tiered.slow_store(0.01)
    waits = []
    for offset in range(8):
        rows, took = fetch(simulation, tiered, {0: offset})
        assert offsets_in(rows[0]) == [offset]
        waits.append(took)
        simulation.run(sleep(0.2))
    assert waits[0] > 0
    assert waits[3:] == [0] * 5
    assert tiered.metrics.topic("t").remote_fetch_requests == tiered.store.count("segment") == 7


async def sleep(seconds):
    import asyncio

    await asyncio.sleep(seconds)
