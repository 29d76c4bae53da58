"""A story of configurations: what decides about deletion or tiering is altered all the time,
as a default and as a topic's own.

Nothing that is drawn lets a record of these topics expire: their log start stays at 0, whatever is set,
unset and set again, for the cluster or for one broker, in whichever order, while brokers come and go.
"""

import asyncio
from contextlib import suppress
from typing import Final

from cluster_clients import UNANSWERED
from cluster_nemesis import Nemesis
from cluster_tiered import SEGMENTS, SETTINGS
from cluster_world import World

from ottla.config.config_def import AlterOperation
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_TOPIC: Final = 2
_BROKER: Final = 4
_POLICIES: Final = ("compact", "compact,delete", "delete", "")
_LOCAL: Final = {"local.retention.ms": ("0", "300", "-2"), "local.retention.bytes": ("0", "600", "-2")}

#: Without limits of its own, but for what the defaults of brokers give it: `delete` is not in its policy.
_ENDLESS: Final[dict[str, object]] = {"cleanup_policy": ""}
#: Its policy is the brokers' default; its own retention has no limit.
_KEPT: Final[dict[str, object]] = {"retention_ms": -1, "retention_bytes": -1}
#: The values of brokers' defaults, None to unset them.
_DEFAULTS: Final = {
    "log.cleanup.policy": (*_POLICIES, None, None),
    "log.retention.ms": ("1", "600", None),
    "log.retention.bytes": ("1", "1500", None),
    **{f"log.{name}": (*values, None) for name, values in _LOCAL.items()},
}
#: Those of each topic.
_OWN: Final[dict[str, dict[str, tuple[str | None, ...]]]] = {
    "kept": {
        "cleanup.policy": ("delete", "", None, None),
        "remote.log.copy.disable": ("true", "false", None),
        **{name: (*values, None) for name, values in _LOCAL.items()},
    },
    "endless": {
        "retention.ms": ("1", "600", None),
        "retention.bytes": ("1", "1500", None),
        "remote.log.copy.disable": ("true", "false", None),
        **{name: (*values, None) for name, values in _LOCAL.items()},
    },
    "untiered": {"retention.ms": ("1", None), "retention.bytes": ("1", None)},
}
_ALL: Final = frozenset(_OWN)


async def tiered_configurations(world: World) -> None:
    """Defaults and topics' own values of retention, policy and tiering change while brokers come and go."""
    tier = {**SEGMENTS, "remote_storage_enable": "true", "local_retention_bytes": 600}
    await world.create_topic("kept", **tier, **_KEPT)
    await world.create_topic("endless", **tier, **_ENDLESS)
    await world.create_topic("untiered", **SEGMENTS, **_ENDLESS)
    # They have retentions, and nothing expires by them.
    world.judge.aging -= _ALL
    world.history.trimmed -= _ALL
    for topic in sorted(_ALL):
        world.produce(topic)
        world.consume(topic)
        world.ask(topic)
    world.begin(_alter(world))
    kinds = ("kill", "stop", "torn", "isolate", "pause", "elect", "elect", "reassign", "store_slow")
    nemesis, until = Nemesis(world), world.now + 6
    while world.now < until:
        await nemesis.rage(for_s=1.5, kinds=kinds)
        world.consume(world.random.choice(sorted(_ALL)))  # from the beginning: what the remote tier has


async def _alter(world: World) -> None:
    random, client = world.random, world.client("configurer")
    while not world.is_stopping:
        await asyncio.sleep(random.uniform(0.02, 0.25))
        if random.random() < 0.6:
            name = random.choice(("", *map(str, world.broker_ids)))
            resource, values = (_BROKER, name), _DEFAULTS
        else:
            topic = random.choice(sorted(_ALL))
            resource, values = (_TOPIC, topic), _OWN[topic]
        key = random.choice(sorted(values))
        value = random.choice(values[key])
        world.note(f"alter {resource[1] or 'all brokers'}: {key}={value}")
        operation = AlterOperation.DELETE if value is None else AlterOperation.SET
        altered = AlterableConfig(name=key, config_operation=operation, value=value)
        row = AlterConfigsResource(resource_type=resource[0], resource_name=resource[1], configs=[altered])
        # What the present values contradict is refused; a broker takes its own values only.
        asked = (
            int(resource[1]) if resource[0] == _BROKER and resource[1] else random.choice(world.broker_ids)
        )
        with suppress(*UNANSWERED):
            await client.request(
                asked, ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[row])
            )


WORLDS: Final = {"tiered_configurations": {"settings": SETTINGS}}
