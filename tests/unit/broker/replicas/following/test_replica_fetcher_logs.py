"""Followers' logs over the simulation's network: where they start, how fast they grow, where they are truncated."""

import asyncio
from inspect import isawaitable
from unittest.mock import patch

import pytest
from replica_fetcher_support import at, end, replicating, run, values, write

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import CorruptMessage, ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import ReplicaBroker
from tests.harness.waiting import until

# -- log starts ----------------------------------------------------------------------------------------------


async def delete_records(broker: ReplicaBroker, offset: int, *, timeout_ms: int = 1_000):
    row = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="orders", partitions=[row])], timeout_ms=timeout_ms
    )
    answer = broker.answer(ApiKey.DELETE_RECORDS, request, 2)
    response = await answer if isawaitable(answer) else answer
    (row,) = response.topics[0].partitions
    return row.error_code, row.low_watermark


def test_delete_records_waits_until_followers_have_deleted_them(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            for number in range(10):
                write(leader, 0, b"%d" % number)
            await until(lambda: leader.partition(at(0)).log.high_watermark == 10)
            assert await delete_records(leader, 4) == (ErrorCode.none, 4)
            assert follower.partition(at(0)).log.log_start_offset == 4
            simulation.network.cut("broker1", "broker2")
            assert await delete_records(leader, 6) == (ErrorCode.request_timed_out, -1)
            # A broker that is fenced need not have deleted anything.
            cluster.fence(2)
            assert await delete_records(leader, 7) == (ErrorCode.none, 7)
            simulation.network.heal("broker1", "broker2")

    run(simulation, story)


def test_a_followers_log_start_offset_is_sent_to_its_leader(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a", b"b", b"c")
            await until(lambda: follower.partition(at(0)).log.high_watermark == 3)
            follower.partition(at(0)).log.maybe_increment_log_start_offset(2, reason="retention")
            follower.replicas.notice_retention()
            progress = leader.partition(at(0)).leader.state.followers[2]
            await until(lambda: progress.log_start_offset == 2, within_s=1.1)

    run(simulation, story)


def test_who_was_away_too_long_begins_where_the_leader_begins(simulation, caplog):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)
            await follower.crash(Loss.NOTHING)
            cluster.fence(2)
            cluster.change(at(0), isr=[1])
            for number in range(9):
                write(leader, 0, b"%d" % number)
            assert await delete_records(leader, 5) == (ErrorCode.none, 5)
            follower.start()
            await follower.listen()
            await until(lambda: end(follower, 0) == 10)
            log = follower.partition(at(0)).log
            assert log.log_start_offset == 5
            assert list(log.leader_epochs.entries) == list(leader.partition(at(0)).log.leader_epochs.entries)
            assert "orders-0: removing all records, to start at offset 5" in caplog.text

    run(simulation, story)


@pytest.mark.logs("removing all records, to start at offset", "the log end is out of the leader's range")
def test_an_empty_log_begins_within_a_batch(simulation):
    """DeleteRecords has cut within a batch: batches are whole, so the follower's log begins with all of it."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await follower.crash(Loss.NOTHING)
            cluster.fence(2)
            cluster.change(at(0), isr=[1])
            write(leader, 0, b"a", b"b", b"c", b"d")
            assert await delete_records(leader, 2) == (ErrorCode.none, 2)
            follower.start()
            await follower.listen()
            await until(lambda: end(follower, 0) == 4)
            log = follower.partition(at(0)).log
            await until(lambda: log.log_start_offset == 2)
            assert log.segments.active.base_offset == 0

    run(simulation, story)


def test_a_leader_that_has_less_after_an_unclean_election(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            first, second = cluster.brokers.values()
            write(first, 0, b"both")
            await until(lambda: end(second, 0) == 1)
            simulation.network.cut("broker1", "broker2")
            write(first, 0, b"one", b"two")
            cluster.elect(at(0), 2, isr=[2])
            write(second, 0, b"other")
            simulation.network.heal("broker1", "broker2")
            await until(lambda: values(first, 0) == [b"both", b"other"])

    run(simulation, story)


# -- rates ---------------------------------------------------------------------------------------------------


def megabyte(broker: ReplicaBroker) -> None:
    for _ in range(100):
        write(broker, 0, bytes(10_000))


# KIP-73
@pytest.mark.parametrize(("is_in_isr", "least_s", "most_s"), [(False, 7, 13), (True, 0, 1)])
def test_a_throttled_follower_keeps_to_its_rate_unless_it_would_fall_out_of_the_isr(
    simulation, is_in_isr, least_s, most_s
):
    configs = {"follower.replication.throttled.replicas": "0:2"}

    async def story():
        async with replicating(simulation, 2, configs=configs, fetching={"max_bytes": 50_000}) as cluster:
            leader, follower = cluster.brokers.values()
            follower.follower_rate = 100_000
            write(leader, 0, b"both have it")
            await until(lambda: follower.fetchers.lag(follower.partition(at(0))) == 0)
            if not is_in_isr:
                # No high watermark waits for it; it comes back far behind.
                await follower.crash(Loss.NOTHING)
                cluster.fence(2)
                cluster.change(at(0), isr=[1])
            megabyte(leader)
            write(leader, 1, b"not throttled")
            if not is_in_isr:
                follower.start()
                await follower.listen()
            began = simulation.loop.time()
            await until(lambda: end(follower, 1) == 1, within_s=1)
            await until(lambda: end(follower, 0) == 101)
            assert least_s <= simulation.loop.time() - began <= most_s

    run(simulation, story)


def test_a_throttled_follower_asks_nothing_and_keeps_its_session(simulation, caplog):
    """Nothing else is followed: a Fetch that only takes the partition out would end the session."""
    caplog.set_level("INFO")
    configs = {"follower.replication.throttled.replicas": "*"}

    async def story():
        async with replicating(simulation, configs=configs, fetching={"max_bytes": 50_000}) as cluster:
            leader, follower = cluster.brokers.values()
            follower.follower_rate = 100_000
            cluster.change(at(0), isr=[1])
            simulation.network.cut("broker1", "broker2")
            megabyte(leader)
            simulation.network.heal("broker1", "broker2")
            answers = []
            leader.tamper = lambda response: answers.append(response) or response
            await until(lambda: end(follower, 0) == 100)
            assert len(answers) < 40, "a few for each 50,000 bytes, and none in between"

    run(simulation, story)
    assert "fetch_session_id_not_found" not in caplog.text


@pytest.mark.parametrize(
    ("replicas", "is_in_isr", "least_s", "most_s"),
    [
        ("*",   False, 7, 13),
        ("*",   True,  0, 1),
        ("0:1", False, 7, 13),  # the leader's own: kafka-reassign-partitions lists where data comes from
        ("0:2", False, 0, 1),   # that one does not lead
    ],
)  # fmt: skip
def test_a_leader_throttles_replicas_outside_the_isr(simulation, replicas, is_in_isr, least_s, most_s):
    configs = {"leader.replication.throttled.replicas": replicas}

    async def story():
        async with replicating(simulation, configs=configs, fetching={"max_bytes": 50_000}) as cluster:
            leader, follower = cluster.brokers.values()
            leader.leader_rate = 100_000
            megabyte(leader)
            if not is_in_isr:
                cluster.change(at(0), isr=[1])
            began = simulation.loop.time()
            await until(lambda: end(follower, 0) == 100)
            assert least_s <= simulation.loop.time() - began <= most_s

    run(simulation, story)


# -- truncation beside the loop ----------------------------------------------------------------------------


def diverge(cluster, *, size_bytes=4):
    """Broker 2 has a batch that broker 1 does not have, and a new leader epoch of broker 1 begins."""
    leader, follower = cluster.brokers.values()
    partition = follower.partition(at(0))
    records = simple_records([(None, b"lost".ljust(size_bytes))], timestamp=1, base_offset=1)
    batch = bytearray(build_batch(records, base_offset=1))
    partition.log.append_as_follower(batch, leader_epoch=partition.leader_epoch, now_ms=1)
    cluster.elect(at(0), 1)
    write(leader, 0, b"kept")
    return partition.log


def test_a_truncation_waits_for_the_disk_in_a_thread(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"first")
            await until(lambda: end(follower, 0) == 1)
            begun = []
            with patch.object(
                follower.runtime, "run_blocking", recording(follower.runtime.run_blocking, begun)
            ):
                diverge(cluster)
                await until(lambda: values(follower, 0) == [b"first", b"kept"])
            assert [pool.name for pool in begun] == ["FLUSHES"]

    run(simulation, story)


def test_a_truncation_is_abandoned_when_its_leader_epoch_has_ended(simulation):
    """The follower becomes the leader while a thread reads for the truncation: its log stays, and is appended to."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"first")
            await until(lambda: end(follower, 0) == 1)
            begun, may_end = [], asyncio.Event()
            slow = recording(follower.runtime.run_blocking, begun, may_end)
            with patch.object(follower.runtime, "run_blocking", slow):
                log = diverge(cluster)
                await until(lambda: bool(begun))
                cluster.elect(at(0), 2)
                write(follower, 0, b"led")
                may_end.set()
                await until(lambda: values(leader, 0) == [b"first", b"lost", b"led"])
            assert log.files.generation == 0
            assert values(follower, 0) == [b"first", b"lost", b"led"]

    run(simulation, story)


def test_replication_stops_for_a_log_that_is_damaged_before_its_new_end(simulation, caplog):
    """It resumes in the next leader epoch. The damaged batch does not come from the leader."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"first")
            await until(lambda: end(follower, 0) == 1)

            async def damaged(function, *args, pool):
                raise CorruptMessage("a batch is damaged")

            with patch.object(follower.runtime, "run_blocking", damaged):
                diverge(cluster)
                await until(lambda: "cannot be truncated: a batch is damaged" in caplog.text)
            assert "cannot be appended" not in caplog.text
            cluster.elect(at(0), 1)  # the next epoch tries again
            await until(lambda: values(follower, 0) == [b"first", b"kept"])

    run(simulation, story)


def test_a_truncation_that_is_given_up_leaves_no_copy(simulation):
    """The fetcher has nothing to follow any more while a thread copies what a truncation would leave of a segment."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"first")
            await until(lambda: end(follower, 0) == 1)
            may_end = asyncio.Event()
            run_blocking = follower.runtime.run_blocking
            log = diverge(cluster, size_bytes=200_000)
            lent = log.reader.read(1, max_bytes=300_000, lend=True)
            assert isinstance(lent.records, memoryview)

            def copies():
                return [name for name in log.files.file_system.list(log.directory) if name.endswith(".tmp")]

            async def slow(function, *args, pool):
                result = await run_blocking(function, *args, pool=pool)
                if copies():
                    await may_end.wait()
                return result

            with patch.object(follower.runtime, "run_blocking", slow):
                await until(lambda: bool(copies()))
                cluster.elect(at(0), 2)
                await asyncio.sleep(0)
                may_end.set()
                await until(lambda: copies() == [])
            assert len(values(follower, 0)) == 2

    run(simulation, story)


def recording(run_blocking, begun, may_end=None):
    async def recorded(function, *args, pool):
        begun.append(pool)
        result = await run_blocking(function, *args, pool=pool)
        if may_end is not None:
            await may_end.wait()
        return result

    return recorded


def test_a_fetcher_that_fails_is_restarted_without_loss(simulation, caplog):
    """Rows that were in flight are requested again in a new session."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)
            (fetcher,) = follower.fetchers._fetchers.values()
            known, fetcher._on_success = fetcher._on_success, None
            write(leader, 0, b"b")
            await until(lambda: "fetcher-1 failed; it is started again" in caplog.text)
            fetcher._on_success = known
            write(leader, 0, b"c")
            await until(lambda: values(follower, 0) == [b"a", b"b", b"c"], within_s=12)
            assert {str(each) for each in simulation.failures} == {"'NoneType' object is not callable"}
            simulation.failures.clear()

    run(simulation, story)
