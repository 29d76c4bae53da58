"""Restarts of a topic-based metadata manager: what it reads again of `__remote_log_metadata` (KIP-405, KIP-1266)."""

import asyncio

import pytest
from metadata_brokers import copied, copied_in_a_row, ends, partition, scene_of, until_ready
from remote_support import to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.topic_metadata.subscriber import UserPartition

ONE, TWO, THREE = (partition(number) for number in range(3))


@pytest.fixture
def scene(tmp_path):
    return scene_of(tmp_path)


async def restarted(brokers, manager, *partitions):
    await manager.close()
    return await brokers.ready(*partitions, folder=0)


def copies(manager, *partitions):
    return {each: manager.list_remote_log_segments(each) for each in partitions}


def test_a_restart_reads_nothing_again(scene):
    """The rule includes partitions without any change, and those whose last change is long ago."""

    async def story(brokers):
        manager, _ = await brokers.ready(ONE, TWO, THREE)
        await copied(manager, 1, 0, 10, user_partition=ONE)
        await asyncio.sleep(3600)
        for number in range(100):
            await copied(manager, number + 10, number, number + 1, user_partition=TWO)
        expected = copies(manager, ONE, TWO, THREE)
        manager, topic = await restarted(brokers, manager, ONE, TWO, THREE)
        assert copies(manager, ONE, TWO, THREE) == expected
        assert topic.read_count == 0
        await copied(manager, 2, 10, 20, user_partition=ONE)
        assert ends(manager, ONE) == [10, 20]
        assert topic.read_count == 2

    scene(story)


def test_a_stop_writes_also_what_is_not_due(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(ONE)
        await copied_in_a_row(manager, 100, user_partition=ONE)
        await asyncio.sleep(3600)
        await copied(manager, 101, 100, 101, user_partition=ONE)
        manager, topic = await restarted(brokers, manager, ONE)
        assert ends(manager, ONE)[-1] == 101
        assert topic.read_count == 0

    scene(story)


@pytest.mark.parametrize("crash_after_s", [50, 550, 650, 1200])
def test_a_header_is_not_ahead_of_its_columns(scene, crash_after_s):
    """A change that is not due yet keeps the offset of the whole snapshot back."""

    async def story(brokers):
        manager, _ = await brokers.ready(ONE)
        await copied_in_a_row(manager, 100, user_partition=ONE)
        await asyncio.sleep(500)
        await copied(manager, 101, 100, 101, user_partition=ONE)
        await asyncio.sleep(crash_after_s)
        second, _ = await brokers.ready(ONE, folder=0)
        assert copies(second, ONE) == copies(manager, ONE)

    scene(story)


@pytest.mark.parametrize("turns", range(12))
def test_a_partition_that_is_removed_while_its_snapshot_is_read(scene, turns):
    async def story(brokers):
        manager, _ = await brokers.ready(ONE, TWO)
        await copied(manager, 1, 0, 10, user_partition=ONE)
        manager, _ = await restarted(brokers, manager, TWO)
        manager.on_partition_leadership_changes(leaders=[ONE], followers=[])
        for _ in range(turns):
            await asyncio.sleep(0)
        manager.on_stop_partitions([ONE])
        manager.on_partition_leadership_changes(leaders=[ONE], followers=[])
        await until_ready(manager, ONE, TWO)
        assert ends(manager, ONE) == [10]
        manager.on_stop_partitions([ONE, TWO])
        await asyncio.sleep(1)
        assert not manager._subscriptions._readers

    scene(story)


def test_after_a_crash_little_is_read_again(scene):
    """Snapshots that were written when they were due: on the order of what changed since."""

    async def story(brokers):
        manager, _ = await brokers.ready(ONE, TWO)
        for number in range(300):
            await copied(manager, number + 1, number, number + 1, user_partition=ONE)
            await asyncio.sleep(60)
        expected = copies(manager, ONE, TWO)
        # No stop: another process with the same folder.
        second, topic = await brokers.ready(ONE, TWO, folder=0)
        assert copies(second, ONE, TWO) == expected
        assert 0 < topic.read_count <= 2 * 11

    scene(story)


def test_a_partition_without_a_snapshot_does_not_delay_the_others(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(ONE, TWO)
        for number in range(500):
            await copied(manager, number + 1, number, number + 1, user_partition=(ONE, TWO)[number % 2])
        expected = copies(manager, ONE, TWO)
        await manager.close()
        (brokers.folder / "0" / str(TWO.topic_partition) / UserPartition.file_name).unlink()
        manager, topic = brokers.start(ONE, TWO, folder=0)
        topic.faults.max_delay_s = 1
        await until_ready(manager, ONE)
        assert not manager.is_ready(TWO)
        await until_ready(manager, TWO)
        assert copies(manager, ONE, TWO) == expected
        assert topic.read_count == 1000

    scene(story)


@pytest.mark.parametrize("damage", ["cut", "another topic", "no committed offsets"])
def test_a_file_that_cannot_be_used_costs_a_replay(scene, damage):
    async def story(brokers):
        manager, _ = await brokers.ready(ONE)
        await copied_in_a_row(manager, 50, user_partition=ONE)
        expected = copies(manager, ONE)
        await manager.close()
        file = brokers.folder / "0" / str(ONE.topic_partition) / UserPartition.file_name
        offsets = brokers.folder / "0" / "_rlmm_committed_offsets"
        assert offsets.read_text() == "0\n1\n0 100\n"
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:-7])
        elif damage == "no committed offsets":
            offsets.write_text("0\n5\n")
        else:
            content = bytearray(file.read_bytes())
            content[20] ^= 1
            file.write_bytes(content)
        manager, topic = await brokers.ready(ONE, folder=0)
        assert copies(manager, ONE) == expected
        assert topic.read_count == (0 if "offsets" in damage else 100)

    scene(story)


