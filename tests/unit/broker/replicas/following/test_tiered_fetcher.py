"""Fetchers of tiered partitions over the simulation's network: a follower continues after tiered records (KIP-405)."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pytest

from ottla.broker.replicas.following import replica_fetcher
from ottla.metadata.records import RemoveTopicRecord
from ottla.protocol.errors import ErrorCode, OutOfOrderSequenceNumber
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.remote import auxiliary_state
from ottla.remote.errors import RemoteResourceNotFound
from ottla.remote.storage_manager import IndexType
from ottla.runtime import Pool
from ottla.storage import producer_snapshot
from ottla.storage.producer_append import BatchMetadata, ProducerState
from ottla.storage.producer_snapshot import CorruptSnapshot
from ottla.storage.remote_restart import RemoteRestart
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaBroker, turns
from ottla.stories.partition.tiered_replicas import TieredCluster
from tests.harness.waiting import until

PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def at(index: int) -> TopicPartition:
    return TopicPartition("orders", index)


@asynccontextmanager
async def tiered(simulation, partitions=1, brokers=(1, 2)):
    """Broker 1 leads partitions with three tiered records, of producer 7, and a local one; broker 2 is down."""
    cluster = TieredCluster(simulation, brokers)
    cluster.create("orders", {index: list(brokers) for index in range(partitions)})
    for broker in cluster.brokers.values():
        await broker.listen()
    leader, follower = cluster.brokers.values()
    await follower.crash(Loss.NOTHING)
    for index in range(partitions):
        cluster.elect(at(index), 1, [1])
        write(leader, index, b"m0", b"m1", b"m2", base_sequence=0, **PRODUCER)
        leader.partition(at(index)).log.roll(leader.runtime.now_ms())
        write(leader, index, b"m3")
        cluster.copy_segments(leader, at(index))
        cluster.keep(leader, at(index), from_offset=3)
        assert leader.partition(at(index)).log.local_log_start_offset == 3
    try:
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            if broker.is_up:
                await broker.stop()
        cluster.close()


async def start(broker: ReplicaBroker) -> None:
    broker.start()
    await broker.listen()


def write(broker: ReplicaBroker, index: int, *values: bytes, **fields):
    now_ms = broker.runtime.now_ms()
    batch = build_batch(simple_records([(None, value) for value in values], timestamp=now_ms), **fields)
    return (
        broker.partition(at(index))
        .as_leader()
        .append_records(bytearray(batch), required_acks=1, now_ms=now_ms)
    )


def values(broker: ReplicaBroker, index: int = 0) -> list[bytes | None]:
    log = broker.partition(at(index)).log
    return [
        record.value
        for _, data in log.reader.records_since(log.local_log_start_offset)
        for record in records(data)
    ]


def end(broker: ReplicaBroker, index: int = 0) -> int:
    return broker.partition(at(index)).log.log_end_offset


def hang(broker: ReplicaBroker, duration_s: float | None = 3600.0) -> None:
    """The store does not answer this broker for so long; None: it does."""
    pool = broker.runtime.pools[Pool.REMOTE_AUXILIARY]
    pool.blocking_s = None if duration_s is None else lambda: duration_s


def counters(cluster: TieredCluster, broker: ReplicaBroker) -> tuple[int, int]:
    topic = cluster.metrics[broker.node_id].topic("orders")
    return topic.build_remote_log_aux_state_requests, topic.build_remote_log_aux_state_errors


def run(simulation, story):
    simulation.run(story())


def test_a_follower_copies_the_local_records_only(simulation):
    async def story():
        async with tiered(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            await start(follower)
            await until(lambda: end(follower) == 4)
            log = follower.partition(at(0)).log
            assert values(follower) == [b"m3"]
            assert (log.log_start_offset, log.local_log_start_offset) == (0, 3)
            assert log.leader_epochs.entries == leader.partition(at(0)).log.leader_epochs.entries
            await until(lambda: log.high_watermark == 4)
            assert log.offsets.remote_end_offset == 3
            assert counters(cluster, follower) == (1, 0)
            assert counters(cluster, leader) == (0, 0)

    run(simulation, story)


# -- the producer state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [None, Loss.NOTHING, Loss.EVERYTHING])
def test_the_producer_state_of_the_tiered_records_is_in_force_when_the_follower_leads(simulation, loss):
    """Kafka 4.3.1 accepts both batches: it deletes the snapshot when it reloads them."""

    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            await start(follower)
            await until(lambda: end(follower) == 4)
            if loss is not None:
                follower.partition(at(0)).log.flush()
                await follower.crash(loss)
                await start(follower)
            cluster.elect(at(0), 2, [1, 2])
            again = write(follower, 0, b"m0", b"m1", b"m2", base_sequence=0, **PRODUCER)
            assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, 0, 2)
            with pytest.raises(OutOfOrderSequenceNumber):
                write(follower, 0, b"gap", base_sequence=4, **PRODUCER)
            assert write(follower, 0, b"m4", base_sequence=3, **PRODUCER).first_offset == 4

    run(simulation, story)


# -- a store that does not answer --------------------------------------------------------------------------


def test_a_store_that_does_not_answer_delays_no_other_partition(simulation, caplog):
    """One thread waits for an hour. The attempt ends after 30 s, and the other partitions never notice it."""

    async def story():
        async with tiered(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            hung = at(0)

            def hang_first(*args, pool):
                if pool is Pool.REMOTE_AUXILIARY and asked_for(args[0]) == hung:
                    return asyncio.sleep(3600)
                return run_blocking(*args, pool=pool)

            follower.start()
            run_blocking, follower.runtime.run_blocking = follower.runtime.run_blocking, hang_first
            await follower.listen()
            await until(lambda: end(follower, 1) == 4, within_s=1)
            for number in range(40):
                write(leader, 1, b"%d" % number)
                await until(lambda end_=5 + number: end(follower, 1) == end_, within_s=1)
                await asyncio.sleep(1)
            assert end(follower, 0) == 0
            assert "the store did not return its indexes within 30 s" in caplog.text
            del follower.runtime.run_blocking
            await until(lambda: end(follower, 0) == 4)

    run(simulation, story)


def asked_for(run) -> TopicPartition:
    """The partition whose copy is read."""
    closure = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
    return closure["copy"].cell_contents.partition.topic_partition


@pytest.mark.logs("the next attempt is in")
def test_attempts_wait_longer_each_time_and_threads_are_not_exhausted(simulation):
    """Each thread that hangs has a permit: the pool's queue does not grow while the store does not answer."""

    async def story():
        async with tiered(simulation, 6) as cluster:
            _, follower = cluster.brokers.values()
            submitted = []
            follower.start()
            run_blocking = follower.runtime.run_blocking

            def counted(*args, pool):
                if pool is Pool.REMOTE_AUXILIARY:
                    submitted.append(simulation.loop.time())
                return run_blocking(*args, pool=pool)

            follower.runtime.run_blocking = counted
            hang(follower)
            await follower.listen()
            await asyncio.sleep(600)
            assert len(submitted) == auxiliary_state.PERMITS
            requests, errors = counters(cluster, follower)
            # The first attempts of four partitions end after 30 s, all later ones when they have waited for a permit.
            assert 4 + 6 <= errors <= 4 + 2 * 6
            assert requests - errors in range(7)
            hang(follower, None)
            await asyncio.sleep(3100)
            assert [end(follower, index) for index in range(6)] == [4] * 6

    run(simulation, story)


