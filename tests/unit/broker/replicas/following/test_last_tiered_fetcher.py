"""Fetchers of empty followers that start after all that is tiered (KIP-1023), over the simulation's network."""

import asyncio

import pytest
from test_tiered_fetcher import PRODUCER, at, counters, end, run, start, tiered, values, write

from ottla.protocol.errors import OutOfOrderSequenceNumber
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.tiered_replicas import TieredCluster
from tests.harness.waiting import until


def tier_more(cluster, index=0):
    """The leader copies its record 3, too, which stays in its local segments, and has record 4 then."""
    leader = cluster.brokers[1]
    leader.partition(at(index)).log.roll(leader.runtime.now_ms())
    write(leader, index, b"m4", base_sequence=3, **PRODUCER)
    cluster.copy_segments(leader, at(index))
    cluster.prefers_last_tiered = True


def test_a_follower_copies_what_is_not_tiered_only(simulation):
    async def story():
        async with tiered(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            tier_more(cluster)
            assert values(leader) == [b"m3", b"m4"]
            await start(follower)
            await until(lambda: end(follower) == 5)
            log = follower.partition(at(0)).log
            assert values(follower) == [b"m4"]
            assert (log.log_start_offset, log.local_log_start_offset) == (0, 4)
            assert log.leader_epochs.entries == leader.partition(at(0)).log.leader_epochs.entries
            await until(lambda: log.high_watermark == 5)
            # Local retention and a new leader's copies continue there.
            assert log.offsets.remote_end_offset == log.offsets.earliest_pending_upload_offset == 4
            assert counters(cluster, follower) == (1, 0)

    run(simulation, story)


@pytest.mark.parametrize("loss", [None, Loss.NOTHING, Loss.EVERYTHING])
def test_the_follower_leads_with_the_producer_state_of_all_tiered_records(simulation, loss):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            tier_more(cluster)
            await start(follower)
            await until(lambda: end(follower) == 5)
            if loss is not None:
                follower.partition(at(0)).log.flush()
                await follower.crash(loss)
                await start(follower)
            cluster.elect(at(0), 2, [2])
            again = write(follower, 0, b"m0", b"m1", b"m2", base_sequence=0, **PRODUCER)
            assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, 0, 2)
            with pytest.raises(OutOfOrderSequenceNumber):
                write(follower, 0, b"gap", base_sequence=5, **PRODUCER)
            assert write(follower, 0, b"m5", base_sequence=4, **PRODUCER).first_offset == 5
            follower.partition(at(0)).log.roll(follower.runtime.now_ms())
            (copy,) = cluster.copy_segments(follower, at(0))
            assert (copy.start_offset, copy.end_offset) == (4, 6)

    run(simulation, story)


def test_a_leader_that_does_not_know_its_offset_delays_no_other_partition(simulation, caplog):
    caplog.set_level("INFO")

    async def story():
        async with tiered(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            for index in range(2):
                tier_more(cluster, index)
            leader.partition(at(0)).log.offsets.forget_remote_end()
            await start(follower)
            await until(lambda: end(follower, 1) == 5, within_s=1)
            for number in range(20):
                write(leader, 1, b"%d" % number)
                await until(lambda end_=6 + number: end(follower, 1) == end_, within_s=1)
                await asyncio.sleep(1)
            assert end(follower, 0) == 0
            # Once, though it asks each second.
            assert caplog.text.count("orders-0: broker 1 returned offset_not_available") == 1
            cluster.learn_remote_end(leader, at(0))
            await until(lambda: end(follower, 0) == 5, within_s=3)
            assert values(follower) == [b"m4"]

    run(simulation, story)


@pytest.mark.logs("is out of the leader's range", "removing all records")
@pytest.mark.parametrize("has_tier", [True, False])
@pytest.mark.parametrize("is_tiered", [True, False])
def test_an_out_of_range_follower_that_cannot_use_the_remote_tier(
    simulation, monkeypatch, has_tier, is_tiered
):
    """Where the topic is not tiered or the broker has no remote tier, the follower begins at the leader's log
    start, as without KIP-1023.
    """
    auxiliary = TieredCluster.auxiliary
    monkeypatch.setattr(TieredCluster, "auxiliary", lambda *args: auxiliary(*args) if has_tier else None)

    async def story():
        async with tiered(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            tier_more(cluster)
            if not is_tiered:
                cluster.configs |= {"remote.storage.enable": "false"}
            leader.partition(at(0)).as_leader().delete_records(3)
            await start(follower)
            await until(lambda: end(follower) == 5)
            is_used = has_tier and is_tiered
            assert follower.partition(at(0)).log.log_start_offset == 3
            assert values(follower) == ([b"m4"] if is_used else [b"m3", b"m4"])

    run(simulation, story)
