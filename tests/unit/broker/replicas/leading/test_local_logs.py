"""Local logs from followers to their leader (draft KIP-1303): with every Fetch whose row changes, and after
retention alone.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from ottla.metadata.records import ConfigRecord
from ottla.protocol.local_log import LocalLog
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.replicas import ReplicaBroker
from ottla.stories.partition.tiered_replicas import TieredCluster
from tests.harness.waiting import until

T0 = TopicPartition("orders", 0)
KEY = "leader.election.prefer.early.local.log.start.offset"


@asynccontextmanager
async def replicating(simulation, **configs):
    """Broker 1 leads, broker 2 follows; four records in two segments are copied, and in local segments of both."""
    cluster = TieredCluster(simulation, (1, 2), configs=configs)
    cluster.create("orders", {0: [1, 2]})
    for broker in cluster.brokers.values():
        await broker.listen()
    cluster.elect(T0, 1)
    leader, follower = cluster.brokers.values()
    for _ in range(2):
        write(leader, b"a", b"b")
        await until(lambda: log_of(follower).high_watermark == log_of(leader).log_end_offset)
        for broker in (leader, follower):
            log_of(broker).roll(broker.runtime.now_ms())
    write(leader, b"c")
    await until(lambda: log_of(follower).high_watermark == 5)
    cluster.copy_segments(leader, T0)
    try:
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            await broker.stop()
        cluster.close()


def log_of(broker: ReplicaBroker):
    return broker.partition(T0).log


def write(broker: ReplicaBroker, *values: bytes) -> None:
    now_ms = broker.runtime.now_ms()
    batch = build_batch(simple_records([(None, value) for value in values], timestamp=now_ms))
    broker.partition(T0).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=now_ms)


def known(leader: ReplicaBroker) -> LocalLog | None:
    """The leader's knowledge of its follower's local log."""
    return leader.partition(T0).leader.state.followers[2].local_log


def switch(cluster: TieredCluster, value: str) -> None:
    cluster.configs[KEY] = value
    cluster.commit(ConfigRecord(resource_type=2, resource_name="orders", name=KEY, value=value))


def run(simulation, story):
    simulation.run(story())


def test_the_leader_knows_its_followers_local_log(simulation):
    async def story():
        async with replicating(simulation, **{KEY: "true"}) as cluster:
            leader, follower = cluster.brokers.values()
            assert known(leader) == log_of(follower).local_log
            assert known(leader).start_offset == 0
            assert leader.partition(T0) in leader.reporting
            # Local retention of the follower, while nothing else changes: one row of its session does.
            cluster.keep(follower, T0, from_offset=4)
            await asyncio.sleep(2)
            assert known(leader).start_offset == 0
            leader.reporting.clear()
            follower.replicas.notice_retention()
            await until(lambda: known(leader).start_offset == 4, within_s=1.1)
            assert known(leader) == log_of(follower).local_log
            assert leader.reporting
            # Nothing has changed since.
            leader.reporting.clear()
            leader.partition(T0).leader.state.reports.on_image(leader.partition(T0).leader.local_logs())
            for broker in cluster.brokers.values():
                broker.replicas.notice_retention()
            write(leader, b"d")
            await asyncio.sleep(2)
            assert not leader.reporting

    run(simulation, story)


def test_the_leaders_own_retention(simulation):
    async def story():
        async with replicating(simulation, **{KEY: "true"}) as cluster:
            leader, _ = cluster.brokers.values()
            part = leader.partition(T0).leader
            part.state.reports.on_image(part.local_logs())
            leader.reporting.clear()
            cluster.keep(leader, T0, from_offset=4)
            leader.replicas.notice_retention()
            assert leader.reporting == [leader.partition(T0)]
            assert part.local_logs()[1].start_offset == 4

    run(simulation, story)


def test_the_size_counts_when_it_crosses_the_bound(simulation):
    bound = "leader.election.eligible.local.log.bytes"

    async def story():
        async with replicating(simulation, **{bound: "100000"}) as cluster:
            leader, follower = cluster.brokers.values()
            part = leader.partition(T0).leader
            part.state.reports.on_image(part.local_logs())
            leader.reporting.clear()
            write(leader, b"small")
            await until(lambda: known(leader).size_bytes == log_of(follower).segments.size_bytes)
            assert not leader.reporting
            write(leader, bytes(100_000))
            await until(lambda: known(leader).size_bytes > 100_000)
            assert leader.reporting

    run(simulation, story)


@pytest.mark.parametrize("is_first_on", [False, True])
def test_the_preference_is_switched(simulation, is_first_on):
    async def story():
        async with replicating(simulation, **{KEY: str(is_first_on).lower()}) as cluster:
            leader, follower = cluster.brokers.values()
            for is_on in (is_first_on, not is_first_on, is_first_on):
                leader.reporting.clear()
                switch(cluster, str(is_on).lower())
                await until(lambda is_on=is_on: (known(leader) is not None) is is_on, within_s=1.1)
                assert bool(leader.partition(T0).leader.local_logs()) is is_on
                assert bool(leader.reporting) is is_on
                assert known(leader) == log_of(follower).local_log

    run(simulation, story)


def test_a_new_leader_reports_what_the_last_one_did_not(simulation):
    async def story():
        async with replicating(simulation, **{KEY: "true"}) as cluster:
            leader, follower = cluster.brokers.values()
            assert leader.reporting
            cluster.elect(T0, 2)
            assert follower.reporting == [follower.partition(T0)]
            progress = follower.partition(T0).leader.state.followers[1]
            await until(lambda: progress.local_log == log_of(leader).local_log)
            assert {*follower.partition(T0).leader.local_logs()} == {1, 2}

    run(simulation, story)