def test_the_snapshots_of_a_former_topic_are_not_used(scene):
    async def story(brokers):
        manager, _ = await brokers.ready(ONE)
        await copied_in_a_row(manager, 5, user_partition=ONE)
        await manager.close()
        await brokers.topic.create_again()
        other, _ = await brokers.ready(ONE)
        for number in range(20):
            await copied(other, number + 100, number, number + 1, user_partition=ONE)
        manager, _ = await brokers.ready(ONE, folder=0)
        assert copies(manager, ONE) == copies(other, ONE)

    scene(story)


def test_snapshots_that_are_ahead_of_the_topic_are_not_used(scene):
    """The topic has lost its end while the broker was down."""

    async def story(brokers):
        manager, _ = await brokers.ready(ONE)
        await copied_in_a_row(manager, 5, user_partition=ONE)
        await manager.close()
        del brokers.topic.partitions.values[0][6:]
        manager, _ = await brokers.ready(ONE, folder=0)
        assert ends(manager, ONE) == [1, 2, 3]

    scene(story)


def test_a_partition_that_is_assigned_later_does_not_use_a_snapshot_ahead_of_the_topic(scene):
    """The topic has lost its end, and has grown since: the snapshot has what was lost, and lacks what came instead."""

    async def story(brokers):
        manager, _ = await brokers.ready(ONE, TWO)
        await copied(manager, 1, 0, 10, user_partition=TWO)
        await copied_in_a_row(manager, 5, user_partition=ONE)
        await manager.close()
        del brokers.topic.partitions.values[0][6:]
        manager, _ = await brokers.ready(TWO, folder=0)
        manager.on_partition_leadership_changes(leaders=[ONE], followers=[])
        await until_ready(manager, ONE)
        await copied(manager, 9, 2, 7, user_partition=ONE)
        assert ends(manager, ONE) == [1, 2, 7]

    scene(story)


def test_deleted_copies_are_not_in_the_snapshot(scene):
    """KIP-1266: what a restart reads is bounded by the copies that there are, not by those that there were."""

    async def story(brokers):
        manager, _ = await brokers.ready(ONE)
        for number in range(1, 301):
            await copied(manager, number, number, number + 1, user_partition=ONE)
            for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED):
                await manager.update_remote_log_segment_metadata(to(number, state))
        await manager.close()
        size = (brokers.folder / "0" / str(ONE.topic_partition) / UserPartition.file_name).stat().st_size
        assert size < 500
        manager, topic = await brokers.ready(ONE, folder=0)
        assert ends(manager, ONE) == []
        assert manager.highest_offset_for_epoch(ONE, epoch=0) == 301
        assert topic.read_count == 0

    scene(story)


def test_unassigned_partitions_are_left_out(scene):
    async def story(brokers):
        manager, _ = brokers.start(ONE, TWO)
        manager.on_stop_partitions([ONE])  # before its snapshot is read
        await until_ready(manager, TWO)
        await copied(manager, 1, 0, 10, user_partition=TWO)
        manager.on_partition_leadership_changes(leaders=[ONE], followers=[])
        manager.on_stop_partitions([ONE])
        manager.on_partition_leadership_changes(leaders=[ONE], followers=[TWO])
        await until_ready(manager, ONE, TWO)
        await copied(manager, 2, 0, 10, user_partition=ONE)
        manager.on_stop_partitions([ONE, TWO])
        await asyncio.sleep(100)
        manager.on_partition_leadership_changes(leaders=[ONE, TWO], followers=[])
        await until_ready(manager, ONE, TWO)
        assert ends(manager, ONE) == ends(manager, TWO) == [10]

    scene(story)
