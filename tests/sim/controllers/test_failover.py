"""Three and five controllers, crashes that lose what was not flushed, cuts: nothing that was answered is lost.

About KIP-500.
"""

import asyncio
import os

import pytest
from quorum_world import World

from ottla.controller.metadata_log.log import MetadataLog
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import NotController
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.stories.partition.faulty_files import RANDOM_LOSSES, Loss

#: Of `test_anything_may_happen`; `make sim SEEDS=...` adds so many.
SEEDS = 8 + int(os.environ.get("OTTLA_SIM_SEEDS", "0"))


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

    World(seed=1, observers=1, is_dynamic=is_dynamic).run(story)


async def all_die_at_once(world: World) -> None:
    await start(world)
    for number in range(5):
        await world.create(f"a{number}")
    for node in world.nodes.values():
        node.crash(Loss.EVERYTHING)
    await finish(world)


def test_what_was_answered_survives_the_death_of_all():
    World(seed=6).run(all_die_at_once)


@pytest.mark.logs(
    "cannot apply the metadata log at offset",
    "the metadata log cannot be processed any further; this node stops",
)
def test_a_driver_that_does_not_flush_is_found_out(monkeypatch):
    monkeypatch.setattr(MetadataLog, "flush", lambda log, end_offset: None)
    with pytest.raises(AssertionError, match="a4"):
        World(seed=6).run(all_die_at_once)


def test_a_leader_whose_messages_are_lost_resigns():
    """Within one and a half fetch timeouts; pending requests get an error, and are dropped."""

    async def story(world: World) -> None:
        await start(world)
        await world.create("before")
        old = await world.until_active()
        world.isolate(old)
        topic = CreatableTopic(name="lost", num_partitions=1, replication_factor=1)
        began = world.simulation.loop.time()
        with pytest.raises(NotController):
            await old.controller.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))
        assert 2 < world.simulation.loop.time() - began < 3.1
        assert set(old.controller.image.topics_by_name) == {"before"}
        new = await world.until_active()
        assert new is not old
        await world.create("meanwhile")
        world.cut.clear()
        await finish(world)
        assert set(new.follower.image.topics_by_name) == {"before", "meanwhile", "last"}

    World(seed=2).run(story)


@pytest.mark.logs("its session has expired")
def test_a_new_controller_gives_every_broker_a_whole_session():
    async def story(world: World) -> None:
        await start(world)
        old = await world.until_active()
        await asyncio.sleep(8)
        old.crash(Loss.NOTHING)
        new = await world.until_active()
        await asyncio.sleep(8.5)
        assert new.controller.is_active
        assert not new.controller.image.brokers[100].is_fenced
        await asyncio.sleep(2)
        assert new.controller.image.brokers[100].is_fenced
        await finish(world)

    World(seed=3).run(story)


def test_an_idle_quorum_shows_that_it_lives():
    """A NoOp record every 500 ms (KIP-835)."""

    async def story(world: World) -> None:
        await start(world)
        leader = await world.until_active()
        before = leader.quorum.applied_offset
        await asyncio.sleep(10)
        assert 19 <= leader.quorum.applied_offset - before <= 21
        await finish(world)

    World(seed=4, observers=1).run(story)


@pytest.mark.logs("the metadata log cannot be processed any further; this node stops")
def test_an_unknown_record_ends_the_nodes_that_replay_it():
    async def story(world: World) -> None:
        await start(world)
        await world.create("before")
        leader = await world.until_active()
        log = leader.quorum._log
        offset = log.end_offset
        rows = simple_records([(None, b"\x01\x1e\x00\x00")], timestamp=0, base_offset=offset)
        epoch = leader.controller.epoch
        log._append(build_batch(rows, base_offset=offset, leader_epoch=epoch), epoch=epoch, now_ms=0)
        leader.quorum._driver.enqueue(lambda now_ms: leader.quorum._raft.appended(now_ms, log.end_offset))
        await asyncio.sleep(3)
        assert world.failures
        for failure in world.failures:
            assert f" at offset {offset}: metadata record of type 30, version 0: this software" in str(
                failure
            )
        assert leader.quorum.has_failed
        assert not leader.controller.is_active

    World(seed=5).run(story)


def test_one_seed_has_one_story():
    def recorded(seed: int) -> list[object]:
        world = World(seed=seed, observers=1)
        world.run(survive_anything)
        return [world.simulation.loop.time(), world.leaders, sorted(world.acknowledged), world.refusals]

    assert recorded(1) == recorded(1)


async def mishap(world: World) -> None:
    """Something goes wrong, or is put right."""
    random, nodes = world.random, list(world.nodes.values())
    node = random.choice(nodes)
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
    elif what == "isolate":
        world.isolate(node)
    elif what == "one way":
        world.cut |= {(node.node_id, other) for other in world.nodes}


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


@pytest.mark.parametrize("seed", range(SEEDS))
def test_anything_may_happen(seed, caplog):
    world = World(seed=seed, voters=3 if seed % 2 else 5, observers=seed % 3, is_dynamic=seed % 4 >= 2)
    world.run(survive_anything)
    assert len(world.acknowledged) > 20
    recorded = [record.getMessage() for record in caplog.records if record.name.startswith("controller")]
    # Raft's own warnings are of things that cannot be; a broker is fenced now and then while there is no leader.
    assert not [message for message in recorded if not message.startswith("fencing broker 100:")]


async def keep_beating(world: World) -> None:
    while True:
        await asyncio.sleep(1)
        await world.beat()
