"""The partitions that have a request to send: a fetcher without one sends none."""

import asyncio

from replica_fetcher_support import at, replicating, run, write

from ottla.stories.partition.replicas import turns
from tests.harness.waiting import until


def test_nothing_is_fetched_for_a_log_that_cannot_be_written(simulation, caplog):
    """Empty requests are not sent one after the other either, although no other partition has a request."""

    async def story():
        async with replicating(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await turns()
            follower.logs.logs[at(0)].availability.take_offline(OSError("no space"))
            write(leader, 0, b"a")
            await until(lambda: "orders-0: replication stops until the next leader epoch" in caplog.text)
            sizes = []
            leader.tamper = lambda response: sizes.append(len(response)) or response
            for _ in range(3):
                write(leader, 0, b"b")
                await asyncio.sleep(10)
            assert sizes == []

    run(simulation, story)
