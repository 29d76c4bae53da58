"""The memory into which a follower receives records: used again, and given back when nothing is replicated."""

import pytest

from ottla.broker.network.response_buffer import IDLE_RELEASES, UNIT_BYTES, ResponseBuffer
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.replicas import ReplicaCluster
from tests.harness.waiting import until

AT = TopicPartition("orders", 0)


@pytest.fixture
def leases(monkeypatch):
    """The size of the memory that each large response was given."""
    found = []
    lease = ResponseBuffer.lease

    def recorded(self, *args, **options):
        found.append(self.free_bytes)
        return lease(self, *args, **options)

    monkeypatch.setattr(ResponseBuffer, "lease", recorded)
    return found


def test_records_are_received_into_the_memory_of_the_last_ones(simulation, leases):
    async def story():
        cluster = ReplicaCluster(simulation, [1, 2])
        leader, follower = cluster.brokers.values()
        cluster.create("orders", {0: [1, 2]})
        cluster.elect(AT, 1)
        for broker in cluster.brokers.values():
            await broker.listen()
        (fetcher,) = follower.fetchers._fetchers.values()
        buffer = fetcher._leader.buffer
        for number in range(5):
            batch = build_batch(simple_records([(None, b"%d" % number * 200_000)], timestamp=1))
            leader.partition(AT).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=1)
            end = number + 1
            await until(lambda end=end: follower.partition(AT).log.high_watermark == end)
        assert leases == [0, *[UNIT_BYTES] * 4]
        assert buffer.free_bytes == UNIT_BYTES
        logs = [broker.partition(AT).log for broker in (leader, follower)]
        assert len({bytes(log.reader.read(0, max_bytes=2_000_000).records) for log in logs}) == 1
        # No more records: a response each replica.fetch.wait.max.ms.
        await until(lambda: not buffer.free_bytes, within_s=0.5 * (IDLE_RELEASES + 1))
        for broker in cluster.brokers.values():
            await broker.stop()

    simulation.run(story())


def test_a_fetcher_that_fetches_nothing_keeps_no_memory(simulation, leases):
    """Its only partition may have failed on this broker."""

    async def story():
        cluster = ReplicaCluster(simulation, [1, 2])
        leader, follower = cluster.brokers.values()
        cluster.create("orders", {0: [1, 2]})
        cluster.elect(AT, 1)
        for broker in cluster.brokers.values():
            await broker.listen()
        (fetcher,) = follower.fetchers._fetchers.values()
        batch = build_batch(simple_records([(None, b"v" * 200_000)], timestamp=1))
        leader.partition(AT).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=1)
        await until(lambda: follower.partition(AT).log.high_watermark == 1)
        assert fetcher._leader.buffer.free_bytes == UNIT_BYTES
        for fetch_state in fetcher._states:
            fetch_state.follower.on_failure()
            fetcher._states.update(fetch_state)
        await until(lambda: not fetcher._leader.buffer.free_bytes, within_s=2)
        for broker in cluster.brokers.values():
            await broker.stop()

    simulation.run(story())
