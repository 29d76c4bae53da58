"""RemoteLogManager on simulated brokers with a real LocalDirectory: what is copied, and what becomes of it
(KIP-405).
"""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from one_leader_support import FINISHED, ORDERS, OneLeader

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.errors import RemoteResourceNotFound, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadataUpdate
from ottla.runtime.simulated import Simulation
from ottla.stories.partition.faulty_files import Loss


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


def test_closed_segments_are_copied_in_order(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.write_segment("a", "b")
        leader.write_segment("c")
        leader.write("d")
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 2, FINISHED), (2, 3, FINISHED)]
        assert leader.log.offsets.remote_end_offset == 3
        assert len(leader.tier.objects()) == 2
        assert leader.tier.unknown_objects() == set()
        assert leader.own.metrics.topic("orders").remote_copy_requests == 2

    simulation.run(story())


def test_the_copy_lag_grows_while_the_store_does_not_answer(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path, local_retention_ms="1000000")
        metrics = leader.own.metrics
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0

        def lag():
            for _ in metrics.update_gauges():
                pass
            gauges = metrics.partition(ORDERS)
            return gauges.remote_copy_lag_segments, gauges.remote_copy_lag_bytes

        leader.write_segment("a")
        await asyncio.sleep(60)
        assert lag() == (0, 0)
        leader.own.store.duration_s = 1500.0
        closed_bytes = 0
        for number, value in enumerate("bcd", 1):
            before = leader.log.segments.size_bytes
            leader.write_segment(value)
            closed_bytes += leader.log.segments.size_bytes - before
            await asyncio.sleep(60)
            assert lag() == (number, closed_bytes)
        leader.own.store.duration_s = 0.0
        await asyncio.sleep(2 * 3600)
        assert lag() == (0, 0)

    simulation.run(story())


def test_an_open_transaction_and_the_active_segment_are_not_copied(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.write_segment("a")
        leader.write("b", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        leader.log.roll(leader.broker.runtime.now_ms())
        leader.write("c")
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 1, FINISHED)]
        leader.end_transaction(producer_id=7)
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 1, FINISHED), (1, 2, FINISHED)]
        assert leader.log.segments.active.base_offset == 2

    simulation.run(story())


def test_expired_copies_are_deleted_after_the_log_start_has_advanced(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path, retention_ms="100000", local_retention_ms="1000")
        leader.write_segment("a", "b")
        await asyncio.sleep(60)
        leader.write_segment("c")
        leader.write("d")
        await asyncio.sleep(39)
        assert [start for start, _, _ in leader.copies()] == [0, 2]
        await asyncio.sleep(32)
        assert leader.copies() == [(2, 3, FINISHED)]
        assert leader.log.log_start_offset == 2
        assert len(leader.tier.objects()) == 1
        assert leader.own.metrics.topic("orders").remote_delete_requests == 1

    simulation.run(story())


def test_what_is_due_is_deleted_in_several_decisions_at_once(simulation, tmp_path, monkeypatch):
    monkeypatch.setattr("ottla.remote.expiration.MAX_EXPIRED", 2)

    async def story():
        leader = OneLeader(simulation, tmp_path, local_retention_ms="1000")
        for value in "abcdefg":
            leader.write_segment(value)
        await asyncio.sleep(100)
        assert len(leader.copies()) == 7
        leader.alter(retention_ms="10000")
        await asyncio.sleep(1)  # the next interval is in 30 s
        assert leader.copies() == []
        assert leader.log.log_start_offset == 7

    simulation.run(story())


@pytest.mark.logs("the store is down")
def test_the_size_of_the_remote_log_includes_what_the_store_has_not_deleted_yet(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path, retention_ms="100000", local_retention_ms="1000")
        leader.write_segment("a", "b")
        size = leader.log.segments.size_bytes
        leader.write("d")
        await asyncio.sleep(60)
        gauges = leader.own.metrics.partition(ORDERS)
        assert (gauges.remote_log_metadata_count, gauges.remote_log_size_bytes) == (1, size)
        leader.own.store.failure = RetriableRemoteStorageError("the store is down")
        await asyncio.sleep(120)
        assert [state for _, _, state in leader.copies()] == [State.DELETE_SEGMENT_STARTED]
        assert (gauges.remote_log_metadata_count, gauges.remote_log_size_bytes) == (1, size)
        assert (gauges.remote_delete_lag_segments, gauges.remote_delete_lag_bytes) == (1, size)
        leader.own.store.failure = None
        await asyncio.sleep(120)
        assert (gauges.remote_log_metadata_count, gauges.remote_log_size_bytes) == (0, 0)

    simulation.run(story())


