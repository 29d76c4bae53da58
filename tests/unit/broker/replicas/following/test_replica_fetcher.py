"""Fetchers of real partitions over the simulation's network: what they do when something is wrong."""

import asyncio
from unittest.mock import patch

import pytest
from replica_fetcher_support import at, end, replicating, run, values, write

from ottla.broker.network.client import ClientSettings
from ottla.broker.replicas.partition import Partition
from ottla.broker.replicas.reading.fetch_session_cache import FetchSessionCache
from ottla.metadata.records import RemoveTopicRecord
from ottla.protocol.errors import ErrorCode, InvalidFetchSessionEpoch, KafkaError
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import TOPIC_ID, turns
from tests.harness.waiting import until

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
