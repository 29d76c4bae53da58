"""Decisions with many records, which take several turns of the event loop: what may happen between them.

About KIP-500.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from controller_shell import Shell, create, follow, heartbeat, join, lose_the_leadership

from ottla.controller.controller import Controller
from ottla.controller.metadata_log.new_batches import batches_of
from ottla.controller.periodic import PERIODIC_TASKS
from ottla.controller.state import ClusterState
from ottla.metadata import records as r
from ottla.metadata.image import InvalidMetadata
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, NotController
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.stories.elections.machine import directory


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


async def turns_until(condition: Callable[[], bool]) -> int:
    """Turns of the loop until it holds."""
    for turn in range(1_000):
        if condition():
            return turn
        await asyncio.sleep(0)
    raise AssertionError("it never holds")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records in a turn, or ten partitions that are scanned."""
    monkeypatch.setattr("ottla.controller.metadata_log.new_batches.RECORDS_OF_STEP", 10)
    monkeypatch.setattr("ottla.controller.steps.PARTITIONS_OF_STEP", 10)
    monkeypatch.setattr("ottla.runtime.turns.MAX_STEPS", 1)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("its session has expired")
async def test_a_large_decision_takes_several_turns_and_nothing_is_decided_in_between(shell: Shell):
    """The creation of a topic of the same name, and the expiry of a broker's session, come after it."""
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    end_offset = shell.quorum.end_offset
    first = asyncio.ensure_future(create(controller, "t", 1000))
    second = asyncio.ensure_future(create(controller, "t", 1))
    await asyncio.sleep(0)
    shell.seconds += 20
    await shell.ring()
    assert not controller.image.topics_by_name, "decided, and not replayed"
    assert await turns_until(lambda: bool(controller.image.topics_by_name)) > 90, "encoded"
    assert shell.quorum.end_offset == end_offset, "not appended before all is replayed"
    assert await turns_until(lambda: shell.quorum.end_offset > end_offset) > 90, "replayed"
    assert shell.quorum.end_offset == end_offset + 1001
    assert len(controller.image.topics_by_name["t"].partitions) == 1000
    assert not controller.image.brokers[1].is_fenced
    assert (await first).topics[0].num_partitions == 1000
    assert (await second).topics[0].error_code == ErrorCode.topic_already_exists
    # Decided after the expiry; its response waits for all that is before it.
    await create(controller, "u")
    assert controller.image.brokers[1].is_fenced
    assert follower.image == controller.image
    await shell.stop()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("its session has expired")
@pytest.mark.parametrize("records_in_one_turn", [0, 10**6])
async def test_the_records_are_those_of_one_turn(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, records_in_one_turn: int
):
    """The registration among them, whose broker epoch is an offset, and the expiry of a broker's session."""
    monkeypatch.setattr("ottla.controller.controller.MAX_RECORDS_IN_ONE_TURN", records_in_one_turn)
    controller = await shell.start()
    follower = follow(shell)
    epoch = await join(controller)
    await create(controller, "t", 25)
    shell.seconds += 20
    await shell.ring()
    await turns_until(lambda: controller.image.brokers[1].is_fenced)
    again = await join(controller, incarnation=2, previous=epoch)
    await create(controller, "u", 1)
    assert controller._active is not None
    assert controller._active.state.registration_offsets == {1: again}
    kinds = [type(record).__name__.removesuffix("Record") for record in follower.records]
    changes = ["PartitionChange"] * 25
    assert kinds[kinds.index("RegisterBroker") :] == [
        *("RegisterBroker", "BrokerRegistrationChange", "Topic", *["Partition"] * 25),
        *(*changes, "BrokerRegistrationChange", "RegisterBroker", "BrokerRegistrationChange", *changes),
        *("Topic", "Partition"),
    ]
    assert follower.image == controller.image
    await shell.stop()