def test_the_idle_ratio_is_that_of_the_copies(simulation, tmp_path):
    """Kafka names the metric after all tasks, too, and measures the pool of the copies."""

    async def story():
        leader = OneLeader(simulation, tmp_path, retention_ms="1000", local_retention_ms="1000")
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        idle_ratio = leader.own.metrics.tasks_idle_ratio
        leader.write_segment("a")
        leader.write("b")
        leader.own.store.duration_s = 100.0
        await asyncio.sleep(60)
        assert idle_ratio() == 1 - 1 / 10
        await asyncio.sleep(80)
        assert [state for _, _, state in leader.copies()] == [State.DELETE_SEGMENT_STARTED]
        assert idle_ratio() == 1

    simulation.run(story())


@pytest.mark.logs("its segment does not exist", "begins after a gap", "leader-epoch-checkpoint")
@pytest.mark.parametrize(("copies", "log_start"), [(False, 1), (True, 0)])
def test_a_log_whose_beginning_a_power_cut_has_taken_starts_where_no_copy_is(
    simulation, tmp_path, copies, log_start
):
    """Otherwise its first records would be requested without end. With a copy of them nothing is lost."""

    async def story():
        leader = OneLeader(simulation, tmp_path, remote_log_copy_disable="false" if copies else "true")
        for value in "ab":
            leader.write_segment(value)
        leader.write("c")
        await asyncio.sleep(60)
        assert len(leader.copies()) == 2 * copies
        directory = leader.log.directory
        await leader.broker.crash(Loss.NOTHING)
        files = leader.broker.files
        for name in files.list(directory):
            if name.startswith(f"{0:020}.log") or name.endswith(".snapshot"):
                files.unlink(directory / name)
        leader.broker.start()
        leader.cluster.elect(ORDERS, 1)
        assert (leader.log.log_start_offset, leader.log.local_log_start_offset) == (0, 1)
        await asyncio.sleep(60)
        assert leader.log.log_start_offset == log_start
        assert leader.log.offsets.begins_after_gap is not copies

    simulation.run(story())


@pytest.mark.parametrize("policy", ["", "compact"])
def test_without_delete_nothing_expires(simulation, tmp_path, policy):
    """`cleanup.policy` without `delete`: as of its own, or `compact` as the broker's default."""

    async def story():
        leader = OneLeader(
            simulation, tmp_path, cleanup_policy=policy, retention_ms="1000", retention_bytes="1"
        )
        leader.write_segment("a")
        leader.write_segment("b")
        await asyncio.sleep(200)
        leader.log.apply_retention(leader.broker.runtime.now_ms())
        assert leader.copies() == [(0, 1, FINISHED), (1, 2, FINISHED)]
        assert (leader.log.log_start_offset, leader.log.local_log_start_offset) == (0, 2)
        leader.alter(cleanup_policy="delete")
        await asyncio.sleep(200)
        assert leader.copies() == []
        assert leader.log.log_start_offset == 2

    simulation.run(story())


# What a former leader does


async def store_states(leader, copy, *states):
    """Another broker stores these states of a copy."""
    for state in states:
        await leader.own.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                segment_id=copy.segment_id,
                state=state,
                broker_id=2,
                event_timestamp_ms=leader.broker.runtime.now_ms(),
            )
        )


