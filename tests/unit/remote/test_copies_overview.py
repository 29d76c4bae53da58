"""The overview of a metadata partition, for the removers of deleted partitions (KIP-405)."""

import asyncio
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_brokers import copied, partition, scene_of, until_ready
from remote_support import copy_of, to

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.protocol.remote.records import RemotePartitionDeleteState as DeleteState
from ottla.protocol.types import TopicPartition
from ottla.remote.segment_metadata import RemotePartitionDeleteMetadata, TopicIdPartition
from ottla.remote.topic_metadata.overview import CopiesOverview
from ottla.remote.topic_metadata.subscriber import UserPartition
from tests.harness.waiting import until

ONE, TWO = partition(0), partition(1)
MARKED, STARTED, FINISHED = DeleteState


@pytest.fixture
def scene(tmp_path):
    return scene_of(tmp_path)


def deletion(state, of=ONE):
    return RemotePartitionDeleteMetadata(partition=of, state=state, broker_id=1, event_timestamp_ms=5)


async def overview_of(manager):
    await until(lambda: manager.overview(0) is not None, pause_s=0.01)
    return manager.overview(0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {}),
        ([copy_of(1, 0, 10)], {ONE: None}),
        ([to(1, State.COPY_SEGMENT_FINISHED)], {}),  # an update alone is refused by every cache
        ([copy_of(1, 0, 10), to(1, State.DELETE_SEGMENT_STARTED), to(1, State.DELETE_SEGMENT_FINISHED)], {ONE: None}),
        ([copy_of(1, 0, 10), deletion(MARKED)], {ONE: MARKED}),
        ([copy_of(1, 0, 10), deletion(STARTED)], {ONE: None}),
        ([deletion(MARKED), deletion(MARKED), deletion(STARTED)], {ONE: STARTED}),
        ([deletion(MARKED), copy_of(1, 0, 10)], {ONE: MARKED}),
        ([copy_of(1, 0, 10), deletion(MARKED), deletion(STARTED), deletion(FINISHED)], {}),
        ([copy_of(1, 0, 10), deletion(MARKED), deletion(STARTED), deletion(FINISHED), deletion(FINISHED)], {}),
        # A leader that did not know of the deletion has copied another segment: before the remover's last
        # record, or later.
        ([copy_of(1, 0, 10), deletion(MARKED), deletion(STARTED), copy_of(2, 10, 20), deletion(FINISHED)], {ONE: None}),
        ([copy_of(1, 0, 10), deletion(MARKED), deletion(STARTED), copy_of(2, 10, 20), deletion(FINISHED),
          deletion(MARKED), deletion(STARTED), deletion(FINISHED)], {}),
        ([deletion(MARKED), deletion(STARTED), deletion(FINISHED), copy_of(2, 10, 20)], {ONE: None}),
    ],
)  # fmt: skip
def test_what_is_in_the_overview(changes, expected):
    overview = CopiesOverview(0)
    for offset, change in enumerate(changes):
        overview.apply(change, offset=offset)
    assert overview.partitions == expected


@pytest.mark.parametrize("seed", range(200))
def test_a_partition_that_a_cache_has_copies_of_is_never_missing(seed):
    """Leaders may write anything between a remover's look and its last record; a restart from the snapshot is
    included."""
    random = Random(seed)
    overview, user = CopiesOverview(0), UserPartition(ONE, metadata_partition=0)
    has_decided = False
    for offset in range(100):
        number = random.randrange(1, 4)
        state = overview.partitions.get(ONE)
        changes = [
            copy_of(number, 0, 10),
            *(to(number, each) for each in list(State)[1:]),
            deletion(STARTED if state is MARKED else MARKED),
        ]
        change = random.choice(changes)
        if has_decided and random.random() < 0.3:
            change, has_decided = deletion(FINISHED), False
        overview.apply(change, offset=offset)
        user.apply(change, offset=offset)
        has_decided = has_decided or (overview.partitions.get(ONE) is STARTED and not len(user.cache))
        if random.random() < 0.1:
            restored = CopiesOverview(0)
            restored.restore(memoryview(overview.to_bytes()))
            overview = restored
        assert ONE in overview.partitions or not len(user.cache)


