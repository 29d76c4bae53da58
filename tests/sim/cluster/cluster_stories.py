"""The stories: what happens to a cluster while clients write and read. Each is a coroutine function of a world."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from cluster_blackouts import tiered_blackouts
from cluster_configurations import WORLDS as CONFIGURATION_WORLDS
from cluster_configurations import tiered_configurations
from cluster_group_blackouts import SETTINGS as GROUP_SETTINGS
from cluster_group_blackouts import group_blackouts
from cluster_groups import groups
from cluster_local_logs import tier_aware_settings
from cluster_nemesis import Nemesis
from cluster_operator import Operator
from cluster_parked import parked
from cluster_sizes import SMALLEST
from cluster_tiered import WORLDS as TIERED_WORLDS
from cluster_tiered import (
    tiered,
    tiered_branches,
    tiered_clocks,
    tiered_returns,
    tiered_store,
    tiered_switches,
    tiered_transactions,
    tiered_unclean,
)
from cluster_violated import Violated
from cluster_world import Story, World

from ottla.runtime import Pool
from ottla.runtime.pools import THREADS

#: What happens besides to a quorum whose voters are in its log.
_VOTER_CHANGES = ("voter_add", "voter_add", "voter_remove", "voter_remove")


async def peace(world: World) -> None:
    """Run the cluster without any fault."""
    await world.create_topic("t", partitions=2)
    for partition in range(2):
        world.produce("t", partition)
        world.consume("t", partition)
    await asyncio.sleep(3)


async def _clients(world: World) -> None:
    """Two partitions that are written and read, by leaders and by followers."""
    await world.create_topic("t", partitions=2)
    for partition in range(2):
        world.produce("t", partition)
        world.consume("t", partition)
        world.consume("t", partition, rack=world.random.choice("abc"))


async def crashes(world: World) -> None:
    """Processes die, also in the middle of a write; machines lose power; nodes are stopped properly."""
    await _clients(world)
    await Nemesis(world).rage(for_s=4.5, kinds=("kill", "power", "stop", "torn"))


async def bad_network(world: World) -> None:
    """Ways are cut, one way or both, and slow; processes stand still; clocks are wrong."""
    await _clients(world)
    await Nemesis(world).rage(
        for_s=4.5, kinds=("cut", "cut", "isolate", "isolate", "delay", "pause", "clock")
    )


async def administration(world: World) -> None:
    """Partitions move, leaders are elected, topics come and go, while some of it is restarted."""
    await _clients(world)
    kinds = ("reassign", "reassign", "elect", "min_isr", "topics", "kill", "stop", "pause")
    await Nemesis(world).rage(for_s=4.5, kinds=kinds + _VOTER_CHANGES * world.is_dynamic)


async def voters(world: World) -> None:
    """Voters of the metadata quorum are added, removed, found elsewhere and lose their disks,
    while others fail (KIP-853).
    """
    await _clients(world)
    kinds = (
        "kill", "power", "stop", "torn", "isolate", "isolate", "cut", "pause", "delay", "new_disk", "new_disk",
        "elect", "topics", "topics", "min_isr", "port", "port",
    )  # fmt: skip
    await Nemesis(world).rage(
        for_s=6, kinds=(*kinds, *_VOTER_CHANGES * 3), is_hasty=world.random.random() < 0.5
    )


async def bad_disks(world: World) -> None:
    """Disks are slow, or fail for a while; power is lost."""
    await _clients(world)
    await Nemesis(world).rage(for_s=4.5, kinds=("disk", "slow", "slow", "torn", "power", "kill", "new_disk"))


def slow_ways(world: World, delays_s: Sequence[float]) -> None:
    """Brokers are far from each other."""
    for machine in world.brokers:
        for other in world.brokers:
            world.simulation.network.conditions.delays_s[machine.host, other.host] = world.random.choice(
                delays_s
            )


async def restless(world: World) -> None:
    """Leaders change fast, with tails that no follower has yet: logs diverge all the time."""
    await world.create_topic("loose", partitions=2)
    for partition in range(2):
        for _ in range(2):
            world.produce("loose", partition, acks=1, pause_s=0.03)
        # Goes on behind an acknowledged write that is lost, where an idempotent producer gets an error.
        world.produce("loose", partition, is_idempotent=False)
        world.consume("loose", partition, rack="b")
    slow_ways(world, (0.0, 0.005, 0.03))
    kinds = ("kill", "kill", "isolate", "pause", "elect", "stop", "power")
    await Nemesis(world).rage(for_s=4, kinds=kinds, is_hasty=True)


async def late_words(world: World) -> None:
    """Messages of one leader epoch arrive in a later one: leaders change faster than brokers learn of each other."""
    await world.create_topic("loose", replicas=len(world.brokers))
    for _ in range(3):
        world.produce("loose", acks=1, pause_s=0.04)
    world.consume("loose", rack="a")
    world.consume("loose", rack="b")
    random, operator, until = world.random, Operator(world), world.now + 5
    while world.now < until:
        slow_ways(world, (0.0, 0.0, 0.02, 0.1, 0.3, 0.6))
        operator.crown("loose", 0, random.choice(world.broker_ids))
        await asyncio.sleep(random.choice((0.05, 0.15, 0.4)) * random.uniform(0.5, 1.5))


async def amnesia(world: World) -> None:
    """Machines lose power and are back at once, with less than they had, long before their leaders learn
    of it (KIP-903).
    """
    for topic in ("busy", "idle"):
        await world.create_topic(topic)
        world.consume(topic)
    world.produce("busy", acks=1)
    world.produce("idle", pause_s=0.8)
    nemesis, until = Nemesis(world), world.now + 6
    while world.now < until:
        slow_ways(world, (0.0, 0.0, 0.3, 0.9))
        await nemesis.rage(for_s=1.5, kinds=("blackout", "blackout", "elect"), is_hasty=True)


async def beside_the_loop(world: World) -> None:
    """Threads read, validate and truncate for long, with slices lent to slow connections, while leaders change."""
    random, operator = world.random, Operator(world)
    packed = random.choice(({"compression_type": "gzip"}, {"cleanup_policy": "compact"}))
    await world.create_topic("plain", replicas=len(world.brokers))
    await world.create_topic("packed", replicas=len(world.brokers), **packed)
    delays_s = world.simulation.network.conditions.delays_s
    world.simulation.network.conditions.window_bytes = random.choice((100, 300, 1_000))
    for topic in ("plain", "packed"):
        keys = 4 if topic == "packed" and "cleanup_policy" in packed else 0
        for acks in (-1, 1, 1):
            world.produce(topic, keys=keys, acks=acks)
        world.consume(topic)
        world.consume(topic, rack=random.choice("abc"))
    nemesis, until = Nemesis(world), world.now + 5
    disks = asyncio.ensure_future(nemesis.rage(for_s=5, kinds=("slow", "slow", "kill"), is_hasty=True))
    while world.now < until:
        slow_ways(world, (0.0, 0.0, 0.02, 0.1, 0.3, 0.6))
        for machine in world.brokers:
            nemesis.busy(machine)
            machine.is_cold = 0.6
            for consumer in world.consumers:
                delays_s[machine.host, consumer.name] = random.choice((0.0, 0.1, 0.4))
        if random.random() < 0.4:  # a new consumer, which reads all that there is
            world.consume("plain", rack=random.choice("bc"))
        # Of two, so that the last leader but one leads again.
        operator.crown(random.choice(("plain", "packed")), 0, random.choice(world.broker_ids[:2]))
        await asyncio.sleep(random.choice((0.05, 0.15, 0.4)) * random.uniform(0.5, 1.5))
    await disks


async def slow_reads(world: World) -> None:
    """Consumers read from a slow disk, more of them than there are threads for reads:
    the controller on it is not deposed.

    Disks that are slow everywhere would show less: followers that wait as long as their leader elect no other.
    """
    await world.create_topic("t", partitions=len(world.brokers))
    for partition in range(len(world.brokers)):
        world.produce("t", partition, pause_s=0.1)
    await asyncio.sleep(1)
    leaders = world.judge.quorum_leaders
    [machine] = [each for each in world.machines if each.node_id == leaders[max(leaders)]]
    machine.is_cold = 1.0
    assert machine.runtime is not None
    machine.runtime.interleaving.operation_s = _slow_to_read
    for partition in range(len(world.brokers)):
        for _ in range(THREADS[Pool.READS] + 4):
            world.consume("t", partition)
    await asyncio.sleep(3)
    if (now := world.judge.quorum_leaders) != leaders:
        raise Violated(f"NoLeaderIsDeposed: {leaders}, then {now}")


def _slow_to_read(operation: str, path: Path) -> float:
    is_of_partition = operation in ("pread", "map") and "__cluster_metadata-0" not in path.parts
    return 0.4 if is_of_partition else 0.0


async def everything(world: World) -> None:
    """Inject the faults of all earlier stories."""
    await _clients(world)
    world.produce("t", 0)
    await world.create_topic("loose", min_insync_replicas=world.random.choice((1, 2)))
    world.produce("loose", acks=1)
    world.consume("loose")
    kinds = (
        "kill", "power", "stop", "torn", "disk", "slow", "pause", "clock",
        "cut", "cut", "isolate", "delay", "reassign", "elect", "min_isr", "topics", "new_disk",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=6, kinds=kinds + (*_VOTER_CHANGES, "port") * world.is_dynamic)


async def unclean(world: World) -> None:
    """Leaders are elected that lack what was acknowledged: by themselves, or because an operator wants
    them (KIP-101, A).
    """
    await world.create_topic(
        "eager", is_unclean=True, unclean_leader_election_enable="true", min_insync_replicas=1
    )
    await world.create_topic("asked", is_unclean=True)
    for topic in ("eager", "asked"):
        world.ask(topic)
        for _ in range(2):
            world.produce(topic, pause_s=0.06)
        world.consume(topic)
        world.consume(topic, rack=world.random.choice("abc"))
        world.consume(topic, validates=True)
    kinds = (
        "kill", "power", "isolate", "isolate", "pause", "stop", "torn", "orphan", "orphan", "orphan",
        "elect_uncleanly", "elect_uncleanly", "elect", "reassign",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=5, kinds=kinds)


async def questions(world: World) -> None:
    """Ask all the time for starts and ends of logs and epochs, while leaders change fast."""
    await world.create_topic("t", partitions=2)
    for partition in range(2):
        world.produce("t", partition, pause_s=0.08)
        world.produce("t", partition, acks=1, pause_s=0.08)
        world.consume("t", partition, validates=True)
        world.ask("t", partition)
    # A leader is asked before it knows how far its predecessor had come.
    slow_ways(world, (0.0, 0.1, 0.3))
    kinds = ("kill", "isolate", "isolate", "delay", "pause", "elect", "reassign", "stop", "power")
    await Nemesis(world).rage(for_s=4, kinds=kinds, is_hasty=True)


async def retention(world: World) -> None:
    """Records age, logs grow too long, operators delete, and older values of keys go, while brokers come and go."""
    segments = {"internal_segment_bytes": 500, "index_interval_bytes": 100}
    await world.create_topic("aged", retention_ms=1200, **segments)
    await world.create_topic("sized", retention_bytes=1500, **segments)
    await world.create_topic("deleted", is_deletable=True, **segments)
    await world.create_topic("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio=0.1, **segments)
    for topic in ("aged", "sized", "deleted"):
        world.produce(topic)
        world.consume(topic)
        world.ask(topic)
    world.consume("deleted", rack="b")
    world.produce("compacted", keys=5)
    world.produce("compacted", keys=5)
    world.consume("compacted")
    world.consume("compacted", rack="b")
    kinds = (
        "kill", "kill", "stop", "torn", "isolate", "isolate", "pause", "reassign", "elect",
        "delete_records", "delete_records", "delete_records", "delete_records",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=5, kinds=kinds)


async def directories(world: World) -> None:
    """Brokers have several disks: one of them fails, and replicas move from one to another."""
    await world.create_topic("t", partitions=4)
    for partition in range(4):
        world.produce("t", partition)
        world.consume("t", partition)
    kinds = (
        "directory", "directory", "directory", "directory", "directory", "directory", "move", "move", "move", "move",
        "kill", "stop", "isolate", "pause", "reassign", "elect",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=5, kinds=kinds)


async def left_directories(world: World) -> None:
    """Log directories are taken out, replaced, renamed, put back and put into other brokers at restarts."""
    await world.create_topic("t", partitions=4)
    for partition in range(4):
        world.produce("t", partition)
        world.consume("t", partition)
    kinds = ("directory", "move", "kill", "stop", "stop", "pause", "reassign", "elect")
    await Nemesis(world).rage(for_s=7, kinds=("log_dirs",) * 12 + kinds, is_hasty=True)


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        crashes,
        bad_network,
        administration,
        voters,
        bad_disks,
        restless,
        late_words,
        amnesia,
        beside_the_loop,
        slow_reads,
        everything,
        unclean,
        questions,
        retention,
        directories,
        left_directories,
        parked,
        groups,
        group_blackouts,
        tiered,
        tiered_transactions,
        tiered_store,
        tiered_unclean,
        tiered_branches,
        tiered_returns,
        tiered_clocks,
        tiered_switches,
        tiered_blackouts,
        tiered_configurations,
    )
}

#: What the worlds of some have to have; the rest is drawn.
WORLDS: dict[str, dict[str, Any]] = {
    # A controller whose messages reach all nodes at once.
    "late_words": {"controllers": 1, "is_combined": False},
    "amnesia": {"controllers": 1, "is_combined": False},
    "parked": {"controllers": 1, "is_combined": False},
    "voters": {"spares": 2},
    "slow_reads": {"brokers": 3, "controllers": 3, "is_combined": True, "sizes": SMALLEST},
    "beside_the_loop": {"controllers": 1, "is_combined": False, "sizes": SMALLEST},
    "groups": {"settings": {"group.initial.rebalance.delay.ms": 0, "offsets.load.buffer.size": 300}},
    "group_blackouts": {"brokers": 3, "settings": GROUP_SETTINGS},
    # With controllers of their own, brokers can be gone and an election be held.
    "unclean": {"controllers": 1, "is_combined": False},
    "directories": {"settings": {"log.dirs": "/disk/a,/disk/b,/disk/c"}},
    "left_directories": {"settings": {"log.dirs": "/disk/a,/disk/b,/disk/c"}},
    **TIERED_WORLDS,
    **CONFIGURATION_WORLDS,
    "retention": {
        "settings": {
            "log.initial.task.delay.ms": 100,
            "log.retention.check.interval.ms": 500,
            "log.segment.delete.delay.ms": 400,
            "log.cleaner.backoff.ms": 400,
        }
    },
}


def shape_of(name: str, seed: int) -> dict[str, Any]:
    """The numbers of brokers and controllers, whether some nodes are both, and the story's own settings."""
    random = Random(f"{name} {seed}")
    shape = {
        "brokers": random.choice((3, 3, 4, 5)),
        "controllers": random.choice((1, 3, 3, 5)),
        "is_combined": random.random() < 0.5,
    }
    if name in ("administration", "everything") and Random(f"voters {name} {seed}").random() < 0.5:
        shape["spares"] = 1
    shape |= WORLDS.get(name, {})
    if name in TIERED_WORLDS:
        shape["settings"] = shape["settings"] | tier_aware_settings(name, seed)
    return shape


def run_story(name: str, seed: int, *, is_quiet: bool = True) -> World:
    """Run a story to its end, and check its history against Kafka's guarantees. Raises what is wrong."""
    world = World(seed, is_quiet=is_quiet, **shape_of(name, seed))
    with world:
        world.run(STORIES[name])
    errors = world.checked()
    assert not errors, errors
    return world