@pytest.mark.parametrize(("deleted", "start"), [([0], 1), ([0, 1], 2)])
def test_a_deletion_that_ends_after_the_successor_has_begun_moves_the_log_start(
    simulation, tmp_path, deleted, start
):
    """Otherwise a consumer at the log start would be sent back to it again and again."""

    async def story():
        leader = OneLeader(simulation, tmp_path, local_retention_ms="1000")
        for value in "abc":
            leader.write_segment(value)
        leader.write("d")
        await asyncio.sleep(60)
        leader.log.apply_retention(leader.broker.runtime.now_ms())
        copies = leader.tier.copies()
        assert [each.start_offset for each in copies] == [0, 1, 2]
        assert (leader.log.log_start_offset, leader.log.local_log_start_offset) == (0, 3)
        for number in deleted:
            await store_states(
                leader, copies[number], State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED
            )
        await asyncio.sleep(60)
        assert leader.log.log_start_offset == start

    simulation.run(story())


@pytest.mark.parametrize("clock_ms", [-3_600_000, 0, 3_600_000])
def test_an_unfinished_copy_is_deleted_when_its_leader_has_seen_it_for_two_deadlines(
    simulation, tmp_path, clock_ms
):
    """The clock of the broker that has begun it does not count. A copy of its own that it does not make now
    is deleted soon."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        deadline_s = leader.own.settings.transfer_deadline_ms / 1000
        leader.write_segment("a")
        leader.write("b")
        await asyncio.sleep(60)
        (finished,) = leader.tier.copies()
        now_ms = leader.broker.runtime.now_ms()
        for broker_id in (1, 2):
            await leader.own.metadata.add_remote_log_segment_metadata(
                replace(
                    finished,
                    segment_id=finished.segment_id._replace(id=UUID(int=broker_id)),
                    state=State.COPY_SEGMENT_STARTED,
                    broker_id=broker_id,
                    event_timestamp_ms=now_ms + clock_ms,
                )
            )
        assert len(leader.copies()) == 3
        await asyncio.sleep(2 * deadline_s - 60)
        assert sorted(copy.broker_id for copy in leader.tier.copies()) == [1, 2]
        await asyncio.sleep(120)
        assert leader.copies() == [(0, 1, FINISHED)]

    simulation.run(story())


# What the store writes late


@pytest.mark.logs("did not end within")
@pytest.mark.parametrize("is_reporting", [True, False])
def test_what_is_written_after_the_deadline_is_deleted(simulation, tmp_path, is_reporting):
    """Another attempt has succeeded long before; a store that reports its pieces does not write at all."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: (
            0.0
        )  # all work is done in threads
        leader.own.store.is_reporting = is_reporting
        leader.own.store.duration_s = 3600.0
        leader.write_segment("a")
        await asyncio.sleep(100)
        leader.own.store.duration_s = 0.0
        assert leader.copies() == [(0, 1, State.COPY_SEGMENT_STARTED)]
        await asyncio.sleep(1900)
        assert leader.copies() == [(0, 1, State.COPY_SEGMENT_STARTED), (0, 1, FINISHED)]
        await asyncio.sleep(1900)
        assert leader.copies() == [(0, 1, FINISHED)]
        assert leader.tier.unknown_objects() == set()
        assert len(leader.tier.objects()) == 1

    simulation.run(story())


