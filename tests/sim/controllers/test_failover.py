"""Three and five controllers, crashes that lose what was not flushed, cuts: nothing that was answered is lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from quorum_world import World

from tests.harness.faulty_files import RANDOM_LOSSES, Loss


def run(world: World, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    with world.simulation:
        world.simulation.run(story(world))


async def start(world: World) -> None:
    for node in world.nodes.values():
        await node.start()
    await world.join()


async def finish(world: World) -> None:
    """Everything heals; all come to know the same."""
    world.cut.clear()
    for node in world.nodes.values():
        if not node.is_up:
            await node.start()
    await world.create("last")
    await world.until_equal()
    world.check()
    for node in world.nodes.values():
        await node.stop()


async def keep_creating(world: World, worker: int) -> None:
    number = 0
    while True:
        number += 1
        await world.create(f"t{worker}-{number}")
        await asyncio.sleep(world.random.uniform(0, 0.5))


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["kraft0", "kraft1"])
def test_the_leader_dies(is_dynamic):
    async def story(world: World) -> None:
        await start(world)
        for number in range(5):
            await world.create(f"a{number}")
        leader = await world.until_active()
        leader.crash(Loss.EVERYTHING)
        began = world.simulation.loop.time()
        await world.create("after")
        assert world.simulation.loop.time() - began < 10
        assert leader not in world.active
        await leader.start()
        await finish(world)

    run(World(seed=1, observers=1, is_dynamic=is_dynamic), story)


async def mishap(world: World) -> None:
    """Something goes wrong, or is put right."""
    random, nodes = world.random, list(world.nodes.values())
    node = random.choice(nodes)
    others = [other.node_id for other in nodes]
    what = random.choice(["crash", "crash", "restart", "stop", "isolate", "one way", "heal", "leader"])
    if what == "leader" and world.active:
        node, what = world.active[-1], "crash"
    if not node.is_up:
        await node.start()
    elif what == "crash":
        node.crash(random.choice(RANDOM_LOSSES))
    elif what == "stop":
        await node.stop()
    elif what == "heal":
        world.cut.clear()
    elif what in ("isolate", "one way"):
        world.cut |= {(node.node_id, other) for other in others}
        if what == "isolate":
            world.cut |= {(other, node.node_id) for other in others}


async def survive_anything(world: World) -> None:
    await start(world)
    clients = [asyncio.ensure_future(keep_creating(world, worker)) for worker in range(3)]
    clients.append(asyncio.ensure_future(keep_beating(world)))
    for _ in range(8):
        await asyncio.sleep(world.random.uniform(0.1, 5))
        await mishap(world)
    world.cut.clear()
    for node in world.nodes.values():
        if not node.is_up:
            await node.start()
    await world.until_active()
    await asyncio.sleep(5)
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)
    await finish(world)


@pytest.mark.parametrize("seed", range(10))
def test_anything_may_happen(seed):
    world = World(seed=seed, voters=3 if seed % 2 else 5, observers=seed % 3, is_dynamic=seed % 4 >= 2)
    run(world, survive_anything)
    assert len(world.acknowledged) > 20


async def keep_beating(world: World) -> None:
    while True:
        await asyncio.sleep(1)
        await world.beat()
