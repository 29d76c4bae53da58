"""Fetchers of real partitions over the simulation's network: what they do when something is wrong."""

import asyncio
from contextlib import asynccontextmanager
from inspect import isawaitable
from unittest.mock import patch

import pytest

from ottla.broker.network.client import ClientSettings
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.metadata.records import RemoveTopicRecord
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import CorruptMessage, ErrorCode, InvalidFetchSessionEpoch, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from tests.harness.faulty_files import Loss
from tests.harness.replicas import TOPIC_ID, ReplicaBroker, ReplicaCluster, turns, until


@asynccontextmanager
async def replicating(simulation, partitions=1, **options):
    """Broker 1 leads all partitions of "orders", broker 2 follows."""
    cluster = ReplicaCluster(simulation, [1, 2], **options)
    cluster.create("orders", {index: [1, 2] for index in range(partitions)})
    for broker in cluster.brokers.values():
        await broker.listen()
    for index in range(partitions):
        cluster.elect(at(index), 1)
    yield cluster
    for broker in cluster.brokers.values():
        if broker.is_up:
            await broker.stop()


def at(index: int) -> TopicPartition:
    return TopicPartition("orders", index)


def write(broker: ReplicaBroker, index: int, *values: bytes) -> int:
    """One batch; the log end."""
    now_ms = broker.runtime.now_ms()
    batch = build_batch(simple_records([(None, value) for value in values], timestamp=now_ms))
    broker.partition(at(index)).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=now_ms)
    return broker.partition(at(index)).log.log_end_offset


def values(broker: ReplicaBroker, index: int) -> list[bytes | None]:
    log = broker.partition(at(index)).log
    return [
        record.value for _, data in log.reader.records_since(log.log_start_offset) for record in records(data)
    ]


def end(broker: ReplicaBroker, index: int) -> int:
    return broker.partition(at(index)).log.log_end_offset


def run(simulation, story):
    simulation.run(story())


# -- partition by partition --------------------------------------------------------------------------------


def test_partitions_of_a_leader_are_followed(simulation):
    async def story():
        async with replicating(simulation, 3) as cluster:
            leader, follower = cluster.brokers.values()
            for index in range(3):
                write(leader, index, b"a", b"b")
            await until(lambda: all(end(follower, index) == 2 for index in range(3)))
            await until(lambda: all(follower.partition(at(i)).log.high_watermark == 2 for i in range(3)))
            assert [follower.fetchers.lag(follower.partition(at(i))) for i in range(3)] == [0, 0, 0]
            assert follower.fetchers.lag(leader.partition(at(0))) is None

    run(simulation, story)