def test_a_stop_does_not_wait_for_the_store(simulation):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            follower.start()
            hang(follower)
            await follower.listen()
            await asyncio.sleep(2)
            began = simulation.loop.time()
            await follower.stop()
            assert simulation.loop.time() - began < 1

    run(simulation, story)


def test_a_follower_that_has_just_started_waits_for_the_metadata_of_its_copies(simulation, monkeypatch):
    """Kafka's tries again after replica.fetch.backoff.ms: a second after the metadata of most brokers is read."""

    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            ready_s = simulation.loop.time() + 0.4
            monkeypatch.setattr(cluster.metadata, "is_ready", lambda _: simulation.loop.time() >= ready_s)
            await start(follower)
            await until(lambda: end(follower) == 4)
            assert ready_s < simulation.loop.time() < ready_s + 0.4
            assert counters(cluster, follower) == (1, 0)

    run(simulation, story)


@pytest.mark.logs("the metadata of its copies is not read yet")
def test_the_wait_for_the_metadata_ends(simulation, monkeypatch):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            monkeypatch.setattr(cluster.metadata, "is_ready", lambda _: False)
            await start(follower)
            await asyncio.sleep(auxiliary_state.READY_TIMEOUT_S - 1)
            assert counters(cluster, follower) == (1, 0)
            await asyncio.sleep(2)
            assert counters(cluster, follower) == (1, 1)

    run(simulation, story)


