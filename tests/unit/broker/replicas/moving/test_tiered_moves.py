"""Replicas of tiered partitions that move to another log directory: the local part moves, the log starts
where it did (KIP-405).
"""

from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.broker.replicas.moving import log_move
from ottla.protocol.errors import OutOfOrderSequenceNumber
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import ReplicaBroker
from ottla.stories.partition.tiered_replicas import TieredCluster
from tests.harness.waiting import until

A, B = Path("/disks/a"), Path("/disks/b")
ORDERS = TopicPartition("orders", 0)
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


@asynccontextmanager
async def tiered(simulation):
    """Broker 1 leads a partition: [0, 3) in epoch 0 and [3, 5) in epoch 1 are tiered, [5, 6) is local."""
    cluster = TieredCluster(simulation, [1], log_dirs=[A, B])
    try:
        cluster.create("orders", {0: [1]})
        (broker,) = cluster.brokers.values()
        await broker.listen()
        cluster.change(ORDERS, directories=[directory_id(broker)])
        cluster.elect(ORDERS, 1)
        write(broker, b"m0", b"m1", b"m2", base_sequence=0, **PRODUCER)
        roll(broker)
        cluster.elect(ORDERS, 1)
        write(broker, b"m3")
        write(broker, b"m4")
        roll(broker)
        write(broker, b"m5")
        cluster.copy_segments(broker, ORDERS)
        yield cluster, broker
        if broker.is_up:
            await broker.stop()
    finally:
        cluster.close()


def write(broker: ReplicaBroker, *values: bytes, **fields):
    now_ms = broker.runtime.now_ms()
    batch = build_batch(simple_records([(None, value) for value in values], timestamp=now_ms), **fields)
    leader = broker.partition(ORDERS).as_leader()
    return leader.append_records(bytearray(batch), required_acks=1, now_ms=now_ms)


def roll(broker: ReplicaBroker) -> None:
    broker.partition(ORDERS).log.roll(broker.runtime.now_ms())


def directory_id(broker: ReplicaBroker, path: Path | None = None):
    return broker.logs.directory_ids[path or broker.partition(ORDERS).log.directory.parent]


def other(broker: ReplicaBroker) -> Path:
    return B if broker.partition(ORDERS).log.directory.parent == A else A


async def moved(cluster: TieredCluster, broker: ReplicaBroker) -> None:
    """The rest of a move: the controller knows the directory, and the future log replaces the current one."""
    path = other(broker)
    await until(lambda: broker.replicas.directory_of(ORDERS) == path)
    cluster.change(ORDERS, directories=[directory_id(broker, path)])
    await until(lambda: broker.partition(ORDERS).log.directory.parent == path)


def values(broker: ReplicaBroker) -> list[bytes | None]:
    log = broker.partition(ORDERS).log
    return [
        record.value
        for _, data in log.reader.records_since(log.local_log_start_offset)
        for record in records(data)
    ]


@pytest.mark.parametrize("kept_from", [3, 5])
def test_the_local_part_moves_and_the_log_is_the_same(simulation, kept_from):
    async def story():
        async with tiered(simulation) as (cluster, broker):
            cluster.keep(broker, ORDERS, from_offset=kept_from)
            before = broker.partition(ORDERS).log
            expected = values(broker)
            broker.replicas.move_log(ORDERS, other(broker))
            await moved(cluster, broker)
            log = broker.partition(ORDERS).log
            assert log is not before
            assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, kept_from, 6)
            assert values(broker) == expected
            assert log.leader_epochs.entries == before.leader_epochs.entries
            assert log.high_watermark == 6
            # Otherwise what is copied would be copied again.
            assert log.offsets.remote_end_offset == 5
            again = write(broker, b"m0", b"m1", b"m2", base_sequence=0, **PRODUCER)
            assert (again.is_duplicate, again.first_offset) == (True, 0)
            with pytest.raises(OutOfOrderSequenceNumber):
                write(broker, b"gap", base_sequence=9, **PRODUCER)

    simulation.run(story())


def test_local_retention_removes_more_while_the_log_moves(simulation, monkeypatch):
    """Between the read of the producer snapshot and the restart of the future log: it begins again, later."""

    async def story():
        async with tiered(simulation) as (cluster, broker):
            cluster.keep(broker, ORDERS, from_offset=3)
            read = log_move._snapshot_at
            offsets = []

            def read_and_remove(log, offset):
                offsets.append(offset)
                data = read(log, offset)
                cluster.keep(broker, ORDERS, from_offset=5)
                return data

            monkeypatch.setattr(log_move, "_snapshot_at", read_and_remove)
            broker.replicas.move_log(ORDERS, other(broker))
            await moved(cluster, broker)
            assert offsets == [3, 5]
            log = broker.partition(ORDERS).log
            assert (log.log_start_offset, log.local_log_start_offset) == (0, 5)
            assert values(broker) == [b"m5"]

    simulation.run(story())


@pytest.mark.parametrize("loss", [Loss.NOTHING, Loss.EVERYTHING])
def test_a_restart_while_a_tiered_log_moves(simulation, loss):
    async def story():
        async with tiered(simulation) as (cluster, broker):
            cluster.keep(broker, ORDERS, from_offset=5)
            broker.partition(ORDERS).log.flush()
            broker.replicas.move_log(ORDERS, other(broker))
            future = broker.logs.future_logs[ORDERS]
            await until(lambda: future.log_end_offset == 6)
            await broker.crash(loss)
            broker.start()
            await broker.listen()
            cluster.elect(ORDERS, 1)
            if broker.logs.future_logs.get(ORDERS) is None:
                broker.replicas.move_log(ORDERS, other(broker))
            await moved(cluster, broker)
            log = broker.partition(ORDERS).log
            assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 5, 6)
            assert values(broker) == [b"m5"]
            again = write(broker, b"m0", b"m1", b"m2", base_sequence=0, **PRODUCER)
            assert again.is_duplicate

    simulation.run(story())
