"""Replicas that move to another log directory of their broker (KIP-113, KIP-858)."""

import asyncio
import errno
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.replicas.moving.log_move import LogMove
from ottla.broker.replicas.moving.log_moves import LogMoves
from ottla.metadata.records import FeatureLevelRecord, RemoveTopicRecord
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaStorageError
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.protocol.records.record import records
from ottla.protocol.types import TopicPartition
from ottla.runtime import Pool
from ottla.storage.files import OutOfDescriptors
from ottla.stories.partition.faulty_files import Loss
from ottla.stories.partition.replicas import TOPIC_ID, ReplicaBroker, ReplicaCluster
from tests.harness.waiting import until

A, B = Path("/disks/a"), Path("/disks/b")
ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)


@asynccontextmanager
async def brokers(simulation, count=1, **options):
    """Broker 1 leads "orders", others follow; the metadata knows where each replica is."""
    ids = list(range(1, count + 1))
    cluster = ReplicaCluster(simulation, ids, log_dirs=[A, B], **options)
    cluster.create("orders", {0: ids})
    for broker in cluster.brokers.values():
        await broker.listen()
    cluster.change(ORDERS, directories=[directory_id(broker) for broker in cluster.brokers.values()])
    cluster.elect(ORDERS, 1)
    yield cluster
    for broker in cluster.brokers.values():
        if broker.is_up:
            await broker.stop()


def path_of(broker: ReplicaBroker) -> Path:
    return broker.partition(ORDERS).log.directory.parent


def other(broker: ReplicaBroker) -> Path:
    return B if path_of(broker) == A else A


def directory_id(broker: ReplicaBroker, path: Path | None = None):
    return broker.logs.directory_ids[path or path_of(broker)]


def move(broker: ReplicaBroker, path: Path, *, topic: str = "orders", index: int = 0) -> ErrorCode:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=str(path), topics=[AlterReplicaLogDirTopic(name=topic, partitions=[index])]
            )
        ]
    )
    (result,) = broker.answer(ApiKey.ALTER_REPLICA_LOG_DIRS, request, 2).results
    (row,) = result.partitions
    assert (result.topic_name, row.partition_index) == (topic, index)
    return ErrorCode(row.error_code)


def described(broker: ReplicaBroker) -> dict[tuple[str, bool], int]:
    """(directory, whether it is a future log) -> offset lag."""
    response = broker.answer(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), 4)
    return {
        (Path(result.log_dir).name, row.is_future_key): row.offset_lag
        for result in response.results
        for topic in result.topics
        for row in topic.partitions
    }


def write(broker: ReplicaBroker, *values: bytes, to: TopicPartition = ORDERS) -> None:
    now_ms = broker.runtime.now_ms()
    batch = build_batch(simple_records([(None, value) for value in values], timestamp=now_ms))
    broker.partition(to).as_leader().append_records(bytearray(batch), required_acks=1, now_ms=now_ms)


def values(broker: ReplicaBroker) -> list[bytes | None]:
    log = broker.partition(ORDERS).log
    return [
        record.value for _, data in log.reader.records_since(log.log_start_offset) for record in records(data)
    ]


class ReportedDirs:
    """The assignments that the broker would send to the controller."""

    def __init__(self, broker: ReplicaBroker) -> None:
        self.broker = broker
        self.paths: list[Path | None] = []
        broker.replicas.moves.on_directory = self

    def __call__(self, place) -> None:
        assert place == (TOPIC_ID, 0)
        self.paths.append(self.broker.replicas.directory_of(ORDERS))


def accept(cluster: ReplicaCluster, broker: ReplicaBroker, path: Path) -> None:
    """The controller notes where the replica is."""
    known = list(cluster.image.topics_by_name["orders"].partitions[0].directories)
    known[broker.node_id - 1] = directory_id(broker, path)
    cluster.change(ORDERS, directories=known)