@pytest.mark.logs("is out of the leader's range", "removing all records")
def test_a_role_that_changes_during_the_wait_for_the_metadata_ends_it(simulation, monkeypatch):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            is_read = []
            monkeypatch.setattr(cluster.metadata, "is_ready", lambda _: bool(is_read))
            await start(follower)
            await asyncio.sleep(1)
            cluster.elect(at(0), 2, [2])
            write(follower, 0, b"led")
            is_read.append(True)
            await asyncio.sleep(20)
            assert values(follower) == [b"led"]
            assert follower.partition(at(0)).log.files.generation == 0

    run(simulation, story)


def test_a_partition_that_waited_for_the_store_is_fetched_at_once(simulation):
    """The Fetch of the others, which have no new records, does not wait for replica.fetch.wait.max.ms meanwhile."""

    async def story():
        async with tiered(simulation, partitions=2) as cluster:
            _, follower = cluster.brokers.values()
            pauses_s = iter([0.0, 0.0, 0.0, 0.3])
            follower.start()
            follower.runtime.pools[Pool.REMOTE_AUXILIARY].blocking_s = lambda: next(pauses_s)
            await follower.listen()
            await until(lambda: max(end(follower, 0), end(follower, 1)) == 4)
            began_s = simulation.loop.time()
            await until(lambda: min(end(follower, 0), end(follower, 1)) == 4)
            assert 0.25 < simulation.loop.time() - began_s < 0.4

    run(simulation, story)


# -- what happens meanwhile --------------------------------------------------------------------------------


@pytest.mark.logs("out of the leader's range", "removing all records")
def test_the_follower_is_elected_while_it_waits_for_the_store(simulation):
    """Unclean: it leads with what it has, and the answer that comes later changes nothing."""

    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            follower.start()
            hang(follower, 5.0)
            await follower.listen()
            await asyncio.sleep(1)
            cluster.elect(at(0), 2, [2])
            write(follower, 0, b"led")
            await asyncio.sleep(20)
            assert values(follower) == [b"led"]
            assert follower.partition(at(0)).log.files.generation == 0

    run(simulation, story)


def test_the_topic_is_deleted_while_its_follower_waits_for_the_store(simulation, caplog):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            follower.start()
            hang(follower, 5.0)
            await follower.listen()
            await asyncio.sleep(1)
            log = follower.partition(at(0)).log
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            await asyncio.sleep(20)
            assert log.log_end_offset == 0
            assert caplog.text.count("ERROR") == 0

    run(simulation, story)


# -- answers that cannot be used ---------------------------------------------------------------------------


def corrupt_epochs(index: IndexType, data: bytes) -> bytes:
    return data[:-3] if index is IndexType.LEADER_EPOCH else data


def epochs_of_another_log(index: IndexType, data: bytes) -> bytes:
    return b"0\n1\n5 0\n" if index is IndexType.LEADER_EPOCH else data


def epochs_that_go_back(index: IndexType, data: bytes) -> bytes:
    return b"0\n2\n1 0\n0 1\n" if index is IndexType.LEADER_EPOCH else data


