"""Decisions with many records, which take two turns of the event loop: what may happen between them.

About KIP-500.
"""

import asyncio
from pathlib import Path

import pytest
from controller_shell import Shell, create, follow, join, lose_the_leadership

from controller.metadata.new_batches import NewBatch
from controller.periodic import IMMEDIATE_DELAY_MS
from protocol.errors import ErrorCode, NotController
from protocol.metadata import records as r
from protocol.metadata.frame import encode_record


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.logs("its session has expired")
async def test_a_large_decision_takes_two_turns_and_nothing_is_decided_in_between(shell: Shell):
    """The creation of a topic of the same name, and the expiry of a broker's session, come after it."""
    controller = await shell.start()
    follower = follow(shell)
    await join(controller)
    end_offset = shell.quorum.end_offset
    first = asyncio.ensure_future(create(controller, "t", 1000))
    second = asyncio.ensure_future(create(controller, "t", 1))
    await asyncio.sleep(0)
    shell.seconds += 20
    shell.ring()
    assert shell.quorum.end_offset == end_offset, "decided, and neither replayed nor appended"
    assert not controller.image.topics_by_name
    await asyncio.sleep(0)
    assert shell.quorum.end_offset == end_offset + 1001
    assert len(controller.image.topics_by_name["t"].partitions) == 1000
    assert (await first).topics[0].num_partitions == 1000
    assert (await second).topics[0].error_code == ErrorCode.topic_already_exists
    assert not controller.image.brokers[1].is_fenced
    next(task for delay_s, task in shell.timers if delay_s == IMMEDIATE_DELAY_MS / 1000)()
    assert controller.image.brokers[1].is_fenced
    await create(controller, "t")  # its response waits for all that is before it
    assert follower.image == controller.image
    await shell.stop()


async def test_a_large_decision_is_made_again_if_raft_has_appended_in_between(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    """The epoch of a broker is the offset of its registration."""
    monkeypatch.setattr("controller.controller.MAX_RECORDS_IN_ONE_TURN", 0)
    controller = await shell.start()
    end_offset = shell.quorum.end_offset
    joining = asyncio.ensure_future(join(controller))
    await asyncio.sleep(0)
    no_op = r.NoOpRecord()
    shell.quorum.append(NewBatch([no_op], [encode_record(no_op, 0)]), epoch=shell.quorum.leader.epoch)
    assert await joining == end_offset + 1 == controller.image.brokers[1].epoch
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
    """A small one that waits behind a large one is not overtaken by those that arrive in the turn in which that one ends."""
    controller = await shell.start()
    await join(controller)
    decided: list[str] = []
    carry_out = controller._carry_out

    def note(active, result, batches):  # type: ignore[no-untyped-def]
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