def test_a_new_high_watermark_takes_one_way_to_the_follower_and_no_fetch_in_a_circle(simulation):
    """KIP-392: it is sent at once; two responses for a batch, one with the records and one with the high watermark."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"first")
            await until(lambda: follower.partition(at(0)).log.high_watermark == 1)
            sizes = []
            leader.tamper = lambda response: sizes.append(len(response)) or response
            for number in range(20):
                write(leader, 0, b"%d" % number)
                await until(
                    lambda end=number + 2: follower.partition(at(0)).log.high_watermark == end, within_s=0.02
                )
            assert len(sizes) <= 41
            await asyncio.sleep(0.3)  # less than replica.fetch.wait.max.ms
            assert len(sizes) <= 41

    run(simulation, story)


def test_an_error_of_one_partition_affects_no_other(simulation, caplog):
    """The leader does not know of its election yet: that partition is fetched again after replica.fetch.backoff.ms."""

    async def story():
        async with replicating(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            leader.replays = False
            cluster.elect(at(0), 1)
            write(leader, 1, b"other")
            await until(lambda: end(follower, 1) == 1)
            began = simulation.loop.time()
            leader.replays = True
            leader.replay()
            write(leader, 0, b"late")
            await until(lambda: end(follower, 0) == 1)
            assert 0.5 < simulation.loop.time() - began < 1.1
            assert "orders-0: broker 1 returned unknown_leader_epoch" in caplog.text

    caplog.set_level("INFO")
    run(simulation, story)


def test_an_error_that_is_not_known_here_is_taken_for_the_leaders_own(simulation, caplog):
    """A newer leader may answer with a code of its own; that partition is asked for again, and the others go on."""

    class FromTheFuture(KafkaError):
        code = 9999

    check = Partition.check_follower

    def refuse(self, *args, **options):
        if self.topic_partition == at(0):
            raise FromTheFuture("of the future")
        check(self, *args, **options)

    async def story():
        async with replicating(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            with patch.object(Partition, "check_follower", refuse):
                for index in (0, 1):
                    write(leader, index, b"value")
                await until(lambda: end(follower, 1) == 1)
                await asyncio.sleep(3)
                assert end(follower, 0) == 0
            await until(lambda: end(follower, 0) == 1)
            assert "orders-0: broker 1 returned unknown_server_error" in caplog.text

    caplog.set_level("INFO")
    run(simulation, story)


def test_a_bug_in_a_decision_stops_one_partition(simulation, caplog):
    async def story():
        async with replicating(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"first")
            await until(lambda: end(follower, 0) == 1)
            # The follower's log gets records from elsewhere: its end is not the offset of the Fetch.
            follower.partition(at(0)).log.offsets.log_end_offset += 1
            for index in (0, 1):
                write(leader, index, b"second")
            await until(lambda: end(follower, 1) == 1)
            await until(lambda: "orders-0: replication stops until the next leader epoch" in caplog.text)
            follower.partition(at(0)).log.offsets.log_end_offset -= 1
            cluster.elect(at(0), 1)
            await until(lambda: values(follower, 0) == [b"first", b"second"])

    run(simulation, story)


def test_a_corrupt_batch_is_not_appended_and_asked_for_again(simulation, caplog):
    def damage(response: bytes) -> bytes:
        return response.replace(b"rotten", b"rotTen")

    async def story():
        async with replicating(simulation, 3) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 1, b"good")
            await until(lambda: end(follower, 1) == 1)
            leader.tamper = damage
            write(leader, 1, b"rotten")
            await asyncio.sleep(1)
            for index in (0, 2):
                write(leader, index, b"other")
            await until(lambda: end(follower, 0) == end(follower, 2) == 1)
            await asyncio.sleep(5)
            assert values(follower, 1) == [b"good"]
            assert 4 <= caplog.text.count("orders-1: records from broker 1 cannot be appended") <= 7
            leader.tamper = None
            await until(lambda: end(follower, 1) == 2)
            assert values(follower, 1) == [b"good", b"rotten"]

    run(simulation, story)


@pytest.mark.logs("Fetch from broker")
def test_a_truncated_response_is_not_appended(simulation):
    """Its length is wrong for what it holds: the connection is given up."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await until(lambda: leader.partition(at(0)).leader.state.followers[2].log_end_offset == 0)
            leader.tamper = lambda response: response[:-40] if b"whole" in response else response
            write(leader, 0, b"whole" * 20)
            await asyncio.sleep(3)
            assert end(follower, 0) == 0
            leader.tamper = None
            await until(lambda: end(follower, 0) == 1)

    run(simulation, story)


def test_replication_stops_for_a_log_that_cannot_be_written(simulation, caplog):
    async def story():
        async with replicating(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            await turns()
            follower.logs.logs[at(0)].availability.take_offline(OSError("no space"))
            for index in range(2):
                write(leader, index, b"a")
            await until(lambda: end(follower, 1) == 1)
            assert "orders-0: replication stops until the next leader epoch" in caplog.text
            assert end(follower, 0) == 0

    run(simulation, story)


# -- connections and sessions ------------------------------------------------------------------------------


def test_a_session_that_the_leader_has_evicted_is_opened_again(simulation, caplog):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)
            leader.fetch_sessions = FetchSessionCache(slots=10, random=leader.runtime.random)
            write(leader, 0, b"b")
            await until(lambda: end(follower, 0) == 2, within_s=0.6)
            write(leader, 0, b"c")
            await until(lambda: end(follower, 0) == 3)
            assert caplog.text.count("fetch_session_id_not_found") == 1

    caplog.set_level("INFO")
    run(simulation, story)


def test_a_leader_that_refuses_whole_fetches_is_asked_again_after_a_while(simulation):
    class Broken(InvalidFetchSessionEpoch):
        code = ErrorCode.unknown_server_error

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            with patch("ottla.broker.api.k01_fetch.new_context", side_effect=Broken("a bug")) as refusing:
                write(leader, 0, b"a")
                await asyncio.sleep(10)
            assert 8 <= refusing.call_count <= 12
            await until(lambda: end(follower, 0) == 1)

    run(simulation, story)


