"""Stories of clusters with a remote tier (KIP-405): segments are copied to a bucket, removed locally, read from there, expired."""

from typing import Any

from cluster_bucket import CLASS_NAME
from cluster_nemesis import Nemesis
from cluster_world import World

#: A few records are a segment.
_SMALL: dict[str, object] = {
    "remote_storage_enable": "true",
    "internal_segment_bytes": 500,
    "index_interval_bytes": 100,
    "local_retention_bytes": 600,
}

_PREFIX = "rlmm.config.remote.log.metadata"
#: What every node of a tiered cluster has.
SETTINGS: dict[str, object] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": CLASS_NAME,
    "remote.log.storage.manager.process.enable": "false",
    f"{_PREFIX}.topic.num.partitions": 2,
    f"{_PREFIX}.consume.wait.ms": 2000,
    "remote.log.manager.task.interval.ms": 300,
    "remote.log.manager.task.retry.backoff.ms": 50,
    "remote.log.manager.task.retry.backoff.max.ms": 500,
    "log.initial.task.delay.ms": 100,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 400,
}
WORLD: dict[str, Any] = {"settings": SETTINGS}


async def tiered(world: World) -> None:
    """Brokers come and go while they copy; records expire, operators delete them."""
    await world.create_topic("kept", **_SMALL)
    await world.create_topic("sized", retention_bytes=2500, **_SMALL)
    await world.create_topic("deleted", is_deletable=True, **_SMALL)
    for topic in ("kept", "sized", "deleted"):
        world.produce(topic)
        world.consume(topic)
        world.ask(topic)
    world.consume("kept", rack="b")
    kinds = (
        "kill", "kill", "stop", "torn", "power", "isolate", "isolate", "pause", "elect", "elect", "reassign",
        "delete_records", "delete_records",
    )  # fmt: skip
    await Nemesis(world).rage(for_s=5, kinds=kinds)