def corrupt_snapshot(index: IndexType, data: bytes) -> bytes:
    return bytes([*data[:-1], data[-1] ^ 1]) if index is IndexType.PRODUCER_SNAPSHOT else data


def snapshot_of_a_later_offset(index: IndexType, data: bytes) -> bytes:
    if index is not IndexType.PRODUCER_SNAPSHOT:
        return data
    state = ProducerState(
        producer_id=7, epoch=0, coordinator_epoch=None, last_timestamp=0, transaction_first_offset=None
    )
    state.batches.append(BatchMetadata(5, 5, 2, 0))
    return producer_snapshot.encode({7: state})


@pytest.mark.parametrize(
    "tamper",
    [
        corrupt_epochs,
        epochs_of_another_log,
        epochs_that_go_back,
        corrupt_snapshot,
        snapshot_of_a_later_offset,
    ],
)
def test_an_index_that_is_not_the_copys_changes_nothing(simulation, caplog, tamper):
    """Kafka 4.3.1 has truncated the log by then."""

    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            cluster.store.tamper = tamper
            await start(follower)
            await until(lambda: "the log cannot continue after its tiered records" in caplog.text)
            log = follower.partition(at(0)).log
            assert (log.log_end_offset, log.files.generation) == (0, 0)
            cluster.store.tamper = lambda index, data: data
            await until(lambda: end(follower) == 4)

    run(simulation, story)


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault"), CorruptSnapshot("as a store may have it")])
def test_an_unexpected_error_behind_tiered_records_does_not_stop_the_follower(
    simulation, caplog, monkeypatch, error
):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            next_job, left = RemoteRestart.next_job, [error] * 3

            def failing(restart, state):
                if left:
                    raise left.pop()
                return next_job(restart, state)

            monkeypatch.setattr(RemoteRestart, "next_job", failing)
            await start(follower)
            await until(lambda: end(follower) == 4, within_s=60)
            assert caplog.text.count("unexpected error after its tiered records") == 1

    run(simulation, story)


def fails_with(error: Exception, *_):
    raise error


@pytest.mark.parametrize("error", [RemoteResourceNotFound("gone"), ValueError("a plugin's own")])
def test_a_store_that_fails_is_asked_again(simulation, caplog, error):
    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            cluster.store.on_fetch_index = partial(fails_with, error)
            await start(follower)
            await asyncio.sleep(10)
            # After 1, 2, 4 seconds, more or less; logged as a warning once.
            assert caplog.text.count("the log cannot continue after its tiered records") == 1
            requests, errors = counters(cluster, follower)
            assert requests == errors == 4
            cluster.store.on_fetch_index = lambda *_: None
            await until(lambda: end(follower) == 4, within_s=replica_fetcher._MAX_BACKOFF_MS / 1000)

    run(simulation, story)


def test_without_a_remote_tier_the_leaders_error_is_retried(simulation, caplog, monkeypatch):
    """A broker whose configuration has remote.log.storage.system.enable=false, or a topic that is not tiered
    here yet.
    """
    monkeypatch.setattr(TieredCluster, "auxiliary", lambda self, broker: None)
    caplog.set_level("INFO")

    async def story():
        async with tiered(simulation) as cluster:
            _, follower = cluster.brokers.values()
            await start(follower)
            await asyncio.sleep(5)
            assert end(follower) == 0
            assert f"broker 1 returned {ErrorCode.offset_moved_to_tiered_storage.name}" in caplog.text

    run(simulation, story)


def test_a_follower_below_the_local_log_start_is_not_counted_in(simulation):
    """Its fetch offset is in the log, but its records do not come from this leader."""

    async def story():
        async with tiered(simulation) as cluster:
            leader, follower = cluster.brokers.values()
            follower.start()
            hang(follower)
            await follower.listen()
            await asyncio.sleep(10)
            await turns()
            assert leader.partition(at(0)).isr == (1,)
            progress = leader.partition(at(0)).as_leader().state.followers[2]
            assert progress.log_end_offset is None or progress.log_end_offset < 3

    run(simulation, story)