def test_without_room_for_sessions_every_fetch_is_full(simulation):
    async def story():
        async with replicating(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            leader.fetch_sessions = FetchSessionCache(slots=0, random=leader.runtime.random)
            for _ in range(3):
                count = write(leader, 1, b"a")
                await until(lambda: end(follower, 1) == count)  # noqa: B023

    run(simulation, story)


@pytest.mark.logs("Fetch from broker")
def test_a_leader_that_restarts_at_another_address(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)
            await leader.crash(Loss.NOTHING)
            await asyncio.sleep(10)
            leader.port = 9999
            leader.start()
            await leader.listen()
            write(leader, 0, b"b")
            await until(lambda: end(follower, 0) == 2, within_s=3)

    run(simulation, story)


@pytest.mark.logs("Fetch from broker")
def test_a_leader_without_an_address_is_waited_for(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            known, follower.fetchers._address_of = follower.fetchers._address_of, lambda broker_id: None
            write(leader, 0, b"a")
            await asyncio.sleep(5)
            assert end(follower, 0) == 0
            follower.fetchers._address_of = known
            await until(lambda: end(follower, 0) == 1, within_s=1.1)

    run(simulation, story)


@pytest.mark.logs("Fetch from broker")
def test_a_silent_leader_is_given_up_after_its_time(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)
            simulation.network.cut("broker1", "broker2")
            write(leader, 0, b"b")
            await asyncio.sleep(60)
            assert end(follower, 0) == 1
            simulation.network.heal("broker1", "broker2")
            await until(lambda: end(follower, 0) == 2)

    run(simulation, story)


# -- partitions that come and go while a fetch is under way --------------------------------------------------


def test_a_partition_that_joins_a_running_session(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await asyncio.sleep(0.2)
            cluster.create("more", {0: [1, 2]}, topic_id=TOPIC_ID.__class__(int=0xB))
            cluster.elect(TopicPartition("more", 0), 1)
            write(leader, 0, b"a")
            now_ms = leader.runtime.now_ms()
            batch = bytearray(build_batch(simple_records([(None, b"x")], timestamp=now_ms)))
            more = TopicPartition("more", 0)
            leader.partition(more).as_leader().append_records(batch, required_acks=1, now_ms=now_ms)
            # Not before the delayed fetch is answered, which the first partition causes at once.
            await until(lambda: follower.partition(more).log.log_end_offset == 1, within_s=0.1)

    run(simulation, story)


def test_an_answer_of_an_older_epoch_is_not_appended(simulation):
    """The leader changes before its response arrives: the response is ignored."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await asyncio.sleep(0.2)
            simulation.network.conditions.latency_s = lambda random: 0.1
            write(leader, 0, b"from e0")
            await asyncio.sleep(0.05)  # it travels
            leader.replays = False
            assert cluster.elect(at(0), 2, isr=[2]) == 1
            await asyncio.sleep(1)
            assert end(follower, 0) == 0
            write(follower, 0, b"from e1")
            leader.replays = True
            leader.replay()
            await until(lambda: values(leader, 0) == [b"from e1"])

    run(simulation, story)


def test_a_topic_that_is_created_again_while_a_fetch_is_in_flight(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            simulation.network.conditions.latency_s = lambda random: 0.02
            write(leader, 0, b"old", b"old")
            await until(lambda: end(follower, 0) == 2)
            write(leader, 0, b"older")
            await asyncio.sleep(0.01)
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            assert not follower.replicas.hosted.by_key
            cluster.create("orders", {0: [1, 2]}, topic_id=TOPIC_ID.__class__(int=0xC))
            cluster.elect(at(0), 1)
            write(leader, 0, b"new")
            await until(lambda: end(follower, 0) == 1)
            await asyncio.sleep(2)
            assert values(follower, 0) == [b"new"]

    run(simulation, story)


def test_a_fetcher_without_partitions_is_stopped(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)
            assert len(follower.fetchers._fetchers) == 1
            cluster.elect(at(0), 2)
            await asyncio.sleep(0.1)
            assert not follower.fetchers._fetchers
            assert not leader._server.connections
            write(follower, 0, b"b")
            await until(lambda: end(leader, 0) == 2)

    run(simulation, story)


def test_a_partition_without_leader_is_not_followed(simulation):
    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await asyncio.sleep(0.1)
            cluster.elect(at(0), -1)
            assert not follower.fetchers._fetchers
            cluster.elect(at(0), 1)
            write(leader, 0, b"a")
            await until(lambda: end(follower, 0) == 1)

    run(simulation, story)


def test_partitions_are_spread_over_as_many_fetchers_as_are_configured_now(simulation):
    async def story():
        async with replicating(simulation, 8) as cluster:
            leader, follower = cluster.brokers.values()
            for ends, count in enumerate((3, 1), 1):
                follower.fetchers.resize(count)
                assert {number for _, number in follower.fetchers._fetchers} == set(range(count))
                for index in range(8):
                    write(leader, index, b"a")
                await until(lambda ends=ends: all(end(follower, index) == ends for index in range(8)))

    run(simulation, story)


@pytest.mark.parametrize(("largest", "arrives"), [(20_000, False), (30_000, True)])
@pytest.mark.logs("Fetch from broker")
def test_a_batch_is_larger_than_what_was_asked_for(simulation, largest, arrives):
    """It comes alone; how large it may be is not what `max_bytes` and `response_max_bytes` say."""
    connections = ClientSettings(response_max_bytes=largest)
    options = {"max_bytes": 1_000, "response_max_bytes": 1_000, "connections": connections}

    async def story():
        async with replicating(simulation, fetching=options) as cluster:
            leader, follower = cluster.brokers.values()
            write(leader, 0, bytes(25_000))
            await asyncio.sleep(5)
            assert (end(follower, 0) == 1) is arrives

    run(simulation, story)


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
    """Also rows that were in flight when it failed: a new session is opened."""

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