def test_a_leader_moves_while_it_is_written(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            old, new = path_of(broker), other(broker)
            reported = ReportedDirs(broker)
            write(broker, b"a", b"b")
            assert described(broker) == {(old.name, False): 0}
            assert move(broker, new) == ErrorCode.none
            assert described(broker) == {(old.name, False): 0, (new.name, True): 2}
            await until(lambda: reported.paths == [new])
            write(broker, b"c")
            await asyncio.sleep(5)
            assert path_of(broker) == old, "not before the metadata says so"
            accept(cluster, broker, new)
            await until(lambda: path_of(broker) == new)
            assert described(broker) == {(new.name, False): 0}
            write(broker, b"d")
            assert values(broker) == [b"a", b"b", b"c", b"d"]
            assert broker.partition(ORDERS).log.high_watermark == 4
            assert reported.paths == [new]
            # The name is the partition's, and the old log is gone after a restart as well.
            await broker.crash(Loss.NOTHING)
            broker.start()
            assert (path_of(broker), values(broker)) == (new, [b"a", b"b", b"c", b"d"])

    simulation.run(story())


def test_below_3_7_no_assignment_is_sent(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            cluster.commit(FeatureLevelRecord(name="metadata.version", feature_level=16))
            reported, new = ReportedDirs(broker), other(broker)
            write(broker, b"a")
            assert move(broker, new) == ErrorCode.none
            await until(lambda: path_of(broker) == new)
            assert not reported.paths

    simulation.run(story())


def test_a_leadership_without_records_is_remembered(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            write(broker, b"a")
            cluster.elect(ORDERS, 1)
            epochs = list(broker.partition(ORDERS).log.leader_epochs.entries)
            new = other(broker)
            move(broker, new)
            accept(cluster, broker, new)
            await until(lambda: path_of(broker) == new)
            assert list(broker.partition(ORDERS).log.leader_epochs.entries) == epochs

    simulation.run(story())


def test_a_follower_moves_and_follows_on(simulation):
    async def story():
        async with brokers(simulation, 2) as cluster:
            leader, follower = cluster.brokers.values()
            new = other(follower)
            write(leader, b"a")
            move(follower, new)
            accept(cluster, follower, new)
            await until(lambda: path_of(follower) == new)
            write(leader, b"b")
            await until(lambda: leader.partition(ORDERS).log.high_watermark == 2)
            assert values(follower) == [b"a", b"b"]

    simulation.run(story())


def test_a_log_start_offset_of_a_response_in_flight_reaches_the_new_log(simulation):
    """The leader sends it once in a fetch session, in the response to a request of before the move."""

    async def story():
        async with brokers(simulation, count=2) as cluster:
            leader, follower = cluster.brokers.values()
            # With another partition, the fetcher and its session go on.
            cluster.create("payments", {0: [1, 2]}, topic_id=UUID(int=8))
            cluster.elect(PAYMENTS, 1)
            write(leader, b"a", b"b")
            await until(lambda: follower.partition(ORDERS).log.high_watermark == 2)
            assert move(follower, other(follower)) is ErrorCode.none
            accept(cluster, follower, other(follower))
            before = path_of(follower)
            await until(lambda: path_of(follower) != before)
            assert leader.partition(ORDERS).log.maybe_increment_log_start_offset(1)
            leader.partition(ORDERS).notice_retention()
            await until(lambda: follower.partition(ORDERS).log.log_start_offset == 1)

    simulation.run(story())


@pytest.mark.logs("the log directory move waits")
def test_a_move_for_which_no_descriptor_is_free_goes_on_later(simulation, monkeypatch):
    def no_descriptor(self, path):
        raise OutOfDescriptors(path)

    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            new = other(broker)
            write(broker, b"a")
            with monkeypatch.context() as patch:
                assert move(broker, new) == ErrorCode.none
                log = broker.partition(ORDERS).log
                log.files.close_descriptors()
                patch.setattr(type(log.files.file_system), "open_to_keep", no_descriptor)
                await asyncio.sleep(15)
            accept(cluster, broker, new)
            await until(lambda: path_of(broker) == new)
            assert values(broker) == [b"a"]

    simulation.run(story())


def test_the_copy_is_truncated_with_the_log(simulation):
    async def story():
        async with brokers(simulation, 2) as cluster:
            first, second = cluster.brokers.values()
            write(first, b"both")
            await until(lambda: second.partition(ORDERS).log.log_end_offset == 1)
            simulation.network.cut("broker1", "broker2")
            write(first, b"lost", b"lost")
            reported, new = ReportedDirs(first), other(first)
            move(first, new)
            await until(lambda: reported.paths == [new])
            assert first.logs.future_logs[ORDERS].log_end_offset == 3
            cluster.elect(ORDERS, 2, isr=[2])
            write(second, b"other")
            simulation.network.heal("broker1", "broker2")
            await until(lambda: values(first) == [b"both", b"other"])
            accept(cluster, first, new)
            await until(lambda: path_of(first) == new)
            assert values(first) == [b"both", b"other"]

    simulation.run(story())


def test_a_stop_waits_for_a_thread_that_truncates_the_copy(simulation, monkeypatch):
    """The logs are closed next."""

    async def story():
        async with brokers(simulation, 2) as cluster:
            first, second = cluster.brokers.values()
            write(first, b"both")
            await until(lambda: second.partition(ORDERS).log.log_end_offset == 1)
            simulation.network.cut("broker1", "broker2")
            write(first, b"lost", b"lost")
            reported, new = ReportedDirs(first), other(first)
            move(first, new)
            await until(lambda: reported.paths == [new])
            begun, ended = [], []

            async def slowly(function):
                begun.append(function)
                await asyncio.sleep(1)
                function()
                ended.append(function)

            in_pool = first.runtime.run_blocking

            async def in_thread(function, *args, pool):
                if pool is Pool.UPKEEP:
                    return await asyncio.shield(asyncio.ensure_future(slowly(function)))
                return await in_pool(function, *args, pool=pool)

            monkeypatch.setattr(first.runtime, "run_blocking", in_thread)
            cluster.elect(ORDERS, 2, isr=[2])
            write(second, b"other")
            simulation.network.heal("broker1", "broker2")
            await until(lambda: begun)
            await first.replicas.moves.stop()
            assert begun == ended

    simulation.run(story())


def test_a_move_that_is_requested_while_the_broker_stops_begins_at_the_next_start(simulation):
    """Requests are answered after the moves have stopped, and before the logs are closed."""

    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            write(broker, b"x")
            await broker.replicas.stop()
            new = other(broker)
            assert move(broker, new) == ErrorCode.none
            await asyncio.sleep(5)
            assert broker.logs.future_logs[ORDERS].log_end_offset == 0
            await broker.crash(Loss.NOTHING)
            broker.start()
            await until(lambda: broker.logs.future_logs[ORDERS].log_end_offset == 1)
            accept(cluster, broker, new)
            await until(lambda: path_of(broker) == new)

    simulation.run(story())


def test_the_copy_finds_where_the_log_was_truncated_meanwhile(simulation):
    """The log has been truncated, and is longer than before: only the epochs show that the copy is another one."""

    async def story():
        async with brokers(simulation, 2) as cluster:
            first, second = cluster.brokers.values()
            write(first, b"both")
            await until(lambda: second.partition(ORDERS).log.log_end_offset == 1)
            simulation.network.cut("broker1", "broker2")
            write(first, b"lost", b"lost")
            reported, new = ReportedDirs(first), other(first)
            move(first, new)
            await until(lambda: reported.paths == [new])
            first.move_rate = -1
            cluster.elect(ORDERS, 2, isr=[2])
            write(second, b"x", b"y", b"z")
            simulation.network.heal("broker1", "broker2")
            await until(lambda: values(first) == [b"both", b"x", b"y", b"z"])
            assert first.logs.future_logs[ORDERS].log_end_offset == 3
            first.move_rate = 1_000_000
            accept(cluster, first, new)
            await until(lambda: path_of(first) == new)
            assert values(first) == [b"both", b"x", b"y", b"z"]

    simulation.run(story())


def test_the_log_is_truncated_and_grows_to_the_same_end_while_its_copy_is_flushed(simulation):
    """Below 3.7 nothing more is waited for: the copy would take the log's place with records that the log has lost."""

    async def story():
        async with brokers(simulation, 2) as cluster:
            first, second = cluster.brokers.values()
            cluster.commit(FeatureLevelRecord(name="metadata.version", feature_level=16))
            write(first, b"both")
            await until(lambda: second.partition(ORDERS).log.log_end_offset == 1)
            simulation.network.cut("broker1", "broker2")
            write(first, b"lost")
            old, new = path_of(first), other(first)
            flushing_s = iter([5.0])  # and the log is truncated meanwhile
            first.runtime.blocking_s = lambda: next(flushing_s, 0.0)
            move(first, new)
            await until(lambda: first.logs.future_logs[ORDERS].log_end_offset == 2)
            cluster.elect(ORDERS, 2, isr=[2])
            write(second, b"other")
            simulation.network.heal("broker1", "broker2")
            await until(lambda: values(first) == [b"both", b"other"])
            assert path_of(first) == old, "the copy is being flushed"
            await until(lambda: path_of(first) == new or values(first) != [b"both", b"other"])
            assert values(first) == [b"both", b"other"]

    simulation.run(story())


def test_a_log_that_begins_within_a_batch_moves(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            write(broker, b"a", b"b", b"c", b"d")
            broker.partition(ORDERS).as_leader().delete_records(2)
            new = other(broker)
            move(broker, new)
            accept(cluster, broker, new)
            await until(lambda: path_of(broker) == new)
            log = broker.partition(ORDERS).log
            assert (log.log_start_offset, log.log_end_offset) == (2, 4)

    simulation.run(story())


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_restart_in_the_middle(simulation, is_accepted):
    """The copy continues, and an assignment that the metadata has already is sent again; the rest is still copied."""

    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            old, new = path_of(broker), other(broker)
            reported = ReportedDirs(broker)
            for _ in range(20):
                write(broker, b"a")
            move(broker, new)
            await until(lambda: reported.paths)
            await broker.replicas.moves.stop()
            write(broker, b"a")
            await broker.crash(Loss.NOTHING)
            if is_accepted:
                accept(cluster, broker, new)
            broker.start()
            assert path_of(broker) == old
            if not is_accepted:
                reported = ReportedDirs(broker)
                await until(lambda: reported.paths == [new])
                accept(cluster, broker, new)
            await until(lambda: path_of(broker) == new)
            assert values(broker) == [b"a"] * 21
            assert not broker.logs.future_logs

    simulation.run(story())


def test_a_move_that_is_taken_back(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            old, new = path_of(broker), other(broker)
            reported = ReportedDirs(broker)
            write(broker, b"a")
            move(broker, new)
            assert move(broker, old) == ErrorCode.none
            assert described(broker) == {(old.name, False): 0}
            assert not reported.paths, "nothing was sent to the controller"
            move(broker, new)
            await until(lambda: reported.paths == [new])
            move(broker, old)
            assert reported.paths == [new, old]
            accept(cluster, broker, old)
            await asyncio.sleep(5)
            assert path_of(broker) == old

    simulation.run(story())


def test_a_topic_is_deleted_while_it_moves(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            write(broker, b"a")
            move(broker, other(broker))
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            await asyncio.sleep(5)
            assert not broker.logs.logs
            assert not broker.logs.future_logs
            assert broker.replicas.moves._task.done()

    simulation.run(story())


@pytest.mark.logs("the log is renamed to a stray")
def test_a_future_log_of_a_topic_that_was_deleted_meanwhile_is_a_stray(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            write(broker, b"a")
            move(broker, other(broker))
            await broker.replicas.moves.stop()
            await broker.crash(Loss.NOTHING)
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            broker.start()
            assert not broker.logs.logs
            assert not broker.logs.future_logs
            names = {path.parent.name for path in broker.files.contents()}
            assert sum(name.endswith("-stray") for name in names) == 2

    simulation.run(story())


@pytest.mark.parametrize("fails", ["old", "new"])
@pytest.mark.logs(
    "Log directory",
    "is cancelled, since a directory has failed",
    "is offline",
    "the log directory move has failed",
)
def test_a_directory_fails_while_a_log_moves(simulation, fails):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            old, new = path_of(broker), other(broker)
            broker.logs.on_dir_failure = lambda path, error: broker.replicas.handle_log_dir_failure(path)
            reported = ReportedDirs(broker)
            write(broker, b"a")
            move(broker, new)
            await until(lambda: reported.paths == [new])
            bad = old if fails == "old" else new
            broker.files.fail("write", errno=errno.EIO, under=bad, is_lasting=True)
            if fails == "old":
                with pytest.raises(KafkaStorageError):
                    write(broker, b"b")
                assert reported.paths == [new, old]  # taken back: the directory does not serve it
            else:
                write(broker, b"b")
                await until(lambda: reported.paths[-1] == old)  # taken back: there it is, and it serves
                write(broker, b"c")
                assert values(broker) == [b"a", b"b", b"c"]
            await until(lambda: broker.replicas.moves._task.done())

    simulation.run(story())


@pytest.mark.parametrize(
    ("operation", "fails", "ends"),
    [("write", "new", "old"), ("rename", "new", "old"), ("rename", "old", "new")],
)
@pytest.mark.logs(
    "Log directory",
    "is cancelled, since a directory has failed",
    "is offline",
    "the log directory move has failed",
    "cannot be deleted",
)
def test_a_disk_fails_a_promotion(simulation, operation, fails, ends):
    """Either log is the partition's with all that it had, and never one that is about to be removed."""

    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            path = {"old": path_of(broker), "new": other(broker)}
            broker.logs.on_dir_failure = lambda path, error: simulation.loop.call_soon(
                broker.replicas.handle_log_dir_failure, path
            )
            reported = ReportedDirs(broker)
            write(broker, b"a")
            cluster.elect(ORDERS, 1)  # an epoch without records: the promotion writes it
            move(broker, path["new"])
            await until(lambda: reported.paths == [path["new"]])
            broker.files.fail(operation, errno=errno.ENOSPC, under=path[fails])
            accept(cluster, broker, path["new"])
            await until(lambda: broker.logs.offline_dirs)
            await until(lambda: broker.replicas.moves._task.done())
            assert reported.paths[-1] == path[ends]
            write(broker, b"b")
            for job in broker.logs.maintain(broker.runtime.now_ms() + 100_000):
                job.complete()
            write(broker, b"c")
            log = broker.partition(ORDERS).log
            assert log is broker.logs.get(ORDERS)
            assert log.directory == path[ends] / "orders-0"
            assert (values(broker), log.high_watermark) == ([b"a", b"b", b"c"], 3)

    simulation.run(story())


@pytest.mark.logs("Log directory", "is offline")
def test_a_deleted_topic_leaves_no_future_log_to_its_successor(simulation):
    """The log that moves fails, its topic is deleted, and another one of that name has its log beside the
    future one.
    """

    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            old, new = path_of(broker), other(broker)
            broker.logs.on_dir_failure = lambda path, error: broker.replicas.handle_log_dir_failure(path)
            write(broker, b"old", b"old")
            move(broker, new)
            await until(lambda: broker.logs.future_logs[ORDERS].log_end_offset == 2)
            broker.files.fail("write", errno=errno.EIO, under=old, is_lasting=True)
            with pytest.raises(KafkaStorageError):
                write(broker, b"old")
            cluster.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
            assert not broker.logs.future_logs
            cluster.create("orders", {0: [1]}, topic_id=UUID(int=0xB))
            cluster.elect(ORDERS, 1)
            write(broker, b"new", b"new", b"new")
            await broker.crash(Loss.NOTHING)
            broker.files.remove_tree(old / "orders-0")  # another disk
            broker.start()
            await asyncio.sleep(5)
            assert values(broker) == [b"new", b"new", b"new"]

    simulation.run(story())


def test_nothing_is_copied_into_the_future_log_of_an_older_topic(simulation, caplog):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            write(broker, b"a")
            broker.logs.moving.create(
                ORDERS, other(broker), topic_id=UUID(int=0xB), now_ms=broker.runtime.now_ms()
            )
            broker.replicas.moves.begin(broker.partition(ORDERS))
            await asyncio.sleep(5)
            assert broker.logs.future_logs[ORDERS].log_end_offset == 0
            assert "orders-0: the log directory move is not possible" in caplog.text

    simulation.run(story())


# KIP-73
def test_copies_keep_to_their_rate(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            broker.move_rate = 1_000_000
            for _ in range(100):
                write(broker, bytes(100_000))
            reported, new = ReportedDirs(broker), other(broker)
            began = simulation.loop.time()
            move(broker, new)
            await until(lambda: reported.paths == [new])
            assert 7 < simulation.loop.time() - began < 12

    simulation.run(story())


async def move_two(cluster: ReplicaCluster) -> ReplicaBroker:
    """Both leave one directory for the other, and have some 5 MB."""
    broker = cluster.brokers[1]
    cluster.create("payments", {0: [1]}, topic_id=UUID(int=0xB))
    cluster.elect(PAYMENTS, 1)
    for _ in range(50):
        write(broker, bytes(100_000))
        write(broker, bytes(100_000), to=PAYMENTS)
    broker.replicas.moves.on_directory = lambda place: None
    for topic_partition in (ORDERS, PAYMENTS):
        path = broker.partition(topic_partition).log.directory.parent
        assert move(broker, B if path == A else A, topic=topic_partition.topic) == ErrorCode.none
    return broker


def test_moves_take_their_turns_also_where_the_rate_ends_a_round(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            cluster.brokers[1].move_rate = 1_000_000
            broker = await move_two(cluster)
            await asyncio.sleep(6)
            orders, payments = (broker.logs.future_logs[at].log_end_offset for at in (ORDERS, PAYMENTS))
            assert 20 <= orders + payments < 100
            assert abs(orders - payments) <= 10, "one read of 1 MiB"

    simulation.run(story())


@pytest.mark.parametrize(("where", "method"), [(LogMove, "step"), (LogMoves, "_complete")])
def test_a_bug_in_one_move_leaves_the_others_alone(simulation, monkeypatch, caplog, where, method):
    async def story():
        async with brokers(simulation) as cluster:
            really = getattr(where, method)

            def fail(*of):
                assert of[-1].partition.topic_partition != ORDERS, "a bug"
                return really(*of)

            monkeypatch.setattr(where, method, fail)
            broker = await move_two(cluster)
            new = broker.logs.future_logs[PAYMENTS].directory.parent
            cluster.change(PAYMENTS, directories=[directory_id(broker, new)])
            await until(lambda: broker.partition(PAYMENTS).log.directory.parent == new)
            assert caplog.text.count("orders-0: the log directory move has failed") == 1, (
                "then nothing more is tried in this epoch"
            )
            assert "AssertionError: a bug" in caplog.text

    simulation.run(story())


@pytest.mark.logs("Log directory")
def test_what_cannot_move(simulation):
    async def story():
        async with brokers(simulation) as cluster:
            broker = cluster.brokers[1]
            new = other(broker)
            assert move(broker, Path("/elsewhere")) == ErrorCode.log_dir_not_found
            assert move(broker, Path("relative")) == ErrorCode.log_dir_not_found
            assert move(broker, new, topic="unknown") == ErrorCode.replica_not_available
            assert move(broker, new, index=7) == ErrorCode.replica_not_available
            assert move(broker, new, topic="t" * 249) == ErrorCode.invalid_topic_exception
            assert move(broker, path_of(broker)) == ErrorCode.none
            broker.logs.take_offline(new, OSError("no disk"))
            assert move(broker, new) == ErrorCode.kafka_storage_error
            assert not broker.logs.future_logs

    simulation.run(story())