def test_a_copy_that_was_under_way_when_its_partition_was_removed_leaves_nothing(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        leader.own.store.is_reporting = False
        leader.own.store.duration_s = 600.0
        leader.write_segment("a")
        await asyncio.sleep(100)
        leader.own.on_stopped(leader.partition, is_topic_deleted=False)
        leader.own.store.duration_s = 0.0
        await asyncio.sleep(3600)
        assert leader.tier.objects() == set()

    simulation.run(story())


@pytest.mark.logs("has no address now")
def test_a_copy_ends_at_its_next_piece_when_the_leadership_goes(simulation, tmp_path):
    """KIP-405 says that it is completed first, and may leave a duplicate."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        leader.own.settings = replace(leader.own.settings, copy_max_bytes_per_second=10)
        leader.write_segment(*"abcdefgh")
        await asyncio.sleep(20)
        assert leader.copies() == [(0, 8, State.COPY_SEGMENT_STARTED)]
        assert any(leader.tier.store.list_objects())  # some of its indexes
        leader.cluster.elect(ORDERS, 2)
        await asyncio.sleep(1)
        assert leader.copies() == []
        assert not any(leader.tier.store.list_objects())
        assert leader.own.metrics.topic("orders").remote_copy_errors == 0

    simulation.run(story())


def fail_deletions(store, count, monkeypatch):
    """The next `count` deletions."""
    delete, failures = store.delete_log_segment_data, [RetriableRemoteStorageError("503")] * count

    def delete_later(metadata):
        if failures:
            raise failures.pop()
        delete(metadata)

    monkeypatch.setattr(store, "delete_log_segment_data", delete_later)


@pytest.mark.logs("could not be deleted", "has failed, the next attempt")
def test_what_is_written_late_is_deleted_though_the_store_fails_and_no_metadata_names_it(
    simulation, tmp_path, monkeypatch
):
    """The broker does not hold the partition any more: no task of its finds the copy."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        store = leader.own.store
        store.is_reporting = False
        store.duration_s = 600.0
        leader.write_segment("a")
        await asyncio.sleep(100)
        leader.own.on_stopped(leader.partition, is_topic_deleted=False)
        store.duration_s = 0.0
        fail_deletions(store, 10, monkeypatch)
        await asyncio.sleep(510)
        assert len(leader.tier.objects()) == 1
        await asyncio.sleep(300)
        assert leader.tier.objects() == set()
        assert leader.own.manager._leftovers == {}

    simulation.run(story())


def test_a_slow_copy_within_the_quota_is_not_abandoned(simulation, tmp_path):
    """KIP-956: the wait for the quota does not count for the deadline."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        leader.own.settings = replace(
            leader.own.settings, copy_max_bytes_per_second=10, transfer_deadline_ms=5000
        )
        leader.write_segment(*"abcdefgh")
        await asyncio.sleep(45)
        assert leader.copies() == [(0, 8, State.COPY_SEGMENT_STARTED)]
        await asyncio.sleep(300)
        assert leader.copies() == [(0, 8, FINISHED)]
        assert leader.own.metrics.copy_throttle.total_ms > 40_000
        assert leader.own.metrics.topic("orders").remote_copy_requests == 1

    simulation.run(story())


@pytest.mark.logs("has failed, the next attempt")
def test_a_copy_that_fails_does_not_count_for_the_quota(simulation, tmp_path):
    """The quota of KIP-956 counts sent bytes, and nothing was sent."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.own.settings = replace(leader.own.settings, copy_max_bytes_per_second=10)
        leader.own.store.failure = RetriableRemoteStorageError("503")
        leader.write_segment(*"abcdefgh")
        await asyncio.sleep(1)
        assert leader.own.manager.copy_quota.try_take(1)

    simulation.run(story())


@pytest.mark.logs("has failed, the next attempt")
@pytest.mark.parametrize("failures", [0, 5])
def test_a_copy_that_another_leader_has_deleted_before_its_end_leaves_nothing(
    simulation, tmp_path, monkeypatch, failures
):
    """Its objects are deleted even if this broker is not the leader afterwards, since no metadata name them."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        leader.own.store.duration_s = 10.0
        leader.write_segment("a")
        await asyncio.sleep(5)
        leader.own.metadata.failure = RemoteResourceNotFound("deleted")
        fail_deletions(leader.own.store, failures, monkeypatch)
        await asyncio.sleep(5.1)
        assert len(leader.tier.objects()) == 1
        leader.own.on_stopped(leader.partition, is_topic_deleted=False)
        await asyncio.sleep(60)
        assert leader.tier.objects() == set()

    simulation.run(story())


@pytest.mark.logs("did not end within")
def test_deletions_that_the_store_does_not_answer_do_not_queue_up(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path, retention_ms="100000", local_retention_ms="1000")
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        leader.own.settings = replace(leader.own.settings, transfer_deadline_ms=5000, expiration_pool_size=1)
        leader.write_segment("a")
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 1, FINISHED)]
        leader.own.store.duration_s = 20_000.0
        await asyncio.sleep(10_000)
        assert leader.own.metrics.topic("orders").remote_delete_requests == 1
        leader.own.store.duration_s = 0.0
        await asyncio.sleep(11_000)
        assert leader.copies() == []

    simulation.run(story())
