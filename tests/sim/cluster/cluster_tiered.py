"""Stories of clusters with a remote tier (KIP-405): segments are copied to a bucket, removed locally,
read from there, expired.
"""

import asyncio
from typing import Any

from cluster_branches import give_up_a_branch, return_to_a_branch
from cluster_bucket import CLASS_NAME
from cluster_fleeting import fleeting
from cluster_nemesis import Nemesis
from cluster_violated import Violated
from cluster_world import World

from ottla.protocol.errors import ErrorCode

#: A few records are a segment.
SEGMENTS: dict[str, object] = {"internal_segment_bytes": 500, "index_interval_bytes": 100}
_SMALL: dict[str, object] = {**SEGMENTS, "remote_storage_enable": "true", "local_retention_bytes": 600}

_PREFIX = "rlmm.config.remote.log.metadata"
#: What every node of a tiered cluster has.
SETTINGS: dict[str, object] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": CLASS_NAME,
    "remote.log.storage.manager.process.enable": "false",
    f"{_PREFIX}.topic.num.partitions": 2,
    f"{_PREFIX}.consume.wait.ms": 2000,
    "remote.log.manager.task.interval.ms": 300,
    # In production half an hour.
    "remote.log.manager.transfer.deadline.ms": 3000,
    "remote.log.manager.task.retry.backoff.ms": 50,
    "remote.log.manager.task.retry.backoff.max.ms": 500,
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 400,
}
#: More than the difference of two clocks, one of which is an hour late, the other one an hour early.
_LONG_MS = 3 * 3_600_000
#: The longest time that an acknowledgement takes where nothing but the store fails.
_UNDISTURBED_S = 1.0
#: An outage that lasts longer than every deadline and back-off.
_OUTAGE_S = 150.0


async def tiered(world: World) -> None:
    """Brokers come and go while they copy; records expire, operators delete them, topics, and move replicas."""
    await world.create_topic("kept", **_SMALL)
    await world.create_topic("sized", retention_bytes=2500, **_SMALL)
    await world.create_topic("deleted", is_deletable=True, **_SMALL)
    for topic in ("kept", "sized", "deleted"):
        world.produce(topic)
        world.consume(topic)
        world.ask(topic)
    world.consume("kept", rack="b")
    for number in range(2):
        world.begin(fleeting(world, number, _SMALL))
    kinds = (
        "kill", "kill", "stop", "torn", "power", "isolate", "isolate", "pause", "elect", "elect", "reassign",
        "delete_records", "delete_records", "move", "move",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=5, kinds=kinds)


async def tiered_transactions(world: World) -> None:
    """Transactions span segments and tiers, some of them open for long, while brokers come and go,
    lose their disks, and records expire.
    """
    await world.create_topic("kept", **_SMALL)
    await world.create_topic("sized", retention_bytes=2500, **_SMALL)
    await world.create_topic("deleted", is_deletable=True, **_SMALL)
    for topic in ("kept", "sized", "deleted"):
        for _ in range(2):
            world.produce(topic, is_transactional=True)
        world.produce(topic, pause_s=0.1)
        world.consume(topic, is_read_committed=True, rack=world.random.choice("abc"))
        world.consume(topic, is_read_committed=True)
        world.consume(topic)
        world.ask(topic)
    kinds = (
        "kill", "kill", "stop", "torn", "power", "isolate", "pause", "elect", "elect", "reassign", "reassign",
        "new_disk", "delete_records", "store_slow", "store_unacknowledged",
    )  # fmt: skip
    nemesis, until = Nemesis(world), world.now + 6
    while world.now < until:
        await nemesis.rage(for_s=1.5, kinds=kinds)
        # One that was not there, and reads what has been copied meanwhile.
        world.consume(world.random.choice(("kept", "sized", "deleted")), is_read_committed=True)


async def tiered_store(world: World) -> None:
    """The store fails in every way, while leaders change or while nothing else fails: then no producer notices."""
    random = world.random
    await world.create_topic("kept", **_SMALL)
    await world.create_topic("sized", retention_bytes=1500, **_SMALL)
    for topic in ("kept", "sized"):
        world.produce(topic)
        world.consume(topic)
        world.ask(topic)
    world.begin(fleeting(world, 0, _SMALL))
    await asyncio.sleep(random.uniform(0.5, 2))  # some of it is copied already
    begun = len(world.history.sends)
    before = _leader_epochs(world)
    world.consume("kept")
    kinds = [
        "store_outage", "store_refused", "store_forbidden", "store_unacknowledged", "store_unacknowledged",
        "store_truncated", "store_hanging", "store_slow", "store_slow", "store_late", "store_late",
    ]  # fmt: skip
    if is_calm := random.random() < 0.4:
        await Nemesis(world).rage(for_s=4, kinds=kinds)
    else:
        others = ("kill", "elect", "elect", "isolate", "stop", "pause")
        await Nemesis(world).rage(for_s=5, kinds=(*kinds, *others))
    if random.random() < 0.1:
        world.is_stopping = True
        world.note("store: outage of minutes")
        world.bucket.weather.is_out = True
        await asyncio.sleep(_OUTAGE_S)
    now = _leader_epochs(world)
    for send in world.history.sends[begun:] if is_calm else ():
        # The automatic rebalance moves a leader whose replicas have less or more local data,
        # by the preference of KIP-1303.
        allowed = (
            {ErrorCode.not_leader_or_follower}
            if now.get(send.topic, 0) > before.get(send.topic, 0)
            else set()
        )
        if set(send.errors) - allowed or (send.ended_s or world.now) - send.began_s > _UNDISTURBED_S:
            raise Violated(f"ProducersDoNotNotice: {send}")