@pytest.mark.usefixtures("small_steps")
async def test_a_controller_that_is_deposed_while_it_replays_appends_nothing(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    end_offset = shell.quorum.end_offset
    lost = asyncio.ensure_future(create(controller, "t", 1000))
    await turns_until(lambda: bool(controller.image.topics_by_name))
    await lose_the_leadership(shell)
    with pytest.raises(NotController, match="appears to be node 2"):
        await lost
    assert shell.quorum.end_offset == end_offset
    assert controller.image == follower.image
    shell.quorum._driver._worker.cancel()


@pytest.mark.usefixtures("small_steps")
async def test_a_request_that_is_cancelled_while_it_is_replayed_is_carried_out(shell: Shell):
    """The timeout of controlled shutdown in a combined node cancels it. The state never has records that the
    log has not."""
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    end_offset = shell.quorum.end_offset
    lost = asyncio.ensure_future(create(controller, "t", 1000))
    await turns_until(lambda: bool(controller.image.topics_by_name))
    assert lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    assert shell.quorum.end_offset == end_offset + 1001
    assert (await create(controller, "t")).topics[0].error_code == ErrorCode.topic_already_exists
    assert follower.image == controller.image
    assert len(follower.image.topics_by_name["t"].partitions) == 1000
    await shell.stop()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("its session has expired")
async def test_a_request_for_shutdown_that_is_cancelled_while_it_is_encoded_is_dropped(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """Its broker, which stops all the same, is fenced when its session expires."""
    monkeypatch.setattr("ottla.controller.controller.MAX_RECORDS_IN_ONE_TURN", 0)
    controller = await shell.start()
    epoch = await join(controller)
    beat = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=epoch, current_metadata_offset=10**9, want_shut_down=True
    )
    end_offset = shell.quorum.end_offset
    lost = asyncio.ensure_future(controller.request(ApiKey.BROKER_HEARTBEAT, beat))
    await asyncio.sleep(0)
    assert lost.cancel()
    await asyncio.wait([lost])
    assert shell.quorum.end_offset == end_offset
    shell.seconds += 20
    await shell.ring()
    await turns_until(lambda: controller.image.brokers[1].is_fenced)
    await shell.stop()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("resigns: ")
async def test_a_record_that_cannot_be_replayed_in_a_later_turn(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """The controller resigns, and nothing of the decision gets into the log."""
    controller = await shell.start()
    await join(controller)
    end_offset = shell.quorum.end_offset
    replay = ClusterState.replay

    def unreadable(self: ClusterState, records: Sequence[r.MetadataRecord], base_offset: int) -> None:
        if base_offset > end_offset + 500:
            raise InvalidMetadata("rotten")
        replay(self, records, base_offset)

    monkeypatch.setattr(ClusterState, "replay", unreadable)
    with pytest.raises(InvalidMetadata, match="rotten"):
        await create(controller, "t", 1000)
    assert not controller.is_active
    assert shell.quorum.end_offset == end_offset
    await shell.stop()


@pytest.mark.logs("its session has expired")
async def test_a_periodic_task_of_a_controller_that_became_active_again_meanwhile_sets_no_second_timer(
    shell: Shell,
):
    controller = await shell.start()
    await join(controller)
    await controller._deciding.acquire()
    shell.seconds += 20
    await shell.ring()
    await lose_the_leadership(shell)
    controller._activate(6)
    count = len(shell.timers)
    controller._deciding.release()
    await asyncio.sleep(0.01)
    assert len(shell.timers) == count
    shell.quorum._driver._worker.cancel()


async def test_a_large_decision_is_made_again_if_raft_has_appended_in_between(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """The epoch of a broker is the offset of its registration."""
    monkeypatch.setattr("ottla.controller.controller.MAX_RECORDS_IN_ONE_TURN", 0)
    controller = await shell.start()
    end_offset = shell.quorum.end_offset
    joining = asyncio.ensure_future(join(controller))
    await asyncio.sleep(0)
    no_op = r.NoOpRecord()
    (batch,) = batches_of([no_op], metadata_version=30)
    shell.quorum.append(batch, epoch=shell.quorum.leader.epoch)
    assert await joining == end_offset + 1 == controller.image.brokers[1].epoch
    await shell.stop()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("its session has expired")
@pytest.mark.parametrize("is_log_longer", [False, True])
async def test_a_registration_scans_the_partitions_in_turns_and_nothing_is_decided_in_between(
    shell: Shell, is_log_longer: bool
):
    """Its few records are of one moment; its epoch is the offset of the first, also if Raft has appended meanwhile."""
    controller = await shell.start()
    epoch = await join(controller)
    await create(controller, "t", 1000)
    shell.seconds += 20
    await shell.ring()
    await turns_until(lambda: controller.image.brokers[1].is_fenced)
    await create(controller, "t")  # what is before is appended
    end_offset = shell.quorum.end_offset
    joining = asyncio.ensure_future(join(controller, incarnation=2, previous=epoch))
    await asyncio.sleep(0)
    other = asyncio.ensure_future(create(controller, "t"))
    for _ in range(20):
        await asyncio.sleep(0)
        assert (shell.quorum.end_offset, other.done()) == (end_offset, False)
    if is_log_longer:
        (batch,) = batches_of([r.NoOpRecord()], metadata_version=30)
        shell.quorum.append(batch, epoch=shell.quorum.leader.epoch)
    assert await turns_until(lambda: shell.quorum.end_offset > end_offset + is_log_longer) > 50
    assert await joining == end_offset + is_log_longer == controller.image.brokers[1].epoch
    await other
    await shell.stop()


def periodic(name: str) -> Callable[[Controller, int], Awaitable[Any]]:
    (task,) = (each for each in PERIODIC_TASKS if each.name == name)
    return lambda controller, _epoch: controller._run_periodic(task)


def beat(**fields: Any) -> Callable[[Controller, int], Awaitable[Any]]:
    return lambda controller, epoch: heartbeat(controller, epoch, broker_id=2, **fields)


#: Decisions about broker 2, whose epoch is given, that scan all partitions.
SCANS: dict[str, Callable[[Controller, int], Awaitable[Any]]] = {
    "unfenced": beat(),
    "fenced": beat(want_fence=True),
    "its session expires": periodic("maybeFenceStaleBroker"),
    "shut down": beat(want_shut_down=True),
    "a directory fails": beat(offline_log_dirs=[directory(2)]),
    "unregistered": lambda controller, _epoch: controller.request(
        ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=2)
    ),
    "preferred leaders": periodic("electPreferred"),
    "unclean elections": periodic("electUnclean"),
}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("its session has expired")
@pytest.mark.parametrize("scan", SCANS)
async def test_the_partitions_are_scanned_in_turns_and_nothing_is_decided_in_between(shell: Shell, scan: str):
    """Broker 2 has no replica: these decisions have few records, which are encoded and replayed in one turn."""
    controller = await shell.start()
    epochs = {1: await join(controller)}
    await create(controller, "t", 1000)
    epochs[2] = await join(controller, broker_id=2)
    if scan == "unfenced":
        await heartbeat(controller, epochs[2], broker_id=2, want_fence=True)
    elif scan == "its session expires":
        shell.seconds += 20
        await heartbeat(controller, epochs[1])
    end_offset = shell.quorum.end_offset
    scanning = asyncio.ensure_future(SCANS[scan](controller, epochs[2]))
    await asyncio.sleep(0)
    other = asyncio.ensure_future(create(controller, "u"))
    for _ in range(20):
        await asyncio.sleep(0)
        assert (shell.quorum.end_offset, other.done()) == (end_offset, False)
    await scanning
    broker = controller.image.brokers.get(2)
    is_fenced = scan in ("fenced", "its session expires", "shut down")
    assert (broker is None, broker is not None and broker.is_fenced) == (scan == "unregistered", is_fenced)
    assert (await other).topics[0].error_code == ErrorCode.none
    await shell.stop()


async def test_a_large_decision_of_a_controller_that_is_deposed_in_between_is_forgotten(shell: Shell):
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    end_offset = shell.quorum.end_offset
    lost = asyncio.ensure_future(create(controller, "t", 1000))
    waiting = asyncio.ensure_future(create(controller, "u"))
    await asyncio.sleep(0)
    await lose_the_leadership(shell)
    for each in (lost, waiting):
        with pytest.raises(NotController, match="appears to be node 2"):
            await each
    assert shell.quorum.end_offset == end_offset
    assert controller.image == follower.image
    shell.quorum._driver._worker.cancel()


async def test_requests_are_decided_in_the_order_of_arrival(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    """A small one that waits behind a large one is not overtaken by those that arrive in the turn in which
    that one ends.
    """
    controller = await shell.start()
    await join(controller)
    decided: list[str] = []
    carry_out = controller._carry_out

    def note(active: Any, result: Any, batches: Any) -> Any:
        decided.append(result.response.topics[0].name)
        return carry_out(active, result, batches)

    monkeypatch.setattr(controller, "_carry_out", note)
    names = ["large", "small", *(f"later-{number}" for number in range(20))]
    requests = []
    for name in names:
        requests.append(asyncio.ensure_future(create(controller, name, 1 if name == "small" else 300)))
        if name != "large":
            await asyncio.sleep(0)
    await asyncio.gather(*requests)
    assert decided == names
    await shell.stop()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.logs("its session has expired")
async def test_a_heartbeat_is_decided_before_all_that_waits(shell: Shell):
    """Large decisions, and the expiry of the session that the heartbeat renews."""
    controller = await shell.start()
    epoch = await join(controller)
    creations = [asyncio.ensure_future(create(controller, f"t{number}", 300)) for number in range(5)]
    await asyncio.sleep(0)
    shell.seconds += 20
    await shell.ring()
    assert not (await heartbeat(controller, epoch)).is_fenced
    assert sum(creation.done() for creation in creations) <= 1
    await asyncio.gather(*creations)
    assert not controller.image.brokers[1].is_fenced
    await shell.stop()