names = st.from_regex("[ab._-]{3,10}", fullmatch=True)
user_partitions = st.builds(
    lambda number, name, index: TopicIdPartition(UUID(int=number), TopicPartition(name, index)),
    st.integers(1, 2**128 - 1),
    names,
    st.integers(0, 10_000),
)


@pytest.mark.parametrize("name", ["../../x", "..", "ö", "a\0"])
def test_a_snapshot_with_an_invalid_topic_is_refused(name):
    bad = TopicIdPartition(UUID(int=7), TopicPartition(name, 0))
    written, found = CopiesOverview(3), CopiesOverview(3)
    written.apply(
        replace(copy_of(1, 0, 10), segment_id=copy_of(1, 0, 10).segment_id._replace(partition=bad)), offset=0
    )
    with pytest.raises(ValueError, match="topic name"):
        found.restore(memoryview(written.to_bytes()))
    assert found.partitions == {}


@given(st.dictionaries(user_partitions, st.sampled_from([None, MARKED, STARTED])))
def test_a_snapshot_restores_it(partitions):
    written, found = CopiesOverview(3), CopiesOverview(3)
    for each, state in partitions.items():
        begun = replace(copy_of(1, 0, 10), segment_id=copy_of(1, 0, 10).segment_id._replace(partition=each))
        written.apply(begun, offset=0)
        for progress in (MARKED, STARTED)[: 0 if state is None else state + 1]:
            written.apply(deletion(progress, each), offset=1)
    assert written.partitions == partitions
    found.restore(memoryview(written.to_bytes()))
    assert found.partitions == partitions


def test_the_leader_sees_all_user_partitions_and_their_deletion(scene):
    async def story(brokers):
        host, _ = brokers.start(ONE, TWO)
        await until_ready(host, ONE, TWO)
        await copied(host, 1, 0, 10, user_partition=ONE)
        await copied(host, 2, 0, 10, user_partition=TWO)
        leader, _ = brokers.start()
        overview = await overview_of(leader)
        assert overview.partitions == {ONE: None, TWO: None}
        for state in (MARKED, STARTED):
            await leader.put_remote_partition_delete_metadata(deletion(state))
            assert overview.partitions == {ONE: state, TWO: None}
        leader.on_partition_leadership_changes(leaders=[], followers=[ONE])
        await until_ready(leader, ONE)
        (found,) = leader.list_remote_log_segments(ONE)
        for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED):
            await leader.update_remote_log_segment_metadata(
                replace(to(1, state), segment_id=found.segment_id)
            )
        await leader.put_remote_partition_delete_metadata(deletion(FINISHED))
        assert overview.partitions == {TWO: None}
        leader.on_stop_partitions([ONE])
        leader.stop_overview(0)
        await asyncio.sleep(1)
        assert leader.overview(0) is None

    scene(story)


def test_a_restart_reads_nothing_again(scene):
    """The overview has a snapshot of its own, in the folder of the metadata partition's log."""

    async def story(brokers):
        manager, _ = brokers.start(ONE, TWO)
        await until_ready(manager, ONE, TWO)
        (brokers.folder / "0" / "__remote_log_metadata-0").mkdir()
        await overview_of(manager)
        for number in range(100):
            await copied(manager, number + 1, number, number + 1, user_partition=ONE)
        await manager.close()
        manager, topic = brokers.start(ONE, TWO, folder=0)
        overview = await overview_of(manager)
        await until_ready(manager, ONE, TWO)
        assert overview.partitions == {ONE: None}
        assert topic.read_count == 0

    scene(story)


def test_no_overview_of_a_closed_manager(scene):
    async def story(brokers):
        manager, _ = brokers.start(ONE)
        assert manager.overview(0) is None
        await manager.close()
        assert manager.overview(0) is None

    scene(story)
