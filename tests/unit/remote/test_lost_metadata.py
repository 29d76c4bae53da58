"""Records of copies are lost from the metadata, as in a power cut: no copy is deleted, and none is uploaded
again and again.
"""

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest
from one_leader_support import ORDERS, OneLeader

from ottla.protocol.remote.records import RemoteLogSegmentState as State
from ottla.remote.errors import RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.log_manager.expiration_task import OWN_WAIT_S
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.object_storage import key_of
from ottla.runtime.simulated import Simulation
from ottla.stories.partition.faulty_files import Loss

STARTED, FINISHED = State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


async def tiered(simulation, tmp_path, **configs):
    """A leader with [0, 3) in the remote tier only, and [3, 4) local, which is closed when it has expired."""
    leader = OneLeader(simulation, tmp_path, local_retention_ms="1000", **configs)
    for value in "abc":
        leader.write_segment(value)
    leader.write("d")
    await asyncio.sleep(60)
    leader.log.apply_retention(leader.broker.runtime.now_ms())
    assert (leader.log.log_start_offset, leader.log.local_log_start_offset) == (0, 3)
    return leader


async def restart_without(leader, lost_count):
    """The broker restarts, and the metadata have lost their last records."""
    changes = leader.tier.log.changes
    lost = changes[len(changes) - lost_count :]
    del changes[len(changes) - lost_count :]
    await leader.broker.crash(Loss.NOTHING)
    leader.broker.start()
    leader.cluster.elect(ORDERS, 1)
    assert (leader.log.log_start_offset, leader.log.local_log_start_offset) == (0, 3)
    return lost


@pytest.mark.logs("the record that it is finished was lost")
def test_a_complete_copy_whose_finish_is_lost_is_finished(simulation, tmp_path):
    async def story():
        leader = await tiered(simulation, tmp_path)
        await restart_without(leader, 1)
        await asyncio.sleep(20)
        assert leader.copies()[:3] == [(0, 1, FINISHED), (1, 2, FINISHED), (2, 3, STARTED)]
        await asyncio.sleep(OWN_WAIT_S + 60)
        assert leader.copies() == [(0, 1, FINISHED), (1, 2, FINISHED), (2, 3, FINISHED), (3, 4, FINISHED)]
        assert leader.log.log_start_offset == 0
        assert len(leader.tier.objects()) == 4

    simulation.run(story())


@pytest.mark.logs("may be the only one of its records, and is not complete")
@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "epochs"])
def test_an_incomplete_one_stays_as_it_is_and_is_reported_once(simulation, tmp_path, caplog, damage):
    async def story():
        leader = await tiered(simulation, tmp_path)
        (copy,) = (each for each in leader.tier.copies() if each.start_offset == 2)
        kind = IndexType.LEADER_EPOCH if damage == "epochs" else None
        (path,) = tmp_path.rglob(Path(key_of(copy, kind)).name)
        data = path.read_bytes()
        match damage:
            case "missing":
                path.unlink()
            case "cut":
                path.write_bytes(data[:-1])
            case "flipped":
                path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            case "epochs":
                path.write_bytes(b"0\n0\n")
        await restart_without(leader, 1)
        await asyncio.sleep(3 * 3600)
        assert leader.copies()[:3] == [(0, 1, FINISHED), (1, 2, FINISHED), (2, 3, STARTED)]
        assert path.exists() == (damage != "missing")
        assert sum("is not complete" in each.message for each in caplog.records) == 1

    simulation.run(story())


@pytest.mark.logs("has failed, the next attempt", "the record that it is finished was lost")
@pytest.mark.parametrize(
    "failure", [RetriableRemoteStorageError("503"), RemoteStorageError("403"), OSError(5)]
)
def test_a_store_that_does_not_answer_is_asked_again(simulation, tmp_path, failure):
    """A refusal says nothing about the copy: it would stay as it is until the next leader epoch."""

    async def story():
        leader = await tiered(simulation, tmp_path)
        await restart_without(leader, 1)
        leader.own.store.failure = failure
        await asyncio.sleep(3600)
        assert leader.copies()[2:3] == [(2, 3, STARTED)]
        leader.own.store.failure = None
        await asyncio.sleep(120)
        assert leader.copies()[2:3] == [(2, 3, FINISHED)]

    simulation.run(story())


@pytest.mark.parametrize("lost_count", [2, 6])
def test_copies_without_any_record_stay_and_copying_goes_on_behind_them(simulation, tmp_path, lost_count):
    """The log start does not move: a rebuilding of the metadata finds the copies."""

    async def story():
        leader = await tiered(simulation, tmp_path)
        lost = await restart_without(leader, lost_count)
        requests = leader.own.metrics.all_topics
        await asyncio.sleep(3 * 3600)
        assert requests.remote_copy_requests == 1
        assert leader.copies()[3 - lost_count // 2 :] == [(3, 4, FINISHED)]
        assert leader.log.log_start_offset == 0
        assert leader.log.offsets.earliest_pending_upload_offset == 4
        assert len(leader.tier.objects()) == 4
        leader.tier.log.changes += lost
        await asyncio.sleep(3600)
        assert len(leader.copies()) == len(leader.tier.objects()) == 4
        assert (leader.log.log_start_offset, leader.log.offsets.remote_end_offset) == (0, 4)

    simulation.run(story())


def test_a_copy_of_a_former_process_is_deleted_soon(simulation, tmp_path):
    async def story():
        leader = OneLeader(simulation, tmp_path)
        leader.broker.runtime.interleaving.is_on = True
        leader.broker.runtime.interleaving.operation_s = lambda operation, path: 0.0
        leader.own.store.duration_s = 100.0
        leader.write_segment("a")
        leader.write("b")
        await asyncio.sleep(10)
        assert leader.copies() == [(0, 1, STARTED)]
        process = leader.own
        stopping = asyncio.create_task(leader.broker.crash(Loss.NOTHING))
        await asyncio.sleep(200)
        await stopping
        leader.broker.start()
        leader.cluster.elect(ORDERS, 1)
        await asyncio.sleep(5)
        assert leader.copies() == [(0, 1, STARTED), (0, 1, FINISHED)]
        assert process is not leader.own
        await asyncio.sleep(OWN_WAIT_S + 35)
        assert leader.copies() == [(0, 1, FINISHED)]
        assert leader.tier.unknown_objects() == set()

    simulation.run(story())


def test_a_copy_that_is_discarded_is_followed_by_a_back_off(simulation, tmp_path):
    """Without the pause, copies that all turn out not to be wanted would be made one after the other."""

    async def story():
        leader = OneLeader(simulation, tmp_path)
        with patch("ottla.remote.log_manager.copy_task.is_wanted", lambda *_: False):
            leader.write_segment("a")
            await asyncio.sleep(60)
            assert leader.own.metrics.all_topics.remote_copy_requests < 10
        await asyncio.sleep(60)
        assert leader.copies() == [(0, 1, FINISHED)]

    simulation.run(story())
