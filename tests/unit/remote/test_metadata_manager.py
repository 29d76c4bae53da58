"""TopicBasedRemoteLogMetadataManager over a topic in memory, on virtual time (KIP-405)."""

import asyncio
from dataclasses import replace

import pytest
from metadata_brokers import copied, copied_in_a_row, ends, partition, scene_of, until_ready
from remote_support import PARTITION, copy_of, to

from ottla.protocol.remote.record_codec import decode, encode
from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.metadata_cache import IllegalStateTransition
from ottla.remote.topic_metadata.manager import TopicBasedRemoteLogMetadataManager
from ottla.remote.topic_metadata.records import to_value


@pytest.fixture
def scene(tmp_path):
    return scene_of(tmp_path)


def test_a_change_is_seen_when_it_returns(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(PARTITION)
        await manager.add_remote_log_segment_metadata(copy_of(1, 0, 10))
        assert manager.remote_log_segment_metadata(PARTITION, epoch=0, offset=3) is None
        await manager.update_remote_log_segment_metadata(to(1, State.COPY_SEGMENT_FINISHED))
        assert manager.remote_log_segment_metadata(PARTITION, epoch=0, offset=3).end_offset == 10
        assert manager.highest_offset_for_epoch(PARTITION, epoch=0) == 10
        assert manager.remote_log_size(PARTITION, epoch=0) == 1000
        assert manager.next_segment_with_transaction_index(PARTITION, epoch=0, offset=5).end_offset == 10

    scene(story)


def test_other_brokers_see_it_soon(scene):
    async def story(brokers):
        leader, _ = await brokers.ready(PARTITION)
        follower, _ = await brokers.ready(PARTITION)
        await copied(leader, 1, 0, 10)
        await asyncio.sleep(1)
        assert follower.highest_offset_for_epoch(PARTITION, epoch=0) == 10

    scene(story)


def test_look_ups_wait_until_the_topic_was_read(scene):
    async def story(brokers):
        first, _ = await brokers.ready(PARTITION)
        for number in range(300):
            await copied(first, number + 1, number * 10, number * 10 + 10)
        second, topic = brokers.start(PARTITION)
        topic.faults.max_delay_s = 0.1
        assert not second.is_ready(PARTITION)
        with pytest.raises(RetriableRemoteStorageError):
            second.highest_offset_for_epoch(PARTITION, epoch=0)
        with pytest.raises(RetriableRemoteStorageError):
            await second.add_remote_log_segment_metadata(copy_of(999, 0, 10))
        await until_ready(second)
        assert second.highest_offset_for_epoch(PARTITION, epoch=0) == 3000
        assert topic.read_count == 600

    scene(story)


def test_a_new_leader_is_ready_when_it_has_what_its_predecessor_stored(scene):
    """One that lags would take a finished copy for an abandoned one, and delete it."""

    async def story(brokers):
        former, _ = await brokers.ready(PARTITION)
        manager, topic = await brokers.ready(PARTITION)
        await copied(former, 1, 0, 10)
        await asyncio.sleep(1)
        topic.faults.fail_read = 1
        await asyncio.sleep(1)  # a read that waits already would find the record
        await copied(former, 2, 10, 20)
        assert manager.is_ready(PARTITION)
        manager.on_partition_leadership_changes(leaders=[PARTITION], followers=[])
        await asyncio.sleep(5)
        assert not manager.is_ready(PARTITION)
        assert manager.highest_offset_for_epoch(PARTITION, epoch=0) == 10  # readers do not wait
        topic.faults.fail_read = 0
        await until_ready(manager)
        assert ends(manager) == [10, 20]

    scene(story)


def test_what_is_not_assigned_is_an_error(scene):
    async def story(brokers):
        manager, _ = brokers.start()
        await asyncio.sleep(1)
        with pytest.raises(RemoteStorageError, match="not assigned"):
            manager.list_remote_log_segments(PARTITION)
        manager.on_partition_leadership_changes(leaders=[], followers=[PARTITION])
        await until_ready(manager)
        manager.on_stop_partitions([PARTITION])
        assert not manager.is_ready(PARTITION)
        with pytest.raises(RemoteStorageError, match="not assigned"):
            manager.list_remote_log_segments(PARTITION)

    scene(story)


def test_a_change_of_an_unknown_copy_is_refused_before_it_is_written(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(PARTITION)
        with pytest.raises(RemoteResourceNotFound):
            await manager.update_remote_log_segment_metadata(to(1, State.COPY_SEGMENT_FINISHED))
        await manager.update_remote_log_segment_metadata(to(1, State.DELETE_SEGMENT_FINISHED))
        await copied(manager, 1, 0, 10)
        await manager.update_remote_log_segment_metadata(to(1, State.DELETE_SEGMENT_STARTED))
        with pytest.raises(IllegalStateTransition):
            await manager.update_remote_log_segment_metadata(to(1, State.COPY_SEGMENT_FINISHED))
        assert len(brokers.topic.partitions.values[0]) == 3

    scene(story)


@pytest.mark.logs("is ignored")
def test_a_change_that_comes_too_late_fails(scene):
    """The former leader finishes a copy that its successor has begun to delete."""

    async def story(brokers):
        former, topic = await brokers.ready(PARTITION)
        leader, _ = await brokers.ready(PARTITION)
        await former.add_remote_log_segment_metadata(copy_of(1, 0, 10))
        await asyncio.sleep(1)
        topic.faults.max_delay_s = 2
        finishing = asyncio.ensure_future(
            former.update_remote_log_segment_metadata(to(1, State.COPY_SEGMENT_FINISHED))
        )
        await asyncio.sleep(0)
        await leader.update_remote_log_segment_metadata(to(1, State.DELETE_SEGMENT_STARTED))
        with pytest.raises(IllegalStateTransition):
            await finishing
        for manager in (former, leader):
            (found,) = manager.list_remote_log_segments(PARTITION)
            assert found.state is State.DELETE_SEGMENT_STARTED

    scene(story)


def test_a_topic_that_does_not_answer_is_a_retriable_error(scene):
    async def story(brokers):
        manager, topic = await brokers.ready(PARTITION)
        topic.faults.fail_read = 1
        await asyncio.sleep(1)  # a read that waits already would find the record
        with pytest.raises(RetriableRemoteStorageError, match="5000 ms"):
            await manager.add_remote_log_segment_metadata(copy_of(1, 0, 10))
        topic.faults.fail_read = 0
        await manager.add_remote_log_segment_metadata(copy_of(1, 0, 10))
        assert ends(manager) == [10]
        topic.faults.lose_acknowledgement = 1
        with pytest.raises(RetriableRemoteStorageError, match="injected"):
            await manager.update_remote_log_segment_metadata(to(1, State.COPY_SEGMENT_FINISHED))
        topic.faults.lose_acknowledgement = 0
        await manager.update_remote_log_segment_metadata(to(1, State.COPY_SEGMENT_FINISHED))
        assert manager.highest_offset_for_epoch(PARTITION, epoch=0) == 10

    scene(story)


def test_a_partition_assigned_later_gets_its_older_records_and_disturbs_no_other(scene):
    async def story(brokers):
        one, two = partition(0), partition(1)
        writer, _ = brokers.start(one, two)
        manager, topic = brokers.start(one)
        await until_ready(writer, one, two)
        await until_ready(manager, one)
        for number in range(200):
            await copied(
                writer, number + 1, number * 10, number * 10 + 10, user_partition=(one, two)[number % 2]
            )
        await asyncio.sleep(1)
        before = topic.read_count
        topic.faults.max_delay_s = 1
        manager.on_partition_leadership_changes(leaders=[two], followers=[])
        await copied(writer, 1001, 5000, 6000, user_partition=one)
        await copied(writer, 1002, 5000, 6000, user_partition=two)
        await asyncio.sleep(2.5)
        assert ends(manager, one)[-1] == 6000
        assert not manager.is_ready(two)
        await until_ready(manager, two)
        assert ends(manager, two) == ends(writer, two)
        assert ends(manager, one) == ends(writer, one)
        assert topic.read_count - before <= 404 + 4

    scene(story)


def test_a_read_that_fails_in_the_middle_continues_there(scene):
    """Each record is applied once: a repetition would be refused, and logged."""
    other = partition(7)

    async def story(brokers):
        first, _ = await brokers.ready(PARTITION)
        await copied_in_a_row(first, 20)
        second, topic = await brokers.ready(other)
        failures = iter([15, 3, 1])

        async def read(number, offset, *, max_wait_ms, read=topic.read):
            found = await read(number, offset, max_wait_ms=max_wait_ms)
            if max_wait_ms or (count := next(failures, None)) is None:
                return found
            return replace(found, records=broken(found.records, count))

        topic.read = read
        second.on_partition_leadership_changes(leaders=[], followers=[PARTITION])
        await until_ready(second)
        assert ends(second) == ends(first)

    scene(story)


def broken(records, count):
    yield from records[:count]
    raise RetriableRemoteStorageError("a batch is damaged")


@pytest.mark.logs("is skipped")
def test_malformed_and_newer_records_are_skipped(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(PARTITION)
        impossible = decode(to_value(copy_of(2, 10, 20)))
        impossible.segment_size_in_bytes = -1
        for value in (None, b"", b"\x07", b"\x01\x63\x00", encode(impossible)):
            await brokers.topic.append(0, value)
        await copied(manager, 1, 0, 10)
        assert ends(manager) == [10]

    scene(story)


def test_removed_records_are_no_obstacle(scene):
    async def story(brokers):
        first, _ = await brokers.ready(PARTITION)
        for number in range(20):
            await copied(first, number + 1, number * 10, number * 10 + 10)
        brokers.topic.partitions.start_offsets[0] = 20
        second, _ = await brokers.ready(PARTITION)
        assert ends(second) == ends(first)[10:]

    scene(story)


@pytest.mark.logs("created again")
def test_a_topic_that_is_created_again_is_read_from_its_beginning(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(PARTITION)
        await copied(manager, 1, 0, 10)
        await brokers.topic.create_again()
        await asyncio.sleep(2)
        assert ends(manager) == []
        await copied(manager, 2, 10, 20)
        assert ends(manager) == [20]

    scene(story)


@pytest.mark.logs("the end of the partition is")
def test_a_topic_that_lost_its_end_is_read_again(scene):
    """Its leader was elected uncleanly."""

    async def story(brokers):
        manager, _ = await brokers.ready(PARTITION)
        await copied(manager, 1, 0, 10)
        await copied(manager, 2, 10, 20)
        del brokers.topic.partitions.values[0][2:]
        await asyncio.sleep(2)
        await until_ready(manager)
        assert ends(manager) == [10]

    scene(story)


@pytest.mark.logs("read again from the beginning")
@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_topic_that_lost_its_end_and_has_grown_again_is_read_again(scene, is_running, lost):
    """Its leader lost power; this broker was cut off, or down, until the log was at least as long as before."""

    async def story(brokers):
        manager, topic = await brokers.ready(PARTITION, folder=0)
        await copied(manager, 1, 0, 10)
        await copied(manager, 2, 10, 20)
        await asyncio.sleep(1)
        if is_running:
            topic.faults.is_down = True
            await asyncio.sleep(2)
        else:
            await manager.close()
        log = brokers.topic.partitions.values[0]
        del log[-lost:]
        log += [to_value(copy_of(number, number, number + 1)) for number in range(3, 6)]
        topic.faults.is_down = False
        if not is_running:
            manager, topic = brokers.start(PARTITION, folder=0)
        await asyncio.sleep(10)
        await until_ready(manager)
        third, _ = await brokers.ready(PARTITION, folder=1)
        assert list(manager.list_remote_log_segments(PARTITION)) == list(
            third.list_remote_log_segments(PARTITION)
        )
        assert len(ends(manager)) == 3 + (4 - lost + 1) // 2

    scene(story)


@pytest.mark.logs("is skipped", "is ignored")
def test_a_flood_of_records_without_meaning_is_a_few_lines(scene, caplog):
    async def story(brokers):
        manager, _ = await brokers.ready(PARTITION)
        await copied(manager, 1, 0, 10)
        for _ in range(300):
            await brokers.topic.append(0, b"\x07")
            await brokers.topic.append(0, to_value(to(77, State.COPY_SEGMENT_FINISHED)))
        await copied(manager, 2, 10, 20)
        assert ends(manager) == [10, 20]

    scene(story)
    lines = [each for each in caplog.records if "offset" in each.getMessage()]
    assert 2 <= len(lines) <= 4


@pytest.mark.logs("not available")
def test_an_unusable_topic_is_reported_once(scene, caplog):
    async def story(brokers):
        manager, topic = brokers.start(PARTITION, is_ready=False)
        topic.unusable = "it has 3 partitions"
        manager.on_broker_ready()
        await asyncio.sleep(600)
        with pytest.raises(RetriableRemoteStorageError, match="it has 3 partitions"):
            manager.list_remote_log_segments(PARTITION)
        topic.unusable = None
        await until_ready(manager)

    scene(story)
    assert len([each for each in caplog.records if "not available" in each.getMessage()]) == 1


@pytest.mark.logs("not available")
def test_a_topic_that_cannot_be_created_is_an_error_after_a_while(scene, caplog):
    async def story(brokers):
        manager, topic = brokers.start(PARTITION, is_ready=False)
        topic.faults.is_down = True
        manager.on_broker_ready()
        await asyncio.sleep(110)
        assert not caplog.records
        await asyncio.sleep(60)
        assert len(caplog.records) == 1
        topic.faults.is_down = False
        await until_ready(manager)

    scene(story)


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("remote.log.metadata.topic.num.partitions", "0", "at least 1"),
        ("remote.log.metadata.topic.retention.ms", "0", "more than 0"),
        ("remote.log.metadata.consume.wait.ms", "a", "not an integer"),
        ("log.dir", "", "not set"),
    ],
)
def test_impossible_settings(name, value, part):
    manager = TopicBasedRemoteLogMetadataManager(runtime=None, topic=None)
    with pytest.raises(ValueError, match=part):
        manager.configure({"log.dir": "/x", name: value})


def test_the_topic_is_created_as_kafka_does(scene):
    """It has `flush.messages` in addition, since a local segment is removed because of one of its records."""

    async def story(brokers):
        _, topic = brokers.start(PARTITION)
        await asyncio.sleep(1)
        assert topic.opened_with.replication_factor == 3
        assert topic.opened_with.partition_count == 1
        assert topic.opened_with.configs == {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "min.insync.replicas": "2",
            "flush.messages": "1",
            "remote.storage.enable": "false",
        }

    scene(story)
