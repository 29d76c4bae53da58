"""Bounds of group configurations, within which the broker's defaults and each group's values must be.

A group's key such as consumer.session.timeout.ms falls back to the broker's group.consumer.session.timeout.ms,
and both must be between group.consumer.min.session.timeout.ms and group.consumer.max.session.timeout.ms.
Source: GroupCoordinatorConfig, ShareGroupConfig and GroupConfig.validate of Kafka 4.3.1.
"""

from collections.abc import Iterable, Mapping

from ottla.config.config_def import ConfigValue, InvalidConfigValue
from ottla.config.definitions import GROUP_CONFIGS

__all__ = ["GROUP_SYNONYMS", "check_group_bounds", "check_group_defaults"]

#: The broker key that is the default of each group key; group keys that are missing here have their own default.
GROUP_SYNONYMS = {
    name: f"group.{name}"
    for name in GROUP_CONFIGS
    if name not in ("share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable")
}

#: The available assignors; classes of other ones are not loaded.
_ASSIGNORS = {"group.consumer.assignors": ("uniform", "range"), "group.share.assignors": ("simple",)}


def check_group_defaults(broker: Mapping[str, ConfigValue]) -> None:
    """Validate combinations of the broker's own values. Raises InvalidConfigValue."""
    check_group_bounds(
        {name: broker[synonym] for name, synonym in GROUP_SYNONYMS.items()},
        GROUP_SYNONYMS,
        broker,
        prefix="group.",
    )
    sessions, members = broker["group.share.max.share.sessions"], broker["group.share.max.size"]
    assert isinstance(sessions, int), sessions
    assert isinstance(members, int), members
    if sessions < members:
        raise InvalidConfigValue(
            "group.share.max.share.sessions", sessions, f"at least group.share.max.size ({members})"
        )
    for name, known in _ASSIGNORS.items():
        asked = broker[name]
        assert isinstance(asked, tuple), asked
        if not asked or not set(asked) <= set(known):
            raise InvalidConfigValue(
                name, ",".join(asked), f"a non-empty list with entries out of {', '.join(known)}"
            )


def check_group_bounds(
    values: Mapping[str, ConfigValue],
    names: Iterable[str],
    broker: Mapping[str, ConfigValue],
    *,
    prefix: str = "",
) -> None:
    """The values of `names`, group keys, must be within the broker's bounds; sessions exceed heartbeat intervals.

    `prefix` precedes the names in error messages. Raises InvalidConfigValue.
    """
    for name in names:
        kind, _, rest = name.partition(".")
        bounds = [f"group.{kind}.{end}.{rest.removeprefix('num.')}" for end in ("min", "max")]
        low, high, value = (broker.get(bounds[0]), broker.get(bounds[1]), values[name])
        if not isinstance(value, int):
            continue
        if isinstance(low, int) and value < low:
            raise InvalidConfigValue(prefix + name, value, f"at least {bounds[0]} ({low})")
        if isinstance(high, int) and value > high:
            raise InvalidConfigValue(prefix + name, value, f"at most {bounds[1]} ({high})")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = (
            values[f"{kind}.{rest}"] for rest in ("session.timeout.ms", "heartbeat.interval.ms")
        )
        assert isinstance(session, int), session
        assert isinstance(heartbeat, int), heartbeat
        if session <= heartbeat:
            allowed = f"greater than {prefix}{kind}.heartbeat.interval.ms ({heartbeat})"
            raise InvalidConfigValue(f"{prefix}{kind}.session.timeout.ms", session, allowed)
