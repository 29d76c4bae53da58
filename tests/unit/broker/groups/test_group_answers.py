"""Many members are answered in turns of the event loop: what may happen in between."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from ottla.broker.groups import shard_runtime
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.unit.broker.groups.coordinator_support import (
    PARTITION,
    MemoryLog,
    World,
    another_group,
    here,
    resign,
    simulate,
)

E = ErrorCode
COUNT = 50
Waiting = list[asyncio.Future[Any]]


def join(
    world: World, member_id: str = "", *, group: str = "g", protocol: str = "range"
) -> asyncio.Future[Any]:
    """Join by a request version that needs one request."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=protocol, metadata=b"\0\0\0\0\0\0")],
    )
    answer = world.groups.join(request, version=3, client_id="c", client_host="/h")
    return answer if isinstance(answer, asyncio.Future) else asyncio.ensure_future(here(answer))


def answered(waiting: Waiting) -> int:
    return sum(each.done() for each in waiting)


async def some_are_answered(waiting: Waiting) -> None:
    """The turn of the first answers."""
    for _ in range(20):
        if not answered(waiting):
            await asyncio.sleep(0)
    assert 0 < answered(waiting) < COUNT


async def joined(world: World) -> list[Any]:
    """The responses to all JoinGroups of the first generation."""
    return await asyncio.gather(*(join(world) for _ in range(COUNT)))


async def synced(world: World, joins: list[Any], *, generation: int = 1) -> Waiting:
    """All SyncGroups; the leader's is the last one."""
    leader = next(each for each in joins if each.members)
    others = [each.member_id for each in joins if each is not leader]
    waiting = [world.sync_request(member_id, generation=generation) for member_id in others]
    assignments = {each.member_id: each.member_id.encode() for each in joins}
    waiting.append(
        asyncio.ensure_future(here(world.sync_request(leader.member_id, assignments, generation=generation)))
    )
    return waiting


def leave(world: World, member_id: str) -> None:
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    assert [row.error_code for row in world.groups.leave(request).members] == [E.none]


def test_some_members_are_answered_in_each_turn_in_their_order():
    async def story(world):
        waiting = [join(world) for _ in range(COUNT)]
        counts = [0]
        while counts[-1] < COUNT:
            await asyncio.sleep(0)
            counts.append(answered(waiting))
            assert all(each.done() for each in waiting[: counts[-1]])
        steps = {after - before for before, after in pairwise(counts)} - {0}
        assert max(steps) == shard_runtime.ANSWERS_OF_TURN
        assert len(steps) > 1

    simulate(story)


def test_the_groups_of_a_partition_share_its_turns():
    """Two groups are answered in one turn, and one group while members of another one wait."""

    async def story(world):
        first = [join(world) for _ in range(COUNT)]
        second = [join(world, group=another_group()) for _ in range(COUNT)]
        await some_are_answered(first)
        assert answered([*first, *second]) == shard_runtime.ANSWERS_OF_TURN
        third = join(world, protocol="unknown")
        await asyncio.sleep(0)
        assert not third.done()
        assert (await third).error_code == E.inconsistent_group_protocol
        assert answered([*first, *second]) >= 2 * COUNT

    simulate(story)


Story = Callable[[World], Awaitable[object]]


async def a_first_generation(world: World) -> object:
    joins = await joined(world)
    return joins, await asyncio.gather(*await synced(world, joins))


async def a_member_that_leaves(world: World) -> object:
    joins = await joined(world)
    waiting = await synced(world, joins)
    leave(world, joins[7].member_id)
    again = [join(world, each.member_id) for each in joins if each is not joins[7]]
    return await asyncio.gather(*waiting, *again)


@pytest.mark.parametrize("story", [a_first_generation, a_member_that_leaves])
def test_answers_and_records_are_those_of_one_turn(story: Story, monkeypatch: pytest.MonkeyPatch):
    results = []
    for at_once in (1, 20, 10**6):
        monkeypatch.setattr(shard_runtime, "ANSWERS_OF_TURN", at_once)
        log = MemoryLog()

        async def kept(world: World) -> None:
            results.append(await story(world))

        simulate(kept, log)
        results.append(log.batches)
    assert results[:2] == results[2:4] == results[4:]


