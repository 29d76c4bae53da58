"""Blackouts: all machines lose power at once, and with it whatever no disk has.

Kafka flushes nothing, so an acknowledged record of a topic may go. Where a topic has `flush.messages=1` that is
not so: what was acknowledged with acks=all is on the disks of all in-sync replicas. `__remote_log_metadata` is
such a topic, since local segments are removed because of its records (KIP-405); the topics of these stories
are, too, so that nothing of them is lost either. `__consumer_offsets` is not: groups may find older offsets.
"""

import asyncio

from cluster_fleeting import fleeting
from cluster_nemesis import Nemesis
from cluster_world import World

from ottla.stories.partition.faulty_files import Loss

_LOSSES = (Loss.SUFFIX, Loss.PAGES, Loss.ANYTHING, Loss.EVERYTHING)
#: How long the power is off.
_OFF_S = (0.05, 0.5, 2.0)


async def tiered_blackouts(world: World) -> None:
    """All machines lose power together while segments are copied, removed and expired,
    and the store fails in its threads, too.
    """
    small: dict[str, object] = {
        "internal_segment_bytes": 500,
        "index_interval_bytes": 100,
        "remote_storage_enable": "true",
        "local_retention_bytes": 600,
        "flush_messages": 1,
    }
    await world.create_topic("kept", **small)
    await world.create_topic("sized", retention_bytes=2500, **small)
    for topic in ("kept", "sized"):
        world.produce(topic)
        world.consume(topic)
        world.ask(topic)
    world.begin(fleeting(world, 0, small))
    kinds = (
        "elect", "elect", "kill", "store_slow", "store_late", "store_unacknowledged", "store_crashing",
        "store_crashing", "store_silent",
    )  # fmt: skip
    for _ in range(world.random.choice((1, 2, 2))):
        await Nemesis(world).rage(for_s=2.5, kinds=kinds)
        await black_out(world)
    # What the crashes leave is not repaired by another start.
    await Nemesis(world).rage(
        for_s=2, kinds=("store_crashing", "store_crashing", "store_silent", "store_slow")
    )


async def black_out(world: World) -> None:
    """Cut the power of all machines, and switch it on again."""
    world.note("blackout")
    for machine in world.machines:
        if machine.is_up:
            machine.lose_power(world.random.choice(_LOSSES))
            # To the judge it is a kill: what was acknowledged is on its disk.
            machine.loss_count -= 1
    await asyncio.sleep(world.random.choice(_OFF_S))
    world.note("power is back")
    for machine in world.machines:
        machine.start()
