"""Two brokers over the simulation's network, of which one follows the other."""

from contextlib import asynccontextmanager

from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.replicas import ReplicaBroker, ReplicaCluster


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