def test_a_member_leaves_before_it_is_answered():
    """It gets the generation that it has joined, and the others are not concerned."""

    async def story(world):
        waiting = [join(world) for _ in range(COUNT)]
        await some_are_answered(waiting)
        assert not waiting[-1].done()
        group = world.groups.shards.by_partition[PARTITION].shard.groups["g"]
        *_, last = group.members
        leave(world, last)
        assert world.heartbeat(last) is E.unknown_member_id
        joins = await asyncio.gather(*waiting)
        assert [(each.error_code, each.generation_id) for each in joins] == [(E.none, 1)] * COUNT
        assert joins[-1].member_id == last
        assert world.heartbeat(joins[-2].member_id) is E.rebalance_in_progress

    simulate(story)


def test_a_connection_is_lost_before_its_member_is_answered():
    async def story(world):
        waiting = [join(world) for _ in range(COUNT)]
        await some_are_answered(waiting)
        waiting[-3].cancel()
        rest = [each for each in waiting if each is not waiting[-3]]
        joins = await asyncio.gather(*rest)
        assert len({each.member_id for each in joins}) == COUNT - 1
        # Its session expires, since it does not know its id; then the others may begin a generation without it.
        assert len(world.groups.shards.by_partition[PARTITION].shard.groups["g"].members) == COUNT

    simulate(story)


def test_a_generation_begins_before_all_members_have_their_assignment():
    """Each gets the assignment of the generation that it has asked for, and joins the next one."""

    async def story(world):
        joins = await joined(world)
        waiting = await synced(world, joins)
        await some_are_answered(waiting)
        fresh = join(world)
        syncs = await asyncio.gather(*waiting)
        *others, leader = syncs
        expected = [each.member_id.encode() for each in joins if not each.members]
        assert [each.assignment for each in others] == expected
        assert leader.assignment
        assert {each.error_code for each in syncs} == {E.none}
        assert world.heartbeat(joins[-1].member_id) is E.rebalance_in_progress
        again = await asyncio.gather(fresh, *(join(world, each.member_id) for each in joins))
        assert {each.generation_id for each in again} == {2}

    simulate(story)


@pytest.mark.parametrize("end", [
    lambda world: world.groups.stop(),
    lambda world: resign(world.groups.shards, PARTITION, 0),
])  # fmt: skip
def test_the_leadership_ends_before_all_members_are_answered(end: Callable[[World], None]):
    """Members that the group has completed get that response, all others NOT_COORDINATOR; no request stays
    open."""

    async def story(world):
        joins = await joined(world)
        waiting = await synced(world, joins)
        await some_are_answered(waiting)
        waiting.append(join(world))
        end(world)
        *syncs, refused = await asyncio.gather(*waiting)
        assert [each.error_code for each in syncs] == [E.none] * COUNT
        assert refused.error_code == E.not_coordinator
        assert not world.groups.shards.by_partition.get(PARTITION)

    simulate(story)


def test_all_are_answered_when_the_coordinator_has_stopped():
    """They are answered at once, since the loop may run no further turn."""

    async def story(world):
        waiting = [join(world) for _ in range(COUNT)]
        world.groups.stop()
        await asyncio.sleep(0)
        assert answered(waiting) == COUNT
        assert {each.result().error_code for each in waiting} == {E.not_coordinator}

    simulate(story)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_all_are_answered_when_the_coordinator_stops_after_the_leadership_has_ended(
    turns: int, monkeypatch: pytest.MonkeyPatch
):
    """At once, as without the resignation: those that the group had answered, and those that it has not."""
    monkeypatch.setattr(shard_runtime, "ANSWERS_OF_TURN", 5)

    async def story(world):
        joins = await joined(world)
        waiting = await synced(world, joins)
        other = join(world, group=another_group())
        await some_are_answered(waiting)
        resign(world.groups.shards, PARTITION, 0)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert answered(waiting) < COUNT
        world.groups.stop()
        await asyncio.sleep(0)
        assert answered([*waiting, other]) == COUNT + 1
        assert {each.result().error_code for each in waiting} == {E.none}
        assert other.result().error_code == E.not_coordinator
        await asyncio.sleep(1)
        assert not world.groups.shards._unloading

    simulate(story)