def _leader_epochs(world: World) -> dict[str, int]:
    return {topic: image.leader_epoch for topic, _, image in world.partitions()}


async def tiered_clocks(world: World) -> None:
    """Clocks are wrong by an hour, and jump: nothing is lost that is to be kept for longer."""
    await world.create_topic("kept", **_SMALL)
    # Longer than two clocks differ.
    await world.create_topic("long", retention_ms=_LONG_MS, local_retention_ms=300, **_SMALL)
    stamped = {"message_timestamp_type": "LogAppendTime", "segment_ms": 400}
    await world.create_topic("stamped", retention_ms=_LONG_MS, local_retention_ms=300, **_SMALL, **stamped)
    await world.create_topic("aged", retention_ms=1500, **_SMALL)
    world.judge.aging -= {"long", "stamped"}
    world.history.trimmed -= {"long", "stamped"}
    for topic in ("kept", "long", "stamped", "aged"):
        world.produce(topic, is_transactional=topic == "long")
        world.consume(topic, is_read_committed=topic == "long")
    world.begin(fleeting(world, 0, _SMALL))
    kinds = (
        "clock",
        "clock",
        "clock",
        "clock",
        "kill",
        "kill",
        "stop",
        "torn",
        "isolate",
        "elect",
        "elect",
        "store_slow",
    )
    await Nemesis(world).rage(for_s=6, kinds=kinds)


async def tiered_unclean(world: World) -> None:
    """Leaders are elected uncleanly, where the tier has copies of the branch that is given up."""
    configs = {**_SMALL, "min_insync_replicas": 1}
    await world.create_topic("eager", is_unclean=True, unclean_leader_election_enable="true", **configs)
    await world.create_topic("asked", is_unclean=True, **_SMALL)
    for topic in ("eager", "asked"):
        for _ in range(2):
            world.produce(topic, pause_s=0.06)
        world.produce(topic, is_transactional=True)
        world.consume(topic)
        world.consume(topic, validates=True)
        world.consume(topic, is_read_committed=True)
    kinds = (
        "kill", "power", "isolate", "isolate", "pause", "stop", "torn", "orphan", "orphan", "orphan",
        "elect_uncleanly", "elect_uncleanly", "elect", "reassign",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=5, kinds=kinds)


async def tiered_branches(world: World) -> None:
    """One branch after the other is copied, and given up: leaders go on alone, are deposed, truncate,
    and lead again.
    """
    await _begin_branches(world)
    for _ in range(2):
        await give_up_a_branch(world, "eager")


async def tiered_returns(world: World) -> None:
    """A branch is copied, and given up; the same offsets of the other one are copied; and the first one returns."""
    await _begin_branches(world)
    await return_to_a_branch(world, "eager")


async def _begin_branches(world: World) -> None:
    await world.create_topic(
        "eager",
        is_unclean=True,
        unclean_leader_election_enable="true",
        **{**_SMALL, "min_insync_replicas": 1},
    )
    world.produce("eager", pause_s=0.04)
    world.produce("eager", is_transactional=True)
    world.consume("eager", is_read_committed=True)
    await asyncio.sleep(0.5)


async def tiered_switches(world: World) -> None:
    """Tiering is switched on for topics that exist, and off with the deletion of all copies (KIP-950),
    again and again.
    """
    await world.create_topic("switched", retention_bytes=4000, **SEGMENTS)
    await world.create_topic("backfilled", local_retention_bytes=600, **SEGMENTS)
    for topic in ("switched", "backfilled"):
        world.produce(topic)
        world.consume(topic)
    world.switched = {"switched": True, "backfilled": False}
    kinds = (
        "kill",
        "stop",
        "torn",
        "isolate",
        "pause",
        "elect",
        "elect",
        "reassign",
        *("switch_tiering",) * 8,
    )
    await Nemesis(world).rage(for_s=6, kinds=kinds)


#: What their worlds have to have.
WORLDS: dict[str, dict[str, Any]] = {
    "tiered": {"settings": {**SETTINGS, "log.dirs": "/disk/a,/disk/b"}},
    "tiered_transactions": {"settings": SETTINGS},
    "tiered_store": {"settings": SETTINGS},
    "tiered_clocks": {"settings": SETTINGS},
    # As in `unclean`.
    "tiered_unclean": {"controllers": 1, "is_combined": False, "settings": SETTINGS},
    # Enough brokers for the metadata, where one replica of the topic is left.
    "tiered_branches": {"brokers": 5, "controllers": 1, "is_combined": False, "settings": SETTINGS},
    "tiered_returns": {"brokers": 5, "controllers": 1, "is_combined": False, "settings": SETTINGS},
    "tiered_switches": {"settings": SETTINGS},
    "tiered_blackouts": {"settings": SETTINGS},
}
